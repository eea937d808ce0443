"""Reads ranges of several partitions in turn, with a bound on the memory that all of them take."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import replace

from pyspark_kafkalog.client.discovery import Cluster
from pyspark_kafkalog.columnar import message_blocks
from pyspark_kafkalog.columnar.blocks import Answer
from pyspark_kafkalog.columnar.engine import Block
from pyspark_kafkalog.columnar.message_walk import walk_messages
from pyspark_kafkalog.config.consumer import ConsumerConfig
from pyspark_kafkalog.consumer.fetcher import Fetched, PartitionFetcher
from pyspark_kafkalog.errors import OffsetOutOfRange
from pyspark_kafkalog.formats import message_set
from pyspark_kafkalog.formats.record import parse_records
from pyspark_kafkalog.types import IsolationLevel, Record, TopicPartition

Ranges = Mapping[TopicPartition, tuple[int, int]]
"""First offset and the one after the last, by partition."""

Batches = Iterator[list[Record]]

_MAX_BATCH_BYTES = 128 << 20
"""What one batch may decompress to: no client sends batches near it."""

_FETCHED_BYTES = 128 << 20
_ANSWERS = 3
"""A fetcher keeps its last two answers, and the next is on its way."""

_LEAST_FETCH_BYTES = 64 << 10


def read_ranges(
    cluster: Cluster, ranges: Ranges, config: ConsumerConfig
) -> Iterator[tuple[TopicPartition, list[Record]]]:
    """The records of all ``ranges``, a batch at a time: one fetch answer of each partition in turn.

    All fetched data together is bounded by 128 MiB (each partition may take 64 KiB at least), and one batch
    is decoded at a time.

    Raises:
        OffsetOutOfRange: offsets of a range are not, or no longer, in the log.
        KafkaError: a leader could not be read in time, or a batch is corrupt.
    """
    share = _FETCHED_BYTES // (_ANSWERS * max(len(ranges), 1))
    least = min(config.max_partition_fetch_bytes, max(share, _LEAST_FETCH_BYTES))
    config = replace(config, max_partition_fetch_bytes=least)
    turns = deque(
        (tp, _answers(cluster, tp, start, end, config)) for tp, (start, end) in ranges.items() if start < end
    )
    while turns:
        tp, answers = turns.popleft()
        batches = next(answers, None)
        if batches is None:
            continue
        for batch in batches:
            yield tp, batch
        turns.append((tp, answers))


def _answers(
    cluster: Cluster, tp: TopicPartition, start: int, end: int, config: ConsumerConfig
) -> Iterator[Batches]:
    """One item for each fetch answer, to be used up before the next is taken."""
    fetcher = PartitionFetcher(cluster, tp, start, end, config=config)
    committed = config.isolation is IsolationLevel.READ_COMMITTED
    position = start
    try:
        for fetched in fetcher:
            _check_gap(tp, position, fetched)
            answer = Answer(
                memoryview(fetched.data).cast("B"),
                tp,
                position,
                end,
                aborted=fetched.aborted if committed else None,
                max_batch_bytes=_MAX_BATCH_BYTES,
                streamed=True,
                place=fetched.place,
            )
            yield (_records(block) for block in answer.blocks(walk_messages))
            position = answer.next_offset
            fetcher.advance(position)
    finally:
        fetcher.close()


def _records(block: Block) -> list[Record]:
    if block.is_messages:
        return message_blocks.records(block)
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
