"""Whether the running Spark keeps the filters of one scan away from other scans (docs/pushdown.md)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyspark
from pyspark.sql import datasource
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from pyspark_kafkalog.errors import InvalidConfig, KafkaError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import Filter
    from pyspark.sql.types import StructType

PUSHDOWN_CONF = "spark.sql.python.filterPushdown.enabled"
_PARTITIONS, _ROWS = 4, 10


def check_pushdown_exists() -> None:
    """Raise `InvalidConfig` where this PySpark does not push filters into Python sources at all."""
    if not hasattr(datasource, "Filter"):
        raise InvalidConfig(
            f"PySpark {pyspark.__version__} does not push filters into Python sources; 4.1 and newer do. "
            "Leave pushFilters and enable_pushdown out, and name what is to be read by options instead "
            "(assign, startingOffsets, timestamps)"
        )


class PushdownLeaks(KafkaError):
    """The running Spark lets the filters of one scan rule out rows of another."""


def enable_pushdown(spark: SparkSession) -> None:
    """Let this session push filters into sources, provided that it is safe to.

    Afterwards ``pushFilters=true`` makes reads of the source leave out what filters rule out.

    Raises:
        PushdownLeaks: the probe got wrong rows; the session is as it was.
        InvalidConfig: this PySpark pushes no filters.
    """
    check_pushdown_exists()
    wrong = find_leak(spark)
    if wrong:
        raise PushdownLeaks(
            f"Spark {spark.version} does not keep pushed filters apart: {wrong}. Pushing filters stays off; "
            "name what is to be read by options instead (assign, startingOffsets, timestamps). See "
            "docs/pushdown.md"
        )
    spark.conf.set(PUSHDOWN_CONF, "true")


def find_leak(spark: SparkSession) -> str:
    """The first wrong answer of the probe, in words; empty where all are right. Takes a second or two.

    A source of four partitions with ten rows each leaves out the partitions that an equality rules out. Each
    query is over one DataFrame, for that is what shares a plan.
    """
    spark.dataSource.register(ProbeSource)
    with _pushing(spark):
        frame = spark.read.format(ProbeSource.name()).load()
        every = _PARTITIONS * _ROWS
        counts = [frame.count(), frame.where("partition = 3").count(), frame.count()]
        if counts != [every, _ROWS, every]:
            return f"counting all rows, those of one partition and all again gave {counts}"
        frame = spark.read.format(ProbeSource.name()).load()
        two = frame.where("partition = 1").union(frame.where("partition = 3"))
        found = sorted(row["partition"] for row in two.select("partition").distinct().collect())
        if found != [1, 3]:
            return f"a union of partitions 1 and 3 had rows of {found}"
    return ""


class ProbeSource(DataSource):
    """Rows ``(partition, row)``; importable, so that Spark's workers find it by its name."""

    @classmethod
    def name(cls) -> str:
        return "kafkalog_pushdown_probe"

    def schema(self) -> str:
        return "partition int, row int"

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002
        return _ProbeReader()


class _ProbePartition(InputPartition):
    def __init__(self, number: int) -> None:
        self.number = number


class _ProbeReader(DataSourceReader):
    _wanted: frozenset[Any] = frozenset(range(_PARTITIONS))

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        named = [
            f.value for f in filters if isinstance(f, datasource.EqualTo) and f.attribute == ("partition",)
        ]
        if named:
            self._wanted = frozenset(named)
        return filters

    def partitions(self) -> Sequence[InputPartition]:
        return [_ProbePartition(number) for number in range(_PARTITIONS) if number in self._wanted]

    def read(self, partition: InputPartition) -> Iterator[tuple[int, int]]:
        if isinstance(partition, _ProbePartition):
            yield from ((partition.number, row) for row in range(_ROWS))


@contextmanager
def _pushing(spark: SparkSession) -> Iterator[None]:
    """The session with filters pushed, and as it was afterwards."""
    former = spark.conf.get(PUSHDOWN_CONF, None)
    spark.conf.set(PUSHDOWN_CONF, "true")
    try:
        yield
    finally:
        if former is None:
            spark.conf.unset(PUSHDOWN_CONF)
        else:
            spark.conf.set(PUSHDOWN_CONF, former)
