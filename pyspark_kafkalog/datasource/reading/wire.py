"""Opens the cluster that the options name; only this module chooses between today's wire and Kafka 0.7."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pyspark_kafkalog.config.classic_config import Source07Config

if TYPE_CHECKING:
    from pyspark_kafkalog.datasource.options.option_definitions import SourceOptions
    from pyspark_kafkalog.datasource.reading.source_cluster import SourceCluster


@contextmanager
def opened_cluster(
    options: SourceOptions, brokers: Mapping[int, str] | None = None, *, is_task: bool = False
) -> Iterator[SourceCluster]:
    """`open_cluster` for one piece of work; keeps the connections for the next one unless this one fails."""
    cluster = open_cluster(options, brokers, is_task=is_task)
    try:
        yield cluster
    except BaseException:
        cluster.close()
        raise
    cluster.release()


def open_cluster(
    options: SourceOptions, brokers: Mapping[int, str] | None = None, *, is_task: bool = False
) -> SourceCluster:
    """The cluster of the generation that the options name.

    ``is_task``: the cluster has answered the planner before. ``brokers``: ``host:port`` of a task's brokers
    by id, from its plan; ZooKeeper is then not asked.
    """
    if isinstance(options.wire, Source07Config):
        from pyspark_kafkalog.datasource.reading.kafka07 import Kafka07Cluster

        return Kafka07Cluster(options, options.wire, brokers or {})
    from pyspark_kafkalog.datasource.reading.kafka import KafkaCluster

    return KafkaCluster(options, options.wire, answered_before=is_task)


def close_idle_connections() -> None:
    """Close the connections that `opened_cluster` keeps in this process."""
    from pyspark_kafkalog.datasource.reading.kafka import IDLE_CLUSTERS

    IDLE_CLUSTERS.clear()
