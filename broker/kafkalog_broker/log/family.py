"""What the logs of one family do in their own way (`LogFamily`), what is said of an append, and what all logs
share (`LogTools`).

Two families: 0.7, whose offsets count bytes, and 0.8 onwards, whose offsets count records. The tables
themselves are in `generations`. Code that has a log asks its table, and never which generation it has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from kafkalog_broker.config.broker import LogConfig
from kafkalog_broker.disk.filesystem import FileSystem, OpenFiles
from kafkalog_broker.log.aborted_transactions import AbortedTransaction
from kafkalog_broker.log.batch_times import BatchTimes
from kafkalog_broker.log.offset_scheme import LoadedSchemes, OffsetScheme
from kafkalog_broker.log.walk import Scan
from pyspark_kafkalog.clock import Clock
from pyspark_kafkalog.formats.base import Frame, MessageFormat
from pyspark_kafkalog.formats.batch import MAGIC, BatchHeader, ControlType
from pyspark_kafkalog.types import TopicPartition

MAX_DECOMPRESSED_BYTES = 32 << 20
"""One batch, when it must be opened to answer for a timestamp, or to be let in at all: 32 times what
``max.message.bytes`` lets in by default, and still little memory for the broker."""


class AppendResult(NamedTuple):
    """Where an append went.

    ``log_append_time_ms`` is -1 where records keep their producer's time. A ``duplicate`` was appended by
    an earlier request, and the offsets are those it got then; it adds no ``record_count``.
    ``converted_count`` of the records were rewritten, into ``converted_bytes``: in the topic's format, or
    because compressed sets of v0 and v1 hold offsets. Unless ``stable`` a transaction keeps them from those
    who read committed data.
    """

    base_offset: int
    last_offset: int
    log_append_time_ms: int
    start_offset: int
    record_count: int
    duplicate: bool = False
    converted_count: int = 0
    converted_bytes: int = 0
    stable: bool = True


class Unnumbered(NamedTuple):
    """What a compressed set of v0 or v1 holds, decompressed; with its offsets it may be ``largest`` bytes."""

    block: memoryview
    largest: int


class CheckedBatch(NamedTuple):
    """What is left to know of a batch that may be appended; ``header`` only where a producer is named.

    ``offset_count`` offsets go to it: one for each record, or in a log of 0.7 one for each byte. The offset
    that names it is ``named_delta`` above the first: a compressed set of v0 or v1 is named by its last one.
    ``rewritten``: its records are encoded again. ``inner`` is set where that must wait for the offsets, which
    are inside what is compressed.
    """

    size: int
    record_count: int
    offset_count: int
    max_timestamp: int
    header: BatchHeader | None
    magic: int = MAGIC
    named_delta: int = 0
    rewritten: bool = False
    inner: Unnumbered | None = None


def rewritten(batches: Sequence[CheckedBatch]) -> tuple[int, int]:
    """How many records of ``batches`` were encoded again, and the bytes of their batches."""
    again = [batch for batch in batches if batch.rewritten]
    return sum(batch.record_count for batch in again), sum(batch.size for batch in again)


class KnownProducer(NamedTuple):
    """What a log knows of a producer; -1 for no sequence, and where no transaction of it is open."""

    producer_id: int
    epoch: int
    last_sequence: int
    last_timestamp_ms: int
    open_offset: int


class NewestBatch(NamedTuple):
    """What a cleaner must leave of a producer: its last batch of data, which ends at ``last_offset``; None
    where the log has none of its ``epoch``: then the marker of that epoch.
    """

    last_offset: int | None
    epoch: int


Checked = tuple[memoryview, list[CheckedBatch]]


class TakesLong(Exception):
    """What was to be appended at once would take more than some ms; nothing was appended."""


class Check(Protocol):
    """Looks at everything in an append before any of it is written; pure."""

    def __call__(
        self, data: memoryview, config: LogConfig, now_ms: int, *, internal: bool, at_once: bool
    ) -> Checked:
        """What may be appended: the data itself, in 0.7 without an entry that is cut at its end, or what was
        made of it because the topic wants another format; and its batches. A `KafkaError` refuses all of it.

        ``internal`` is for what the broker itself appends. ``at_once`` raises `TakesLong` rather than take
        more than some ms.
        """


Number = Callable[[memoryview, list[CheckedBatch], int, "int | None"], Checked]
"""Gives offsets from the third argument on, and the log append time if there is one.

