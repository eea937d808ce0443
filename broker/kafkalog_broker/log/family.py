"""Interface between a log and its family's code (`LogFamily`), and shared tools (`LogTools`).

Families: 0.7, with byte offsets, and 0.8 and later, with record offsets; tables: `generations`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from kafkalog_broker.config.broker_config import LogConfig
from kafkalog_broker.disk.filesystem import FileSystem, OpenFiles
from kafkalog_broker.log.aborted_transactions import AbortedTransaction
from kafkalog_broker.log.offset_scheme import BatchTimes, ByteOffsets, LoadedSchemes, LogicalOffsets
from kafkalog_broker.log.walk import Scan
from pyspark_kafkalog.clock import Clock
from pyspark_kafkalog.formats.base import Frame, MessageFormat
from pyspark_kafkalog.formats.batch import MAGIC, BatchHeader, ControlType
from pyspark_kafkalog.types import TopicPartition

MAX_DECOMPRESSED_BYTES = 32 << 20
"""Limit of one batch that is opened: 32 times the default ``max.message.bytes``."""


class AppendResult(NamedTuple):
    """Where an append went. ``log_append_time_ms`` is -1 for producer time. ``duplicate``: appended earlier,
    at these offsets. ``converted_count`` records were rewritten. ``stable``: in no open transaction.
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
    """Decompressed content of a v0 or v1 set; its numbered form may have up to ``largest`` bytes."""

    block: memoryview
    largest: int


class CheckedBatch(NamedTuple):
    """A batch that may be appended; ``header`` only if it names a producer. ``named_delta``: from its first
    offset to the one naming it (in a compressed set the last). ``inner``: encode again once numbered.
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
    again = [batch for batch in batches if batch.rewritten]
    return sum(batch.record_count for batch in again), sum(batch.size for batch in again)


class KnownProducer(NamedTuple):
    producer_id: int
    epoch: int
    last_sequence: int
    last_timestamp_ms: int
    open_offset: int


class NewestBatch(NamedTuple):
    """What a cleaner must keep of a producer: its last data batch, else (None) the marker of ``epoch``."""

    last_offset: int | None
    epoch: int


Checked = tuple[memoryview, list[CheckedBatch]]


class TakesLong(Exception):
    """An ``at_once`` append would take more than a few ms; nothing was appended."""


class Check(Protocol):
    def __call__(
        self, data: memoryview, config: LogConfig, now_ms: int, /, *, internal: bool, at_once: bool
    ) -> Checked:
        """The data, perhaps converted, and its batches; `TakesLong` if ``at_once`` does not suffice."""


Number = Callable[[memoryview, list[CheckedBatch], int, "int | None", int], Checked]
"""Assigns offsets from the third argument on, the log append time if given, and the leader epoch, in place or
in rewritten data. Returns the data and the batches with new sizes and times. Raises `MessageTooLarge`.
"""


class Producers:
    """*Guarded by the log's lock.* A log's producer state; this one for messages that name no producer."""

    loaded = True
    """Set by the log after `load` and `replay`."""
    directory = Path()
    """Where `save` writes."""

    @property
    def first_open(self) -> int | None:
        """Lowest first offset of an open transaction, or None."""
        return None

    def check_epoch(self, producer_id: int, epoch: int) -> None: ...

    def known(self) -> list[KnownProducer]:
        return []

    def newest(self) -> dict[int, NewestBatch]:
        """Last batch of each producer, by id."""
        return {}

    def check_all(self, batches: Sequence[CheckedBatch]) -> tuple[int, int] | None:  # noqa: ARG002
        """Offsets of the earlier batch that is repeated; None if all are new."""
        return None

    def record_all(
        self,
        batches: Sequence[CheckedBatch],  # noqa: ARG002
        base_offset: int,  # noqa: ARG002
        now_ms: int,  # noqa: ARG002
        marker: ControlType | None,  # noqa: ARG002
    ) -> AbortedTransaction | None:
        """Record batches appended from ``base_offset``, or one ``marker``; returns what it aborts."""
        return None

    def forget_before(self, now_ms: int) -> None: ...

    def load(self, end_offset: int) -> int:
        """Load the saved state of a log ending at ``end_offset``; returns the offset to `replay` from."""
        return end_offset

    def replay(self, heads: Iterable[tuple[Frame, bytes]], now_ms: int) -> list[AbortedTransaction]:  # noqa: ARG002
        """Learn from frames and their first bytes; returns the aborted transactions. Raises as ``heads``."""
        return []

    def save(self, end_offset: int) -> None:
        """Save the state before ``end_offset``. A failure is only logged: replay takes longer."""


class LogFamily(msgspec.Struct, frozen=True):
    """*Thread-safe: immutable.* The table of one family."""

    generation: str
    """Name used on disk: the family's first generation."""
    format: MessageFormat
    scan: Scan
    scheme: type[LogicalOffsets] | type[ByteOffsets]
    takes_long: Callable[[memoryview, LogConfig], bool]
    """Whether checking and numbering may take more than a few ms."""
    check: Check
    number: Number
    """The result may be numbered again, from another offset."""
    producers: Callable[[Path, FileSystem, int], Producers]
    """Arguments: log directory, file system, expiration in ms."""
    check_name: Callable[[str, Iterable[str]], None]
    """Raises `InvalidTopic` if a topic cannot have this name next to the others."""


LOADED_INDEX_BYTES = 32 << 20
"""Memory for the indexes of full segments; a 1 GiB segment's take 2 to 5 MiB."""

Grown = Callable[[TopicPartition, int], object]


class LogTools(msgspec.Struct, frozen=True):
    files: FileSystem
    pool: OpenFiles
    clock: Clock
    family: LogFamily
    schemes: LoadedSchemes
    flushed: Callable[[float], object]
    """Called with the seconds of each flush."""
    times: BatchTimes
    producer_expiration_ms: int
    """A producer is forgotten this long after its last append."""
    grown: Grown
    """Called with a partition and the bytes that a flush made readable."""
