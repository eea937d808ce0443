"""The properties of fetching."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_kafkalog.config.client import ClientConfig
from pyspark_kafkalog.config.definition import INT_MAX, between, one_of, positive_int, prop
from pyspark_kafkalog.types import IsolationLevel


@dataclass(frozen=True)
class ConsumerConfig(ClientConfig):
    """The properties of fetching; Kafka's names and defaults."""

    fetch_min_bytes: int = prop(
        "fetch.min.bytes", 1, int, check=between(0, INT_MAX), unit="bytes", section="Fetching",
        doc="Data that the broker waits for before it responds to a fetch, up to fetch.max.wait.ms.",
    )  # fmt: skip
    fetch_max_wait_ms: int = prop(
        "fetch.max.wait.ms", 500, int, check=between(0, INT_MAX), unit="ms",
        doc="Longest time that the broker waits for fetch.min.bytes.",
    )  # fmt: skip
    fetch_max_bytes: int = prop(
        "fetch.max.bytes", 50 << 20, int, check=positive_int, unit="bytes",
        doc="Data in one response. A larger first batch is sent anyway.",
    )  # fmt: skip
    max_partition_fetch_bytes: int = prop(
        "max.partition.fetch.bytes", 1 << 20, int, check=positive_int, unit="bytes",
        doc="Data of one partition in one response. A larger first batch is sent anyway.",
    )  # fmt: skip
    isolation_level: str = prop(
        "isolation.level", "read_uncommitted", str, check=one_of("read_uncommitted", "read_committed"),
        section="Records",
        doc="Whether records of open and aborted transactions are read.",
    )  # fmt: skip

    @property
    def isolation(self) -> IsolationLevel:
        """`isolation_level` as the protocol's number."""
        return IsolationLevel[self.isolation_level.upper()]
