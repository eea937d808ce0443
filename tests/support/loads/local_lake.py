"""Loads without Spark of a topic that has 0-9 in partition 0 and 10-14 in partition 1."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import pyarrow as pa

import pyspark_kafkalog as kafkalog
from pyspark_kafkalog.ledger.ledger import Ledger
from pyspark_kafkalog.loads.load import Load
from tests.support.datasource.spark_topics import Topic


class LocalLake(ABC):
    """One load's topic and ledger; what it writes to is for its tests to say."""

    def __init__(self, servers: str, topic: Topic, root: Path) -> None:
        self.topic, self.root, self.offsets = topic, root, root / "offsets"
        self.options: dict[str, Any] = {"kafka.bootstrap.servers": servers, "subscribe": topic.name}
        topic.add(*range(10), partition=0)
        topic.add(*range(10, 15), partition=1)

    @property
    def ledger(self) -> Ledger:
        return Ledger.at(self.offsets, "events")

    def load(self, **options: Any) -> Load:
        return kafkalog.load(None, name="events", offsets=self.offsets, **{**self.options, **options})

    @abstractmethod
    def write(self, load: Load, **how: Any) -> None:
        """Into its table."""

    def run(self, options: dict[str, Any] | None = None, **how: Any) -> Load:
        """A whole load."""
        with self.load(**(options or {})) as load:
            self.write(load, **how)
        return load

    def command(self, *more: str) -> list[str]:
        """The same on the command line, where ``more`` says what it writes to."""
        where = ["--offsets", str(self.offsets), "--topic", self.topic.name]
        server = ["--bootstrap-server", self.options["kafka.bootstrap.servers"]]
        return ["load", "events", *where, *server, *more]

    def unfinished(self) -> None:
        """A load whose driver died after its write and before its commit."""
        try:
            with self.load() as load:
                self.write(load)
                raise InterruptedError
        except InterruptedError:
            return


class FileLake(LocalLake):
    """One whose table is Parquet files."""

    @property
    def table(self) -> Path:
        return self.root / "table"

    def write(self, load: Load, **how: Any) -> None:
        load.write_parquet(self.table, **how)

    def rows(self, *columns: str, **how: Any) -> list[tuple[Any, ...]]:
        """The published rows, in order; null comes first."""
        return _in_order(kafkalog.read_load(None, self.table, **how).read_all(), columns)

    def dead(self, *columns: str) -> list[tuple[Any, ...]]:
        """The dead letters, likewise."""
        return _in_order(kafkalog.read_dead(None, "events", offsets=self.offsets).read_all(), columns)


def _in_order(table: pa.Table, columns: tuple[str, ...]) -> list[tuple[Any, ...]]:
    rows = zip(*(table[name].to_pylist() for name in columns), strict=True)
    return sorted(rows, key=lambda row: [(one is not None, one) for one in row])
