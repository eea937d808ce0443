"""How Kafka 0.7 sees topics: every legal name is one, and its partitions are there before their logs are."""

from __future__ import annotations

from broker.log.log import Log
from broker.server.context import Services
from pyspark_kafkalog.errors import UnknownTopicOrPartition
from pyspark_kafkalog.protocol.v07 import check_topic
from pyspark_kafkalog.types import TopicPartition


def partition_count(services: Services, topic: str) -> int:
    """How many partitions the topic has, or would have.

    Raises:
        InvalidTopic: it cannot have this name.
    """
    check_topic(topic)
    stored = services.topics.all().get(topic)
    return services.config.num_partitions if stored is None else len(stored.partitions)


def find_log(services: Services, topic: str, partition: int) -> Log | None:
    """The log of a partition that may be there; None as long as nobody has produced to its topic.

    Raises:
        InvalidTopic: no topic can have this name.
        UnknownTopicOrPartition: the topic does not have, or would not have, so many partitions.
        ServerError: the topic holds messages of another generation.
        StorageError: its directory is offline.
    """
    count = partition_count(services, topic)
    if not 0 <= partition < count:
        raise UnknownTopicOrPartition(f"{topic!r} has {count} partitions; there is no number {partition}")
    if topic not in services.topics.all():
        return None
    return services.logs.log(TopicPartition(topic, partition))
