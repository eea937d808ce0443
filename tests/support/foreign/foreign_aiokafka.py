"""aiokafka as a foreign client, of today and as it speaks to brokers of before Kafka 0.11."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from pyspark_kafkalog.types import NO_TIMESTAMP
from tests.support.foreign.foreign_face import WAIT_SECONDS, Message

_CODECS = ("none", "gzip", "snappy", "lz4")


class Aiokafka:
    """aiokafka: asyncio, with its decoder in C."""

    name = "aiokafka"

    def create_topic(self, servers: str, topic: str, partitions: int) -> None:
        async def run() -> None:
            from aiokafka.admin import AIOKafkaAdminClient, NewTopic

            admin = AIOKafkaAdminClient(bootstrap_servers=servers)
            await admin.start()
            await admin.create_topics([NewTopic(topic, partitions, 1)])
            await admin.close()

        asyncio.run(run())

    def delete_topic(self, servers: str, topic: str) -> None:
        async def run() -> None:
            from aiokafka.admin import AIOKafkaAdminClient

            admin = AIOKafkaAdminClient(bootstrap_servers=servers)
            await admin.start()
            await admin.delete_topics([topic])
            await admin.close()

        asyncio.run(run())

    def topics(self, servers: str) -> set[str]:
        async def run() -> set[str]:
            from aiokafka.admin import AIOKafkaAdminClient

            admin = AIOKafkaAdminClient(bootstrap_servers=servers)
            await admin.start()
            names = set(await admin.list_topics())
            await admin.close()
            return names

        return asyncio.run(run())

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
        async def run() -> list[int]:
            from aiokafka import AIOKafkaProducer

            producer = AIOKafkaProducer(
                bootstrap_servers=servers,
                compression_type=None if codec == "none" else codec,
                enable_idempotence=idempotent,
                linger_ms=5,
                max_batch_size=8192,
            )
            await producer.start()
            futures = [
                await producer.send(
                    topic, m.value, m.key, partition, m.timestamp, headers=list(m.headers) or None
                )
                for m in batch
            ]
            offsets = [(await asyncio.wait_for(future, WAIT_SECONDS)).offset for future in futures]
            await producer.stop()
            return offsets

        return asyncio.run(run())

    def consume(self, servers: str, topic: str, partition: int, offset: int, count: int) -> list[Message]:
        async def run() -> list[Message]:
            from aiokafka import TopicPartition

            consumer = self._consumer(servers, "reads-by-assignment")
            await consumer.start()
            consumer.assign([TopicPartition(topic, partition)])
            consumer.seek(TopicPartition(topic, partition), offset)
            found: list[Message] = []
            while len(found) < count:
                m = await asyncio.wait_for(consumer.getone(), WAIT_SECONDS)
                time = NO_TIMESTAMP if m.timestamp is None else m.timestamp
                found.append(Message(m.value, m.key, time, tuple(m.headers)))
            await consumer.stop()
            return found

        return asyncio.run(run())

    def commit(self, servers: str, group: str, topic: str, partition: int, offset: int) -> None:
        async def run() -> None:
            from aiokafka import TopicPartition

            consumer = self._consumer(servers, group)
            await consumer.start()
            consumer.assign([TopicPartition(topic, partition)])
            await consumer.commit({TopicPartition(topic, partition): offset})
            await consumer.stop()

        asyncio.run(run())

    def committed(self, servers: str, group: str, topic: str, partition: int) -> int | None:
        async def run() -> int | None:
            from aiokafka import TopicPartition

            consumer = self._consumer(servers, group)
            await consumer.start()
            consumer.assign([TopicPartition(topic, partition)])
            found: int | None = await consumer.committed(TopicPartition(topic, partition))
            await consumer.stop()
            return found

        return asyncio.run(run())

    def offsets(
        self, servers: str, topic: str, partition: int, timestamp: int
    ) -> tuple[int, int, int | None]:
        async def run() -> tuple[int, int, int | None]:
            from aiokafka import TopicPartition

            consumer = self._consumer(servers, "asks-for-offsets")
            await consumer.start()
            tp = TopicPartition(topic, partition)
            low, high = (await consumer.beginning_offsets([tp]))[tp], (await consumer.end_offsets([tp]))[tp]
            at = (await consumer.offsets_for_times({tp: timestamp}))[tp]
            await consumer.stop()
            return low, high, None if at is None else at.offset

        return asyncio.run(run())

    def _consumer(self, servers: str, group: str) -> Any:
        from aiokafka import AIOKafkaConsumer

        return AIOKafkaConsumer(bootstrap_servers=servers, group_id=group, enable_auto_commit=False)


@contextmanager
def _aiokafka_hearing(highest: Mapping[int, int]) -> Iterator[None]:
    """aiokafka takes no version any more; so it is made to hear less than the broker says.

    ``highest``: the highest version by the number of its API.
    """
    from aiokafka.conn import AIOKafkaConnection

    look_up = AIOKafkaConnection._do_version_lookup

    async def capped(connection: Any) -> None:
        await look_up(connection)
        told = connection._versions
        connection._versions = {
            key: (low, min(high, highest.get(key, high))) for key, (low, high) in told.items()
        }

    AIOKafkaConnection._do_version_lookup = capped
    try:
        yield
    finally:
        AIOKafkaConnection._do_version_lookup = look_up


class OldAiokafka(Aiokafka):
    """aiokafka as it speaks to a broker of 0.9 or 0.10. It reads; its producer knows record batches only."""

    def __init__(self, version: str, highest: Mapping[int, int]) -> None:
        self.name = f"aiokafka, {version}"
        self._highest = highest

    def consume(self, servers: str, topic: str, partition: int, offset: int, count: int) -> list[Message]:
        with _aiokafka_hearing(self._highest):
            return super().consume(servers, topic, partition, offset, count)


class SetsOfAiokafka:
    """Sets that aiokafka's own builder of v0 or v1 makes, sent by its client."""

    def __init__(self, magic: int) -> None:
        self.name = f"aiokafka's builder, v{magic}"
        self._magic = magic

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
        from aiokafka.client import AIOKafkaClient
        from aiokafka.protocol.produce import ProduceRequest
        from aiokafka.record.legacy_records import LegacyRecordBatchBuilder

        assert not idempotent
        builder = LegacyRecordBatchBuilder(self._magic, _CODECS.index(codec), 1 << 20)
        for number, m in enumerate(batch):
            assert builder.append(number, m.timestamp, m.key, m.value) is not None
        request = ProduceRequest(None, 1, 10_000, [(topic, [(partition, bytes(builder.build()))])])

        async def run() -> list[int]:
            client = AIOKafkaClient(bootstrap_servers=servers)
            await client.bootstrap()
            answer = await client.send(client.get_random_node(), request)
            await client.close()
            ((_, ((_, error, first, *_),)),) = answer.topics
            assert error == 0, error
            return list(range(first, first + len(batch)))

        with _aiokafka_hearing({0: 2 if self._magic else 1}):
            return asyncio.run(run())
