"""Reads the offsets of one task over the wire since 0.8: fetch and decode record batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark_kafkalog.client.corrupt_batches import CORRUPT, Detour
from pyspark_kafkalog.client.fetcher import Fetched, PartitionFetcher
from pyspark_kafkalog.columnar.batch_walk import AbortedTransactions
from pyspark_kafkalog.columnar.decoder import RecordBatchDecoder
from pyspark_kafkalog.datasource.planning import OffsetRange
from pyspark_kafkalog.datasource.range_reader import Gone, RangeReader
from pyspark_kafkalog.errors import OffsetOutOfRange, RequestTimedOut, UnknownTopicOrPartition
from pyspark_kafkalog.formats import message_set
from pyspark_kafkalog.formats.message_set import Place
from pyspark_kafkalog.types import IsolationLevel

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_kafkalog.datasource.lookup import Lookup


@dataclass(slots=True)
class _Reached:
    """*Not thread-safe: belongs to one read.* The first offset that was not given out."""

    offset: int

    def left(self, wanted: OffsetRange) -> OffsetRange:
        """What is still to be read."""
        return OffsetRange(wanted.topic_partition, self.offset, wanted.end)


@dataclass(frozen=True, slots=True)
class RangeReader08(RangeReader):
    """*Not thread-safe: belongs to one task.* Reads from whoever leads the partition."""

    lookup: Lookup

    def read(self, wanted: OffsetRange) -> Iterator[pa.RecordBatch]:
        reached = _Reached(wanted.start)
        try:
            yield from self._past_corruption(wanted, reached)
        except OffsetOutOfRange as e:
            raise Gone(reached.left(wanted), e.start, e.end) from e
        except UnknownTopicOrPartition as e:
            # As long as a step may take; it was there when the range was planned.
            raise Gone(reached.left(wanted), 0, 0) from e
        except RequestTimedOut as e:
            # Nothing came: either it is late, or the log ends before the range does.
            start, end = self.lookup.log_range(wanted.topic_partition)
            if start <= reached.offset < end:
                raise
            raise Gone(reached.left(wanted), start, end) from e

    def _past_corruption(self, wanted: OffsetRange, reached: _Reached) -> Iterator[pa.RecordBatch]:
        while reached.offset < wanted.end:
            try:
                yield from self._answers(reached.left(wanted), reached)
            except CORRUPT as e:
                if not self.options.skip_corrupt:
                    raise
                follows = reached.offset > wanted.start
                detour = self._detour(wanted)
                reached.offset = yield from detour.around(reached.offset, wanted.end, e, follows=follows)

    def _answers(self, wanted: OffsetRange, reached: _Reached) -> Iterator[pa.RecordBatch]:
        """The rows, answer by answer, until something is wrong with one."""
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
                self._check_gap(wanted, reached.offset, fetched)
                if decoder is None or decodes_for != fetched.broker_id:
                    decoder, decodes_for = self._decoder(wanted, fetched.broker_id), fetched.broker_id
                try:
                    reached.offset = yield from decoder.stream(
                        fetched.data,
                        reached.offset,
                        wanted.end,
                        fetched.aborted,
                        fetched.place,
                        whole=self.options.skip_corrupt,
                    )
                except CORRUPT:
                    reached.offset = decoder.given_to
                    raise
                fetcher.advance(reached.offset)
        finally:
            fetcher.close()

    def _detour(self, wanted: OffsetRange) -> Detour[pa.RecordBatch]:
        def decode(
            entry: memoryview, start: int, end: int, aborted: AbortedTransactions, place: Place, broker: int
        ) -> tuple[list[pa.RecordBatch], int]:
            found = self._decoder(wanted, broker).decode(entry, start, end, aborted, place)
            return found.batches, found.next_offset

        return Detour(
            self.lookup.cluster,
            wanted.topic_partition,
            self.options.consumer,
            self.options.poll_timeout_ms,
            decode,
            self.on_skip,
        )

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
