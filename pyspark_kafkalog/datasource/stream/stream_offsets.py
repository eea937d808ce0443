"""The offsets of a stream as JSON, in Spark's checkpoint, and the stored start of the first batch.

Version 2 is ``{"version": 2, "offsets": {"topic": {"0": 23}}, "topicIds": {"topic": "<id>"}}``, the next
offset to read of each partition, and the topics' ids, which show recreated topics; Kafka before 2.8 has none.
A partition of 0.7 is ``<broker>-<number>``. Without a version it is version 0, ``{"topic": {"0": 23}}``, the
form of Spark's own connector, whose checkpoints a query can continue.

Spark writes down the end of the first batch, but not its start. A query that dies in that batch asks again;
by then ``latest`` or a time means another offset. So the start is stored before it is used, and *spent* once
the batch is done: a query with a new checkpoint starts over.
"""

from __future__ import annotations

import json
import logging
import re
from collections import defaultdict
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from pyspark_kafkalog.config.definition import LONG_MAX
from pyspark_kafkalog.datasource.options.topics_and_offsets import OffsetsByPartition, partition_named
from pyspark_kafkalog.errors import InvalidConfig, KafkaError
from pyspark_kafkalog.ledger.records import LOAD
from pyspark_kafkalog.ledger.stores.locations import open_store
from pyspark_kafkalog.ledger.stores.store import Store, SubStore
from pyspark_kafkalog.types import TopicPartition

if TYPE_CHECKING:
    from pyspark_kafkalog.datasource.options.option_definitions import StreamOptions
    from pyspark_kafkalog.datasource.reading.source_cluster import SourceCluster

VERSION = 2


class StreamOffset(msgspec.Struct, frozen=True):
    """Where a batch begins or ends: the next offset of each partition, and their topics' ids, if known."""

    offsets: OffsetsByPartition
    topic_ids: dict[str, str] = msgspec.field(default_factory=dict)

    def recreated(self, later: StreamOffset) -> dict[str, tuple[str, str]]:
        """The topics that have another id ``later``, with both ids."""
        ids = {t: (i, later.topic_ids.get(t, i)) for t, i in sorted(self.topic_ids.items())}
        return {topic: (before, now) for topic, (before, now) in ids.items() if before != now}

    def continued(self, later: StreamOffset) -> OffsetsByPartition:
        """The offsets in topics that were not recreated."""
        gone = self.recreated(later)
        return {p: offset for p, offset in self.offsets.items() if p.topic not in gone}


def encode_offsets(offset: StreamOffset) -> dict[str, Any]:
    """An offset as a dict for JSON; equal offsets give equal JSON."""
    by_topic: dict[str, dict[str, int]] = {}
    for partition, next_offset in sorted(offset.offsets.items()):
        by_topic.setdefault(partition.topic, {})[partition.number] = next_offset
    return {"version": VERSION, "offsets": by_topic, "topicIds": dict(sorted(offset.topic_ids.items()))}


def decode_offsets(kept: object) -> StreamOffset:
    """Decodes the offset of `encode_offsets` or Spark's own connector. Raises `InvalidConfig`."""
    form: object = kept
    ids: object = {}
    if isinstance(kept, dict) and type(kept.get("version")) is int:
        version = kept["version"]
        if version > VERSION:
            raise InvalidConfig(
                f"the checkpoint's offsets have version {version}, and this pyspark-kafkalog knows {VERSION} "
                "at most: it was written by a newer one. Use that, or a new checkpoint"
            )
        form, ids = (kept.get("offsets"), kept.get("topicIds")) if version == VERSION else (None, None)
    if not isinstance(form, dict) or not isinstance(ids, dict) or {*map(type, ids.values())} - {str}:
        raise InvalidConfig(f"the checkpoint has no offsets of kafkalog: {kept!r}")
    found: OffsetsByPartition = {}
    for topic, partitions in form.items():
        for name, offset in partitions.items() if isinstance(partitions, dict) else [("", None)]:
            partition = partition_named(topic, name)
            if partition is None or type(offset) is not int or not 0 <= offset <= LONG_MAX:
                raise InvalidConfig(f"the checkpoint has no offsets of kafkalog: {kept!r}")
            found[partition] = offset
    return StreamOffset(found, ids)


_NOTE = "kafkalog start"
"""Metadata of a start's offsets; brokers may allow few characters. ``2:12``: version 2, 12 partitions."""
_NOTED = re.compile(_NOTE + r" ([0-9]{1,9})(?::([0-9]{1,9}))?.*")
_VERSION = 2

log = logging.getLogger(__name__)

_START, _SPENT = "json", "done"
_RECORD = re.compile(rf"start-([0-9]{{8}})\.({_START}|{_SPENT})")


class StartSuperseded(KafkaError):
    """Another run of this stream stored a start, and is ahead."""


