"""A snapshot as Prometheus metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from pyspark_kafkalog.status.snapshot import Snapshot

_PARTITION = ("topic", "partition")


class SnapshotCollector(Collector):
    """*Thread-safe.* Exports the newest snapshot; nothing before the first."""

    def __init__(self, newest: Callable[[], Snapshot | None]) -> None:
        self._newest = newest

    def collect(self) -> Iterator[GaugeMetricFamily]:
        snapshot = self._newest()
        if snapshot is None:
            return
        start = GaugeMetricFamily("kafkalog_partition_start_offset", "First offset", labels=_PARTITION)
        end = GaugeMetricFamily("kafkalog_partition_end_offset", "Offset after the last", labels=_PARTITION)
        size = GaugeMetricFamily("kafkalog_partition_size_bytes", "Size of the log", labels=_PARTITION)
        online = GaugeMetricFamily(
            "kafkalog_partition_online", "Whether a broker serves it: 1 or 0", labels=_PARTITION
        )
        for topic in snapshot.topics:
            for partition in topic.partitions:
                labels = (topic.name, str(partition.number))
                online.add_metric(labels, float(partition.leader >= 0))
                for family, value in (
                    (start, partition.start), (end, partition.end), (size, partition.size_bytes),
                ):  # fmt: skip
                    if value >= 0:
                        family.add_metric(labels, value)
        yield from (online, start, end, size)
        members = GaugeMetricFamily(
            "kafkalog_group_members", "Members of a consumer group", labels=("group",)
        )
        lag = GaugeMetricFamily(
            "kafkalog_group_lag", "Offsets that a consumer group has still to read", labels=("group",)
        )
        for group in snapshot.groups:
            members.add_metric((group.name,), group.member_count)
            if group.lag is not None:
                lag.add_metric((group.name,), group.lag)
        yield from (members, lag)
        number = GaugeMetricFamily("kafkalog_load_number", "Newest commit of a load", labels=("load",))
        load_lag = GaugeMetricFamily(
            "kafkalog_load_lag", "Offsets that a load has still to read", labels=("load",)
        )
        for load in snapshot.loads:
            number.add_metric((load.name,), load.number)
            if load.lag is not None:
                load_lag.add_metric((load.name,), load.lag)
        yield from (number, load_lag)
