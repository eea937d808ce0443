"""What today's clients make of a topic of 0.7: all of them read it; none can write to it, and is told why."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AioPartition
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as KafkaPythonPartition
from kafka.errors import UnsupportedForMessageFormatError

from kafkalog_broker.embedded import EmbeddedBroker, start_broker
from tests.support.foreign.foreign_clients import CLIENTS
from tests.support.foreign.foreign_face import ForeignClient
from tests.support.protocol.raw_client import RawClient
from tests.support.protocol.wire07 import LATEST, Wire07, entry, offsets, offsets_in, produce, zipped

REFUSED = KafkaError.UNSUPPORTED_FOR_MESSAGE_FORMAT
PAST, FUTURE = 1_600_000_000_000, 4_000_000_000_000

each_client = pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)


def _entries() -> Iterator[tuple[list[bytes], bytes]]:
    """What is in each entry, and its bytes: both magics, sets within sets, sets without messages."""
    for number in range(60):
        values = [b"%d-%d" % (number, part) for part in range(5)]
        if number % 3 == 0:
            yield values, zipped(*map(entry, values[:2]), zipped(*map(entry, values[2:])))
        elif number % 7 == 0:
            yield [], zipped()
        else:
            yield values[:1], entry(values[0], magic=number % 2)


ENTRIES = list(_entries())
VALUES = [value for values, _ in ENTRIES for value in values]
STARTS = [sum(len(data) for _, data in ENTRIES[:number]) for number in range(len(ENTRIES) + 1)]
POSITIONS = [
    start + number
    for (values, _), start in zip(ENTRIES, STARTS, strict=False)
    for number in range(len(values))
]
END = STARTS[-1]


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    """Topic ``full`` has the entries, in segments; ``old`` has none; ``crowd`` one that is refused."""
    properties = {
        "listeners": "PLAINTEXT://127.0.0.1:0,KAFKA07://127.0.0.1:0",
        "log.flush.interval": 1,
        "log.segment.bytes": 1000,
    }
    with start_broker(properties) as broker:
        with RawClient(broker.port_of("PLAINTEXT")) as client:
            assert client.create_topic("old", configs={"generation": "0.7"}).error_code == 0
        with Wire07(broker.port_of("KAFKA07")) as wire:
            for _, data in ENTRIES:
                wire.send(produce("full", 0, data))
            assert offsets_in(wire.ask(offsets("full", 0, LATEST, 1))) == [END]
            crowd = zipped(*[entry(b"")] * 3000)
            wire.send(produce("crowd", 0, entry(b"before") + crowd + entry(b"behind")))
            assert wire.ask(offsets("crowd", 0, LATEST, 1)) is not None
        yield broker


@pytest.fixture
def servers(broker: EmbeddedBroker) -> str:
    return broker.bootstrap_servers


class TestReading:
    @each_client
    def test_it_reads_every_message_once(self, servers: str, client: ForeignClient) -> None:
        found = client.consume(servers, "full", 0, 0, len(VALUES))
        assert [message.value for message in found] == VALUES
        assert {(m.key, m.timestamp, m.headers) for m in found} == {(None, -1, ())}

    @each_client
    def test_it_reads_on_from_any_position(self, servers: str, client: ForeignClient) -> None:
        within = STARTS[3] + 2  # in a set of five
        behind_all = STARTS[3] + 5  # in the same entry, behind its messages
        before_none = STARTS[14]  # an entry without messages
        for position in (STARTS[3], within, behind_all, STARTS[4] - 1, before_none, before_none + 1):
            rest = [v for v, at in zip(VALUES, POSITIONS, strict=True) if at >= position]
            found = client.consume(servers, "full", 0, position, len(rest))
            assert [message.value for message in found] == rest

    @each_client
    def test_a_group_continues_after_the_message_that_it_committed(
        self, servers: str, client: ForeignClient
    ) -> None:
        group = f"resumes-{client.name}"
        for number in (0, 1, 4, 5, 6, len(VALUES) - 2):
            client.commit(servers, group, "full", 0, POSITIONS[number] + 1)
            committed = client.committed(servers, group, "full", 0)
            assert committed == POSITIONS[number] + 1
            found = client.consume(servers, "full", 0, committed, len(VALUES) - number - 1)
            assert [message.value for message in found] == VALUES[number + 1 :]

    @each_client
    def test_offsets_are_positions(self, servers: str, client: ForeignClient) -> None:
        assert client.offsets(servers, "full", 0, PAST) == (0, END, 0)
        assert client.offsets(servers, "full", 0, FUTURE) == (0, END, None)


class TestOneEntryAtATime:
    """With limits below an entry's size each answer is one batch, now and then one without records."""

    def test_librdkafka(self, servers: str) -> None:
        consumer = Consumer(
            {"bootstrap.servers": servers, "group.id": "g", "fetch.message.max.bytes": 1, "check.crcs": True}
        )
        try:
            consumer.assign([TopicPartition("full", 0, 0)])
            found = [consumer.poll(90) for _ in VALUES]
            assert [message.value() for message in found if message is not None] == VALUES
        finally:
            consumer.close()

    def test_kafka_python(self, servers: str) -> None:
        consumer = KafkaConsumer(
            bootstrap_servers=servers,
            consumer_timeout_ms=90_000,
            group_id=None,
            max_partition_fetch_bytes=1,
        )
        partition = KafkaPythonPartition("full", 0)
        try:
            consumer.assign([partition])
            consumer.seek(partition, 0)
            assert [next(consumer).value for _ in VALUES] == VALUES
        finally:
            consumer.close()

    def test_aiokafka(self, servers: str) -> None:
        async def run() -> list[bytes]:
            consumer = AIOKafkaConsumer(bootstrap_servers=servers, max_partition_fetch_bytes=1)
            partition = AioPartition("full", 0)
            await consumer.start()
            try:
                consumer.assign([partition])
                consumer.seek(partition, 0)
                return [(await asyncio.wait_for(consumer.getone(), 20)).value for _ in VALUES]
            finally:
                await consumer.stop()

        assert asyncio.run(run()) == VALUES


