"""Reads the offsets of one task, in every generation: its edges, and what to do where offsets are gone."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark_kafkalog.datasource.generations import ignore_loss
from pyspark_kafkalog.datasource.offsets import check_order
from pyspark_kafkalog.datasource.planning import OffsetRange
from pyspark_kafkalog.errors import CorruptMessage, KafkaError, MessageTooLarge
from pyspark_kafkalog.types import EARLIEST_OFFSET

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_kafkalog.datasource.generations import SourceLookup
    from pyspark_kafkalog.datasource.options import SourceOptions

log = logging.getLogger(__name__)

_HOW_TO_SKIP = (
    "To go on without what is corrupt, set the source option onCorruptBatch to skip: what is left out is "
    "logged, and a load's commit counts it."
)


class DataLoss(KafkaError):
    """Offsets that should be read are no longer, or not yet again, in the log."""

    def __init__(self, wanted: OffsetRange, start: int, end: int) -> None:
        super().__init__(
            "[KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE] Could not read offsets "
            f"[{wanted.start}, {wanted.end}) of {wanted.topic_partition}: the log holds [{start}, {end}). "
            "Some data may have been lost: aged out by retention, or the topic was deleted or created anew. "
            "To go on with what is left, set the source option failOnDataLoss to false."
        )


@dataclass(frozen=True, slots=True)
class RangeReader(ABC):
    """*Not thread-safe: belongs to one task.* ``lookup`` holds the connections and is the caller's.

    What is the same in all generations; each of them reads in its own way.
    """

    columns: tuple[str, ...]
    options: SourceOptions
    lookup: SourceLookup
    on_loss: Callable[[int, int], None] = ignore_loss
    """Told of the offsets ``[start, end)`` that are gone, where ``failOnDataLoss`` lets the read go on."""
    on_skip: Callable[[int, int], None] = ignore_loss
    """Told of the offsets ``[start, end)`` that are left out as corrupt, with ``onCorruptBatch=skip``."""

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
                yield from self.read(wanted)
                return
            except Gone as gone:
                # Raised before any row of the lost offsets was yielded; what remains is read anew.
                wanted = self._after_loss(gone)
            except (CorruptMessage, MessageTooLarge) as e:
                if self.options.skip_corrupt:
                    raise
                raise type(e)(f"{e}. {_HOW_TO_SKIP}") from e

    @abstractmethod
    def read(self, wanted: OffsetRange) -> Iterator[pa.RecordBatch]:
        """The rows of a resolved range.

        Raises:
            Gone: before any row of the offsets that are lost.
            KafkaError: as `rows`.
        """

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

    def _after_loss(self, gone: Gone) -> OffsetRange:
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


class Gone(Exception):
    """The log holds ``[start, end)`` and no longer what was ``wanted``."""

    def __init__(self, wanted: OffsetRange, start: int, end: int) -> None:
        super().__init__(f"the log holds [{start}, {end})")
        self.wanted, self.start, self.end = wanted, start, end
