"""Reads the offsets of one task: fetch, decode, and what to do where offsets are gone."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark_kafkalog.columnar.record_batches import RecordBatchDecoder
from pyspark_kafkalog.consumer.fetcher import Fetched, PartitionFetcher
from pyspark_kafkalog.datasource.offsets import check_order
from pyspark_kafkalog.datasource.planning import OffsetRange
from pyspark_kafkalog.errors import KafkaError, OffsetOutOfRange, RequestTimedOut
from pyspark_kafkalog.formats import message_set
from pyspark_kafkalog.types import EARLIEST_OFFSET, IsolationLevel

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_kafkalog.datasource.lookup import Lookup
    from pyspark_kafkalog.datasource.options import BatchOptions

log = logging.getLogger(__name__)


class DataLoss(KafkaError):
    """Offsets that should be read are no longer, or not yet again, in the log."""

    def __init__(self, wanted: OffsetRange, start: int, end: int) -> None:
        super().__init__(
            "[KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE] Could not read offsets "
            f"[{wanted.start}, {wanted.end}) of {wanted.topic_partition}: the log holds [{start}, {end}). "
            "Some data may have been lost: aged out by retention, or the topic was deleted or created anew. "
            "To go on with what is left, set the source option failOnDataLoss to false."
        )


def _nobody(start: int, end: int) -> None:
    """Nobody wants to know what is lost, beside the log."""


@dataclass(frozen=True, slots=True)
class RangeReader:
    """*Not thread-safe: belongs to one task.* ``lookup`` holds the connections and is the caller's."""

    columns: tuple[str, ...]
    options: BatchOptions
    lookup: Lookup
    on_loss: Callable[[int, int], None] = _nobody
    """Told of the offsets ``[start, end)`` that are gone, where ``failOnDataLoss`` lets the read go on."""

    def rows(self, asked: OffsetRange) -> Iterator[pa.RecordBatch]:
        """The rows of ``asked``, whose placeholders are resolved now.

        Raises:
            DataLoss: with ``failOnDataLoss``, offsets of the range are gone.
            InvalidConfig: the range, once resolved, ends before it starts.
            KafkaError: the broker could not be read, or a message is corrupt.
        """
        wanted = self._resolve(asked)
        while wanted.size > 0:
            try:
                yield from self._read(wanted)
                return
            except _Gone as gone:
                # Raised before any row of the lost offsets was yielded; what remains is read anew.
                wanted = self._after_loss(gone)

    def _resolve(self, asked: OffsetRange) -> OffsetRange:
        if asked.start >= 0 and asked.end >= 0:
            return asked
        partition = asked.topic_partition
        starts = self.lookup.resolve({partition: asked.start})
        ends = self.lookup.resolve({partition: asked.end})
        resolved = OffsetRange(partition, starts[partition], ends[partition])
        if asked.start == EARLIEST_OFFSET and resolved.size < 0 and not self.options.fail_on_data_loss:
            log.warning("%s: all offsets below %d are gone", partition, resolved.end)
            return OffsetRange(partition, resolved.end, resolved.end)
        check_order(starts, ends, resolved=True)
        return resolved

    def _read(self, wanted: OffsetRange) -> Iterator[pa.RecordBatch]:
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
                position = yield from decoder.stream(fetched.data, position, wanted.end, fetched.aborted)
                fetcher.advance(position)
        except OffsetOutOfRange as e:
            raise _Gone(OffsetRange(wanted.topic_partition, position, wanted.end), e.start, e.end) from e
        except RequestTimedOut as e:
            # Nothing came: either it is late, or the log ends before the range does.
            start, end = self.lookup.log_range(wanted.topic_partition)
            if start <= position < end:
                raise
            raise _Gone(OffsetRange(wanted.topic_partition, position, wanted.end), start, end) from e
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
            raise _Gone(left, fetched.log_start_offset, fetched.high_watermark)

    def _after_loss(self, gone: _Gone) -> OffsetRange:
        """What is left to read where loss is allowed: always less than was wanted."""
        wanted = gone.wanted
        start = max(wanted.start, gone.start)
        if start >= gone.end:
            # A log that ends before the range was cut or made anew: what it gets now is not what was meant.
            start = wanted.end
        start = min(start, wanted.end)
        if self.options.fail_on_data_loss or start == wanted.start:
            raise DataLoss(wanted, gone.start, gone.end) from gone
        log.warning(
            "%s: offsets [%d, %d) are gone, the log holds [%d, %d); going on without them",
            wanted.topic_partition, wanted.start, start, gone.start, gone.end,
        )  # fmt: skip
        self.on_loss(wanted.start, start)
        return OffsetRange(wanted.topic_partition, start, wanted.end)


class _Gone(Exception):
    """The log holds ``[start, end)`` and no longer what was ``wanted``."""

    def __init__(self, wanted: OffsetRange, start: int, end: int) -> None:
        super().__init__(f"the log holds [{start}, {end})")
        self.wanted, self.start, self.end = wanted, start, end
