"""A cluster of any generation of Kafka, as planners and tasks use it; `kafka` and `kafka07` have the wire."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import msgspec

from pyspark_kafkalog.clock import SYSTEM_CLOCK, Clock
from pyspark_kafkalog.datasource.options.topics_and_offsets import check_order
from pyspark_kafkalog.errors import CorruptMessage, KafkaError, MessageTooLarge, UnknownTopicOrPartition
from pyspark_kafkalog.types import EARLIEST_OFFSET, LATEST_OFFSET, TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_kafkalog.client.fetcher import FirstAnswer
    from pyspark_kafkalog.datasource.options.option_definitions import LoadOptions, SourceOptions
    from pyspark_kafkalog.datasource.options.topics_and_offsets import Assign
    from pyspark_kafkalog.ledger.plan import PartitionFacts

log = logging.getLogger(__name__)

T = TypeVar("T")

_NO_STARTS: Mapping[TopicPartition, int] = MappingProxyType({})
_FEWEST_TOGETHER, _MOST_TOGETHER = 8, 200
"""Ranges of which `SourceCluster.rows_of_all` begins several together."""

OnOffsets: TypeAlias = Callable[[int, int], None]
"""Called with offsets ``[start, end)`` that a read leaves out."""

_HOW_TO_SKIP = (
    "To skip corrupt batches, set the source option onCorruptBatch to skip: skipped offsets are logged, and "
    "a load's commit counts them."
)


class OffsetRange(msgspec.Struct, frozen=True):
    """Offsets ``[start, end)`` of one partition; unresolved, they may be placeholders."""

    topic_partition: TopicPartition
    start: int
    end: int

    @property
    def size(self) -> int:
        """Offsets in the range; there may be fewer records, after compaction or with transactions."""
        return self.end - self.start


class Begun(msgspec.Struct, frozen=True):
    """A resolved range, and an answer that has all of its records."""

    wanted: OffsetRange
    answer: FirstAnswer


class DataLoss(KafkaError):
    def __init__(self, wanted: OffsetRange, start: int, end: int) -> None:
        super().__init__(
            "[KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE] Could not read offsets "
            f"[{wanted.start}, {wanted.end}) of {wanted.topic_partition}: the log holds [{start}, {end}). "
            "Some data may have been lost: aged out by retention, or the topic was deleted and created "
            "again. To go on with what is left, set the source option failOnDataLoss to false."
        )


class OffsetsGone(Exception):
    """The log holds ``[start, end)`` and not the ``wanted`` offsets."""

    def __init__(self, wanted: OffsetRange, start: int, end: int) -> None:
        super().__init__(f"the log holds [{start}, {end})")
        self.wanted, self.start, self.end = wanted, start, end


class SmallRanges:
    """Ranges that were asked for together; these are none. *Not thread-safe.*"""

    def begun(self) -> Mapping[OffsetRange, Begun]:
        """Those that came whole."""
        return {}

    def drop(self) -> None:
        """Leave them unread."""


class SourceCluster(ABC):
    """*Not thread-safe: used by one planner or one task.* Owns its connections; close or release it. Every
    method may raise `KafkaError`, after ``fetchOffset.numRetries`` retries through new connections.
    """

    protocol: str

    def __init__(self, options: SourceOptions, clock: Clock = SYSTEM_CLOCK) -> None:
        self.options = options
        self.clock = clock

    @abstractmethod
    def close(self) -> None:
        """Close the connections; they are opened again when needed."""

    def release(self) -> None:
        """Instead of `close`, if nothing failed and no answer is awaited: others may use the connections."""
        self.close()

    @abstractmethod
    def leaders(self, *, missing_ok: bool = False) -> Mapping[TopicPartition, int]:
        """Every partition to read, with the id of the node that serves it; -1 while none does. Raises
        `UnknownTopicOrPartition` for a named one that does not exist; with ``missing_ok`` it is left out.
        """

    @abstractmethod
    def address_of(self, broker: int) -> str:
        """The ``host:port`` at which a task finds this broker; "" if a task asks the cluster itself."""

    def broker_addresses(self) -> Mapping[str, int] | None:
        """The live brokers' ids by ``host:port``; None if partitions do not belong to brokers."""
        return None

    @abstractmethod
    def offsets(self, asked: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int]:
        """The offset from which to read all records since a time in milliseconds; -1 without such a record.
        `EARLIEST_OFFSET` and `LATEST_OFFSET` as times are the log's two ends.
        """

    def resolve(self, offsets: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int]:
        # ListOffsets and 0.7's OFFSETS use the same two numbers for a log's ends as Spark's JSON.
        open_ends = {p: o for p, o in offsets.items() if o in (EARLIEST_OFFSET, LATEST_OFFSET)}
        return {**offsets, **(self.offsets(open_ends) if open_ends else {})}

    def log_range(self, partition: TopicPartition) -> tuple[int, int]:
        start, end = (self.offsets({partition: edge})[partition] for edge in (EARLIEST_OFFSET, LATEST_OFFSET))
        return start, end

    def check_positions(self, positions: Mapping[TopicPartition, int]) -> None:  # noqa: B027
        """Raise `InvalidConfig` for offsets inside the logs at which no record begins; only 0.7 has such."""

    @abstractmethod
    def split(self, ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
        """Cut resolved ranges into the tasks' ranges, by the options and where records begin."""

    @abstractmethod
    def cap(self, ranges: Sequence[OffsetRange], load: LoadOptions) -> list[OffsetRange]:
        """The beginnings of resolved ranges within the load's limits, in the same order."""

    @abstractmethod
    def facts(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, PartitionFacts]:
        """Each partition's facts for a load's plan; `UnknownTopicOrPartition` if one does not exist."""

    def topic_ids(self, partitions: Collection[TopicPartition]) -> dict[str, str]:  # noqa: ARG002
        """The ids of the partitions' topics, if they have any; `UnknownTopicOrPartition` as for `facts`."""
        return {}

    @abstractmethod
    def cluster_id(self) -> str:
        """The cluster's id; "" if it has none."""

    @abstractmethod
    def group_offsets(self, group: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The offsets that ``group`` has committed; partitions without one are left out."""

    def group_metadata(
        self,
        group: str,  # noqa: ARG002
        partitions: Iterable[TopicPartition],  # noqa: ARG002
    ) -> dict[TopicPartition, tuple[int, str]]:
        """The group's offsets with their metadata, or "". ZooKeeper keeps no metadata."""
        return {}

    @abstractmethod
    def commit_group(
        self, group: str, positions: Mapping[TopicPartition, int], *, metadata: str = ""
    ) -> None:
        """Commit offsets of ``group``, for other tools. ZooKeeper does not keep ``metadata``."""

    def rows(
        self,
        asked: OffsetRange,
        columns: Sequence[str],
        on_loss: OnOffsets = lambda *_: None,
        on_skip: OnOffsets = lambda *_: None,
        topic_id: str = "",
        begun: Begun | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """The rows of ``asked``, resolved now, or as ``begun``. ``on_loss`` is called for deleted offsets,
        with ``failOnDataLoss=false``; ``on_skip`` for those of corrupt batches. If the topic has another id
        than ``topic_id``, all offsets are. Raises `DataLoss`.
        """
        wanted = self._resolved(asked) if begun is None else begun.wanted
        if topic_id and wanted.size > 0:
            where = asked.topic_partition
            if self._topic_ids_now([where]).get(where.topic, "") not in ("", topic_id):
                wanted = self._after_loss(OffsetsGone(wanted, 0, 0), on_loss)
        while wanted.size > 0:
            try:
                answer, begun = None if begun is None else begun.answer, None
                yield from self._read(wanted, tuple(columns), on_skip, answer)
                return
            except OffsetsGone as gone:
                # Raised before any row of the lost offsets was yielded; the next round reads the rest.
                wanted = self._after_loss(gone, on_loss)
            except (CorruptMessage, MessageTooLarge) as e:
                if self.options.skip_corrupt:
                    raise
                raise type(e)(f"{e}. {_HOW_TO_SKIP}") from e

    def rows_of_all(
        self,
        asked: Sequence[OffsetRange],
        columns: Sequence[str],
        topic_ids: Mapping[str, str],
        starts: Mapping[TopicPartition, int] = _NO_STARTS,
    ) -> Iterator[pa.RecordBatch]:
        """The rows of one range after the other, as `rows`. Small ones are fetched together. ``starts``,
        where open ranges began a moment ago, saves asking again.
        """
        if len(asked) < _FEWEST_TOGETHER:
            for one in asked:
                topic_id = topic_ids.get(one.topic_partition.topic, "")
                yield from self.rows(one, columns, topic_id=topic_id)
            return
        groups = [asked[first : first + _MOST_TOGETHER] for first in range(0, len(asked), _MOST_TOGETHER)]
        coming = self._begin(groups[0], starts)
        try:
            for some, after in zip_longest(groups, groups[1:], fillvalue=()):
                begun = coming.begun()
                coming = self._begin(after, starts)  # the broker answers while these are decoded
                now = self._topic_ids_now([one.topic_partition for one in some]) if topic_ids else {}
                for one in some:
                    topic = one.topic_partition.topic
                    topic_id = topic_ids.get(topic, "")
                    is_same = now.get(topic, "") == topic_id
                    yield from self.rows(
                        one,
                        columns,
                        topic_id="" if is_same else topic_id,
                        begun=begun.get(one) if is_same else None,
                    )
        finally:
            coming.drop()

    def _begin(self, asked: Sequence[OffsetRange], starts: Mapping[TopicPartition, int]) -> SmallRanges:
        wanted = [one for one in asked if one.start < one.end or one.end < 0]
        return self.begin_small(wanted, starts)

    def begin_small(
        self,
        asked: Sequence[OffsetRange],  # noqa: ARG002
        starts: Mapping[TopicPartition, int],  # noqa: ARG002
    ) -> SmallRanges:
        """Ask for the records of these ranges with one request to each broker. ``starts`` may have been
        deleted since: such a range is left out.
        """
        return SmallRanges()

    def _topic_ids_now(self, partitions: Collection[TopicPartition]) -> dict[str, str]:
        """None of them if a topic is missing: reading waits for it, and reports it."""
        try:
            return self.topic_ids(partitions)
        except UnknownTopicOrPartition:
            return {}

    @abstractmethod
    def _read(
        self, wanted: OffsetRange, columns: tuple[str, ...], on_skip: OnOffsets, first: FirstAnswer | None
    ) -> Iterator[pa.RecordBatch]:
        """The rows of a resolved range, of which ``first`` is there already. Raises `OffsetsGone` before any
        row of the lost offsets.
        """

    def _resolved(self, asked: OffsetRange) -> OffsetRange:
        if asked.start >= 0 and asked.end >= 0:
            return asked
        partition = asked.topic_partition
        starts = self.resolve({partition: asked.start})
        ends = self.resolve({partition: asked.end})
        resolved = OffsetRange(partition, starts[partition], ends[partition])
        if asked.start == EARLIEST_OFFSET and resolved.size < 0:
            # Retention has passed the end since it was planned.
            log.info("%s: all offsets below %d are gone", partition, resolved.end)
            return OffsetRange(partition, resolved.end, resolved.end)
        if resolved.size < 0:
            check_order(starts, ends, resolved=True)
        return resolved

    def _after_loss(self, gone: OffsetsGone, on_loss: OnOffsets) -> OffsetRange:
        """The rest to read if loss is allowed: always less than was wanted."""
        wanted = gone.wanted
        # A log that ends before the range was truncated or recreated: its new records are not meant.
        ends_before = gone.end <= max(wanted.start, gone.start)
        start = wanted.end if ends_before else min(max(wanted.start, gone.start), wanted.end)
        if self.options.fail_on_data_loss or start == wanted.start:
            raise DataLoss(wanted, gone.start, gone.end) from gone
        log.warning(
            "%s: offsets [%d, %d) are gone, the log holds [%d, %d); going on without them",
            wanted.topic_partition, wanted.start, start, gone.start, gone.end,
        )  # fmt: skip
        on_loss(wanted.start, start)
        return OffsetRange(wanted.topic_partition, start, wanted.end)

    def _retry(self, ask: Callable[[], T]) -> T:
        return retry_lookup(ask, self._reconnect, self.options, self.clock)

    def _reconnect(self) -> None:
        self.close()


def assigned(
    subscription: Assign, existing: Collection[TopicPartition], *, missing_ok: bool
) -> list[TopicPartition]:
    missing = [str(p) for p in subscription.partitions if p not in existing]
    if missing and not missing_ok:
        raise UnknownTopicOrPartition(f"assigned partitions are not there: {', '.join(missing)}")
    return [p for p in subscription.partitions if p in existing]


def retry_lookup(
    ask: Callable[[], T], reconnect: Callable[[], object], options: SourceOptions, clock: Clock
) -> T:
    """The answer of ``ask``, retried according to the options; ``reconnect`` is called between attempts."""
    failures = 0
    while True:
        try:
            return ask()
        except KafkaError as e:
            failures += 1
            if failures > options.offset_retries or not e.retriable:
                raise
            log.warning("look-up failed (%d of %d): %s", failures, options.offset_retries, e)
        clock.sleep(options.offset_retry_interval_ms / 1000)
        reconnect()
