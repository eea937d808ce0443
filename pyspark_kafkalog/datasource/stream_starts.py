"""Where a query began, kept until its first batch is done.

Spark asks a source where to begin and writes the end of the first batch down, but not its start. A query
that dies in that batch asks again; what was resolved (``latest``, a time) is another offset by then, and the
batch would have other rows. So the start is kept before it is used, and is *spent* once the batch is done: a
query with a new checkpoint begins anew.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Protocol

from pyspark_kafkalog.datasource.offsets import OffsetsByPartition
from pyspark_kafkalog.datasource.stream_offsets import decode_offsets, encode_offsets
from pyspark_kafkalog.errors import InvalidConfig
from pyspark_kafkalog.loads.layout import LOAD
from pyspark_kafkalog.loads.store import Below, Store, open_store
from pyspark_kafkalog.types import TopicPartition

if TYPE_CHECKING:
    from pyspark_kafkalog.datasource.generations import SourceLookup
    from pyspark_kafkalog.datasource.stream_options import StreamOptions

NOTE = "kafkalog start"
"""The metadata of a group's offsets that are a start. Brokers may allow few characters."""

_RECORD = re.compile(r"start-([0-9]{8})\.json")


class StartKeeper(Protocol):
    """Keeps the start of one query. Every method raises `KafkaError` where its place fails."""

    def kept(self, partitions: Collection[TopicPartition]) -> OffsetsByPartition | None:
        """The start that is kept and not spent, if any; ``partitions`` are those that there are."""
        ...

    def keep(self, start: OffsetsByPartition) -> OffsetsByPartition:
        """Keep a start, durably. What counts is returned: another one where somebody was faster."""
        ...

    def spend(self) -> None:
        """The first batch is done. Costs nothing when it was spent before."""
        ...


class FileStarts:
    """*Not thread-safe.* Starts in files: ``start-00000001.json``, and ``.done`` beside it when it is spent.

    Each query with a new checkpoint has the next number; the newest counts.
    """

    def __init__(self, store: Store) -> None:
        """``store`` holds this query's files and no other's."""
        self._store = store
        self._spent = False

    def kept(self, partitions: Collection[TopicPartition]) -> OffsetsByPartition | None:  # noqa: ARG002
        if self._store.exists(LOAD):
            raise InvalidConfig(
                f"streamName: {self._store.location} is the ledger of a load; give the stream another name"
            )
        number = self._newest()
        return None if number == 0 or self._store.exists(_done(number)) else self._read(number)

    def keep(self, start: OffsetsByPartition) -> OffsetsByPartition:
        number = self._newest() + 1
        data = json.dumps(encode_offsets(start), indent=2).encode() + b"\n"
        self._spent = False
        return dict(start) if self._store.create(_name(number), data) else self._read(number)

    def spend(self) -> None:
        number = 0 if self._spent else self._newest()
        if number:
            self._store.create(_done(number), b"")
        self._spent = True

    def _newest(self) -> int:
        found = [_RECORD.fullmatch(name) for name in self._store.names("")]
        return max((int(one[1]) for one in found if one), default=0)

    def _read(self, number: int) -> OffsetsByPartition:
        try:
            return decode_offsets(json.loads(self._store.read(_name(number)) or b""))
        except (ValueError, InvalidConfig) as e:
            raise InvalidConfig(
                f"{self._store.location}/{_name(number)} does not tell where the stream began: {e}. Remove "
                "it if the query may begin where startingOffsets says"
            ) from e


class GroupStarts:
    """*Not thread-safe.* A start among the committed offsets of a group, told from others by `NOTE`.

    It is spent when the group is told other offsets, which `StreamDriver` does anyway.
    """

    def __init__(self, lookup: Callable[[], SourceLookup], group: str) -> None:
        self._lookup, self._group = lookup, group

    def kept(self, partitions: Collection[TopicPartition]) -> OffsetsByPartition | None:
        return self._lookup().group_offsets(self._group, partitions, note=NOTE) or None

    def keep(self, start: Mapping[TopicPartition, int]) -> OffsetsByPartition:
        self._lookup().commit_group(self._group, start, note=NOTE)
        return dict(start)

    def spend(self) -> None:
        """Nothing: the commit of the batch's end has no note."""


def keeper_for(options: StreamOptions, lookup: Callable[[], SourceLookup]) -> StartKeeper | None:
    """What the options name; None where they name nothing."""
    place = options.start_place
    if place is not None:
        return FileStarts(Below(open_store(place.offsets_path), place.name))
    if options.commits_group and options.group_id is not None and options.group_store is None:
        return GroupStarts(lookup, options.group_id)
    return None


def _name(number: int) -> str:
    return f"start-{number:08}.json"


def _done(number: int) -> str:
    return f"start-{number:08}.done"
