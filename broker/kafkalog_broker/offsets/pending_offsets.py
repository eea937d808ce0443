"""Offsets stored in open transactions. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kafkalog_broker.offsets.offset_records import CommittedOffset, OffsetKey


class PendingOffsets:
    """*Not thread-safe: its shard's lock guards it.* Offsets by producer, until its transaction ends. The
    record latest in the log counts, whenever its transaction commits.
    """

    def __init__(self) -> None:
        self._open: dict[int, dict[OffsetKey, tuple[int, CommittedOffset] | None]] = {}
        """By producer id: the record's place in the log and its value; None once superseded."""

    def add(self, producer_id: int, place: int, offsets: Mapping[OffsetKey, CommittedOffset]) -> None:
        """Add offsets stored by the producer's transaction; ``place`` rises with each call."""
        found = self._open.setdefault(producer_id, {})
        found.update({key: (place, value) for key, value in offsets.items()})

    def overtake(self, keys: Iterable[OffsetKey], place: int) -> None:
        """Mark pending records before ``place`` as superseded by committed records or deletions."""
        for found in self._open.values():
            for key in keys:
                pending = found.get(key)
                if pending is not None and pending[0] < place:
                    found[key] = None

    def end(self, producer_id: int, *, commit: bool) -> dict[OffsetKey, CommittedOffset]:
        """End the producer's transaction; returns the offsets that now count."""
        found = self._open.pop(producer_id, {})
        if not commit:
            return {}
        valid = {key: pending for key, pending in found.items() if pending is not None}
        for key, (place, _) in valid.items():
            self.overtake((key,), place)
        return {key: value for key, (_, value) in valid.items()}

    def has(self, key: OffsetKey) -> bool:
        """Whether an open transaction has an offset for this key."""
        return any(key in found for found in self._open.values())
