"""DescribeLogDirs, versions 1-4: the data directories of a broker, and the size of each partition in them.

Flexible from 2. Version 3 added an error for the whole answer, 4 the disks' sizes.
Left out: 0, cordoned directories (5). Source: protocol guide, DescribeLogDirs; KIP-113, 827.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.codec import BOOL, ERROR_CODE, INT32, INT64, STRING, Array, wire


@dataclass(frozen=True, slots=True)
class DescribableLogDirTopic:
    topic: str = wire(STRING)
    partitions: tuple[int, ...] = wire(Array(INT32))


@dataclass(frozen=True, slots=True)
class DescribeLogDirsRequest:
    """The partitions in question; null asks for all."""

    topics: tuple[DescribableLogDirTopic, ...] | None = wire(Array(DescribableLogDirTopic), null_since=0)


@dataclass(frozen=True, slots=True)
class DescribeLogDirsPartition:
    """``partition_size`` in bytes; ``offset_lag`` is how far a replica is behind."""

    partition_index: int = wire(INT32)
    partition_size: int = wire(INT64)
    offset_lag: int = wire(INT64)
    is_future_key: bool = wire(BOOL)


@dataclass(frozen=True, slots=True)
class DescribeLogDirsTopic:
    name: str = wire(STRING)
    partitions: tuple[DescribeLogDirsPartition, ...] = wire(Array(DescribeLogDirsPartition))


@dataclass(frozen=True, slots=True)
class DescribeLogDirsResult:
    """One directory; the sizes of its file system in bytes, -1 if they are not known."""

    error_code: ErrorCode = wire(ERROR_CODE)
    log_dir: str = wire(STRING)
    topics: tuple[DescribeLogDirsTopic, ...] = wire(Array(DescribeLogDirsTopic))
    total_bytes: int = wire(INT64, 4, default=-1, ignorable=True)
    usable_bytes: int = wire(INT64, 4, default=-1, ignorable=True)


@dataclass(frozen=True, slots=True)
class DescribeLogDirsResponse:
    throttle_time_ms: int = wire(INT32)
    error_code: ErrorCode = wire(ERROR_CODE, 3, ignorable=True)
    results: tuple[DescribeLogDirsResult, ...] = wire(Array(DescribeLogDirsResult))
