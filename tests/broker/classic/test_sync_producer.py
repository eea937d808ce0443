"""The producer of one broker on the wire since 0.8: batches in rounds, answers that are read."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kafkalog_broker.embedded import EmbeddedBroker
from pyspark_kafkalog.classic.consumer.simple_consumer import SimpleConsumer
from pyspark_kafkalog.classic.producer.sync_producer import ProducerRequest, SyncProducer
from pyspark_kafkalog.errors import (
    ConnectionLost,
    ErrorCode,
    InvalidRequest,
    InvalidTopic,
    MessageTooLarge,
    ServerError,
    UnknownTopicOrPartition,
)
from pyspark_kafkalog.formats.compression import Codec
from pyspark_kafkalog.protocol.api.log_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from pyspark_kafkalog.protocol.api.produce import (
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)
from pyspark_kafkalog.protocol.exchange import ApiKey
from pyspark_kafkalog.types import NewRecord, Record
from tests.support.client.scripted_broker import Layout, ScriptedBroker
from tests.support.client.scripted_server import Close

CONFIG = {"protocol": "0.8"}


@pytest.fixture
def producer(running_broker: EmbeddedBroker) -> Iterator[SyncProducer]:
    with SyncProducer("127.0.0.1", running_broker.port, CONFIG) as producer:
        yield producer


def records(running_broker: EmbeddedBroker, topic: str, partition: int) -> list[Record]:
    with SimpleConsumer("127.0.0.1", running_broker.port, CONFIG) as consumer:
        found: list[Record] = []
        position = 0
        while following := list((messages := consumer.fetch(topic, partition, position)).records()):
            found += following
            position = messages.next_offset
        return found


def test_records_keep_all_they_have(
    running_broker: EmbeddedBroker, producer: SyncProducer, topic: str
) -> None:
    sent = [
        NewRecord(b"value", b"key", 1_000, (("name", b"h"), ("none", None))),
        NewRecord(None, b"gone", 2_000),
        NewRecord(b"", None, 500),
    ]
    producer.send(topic, sent, 1, Codec.ZSTD)
    found = [(r.offset, r.value, r.key, r.timestamp, r.headers) for r in records(running_broker, topic, 1)]
    assert found == [
        (place, record.value, record.key, record.timestamp, record.headers)
        for place, record in enumerate(sent)
    ]


def test_what_is_above_a_batch_is_sent_as_several(
    running_broker: EmbeddedBroker, producer: SyncProducer, topic: str
) -> None:
    payloads = [bytes([n]) * 300_000 for n in range(10)]
    producer.multi_send(
        [
            ProducerRequest(topic, payloads, 0),
            ProducerRequest(topic, [b"other"], 1),
            ProducerRequest(topic, [b"last"], 0),
        ]
    )
    assert [record.value for record in records(running_broker, topic, 0)] == [*payloads, b"last"]
    assert [record.value for record in records(running_broker, topic, 1)] == [b"other"]
    with pytest.raises(
        MessageTooLarge, match=rf"{topic}: a message of 1000001 bytes is above max.message.size"
    ):
        producer.send(topic, [b"x", b"x" * 1_000_001], 1)
    assert len(records(running_broker, topic, 1)) == 1


def test_a_partition_or_topic_that_cannot_be_is_an_error(producer: SyncProducer, topic: str) -> None:
    with pytest.raises(UnknownTopicOrPartition, match=f"{topic}-7"):
        producer.send(topic, [b"x"], 7)
    with pytest.raises(InvalidTopic, match="topic a/b"):
        producer.send("a/b", [b"x"])
    producer.send(topic, [b"x"], 0)


def test_the_brokers_own_address_may_differ_behind_a_load_balancer(
    topic: str, running_broker: EmbeddedBroker
) -> None:
    with SyncProducer("localhost", running_broker.port, CONFIG) as producer:
        for _ in range(20):
            producer.send(topic, [b"x"])
    assert all(records(running_broker, topic, partition) for partition in (0, 1))


@pytest.fixture
def scripted() -> Iterator[ScriptedBroker]:
    with ScriptedBroker(Layout(leaders={"t": {0: 0, 1: 5}})) as broker:
        broker.default(ApiKey.PRODUCE, answered())
        yield broker


def answered(
    error: ErrorCode = ErrorCode.NONE, partition: int = 0, message: str | None = None
) -> ProduceResponse:
    part = PartitionProduceResponse(index=partition, error_code=error, base_offset=0, error_message=message)
    return ProduceResponse(responses=(TopicProduceResponse(name="t", partition_responses=(part,)),))


def test_of_several_partitions_one_that_the_broker_leads_is_chosen(scripted: ScriptedBroker) -> None:
    with SyncProducer("127.0.0.1", scripted.port, CONFIG) as producer:
        for _ in range(10):
            producer.send("t", [b"x"])
    chosen = {
        p.index for r in scripted.received(ApiKey.PRODUCE) for t in r.topic_data for p in t.partition_data
    }
    assert chosen == {0}
    assert len(scripted.received(ApiKey.METADATA)) == 1


def test_behind_a_load_balancer_offsets_tell_what_the_broker_leads(scripted: ScriptedBroker) -> None:
    def looked_up(led: set[int]) -> ListOffsetsResponse:
        parts = tuple(
            ListOffsetsPartitionResponse(
                partition_index=number,
                error_code=ErrorCode.NONE if number in led else ErrorCode.NOT_LEADER_OR_FOLLOWER,
            )
            for number in (0, 1)
        )
        return ListOffsetsResponse(topics=(ListOffsetsTopicResponse(name="t", partitions=parts),))

    scripted.default(ApiKey.PRODUCE, answered(partition=1))
    scripted.script(ApiKey.LIST_OFFSETS, looked_up(set()), looked_up({1}))
    with SyncProducer("localhost", scripted.port, CONFIG) as producer:
        for _ in range(10):
            producer.send("t", [b"x"])
    chosen = [
        p.index for r in scripted.received(ApiKey.PRODUCE) for t in r.topic_data for p in t.partition_data
    ]
    assert chosen == [1] * 10
    assert len(scripted.received(ApiKey.LIST_OFFSETS)) == 2, "again, as leaders may move"


@pytest.mark.parametrize("acks", [1, -1])
def test_the_acks_asked_for_are_those_configured(scripted: ScriptedBroker, acks: int) -> None:
    with SyncProducer("127.0.0.1", scripted.port, {**CONFIG, "request.required.acks": acks}) as producer:
        producer.send("t", [b"x"], 0)
    assert [request.acks for request in scripted.received(ApiKey.PRODUCE)] == [acks]


def test_an_error_answered_is_raised_with_the_broker_s_words_and_the_topic_is_asked_for_again(
    scripted: ScriptedBroker,
) -> None:
    refusal = answered(ErrorCode.NOT_LEADER_OR_FOLLOWER, message="ask another one")
    scripted.script(ApiKey.PRODUCE, refusal, answered(partition=1), Close())
    with SyncProducer("127.0.0.1", scripted.port, CONFIG) as producer:
        with pytest.raises(ServerError, match=rf"{scripted.address}: t-0: ask another one"):
            producer.send("t", [b"x"], 0)
        with pytest.raises(InvalidRequest, match="lacks t-0"):
            producer.send("t", [b"x"], 0)
        with pytest.raises(ConnectionLost, match=scripted.address):
            producer.send("t", [b"x"], 0)
        producer.send("t", [b"x"], 0)
    assert len(scripted.received(ApiKey.METADATA)) == 3, "at first, after the refusal, on the new connection"
