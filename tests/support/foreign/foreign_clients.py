"""Three clients that are not ours behind one face, so that what one writes the others can be made to read."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from pyspark_kafkalog.types import NO_TIMESTAMP
from tests.support.foreign.foreign_aiokafka import Aiokafka
from tests.support.foreign.foreign_face import WAIT_SECONDS, ForeignClient, Message


class Confluent:
    """librdkafka."""

    def __init__(self, name: str = "confluent-kafka", settings: Mapping[str, object] | None = None) -> None:
        """``settings`` go to all its producers and consumers."""
        self.name = name
        self._settings = settings or {}

    def create_topic(self, servers: str, topic: str, partitions: int) -> None:
        from confluent_kafka.admin import NewTopic

        admin = self._admin(servers)
        admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(WAIT_SECONDS)

    def delete_topic(self, servers: str, topic: str) -> None:
        admin = self._admin(servers)
        admin.delete_topics([topic])[topic].result(WAIT_SECONDS)

    def topics(self, servers: str) -> set[str]:
        admin = self._admin(servers)
        return set(admin.list_topics(timeout=WAIT_SECONDS).topics)

    def produce(
        self,
        servers: str,
        topic: str,
        partition: int,
        batch: Sequence[Message],
        codec: str,
        *,
        idempotent: bool,
    ) -> list[int]:
        from confluent_kafka import Producer

        producer = Producer(
            {
                "bootstrap.servers": servers,
                "compression.type": codec,
                "enable.idempotence": idempotent,
                "linger.ms": 5,
                "batch.num.messages": 50,
                **self._settings,
            }
        )
        offsets: list[int] = []
        errors: list[object] = []

        def delivered(error: object, message: Any) -> None:
            if error is None:
                offsets.append(message.offset())
            else:
                errors.append(error)

        for m in batch:
            producer.produce(
                topic,
                m.value,
                m.key,
                partition,
                on_delivery=delivered,
                timestamp=m.timestamp,
                headers=list(m.headers) or None,
            )
        assert producer.flush(WAIT_SECONDS) == 0
        assert errors == []
        return offsets

    def consume(self, servers: str, topic: str, partition: int, offset: int, count: int) -> list[Message]:
        from confluent_kafka import TopicPartition

        consumer = self._consumer(servers, "reads-by-assignment")
        consumer.assign([TopicPartition(topic, partition, offset)])
        found: list[Message] = []
        deadline = time.monotonic() + WAIT_SECONDS
        while len(found) < count and time.monotonic() < deadline:
            for m in consumer.consume(count - len(found), 0.5):
                assert m.error() is None, m.error()
                found.append(Message(m.value(), m.key(), _time(*m.timestamp()), tuple(m.headers() or ())))
        consumer.close()
        return found

    def commit(self, servers: str, group: str, topic: str, partition: int, offset: int) -> None:
        from confluent_kafka import TopicPartition

        consumer = self._consumer(servers, group)
        consumer.commit(offsets=[TopicPartition(topic, partition, offset)], asynchronous=False)
        consumer.close()

    def committed(self, servers: str, group: str, topic: str, partition: int) -> int | None:
        from confluent_kafka import TopicPartition

        consumer = self._consumer(servers, group)
        (found,) = consumer.committed([TopicPartition(topic, partition)], timeout=WAIT_SECONDS)
        consumer.close()
        return found.offset if found.offset >= 0 else None

    def offsets(
        self, servers: str, topic: str, partition: int, timestamp: int
    ) -> tuple[int, int, int | None]:
        from confluent_kafka import OFFSET_END, TopicPartition

        low, high = self.ends(servers, topic, partition)
        consumer = self._consumer(servers, "asks-for-offsets")
        (at,) = consumer.offsets_for_times(
            [TopicPartition(topic, partition, timestamp)], timeout=WAIT_SECONDS
        )
        consumer.close()
        return low, high, None if at.offset == OFFSET_END else at.offset

    def ends(self, servers: str, topic: str, partition: int) -> tuple[int, int]:
        """First offset and end offset."""
        from confluent_kafka import TopicPartition

        consumer = self._consumer(servers, "asks-for-ends")
        try:
            low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=WAIT_SECONDS)
        finally:
            consumer.close()
        return low, high

    def _consumer(self, servers: str, group: str) -> Any:
        from confluent_kafka import Consumer

        return Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": group,
                "enable.auto.commit": False,
                "check.crcs": True,
                **self._settings,
            }
        )

    def _admin(self, servers: str) -> Any:
        from confluent_kafka.admin import AdminClient

        return AdminClient({"bootstrap.servers": servers})


def _time(kind: int, time: int) -> int:
    """A message's time as librdkafka has it; it says 0 where there is none."""
    return time if kind else NO_TIMESTAMP


