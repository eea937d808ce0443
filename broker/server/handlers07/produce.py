"""PRODUCE: append messages to a log. There is no answer.

A message that is too large drops the request, and the connection goes on; every other fault ends it, and
nothing of the request is appended. Partition -1 is one at random. The topic is made when it is not there and
``auto.create.topics.enable`` allows it.
"""

from __future__ import annotations

import logging
import random

from broker.server.context import Services
from broker.server.partitions07 import partition_count
from broker.server.topics import INTERNAL_TOPICS
from pyspark_kafkalog.errors import InvalidTopic, MessageTooLarge, UnknownTopicOrPartition
from pyspark_kafkalog.protocol.v07 import ANY_PARTITION, ProduceRequest, RequestType
from pyspark_kafkalog.steps import Steps
from pyspark_kafkalog.types import TopicPartition

_log = logging.getLogger(__name__)


def produce(request: ProduceRequest, services: Services) -> Steps[None]:
    """Append, and say nothing. Raises as `append`."""
    yield from append(request, services, RequestType.PRODUCE)


def append(request: ProduceRequest, services: Services, kind: RequestType) -> Steps[None]:
    """Append the messages of a request of this ``kind``, or of a part of one.

    Raises:
        InvalidTopic: there can be no such topic, or it is the broker's own.
        UnknownTopicOrPartition: it has no such partition, or may not be made.
        CorruptMessage: one of the messages cannot be read.
        ServerError: the topic holds messages of another generation.
        StorageError: the disk is full or failed.
    """
    topic, number = request.topic, request.partition
    if topic in INTERNAL_TOPICS:
        raise InvalidTopic(f"topic {topic!r} is internal: clients cannot write to it")
    count = partition_count(services, topic)
    if number == ANY_PARTITION:
        number = random.randrange(count)
    if not 0 <= number < count:
        raise UnknownTopicOrPartition(f"{topic!r} has {count} partitions; there is no number {number}")
    if topic not in services.topics.all():
        if not services.config.auto_create_topics_enable:
            raise UnknownTopicOrPartition(f"{topic!r} does not exist; auto.create.topics.enable is false")
        services.topics.get_or_create(topic, services.logs.family.generation)
    log = services.logs.log(TopicPartition(topic, number))
    try:
        result = yield from log.append_in_steps(request.messages)
    except MessageTooLarge as e:
        services.metrics.request_errors(f"{kind.name} 0.7", e.code.name).inc()
        _log.warning("dropped %d bytes for %s: %s", len(request.messages), log.topic_partition, e)
        return
    metrics = services.metrics
    metrics.appended_messages.inc(result.record_count)
    metrics.appended_bytes.inc(result.last_offset + 1 - result.base_offset)
