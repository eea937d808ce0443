"""Filters that Spark pushes into one scan of a Python data source leave rows out of other scans.

Run with `python docs/pushdown_leak.py`; it needs PySpark 4.1 or newer and nothing else. docs/pushdown.md has
the story.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, EqualTo, Filter, InputPartition


class FourPartitions(DataSource):
    """Partitions 0 to 3 with ten rows each."""

    @classmethod
    def name(cls) -> str:
        return "four_partitions"

    def schema(self) -> str:
        return "partition int, row int"

    def reader(self, schema: Any) -> DataSourceReader:  # noqa: ARG002
        return FourPartitionsReader()


class FourPartitionsReader(DataSourceReader):
    """Leaves out the partitions that an equality rules out, and hands the filter back as one not applied."""

    wanted = frozenset(range(4))

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        for each in filters:
            if isinstance(each, EqualTo) and each.attribute == ("partition",):
                self.wanted = frozenset([each.value])
        return filters

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(number) for number in sorted(self.wanted)]

    def read(self, partition: InputPartition) -> Iterator[tuple[int, int]]:
        return ((partition.value, row) for row in range(10))


def scans(spark: SparkSession) -> Iterator[tuple[str, object, object]]:
    """What was asked, the rows that came, and the rows that should have come."""
    spark.dataSource.register(FourPartitions)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")

    def load() -> Any:
        return spark.read.format("four_partitions").load()

    frame = load()
    counts = [frame.count(), frame.where("partition = 3").count(), frame.count()]
    yield "count(), where(partition = 3).count(), count()", counts, [40, 10, 40]
    frame = load()
    union = frame.where("partition = 1").union(frame.where("partition = 3"))
    rows = dict(sorted(union.groupBy("partition").count().collect()))
    yield "rows of a union of two filters of one DataFrame", rows, {1: 10, 3: 10}
    frame = load()
    join = frame.where("partition = 1").join(frame.where("partition = 3"), "row")
    yield "rows of a join of two filters of one DataFrame", join.count(), 10
    load().createOrReplaceTempView("rows_of_four")
    filtered = spark.sql("select count(*) from rows_of_four where partition = 1").first()[0]
    yield "a view, filtered and whole", [filtered, spark.table("rows_of_four").count()], [10, 40]
    union = load().where("partition = 1").union(load().where("partition = 3"))
    rows = dict(sorted(union.groupBy("partition").count().collect()))
    yield "the union with a load() for each of the two", rows, {1: 10, 3: 10}


if __name__ == "__main__":
    session = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    print(f"Spark {session.version}")  # noqa: T201
    for query, got, right in scans(session):
        print(f"{'ok   ' if got == right else 'WRONG'} {query}: got {got}, right is {right}")  # noqa: T201
    session.stop()