class KafkaPython:
    """kafka-python: all in Python."""

    def __init__(self, name: str = "kafka-python", **settings: object) -> None:
        """``settings`` go to all its producers, consumers and admins."""
        self.name = name
        self._settings = settings

    def create_topic(self, servers: str, topic: str, partitions: int) -> None:
        from kafka.admin import KafkaAdminClient, NewTopic

        admin = KafkaAdminClient(bootstrap_servers=servers, **self._settings)
        admin.create_topics([NewTopic(name=topic, num_partitions=partitions, replication_factor=1)])
        admin.close()

    def delete_topic(self, servers: str, topic: str) -> None:
        from kafka.admin import KafkaAdminClient

        admin = KafkaAdminClient(bootstrap_servers=servers, **self._settings)
        admin.delete_topics([topic])
        admin.close()

    def topics(self, servers: str) -> set[str]:
        from kafka.admin import KafkaAdminClient

        admin = KafkaAdminClient(bootstrap_servers=servers, **self._settings)
        names = set(admin.list_topics())
        admin.close()
        return names

    def produce(
        self,
        servers: str,
        topic: str,
        partition: int,
        batch: Sequence[Message],
        codec: str,
        *,
        idempotent: bool,
    ) -> list[int]:
        from kafka import KafkaProducer

        producer = KafkaProducer(
            bootstrap_servers=servers,
            compression_type=None if codec == "none" else codec,
            enable_idempotence=idempotent,
            linger_ms=60_000,  # `flush` sends: a record alone would not be compressed
            batch_size=8192,
            **self._settings,
        )
        futures = [
            producer.send(
                topic, m.value, m.key, headers=list(m.headers), partition=partition, timestamp_ms=m.timestamp
            )
            for m in batch
        ]
        producer.flush(WAIT_SECONDS)
        offsets = [future.get(WAIT_SECONDS).offset for future in futures]
        producer.close()
        return offsets

    def consume(self, servers: str, topic: str, partition: int, offset: int, count: int) -> list[Message]:
        from kafka import TopicPartition

        consumer = self._consumer(servers, "reads-by-assignment", consumer_timeout_ms=WAIT_SECONDS * 1000)
        consumer.assign([TopicPartition(topic, partition)])
        consumer.seek(TopicPartition(topic, partition), offset)
        found: list[Message] = []
        for m in consumer:
            time = NO_TIMESTAMP if m.timestamp is None else m.timestamp
            found.append(Message(m.value, m.key, time, tuple(m.headers)))
            if len(found) == count:
                break
        consumer.close()
        return found

    def commit(self, servers: str, group: str, topic: str, partition: int, offset: int) -> None:
        from kafka import TopicPartition
        from kafka.structs import OffsetAndMetadata

        consumer = self._consumer(servers, group)
        consumer.assign([TopicPartition(topic, partition)])
        consumer.commit({TopicPartition(topic, partition): OffsetAndMetadata(offset, "", -1)})
        consumer.close()

    def committed(self, servers: str, group: str, topic: str, partition: int) -> int | None:
        from kafka import TopicPartition

        consumer = self._consumer(servers, group)
        consumer.assign([TopicPartition(topic, partition)])
        found: int | None = consumer.committed(TopicPartition(topic, partition))
        consumer.close()
        return found

    def offsets(
        self, servers: str, topic: str, partition: int, timestamp: int
    ) -> tuple[int, int, int | None]:
        from kafka import TopicPartition

        low, high = self.ends(servers, topic, partition)
        consumer = self._consumer(servers, "asks-for-offsets")
        tp = TopicPartition(topic, partition)
        at = consumer.offsets_for_times({tp: timestamp})[tp]
        consumer.close()
        return low, high, None if at is None else at.offset

    def ends(self, servers: str, topic: str, partition: int) -> tuple[int, int]:
        """First offset and end offset."""
        from kafka import TopicPartition

        consumer = self._consumer(servers, "asks-for-ends")
        tp = TopicPartition(topic, partition)
        low, high = consumer.beginning_offsets([tp])[tp], consumer.end_offsets([tp])[tp]
        consumer.close()
        return low, high

    def _consumer(self, servers: str, group: str, **options: Any) -> Any:
        from kafka import KafkaConsumer

        options |= self._settings
        return KafkaConsumer(bootstrap_servers=servers, group_id=group, enable_auto_commit=False, **options)


CLIENTS: tuple[ForeignClient, ...] = (Confluent(), KafkaPython(), Aiokafka())
