"""Reads the offsets of one task over the wire since 0.8: fetch and decode record batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark_kafkalog.columnar.record_batches import RecordBatchDecoder
from pyspark_kafkalog.consumer.fetcher import Fetched, PartitionFetcher
from pyspark_kafkalog.datasource.planning import OffsetRange
from pyspark_kafkalog.datasource.range_reader import Gone, RangeReader
from pyspark_kafkalog.errors import OffsetOutOfRange, RequestTimedOut, UnknownTopicOrPartition
from pyspark_kafkalog.formats import message_set
from pyspark_kafkalog.types import IsolationLevel

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_kafkalog.datasource.lookup import Lookup


@dataclass(frozen=True, slots=True)
class RangeReader08(RangeReader):
    """*Not thread-safe: belongs to one task.* Reads from whoever leads the partition."""

    lookup: Lookup

    def read(self, wanted: OffsetRange) -> Iterator[pa.RecordBatch]:
        position = wanted.start
        fetcher = PartitionFetcher(
            self.lookup.cluster,
            wanted.topic_partition,
            wanted.start,
            wanted.end,
            config=self.options.consumer,
            poll_timeout_ms=self.options.poll_timeout_ms,
        )
        decoder, decodes_for = None, None
        try:
            for fetched in fetcher:
                self._check_gap(wanted, position, fetched)
                if decoder is None or decodes_for != fetched.broker_id:
                    decoder, decodes_for = self._decoder(wanted, fetched.broker_id), fetched.broker_id
                position = yield from decoder.stream(
                    fetched.data, position, wanted.end, fetched.aborted, fetched.place
                )
                fetcher.advance(position)
        except OffsetOutOfRange as e:
            raise Gone(OffsetRange(wanted.topic_partition, position, wanted.end), e.start, e.end) from e
        except UnknownTopicOrPartition as e:
            # As long as a step may take; it was there when the range was planned.
            raise Gone(OffsetRange(wanted.topic_partition, position, wanted.end), 0, 0) from e
        except RequestTimedOut as e:
            # Nothing came: either it is late, or the log ends before the range does.
            start, end = self.lookup.log_range(wanted.topic_partition)
            if start <= position < end:
                raise
            raise Gone(OffsetRange(wanted.topic_partition, position, wanted.end), start, end) from e
        finally:
            fetcher.close()

    def _decoder(self, wanted: OffsetRange, broker: int) -> RecordBatchDecoder:
        return RecordBatchDecoder(
            topic=wanted.topic_partition.topic,
            partition=wanted.topic_partition.partition,
            columns=self.columns,
            broker=broker,
            read_committed=self.options.consumer.isolation is IsolationLevel.READ_COMMITTED,
        )

    def _check_gap(self, wanted: OffsetRange, position: int, fetched: Fetched) -> None:
        """Retention may pass by between two fetches: the first frame is then beyond the offset asked for.

        A gap with the log still starting at or before ``position`` is none: compaction leaves such.
        """
        if fetched.log_start_offset <= position:
            return
        first = next(message_set.frames(fetched.data), None)
        if first is not None and first.first_offset > position:
            left = OffsetRange(wanted.topic_partition, position, wanted.end)
            raise Gone(left, fetched.log_start_offset, fetched.high_watermark)
