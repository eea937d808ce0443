"""What a load asks of Spark when its tasks read by themselves, done in this process: one call a task."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pyarrow as pa

from pyspark_kafkalog.datasource.source import DefaultSource

Write = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


@dataclass
class LocalSpark:
    """Stands for a SparkSession with a local master; ``before`` is told the number of each task to come."""

    master: str = "local[2]"
    before: Callable[[int], None] = lambda _: None
    read: Any = field(init=False)
    conf: Any = field(init=False)

    def __post_init__(self) -> None:
        self.read = _Reader({})
        self.conf = self

    def get(self, name: str, default: str) -> str:
        return self.master if name == "spark.master" else default

    def createDataFrame(self, rows: list[Any], schema: Any) -> _Frame:
        assert rows == [], "where nothing is new"
        return _Frame(schema.names)

    def range(self, start: int, end: int, step: int, partitions: int) -> _Range:
        assert (start, step, partitions) == (0, 1, end), "a task for each number"
        return _Range(end, self.before)


@dataclass
class _Range:
    count: int
    before: Callable[[int], None]

    def mapInArrow(self, write: Write, schema: str) -> _Written:
        return _Written(self, write)


@dataclass
class _Written:
    numbers: _Range
    write: Write

    def collect(self) -> list[Any]:
        lines = []
        for number in range(self.numbers.count):
            self.numbers.before(number)
            for batch in self.write(iter([pa.record_batch({"id": pa.array([number], pa.int64())})])):
                lines += batch.column("line").to_pylist()
        return [SimpleNamespace(line=line) for line in lines]


@dataclass
class _Reader:
    given: dict[str, str]

    def format(self, name: str) -> _Reader:
        assert name == "kafkalog"
        return self

    def options(self, **given: str) -> _Reader:
        return _Reader(self.given | given)

    def load(self) -> _Frame:
        source = DefaultSource(self.given)
        return _Frame(source.schema().names, source)


@dataclass
class _Frame:
    columns: list[str]
    source: DefaultSource | None = None

    def count(self, *, tasks: int | None = None) -> int:
        """The rows, as an action reads them: each task to its end, or the first ``tasks`` of them only."""
        if self.source is None:
            return 0
        reader = self.source.reader(self.source.schema())
        parts = list(reader.partitions())
        return sum(batch.num_rows for part in parts[:tasks] for batch in reader.read(part))
