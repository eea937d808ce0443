"""What all logs of a broker share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from broker.log.filesystem import FileSystem
from broker.log.offset_scheme import LoadedSchemes, LogicalOffsets, OffsetScheme
from broker.log.open_files import OpenFiles
from pyspark_kafkalog.clock import Clock
from pyspark_kafkalog.formats.base import MessageFormat

LOADED_INDEX_BYTES = 32 << 20
"""Memory for the indexes of full segments; those of one of 1 GiB take 2 to 5 MiB."""

SchemeFactory = Callable[[int, Path, int, OpenFiles], OffsetScheme]
"""Base offset, segment file, index interval in bytes, and where to read and write."""


@dataclass(frozen=True, slots=True)
class LogTools:
    """The disk and its open files, the time, the generation, and the indexes that are in memory."""

    files: FileSystem
    pool: OpenFiles
    clock: Clock
    format: MessageFormat
    scheme: SchemeFactory = LogicalOffsets
    schemes: LoadedSchemes = field(default_factory=lambda: LoadedSchemes(LOADED_INDEX_BYTES))
    flushed: Callable[[float], object] = lambda _: None
    """Told how many seconds each flush kept the disk busy."""