Writes them into the data where the format has them. Returns the data, rewritten where it has offsets that are
compressed, and the batches with the sizes and times that they then have. `MessageTooLarge`: what was
rewritten is larger than ``max.message.bytes``.
"""


class Producers(Protocol):
    """What a log knows of those who write to it. Called under the log's lock."""

    loaded: bool
    """Whether `restore` and `replay` are done; set by the log."""

    @property
    def first_open(self) -> int | None:
        """The smallest first offset of an open transaction; None when none is open."""
        ...

    def check_epoch(self, producer_id: int, epoch: int) -> None:
        """Raises `InvalidProducerEpoch`: the producer has written with a later epoch."""

    def known(self) -> list[KnownProducer]:
        """All producers, by id."""
        ...

    def newest(self) -> dict[int, NewestBatch]:
        """The last batch of each, by id."""
        ...

    def check(self, batches: Sequence[CheckedBatch]) -> tuple[int, int] | None:
        """First and last offset of the batch that is repeated; None when all are new."""
        ...

    def record(
        self,
        batches: Sequence[CheckedBatch],
        base_offset: int,
        now_ms: int,
        marker: ControlType | None = None,
    ) -> AbortedTransaction | None:
        """The batches were appended from ``base_offset`` on; a ``marker`` is alone. What it aborts."""
        ...

    def forget_before(self, now_ms: int) -> None:
        """Forget those who have been silent for too long."""
        ...

    def restore(self, end_offset: int) -> int:
        """Take over what was saved for a log that ends at ``end_offset``; the offset from which `replay` must
        go on. Raises `OSError`.
        """
        ...

    def replay(self, heads: Iterable[tuple[Frame, bytes]], now_ms: int) -> list[AbortedTransaction]:
        """Learn from frames of the log, each with its first bytes; what their markers abort.
        Raises as ``heads``.
        """
        ...

    def save(self, end_offset: int) -> None:
        """Note what is known of everything before ``end_offset``."""
        ...


SchemeFactory = Callable[[int, Path, int, OpenFiles], OffsetScheme]
"""Base offset, segment file, index interval in bytes, and where to read and write."""


@dataclass(frozen=True, slots=True)
class LogFamily:
    """*Thread-safe: it never changes.* The table of one family."""

    generation: str
    """Its name, as it is kept on the disk: that of the first generation of the family."""
    format: MessageFormat
    scan: Scan
    """Walks a segment that may be damaged."""
    scheme: SchemeFactory
    takes_long: Callable[[memoryview, LogConfig], bool]
    """Whether it takes more than some ms to check and number so much."""
    check: Check
    number: Number
    """What it returns may be numbered once more, from another offset on."""
    producers: Callable[[Path, FileSystem, int], Producers]
    """For a log's directory; forgets a producer so many ms after its last append."""
    readable_end: Callable[[int, int], int]
    """Of the log's end and of the end of what is known to be on the disk, the one that readers see."""
    is_full: Callable[[int, int, int], bool]
    """Of a segment's bytes, of those to come and of ``segment.bytes``: whether it takes no more."""
    check_name: Callable[[str, Iterable[str]], None]
    """Refuses, with `InvalidTopic`, a name that a topic cannot have next to those others."""


LOADED_INDEX_BYTES = 32 << 20
"""Memory for the indexes of full segments; those of one of 1 GiB take 2 to 5 MiB."""

Grown = Callable[[TopicPartition, int], object]


@dataclass(frozen=True, slots=True)
class LogTools:
    """The disk and its open files, the time, the family's table, and the indexes that are in memory."""

    files: FileSystem
    pool: OpenFiles
    clock: Clock
    family: LogFamily
    schemes: LoadedSchemes
    flushed: Callable[[float], object]
    """Called with the seconds that each flush took."""
    times: BatchTimes
    """What is known of batches that were opened for their times."""
    producer_expiration_ms: int
    """So long after its last append a producer is forgotten."""
    grown: Grown
    """Called with a log and the bytes that a flush made readable."""
