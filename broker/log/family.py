"""What the logs of one family of generations do in a way of their own: a table that a log is built with.

Two families: 0.7, whose offsets count bytes, and 0.8 onwards, whose offsets count records. The tables
themselves are in `generations`. Whoever has a log asks its table, and never which generation it has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from broker.config import LogConfig
from broker.log.filesystem import FileSystem
from broker.log.offset_scheme import OffsetScheme
from broker.log.open_files import OpenFiles
from broker.log.salvage import Scan
from broker.log.validation import AppendGuard, CheckedBatch
from pyspark_kafkalog.formats.base import MessageFormat
from pyspark_kafkalog.steps import Steps

if TYPE_CHECKING:
    from broker.log.segment import Segment


class Check(Protocol):
    """Looks at everything in an append before any of it is written; pure."""

    def __call__(
        self, data: memoryview, config: LogConfig, now_ms: int, *, internal: bool
    ) -> tuple[memoryview, list[CheckedBatch]]:
        """What may be appended: ``data`` itself, in 0.7 without an entry that is cut at its end, or what it
        was made into because the topic wants another format; and the batches that lie there.

        Raises:
            KafkaError: something in it may not be appended, so nothing is.
        """
        ...


class CheckInSteps(Protocol):
    """The same in steps."""

    def __call__(
        self, data: memoryview, config: LogConfig, now_ms: int, *, internal: bool
    ) -> Steps[tuple[memoryview, list[CheckedBatch]]]:
        """As `Check`. Raises the same."""
        ...


class Number(Protocol):
    """Gives offsets to what is appended."""

    def __call__(
        self,
        data: memoryview,
        batches: list[CheckedBatch],
        base_offset: int,
        log_append_time_ms: int | None,
        /,
    ) -> tuple[memoryview, list[CheckedBatch]]:
        """Write the offsets into ``data`` where the format has them.

        Returns the data, made anew where it holds offsets that are compressed, and the batches with the sizes
        and times that they then have.

        Raises:
            MessageTooLarge: what was made anew is larger than ``max.message.bytes``.
        """
        ...


class NumberInSteps(Protocol):
    """The same in steps, for an offset that may not be the log's end any more when they are done."""

    def __call__(
        self,
        data: memoryview,
        batches: list[CheckedBatch],
        base_offset: int,
        log_append_time_ms: int | None,
        /,
    ) -> Steps[tuple[memoryview, list[CheckedBatch]]]:
        """As `Number`; what comes back can be numbered once more. Raises the same."""
        ...


class Producers(Protocol):
    """What a log knows of those who write to it. Called under the log's lock."""

    loaded: bool
    """Whether `load` has been called, if that is needed at all."""

    def check(self, batches: Sequence[CheckedBatch]) -> tuple[int, int] | None:
        """First and last offset of the batch that is repeated; None when all are new."""
        ...

    def record(self, batches: Sequence[CheckedBatch], base_offset: int, now_ms: int) -> None:
        """The batches were appended from ``base_offset`` on."""
        ...

    def forget_before(self, now_ms: int) -> None:
        """Forget those who have been silent for too long."""
        ...

    def load(self, segments: Sequence[Segment], end_offset: int, now_ms: int) -> None:
        """Learn who has written to the log. Raises `OSError`."""
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
    """Whether it takes more than some ms to check and number so much: then it is done in steps."""
    check: Check
    check_in_steps: CheckInSteps
    number: Number
    number_in_steps: NumberInSteps
    producers: Callable[[AppendGuard, Path, FileSystem], Producers]
    readable_end: Callable[[int, int], int]
    """Of the log's end and of the end of what is known to be on the disk, the one that readers see."""
    is_full: Callable[[int, int, int], bool]
    """Of a segment's bytes, of those to come and of ``segment.bytes``: whether it takes no more."""
    check_name: Callable[[str, Iterable[str]], None]
    """Refuses, with `InvalidTopic`, a name that a topic cannot have next to those others."""
