"""What all logs of a family share, and but for its table all logs of a broker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from broker.log.batch_times import BatchTimes
from broker.log.family import LogFamily
from broker.log.filesystem import FileSystem
from broker.log.offset_scheme import LoadedSchemes
from broker.log.open_files import OpenFiles
from pyspark_kafkalog.clock import Clock
from pyspark_kafkalog.types import TopicPartition

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
    """Told how many seconds each flush kept the disk busy."""
    times: BatchTimes
    """What is known of batches that were opened for their times."""
    grown: Grown
    """Told of a log that a flush made more of readable, and by how many bytes."""