class TestBehindTheLastMessage:
    """A group that committed behind the last message of an entry at the end waits at the end, not within."""

    LAST = POSITIONS[-1] + 1

    def test_librdkafka(self, servers: str) -> None:
        consumer = Consumer({"bootstrap.servers": servers, "group.id": "g", "enable.partition.eof": True})
        try:
            consumer.assign([TopicPartition("full", 0, self.LAST)])
            message = consumer.poll(90)
            assert message is not None
            assert message.error().code() == KafkaError._PARTITION_EOF
            assert message.offset() == END
        finally:
            consumer.close()


class TestMoreMessagesThanBytes:
    """An entry that record batches cannot tell: what comes before it is read, then the client is told."""

    def test_librdkafka_gives_the_error_to_its_user(self, servers: str) -> None:
        consumer = Consumer({"bootstrap.servers": servers, "group.id": "g"})
        try:
            consumer.assign([TopicPartition("crowd", 0, 0)])
            message, refusal = consumer.poll(90), consumer.poll(90)
            assert message is not None
            assert refusal is not None
            assert (message.value(), refusal.error().code()) == (b"before", REFUSED)
        finally:
            consumer.close()


class TestWriting:
    def test_librdkafkas_producer_gives_the_error_instead_of_trying_again(self, servers: str) -> None:
        told: list[KafkaError] = []
        producer = Producer({"bootstrap.servers": servers})
        producer.produce("old", b"x", on_delivery=lambda error, _: told.append(error))
        assert producer.flush(20) == 0
        assert [error.code() for error in told] == [REFUSED]

    def test_kafka_pythons_producer_raises_the_error_with_its_reason(self, servers: str) -> None:
        producer = KafkaProducer(bootstrap_servers=servers)
        try:
            with pytest.raises(UnsupportedForMessageFormatError, match=r"holds messages of generation 0\.7"):
                producer.send("old", b"x").get(20)
        finally:
            producer.close()
