"""A load into files with a real session: its topic, its ledger, its table, and what readers see of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyspark_kafkalog as kafkalog
from tests.support.datasource.spark_topics import Topic
from tests.support.spark.frame_rows import assert_rows

NAME = "events"


@dataclass
class Lake:
    """One load's topic, ledgers and table."""

    spark: Any
    servers: str
    topic: Topic
    root: Path

    @property
    def offsets(self) -> Path:
        return self.root / "_offsets"

    @property
    def table(self) -> Path:
        return self.root / "table"

    @property
    def ledger(self) -> kafkalog.Ledger:
        return kafkalog.Ledger.at(self.offsets, NAME)

    def load(self, name: str = NAME, **options: Any) -> Any:
        given = {"kafka.bootstrap.servers": self.servers, "subscribe": self.topic.name, **options}
        return kafkalog.load(self.spark, name=name, offsets=self.offsets, **given)

    def run(self, **options: Any) -> Any:
        """A whole load; returns its commit."""
        with self.load(**options) as load:
            load.write_parquet(self.table)
        return load.commit

    def published(self) -> Any:
        """The load and the value of each row, as a DataFrame."""
        return kafkalog.read_load(self.spark, self.table).selectExpr("load", "bigint(string(value)) n")

    def assert_published(self, rows: Sequence[tuple[int, int]]) -> None:
        """The table has these rows, of load and value."""
        assert_rows(self.published(), "load int, n bigint", rows)
