"""Reads the byte positions of one task from a log of Kafka 0.7: fetch, and decode whole entries."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark_kafkalog.client.retry import Deadline
from pyspark_kafkalog.columnar.choice import EngineName
from pyspark_kafkalog.columnar.v07_batches import V07BatchDecoder
from pyspark_kafkalog.datasource.lookup07 import no_entry_at
from pyspark_kafkalog.datasource.planning import OffsetRange
from pyspark_kafkalog.datasource.range_reader import Gone, RangeReader
from pyspark_kafkalog.errors import (
    ConnectionLost,
    CorruptMessage,
    KafkaError,
    MessageTooLarge,
    OffsetOutOfRange,
    RequestTimedOut,
)
from pyspark_kafkalog.formats.v07 import entries, verify_entry
from pyspark_kafkalog.types import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_kafkalog.datasource.lookup07 import Lookup07

_PAUSE_SECONDS = 0.1
_LEAST_FETCH_BYTES = 64


@dataclass(frozen=True, slots=True)
class RangeReader07(RangeReader):
    """*Not thread-safe: belongs to one task.* Reads from the broker that the partition belongs to.

    Read are the messages of entries that begin in the range, whole ones where it ends within an entry.
    """

    lookup: Lookup07
    engine: EngineName = "auto"

    def read(self, wanted: OffsetRange) -> Iterator[pa.RecordBatch]:
        """See `RangeReader.read`.

        Raises:
            CorruptMessage: no entry begins where the range does, or the log is damaged.
            MessageTooLarge: an entry is above ``max.message.size``, or holds more than may be decompressed.
        """
        where, position = wanted.topic_partition, wanted.start
        decoder = V07BatchDecoder(
            topic=where.topic,
            partition=where.partition,
            columns=self.columns,
            broker=where.broker,
            engine=self.engine,
            max_entry_bytes=self.lookup.config.max_decompressed_bytes,
        )
        try:
            while position < wanted.end:
                data = self._fetch(wanted, position)
                position = yield from decoder.stream(data, position, wanted.end)
        except OffsetOutOfRange as e:
            raise Gone(OffsetRange(where, position, wanted.end), e.start, e.end) from e
        except RequestTimedOut as e:
            # Nothing came: either it is late, or the log ends before the range does.
            start, end = self.lookup.log_range(where)
            if start <= position < end:
                raise
            raise Gone(OffsetRange(where, position, wanted.end), start, end) from e

    def _fetch(self, wanted: OffsetRange, position: int) -> memoryview:
        """One whole entry or more from ``position`` on; the first of the range is looked at."""
        try:
            data = self._ask(wanted.topic_partition, position, wanted.end - position)
            if position == wanted.start:
                verify_entry(next(entries(data)))
            return data
        except (CorruptMessage, MessageTooLarge) as e:
            if position > wanted.start:
                raise
            raise CorruptMessage(no_entry_at(wanted.topic_partition, position, e)) from e

    def _ask(self, where: TopicPartition, position: int, left: int) -> memoryview:
        """What the broker has at ``position``; waits for it as long as ``kafkaConsumer.pollTimeoutMs``."""
        lookup, deadline = self.lookup, Deadline.after(self.options.poll_timeout_ms / 1000, self.lookup.clock)
        # What lies behind the range is another task's, or nobody's.
        size = min(lookup.config.fetch_size, max(left, _LEAST_FETCH_BYTES))
        while True:
            failure: KafkaError = RequestTimedOut(
                f"{where}: nothing came at offset {position} within {self.options.poll_timeout_ms} ms "
                "(kafkaConsumer.pollTimeoutMs)"
            )
            try:
                found = lookup.consumer(where.broker).fetch(where.topic, where.partition, position, size)
                if found.data:
                    return found.data
            except ConnectionLost as e:
                failure = lookup.lost(where, e)
            if deadline.passed:
                raise failure
            lookup.clock.sleep(_PAUSE_SECONDS)
