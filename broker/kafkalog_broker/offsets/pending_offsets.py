"""Offsets that a transaction has stored and not yet committed. Pure; the shard that owns it has the lock."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kafkalog_broker.offsets.offset_records import CommittedOffset, OffsetKey


class PendingOffsets:
    """*Not thread-safe: its shard's lock guards it.* By producer, until the marker of its transaction.

    Of several records for one key that come last in the log counts, whenever its transaction is committed:
    what comes later overtakes what is pending.
    """

    def __init__(self) -> None:
        self._open: dict[int, dict[OffsetKey, tuple[int, CommittedOffset] | None]] = {}
        """By producer id: the place of the record in the log, and its value; None once it is overtaken."""

    def add(self, producer_id: int, place: int, offsets: Mapping[OffsetKey, CommittedOffset]) -> None:
        """The producer's transaction has stored these; ``place`` rises with each call, as the log does."""
        found = self._open.setdefault(producer_id, {})
        found.update({key: (place, value) for key, value in offsets.items()})

    def overtake(self, keys: Iterable[OffsetKey], place: int) -> None:
        """At ``place`` there are records of these keys that count, or are deletions."""
        for found in self._open.values():
            for key in keys:
                pending = found.get(key)
                if pending is not None and pending[0] < place:
                    found[key] = None

    def end(self, producer_id: int, *, commit: bool) -> dict[OffsetKey, CommittedOffset]:
        """The producer's transaction has ended: what counts from now on."""
        found = self._open.pop(producer_id, {})
        if not commit:
            return {}
        valid = {key: pending for key, pending in found.items() if pending is not None}
        for key, (place, _) in valid.items():
            self.overtake((key,), place)
        return {key: value for key, (_, value) in valid.items()}

    def has(self, key: OffsetKey) -> bool:
        """Whether an open transaction has stored an offset for this key."""
        return any(key in found for found in self._open.values())