class FileStarts:
    """*Not thread-safe.* ``start-00000001.json``, and ``.done`` beside it when it is spent. No number is used
    twice, so a driver presumed dead cannot change its successor's start.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._number: int | None = None
        """Number of this run's start, or of the spent one before it."""
        self._spent = False

    def kept(self, partitions: Collection[TopicPartition]) -> StreamOffset | None:  # noqa: ARG002
        """The stored start, unless spent; ``partitions`` are the existing ones."""
        if self._store.exists(LOAD):
            raise InvalidConfig(
                f"streamName: {self._store.location} is the ledger of a load; give the stream another name"
            )
        while True:
            self._number = number = self._newest()
            if number == 0 or self._store.exists(_name(number, _SPENT)):
                return None
            found = self._read(number)
            if found is not None:
                return found
            # Another driver removed it meanwhile, for a newer one.

    def keep(self, start: StreamOffset) -> StreamOffset:
        """Store a start, durably. Returns the start that counts: another run's if that was faster."""
        number = (self._newest() if self._number is None else self._number) + 1
        data = json.dumps(encode_offsets(start), indent=2).encode() + b"\n"
        created = self._store.create(_name(number), data)
        counts = start if created else self._read(number)
        if (
            counts is None
            or self._newest() > number
            or (not created and self._store.exists(_name(number, _SPENT)))
        ):
            # A start that another driver has spent is not this one's start.
            raise StartSuperseded(
                f"{self._store.location}: another run of this stream began at the same time and is ahead: "
                "stop one of the two, or give it another streamName"
            )
        self._number, self._spent = number, False
        self._remove_before(number)
        return counts

    def spend(self) -> None:
        """The first batch is done. Does nothing if the start was spent before."""
        if self._spent:
            return
        number = self._newest() if self._number is None else self._number
        if number:
            self._store.create(_name(number, _SPENT), b"")
        self._spent = True

    def _newest(self) -> int:
        return max((number for number, ending in self._records() if ending == _START), default=0)

    def _records(self) -> list[tuple[int, str]]:
        found = [_RECORD.fullmatch(name) for name in self._store.names("")]
        return [(int(one[1]), one[2]) for one in found if one]

    def _remove_before(self, newest: int) -> None:
        """Remove older starts, each before its ``.done`` file, so that none looks unspent."""
        for number, ending in sorted(self._records(), key=lambda record: (record[0], record[1] != _START)):
            if number < newest:
                self._store.remove(_name(number, ending))

    def _read(self, number: int) -> StreamOffset | None:
        data = self._store.read(_name(number))
        if data is None:
            return None
        try:
            return decode_offsets(json.loads(data))
        except (ValueError, InvalidConfig) as e:
            raise InvalidConfig(
                f"{self._store.location}/{_name(number)} does not say where the stream began: {e}. Remove "
                "it if the query may begin where startingOffsets says"
            ) from e


class GroupStarts:
    """*Not thread-safe.* A start among a group's offsets, marked by their metadata until the next commit."""

    def __init__(self, cluster: Callable[[], SourceCluster], group: str) -> None:
        self._cluster, self._group = cluster, group

    def kept(self, partitions: Collection[TopicPartition]) -> StreamOffset | None:
        """An incomplete start does not count: the commit that stored it, or spent it, was cut short."""
        by_count: dict[int, OffsetsByPartition] = defaultdict(dict)
        for partition, (offset, note) in self._cluster().group_metadata(self._group, partitions).items():
            marked = _NOTED.fullmatch(note)
            if marked is None:
                continue
            version, count = int(marked[1]), int(marked[2] or 0)
            if version > _VERSION:
                raise InvalidConfig(
                    f"group {self._group} keeps where the stream began in version {version} ({note!r}), and "
                    f"this pyspark-kafkalog knows {_VERSION} at most: use the newer one"
                )
            by_count[count][partition] = offset
        for count, found in sorted(by_count.items(), reverse=True):
            if len(found) >= count:
                return StreamOffset(found)
            log.warning(
                "the start that group %s keeps has %d of %d partitions and does not count: "
                "startingOffsets is resolved again",
                self._group, len(found), count,
            )  # fmt: skip
        return None

    def keep(self, start: StreamOffset) -> StreamOffset:
        # Without topic ids: with a topic the broker deletes its offsets.
        note = f"{_NOTE} {_VERSION}:{len(start.offsets)}"
        self._cluster().commit_group(self._group, start.offsets, metadata=note)
        return start

    def spend(self) -> None:
        """Does nothing: the commit of the batch's end has no such metadata."""


StartKeeper: TypeAlias = FileStarts | GroupStarts
"""Stores the start of one query. Every method raises `KafkaError` if the store or cluster fails."""


def keeper_for(options: StreamOptions, cluster: Callable[[], SourceCluster]) -> StartKeeper | None:
    if options.start_place is not None:
        directory, name = options.start_place
        return FileStarts(SubStore(open_store(directory), name))
    if options.commits_group and options.group_id is not None and options.group_store is None:
        return GroupStarts(cluster, options.group_id)
    return None


def _name(number: int, ending: str = _START) -> str:
    return f"start-{number:08}.{ending}"
