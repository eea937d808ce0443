"""Reads ranges of several partitions in turn, with a bound on the memory that all of them take."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from pyspark_kafkalog.client.discovery import Cluster
from pyspark_kafkalog.columnar import message_walk
from pyspark_kafkalog.columnar.batch_walk import AbortedTransactions, Answer
from pyspark_kafkalog.columnar.engine import Block
from pyspark_kafkalog.columnar.message_walk import walk_messages
from pyspark_kafkalog.config.consumer import ConsumerConfig
from pyspark_kafkalog.consumer.corrupt_batches import CORRUPT, Detour
from pyspark_kafkalog.consumer.fetcher import POLL_TIMEOUT_MS, Fetched, PartitionFetcher
from pyspark_kafkalog.errors import KafkaError, OffsetOutOfRange
from pyspark_kafkalog.formats import message_set
from pyspark_kafkalog.formats.placement import Place
from pyspark_kafkalog.formats.record import parse_records
from pyspark_kafkalog.formats.resync import MAX_BATCH_BYTES
from pyspark_kafkalog.types import IsolationLevel, Record, TopicPartition

Ranges = Mapping[TopicPartition, tuple[int, int]]
"""First offset and the one after the last, by partition."""

Batches = Iterator[list[Record]]

Skipped = Callable[[TopicPartition, int, int], object]
"""Told of offsets ``[start, end)`` of a partition that are left out as corrupt."""

_FETCHED_BYTES = 128 << 20
_ANSWERS = 3
"""A fetcher keeps its last two answers, and the next is on its way."""

_LEAST_FETCH_BYTES = 64 << 10


def read_ranges(
    cluster: Cluster, ranges: Ranges, config: ConsumerConfig, on_skip: Skipped | None = None
) -> Iterator[tuple[TopicPartition, list[Record]]]:
    """The records of all ``ranges``, a batch at a time: one fetch answer of each partition in turn.

    All fetched data together is bounded by 128 MiB (each partition may take 64 KiB at least), and one batch
    is decoded at a time. Corrupt batches are left out where somebody is told of it.

    Raises:
        OffsetOutOfRange: offsets of a range are not, or no longer, in the log.
        KafkaError: a leader could not be read in time, or without ``on_skip`` a batch is corrupt.
    """
    share = _FETCHED_BYTES // (_ANSWERS * max(len(ranges), 1))
    least = min(config.max_partition_fetch_bytes, max(share, _LEAST_FETCH_BYTES))
    config = replace(config, max_partition_fetch_bytes=least)
    turns = deque(
        (tp, _Partition(cluster, tp, start, end, config, on_skip).answers())
        for tp, (start, end) in ranges.items()
        if start < end
    )
    while turns:
        tp, answers = turns.popleft()
        batches = next(answers, None)
        if batches is None:
            continue
        for batch in batches:
            yield tp, batch
        turns.append((tp, answers))


@dataclass(slots=True)
class _Partition:
    """*Not thread-safe.* A partition that is read, and how far."""

    cluster: Cluster
    tp: TopicPartition
    start: int
    end: int
    config: ConsumerConfig
    on_skip: Skipped | None
    reached: int = -1
    faults: list[KafkaError] = field(default_factory=list)
    """What was found corrupt in the answer at hand."""

    def answers(self) -> Iterator[Batches]:
        """One item for each fetch answer, to be used up before the next is taken."""
        self.reached = self.start
        while self.reached < self.end:
            fetcher = PartitionFetcher(self.cluster, self.tp, self.reached, self.end, config=self.config)
            self.faults.clear()
            try:
                for fetched in fetcher:
                    _check_gap(self.tp, self.reached, fetched)
                    yield self._batches(fetched)
                    if self.faults:
                        break
                    fetcher.advance(self.reached)
            except CORRUPT as e:
                if self.on_skip is None:
                    raise
                self.faults.append(e)
            finally:
                fetcher.close()
            if self.faults:
                yield self._around(self.faults[0])

    def _batches(self, fetched: Fetched) -> Batches:
        data, held = fetched.data.cast("B"), None
        answer = self._answer(data, self.reached, self._aborted(fetched.aborted), fetched.place)
        try:
            for block in answer.blocks(walk_messages):
                # The offsets of a block are known to be right when the next one was looked at.
                if held is not None:
                    yield from self._given(held)
                held = block
            if held is not None:
                yield from self._given(held)
            self.reached = answer.next_offset
        except CORRUPT as e:
            if self.on_skip is None:
                raise
            self.faults.append(e)

    def _given(self, block: Block) -> Batches:
        yield _records(block)
        self.reached = block.base_offset + block.last_delta + 1

    def _around(self, fault: KafkaError) -> Batches:
        detour = Detour(self.cluster, self.tp, self.config, POLL_TIMEOUT_MS, self._decode, self._skip)
        follows = self.reached > self.start
        self.reached = yield from detour.around(self.reached, self.end, fault, follows=follows)

    def _decode(
        self,
        entry: memoryview,
        start: int,
        end: int,  # noqa: ARG002  (is ours)
        aborted: AbortedTransactions,
        place: Place,
        broker: int,  # noqa: ARG002  (no record says it)
    ) -> tuple[list[list[Record]], int]:
        answer = self._answer(entry, start, aborted if self._committed else None, place)
        return [_records(block) for block in answer.blocks(walk_messages)], answer.next_offset

    def _skip(self, start: int, end: int) -> None:
        if self.on_skip is not None:
            self.on_skip(self.tp, start, end)

    def _answer(
        self, data: memoryview, start: int, aborted: AbortedTransactions | None, place: Place
    ) -> Answer:
        return Answer(
            data,
            self.tp,
            start,
            self.end,
            aborted=aborted,
            max_batch_bytes=MAX_BATCH_BYTES,
            streamed=True,
            place=place,
        )

    def _aborted(self, listed: tuple[tuple[int, int], ...]) -> AbortedTransactions | None:
        return AbortedTransactions(listed) if self._committed else None

    @property
    def _committed(self) -> bool:
        return self.config.isolation is IsolationLevel.READ_COMMITTED


def _records(block: Block) -> list[Record]:
    if block.is_messages:
        return message_walk.records(block)
    records = parse_records(
        bytes(block.buffer[block.start : block.end]),
        block.record_count,
        base_offset=block.base_offset,
        last_offset_delta=block.last_delta,
        base_timestamp=block.timestamp,
        append_timestamp=block.timestamp if block.append_time else None,
    )
    low, high = block.base_offset + block.low, block.base_offset + block.high
    if records and low <= records[0].offset and records[-1].offset < high:
        return records
    return [record for record in records if low <= record.offset < high]


def _check_gap(tp: TopicPartition, position: int, fetched: Fetched) -> None:
    """Retention may pass by between two fetches. Compaction leaves gaps as well, but not at the beginning."""
    if fetched.log_start_offset <= position:
        return
    first = next(message_set.frames(fetched.data), None)
    if first is not None and first.first_offset > position:
        raise OffsetOutOfRange(str(tp), position, fetched.log_start_offset, fetched.high_watermark)
