"""InitProducerId and idempotent produce, over restarts and crashes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from broker.embedded import EmbeddedBroker, start_broker
from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.api.init_producer_id import InitProducerIdRequest
from pyspark_kafkalog.protocol.exchange import ApiKey
from tests.support.protocol.raw_client import RawClient, batch, versions
from tests.support.until import until


@pytest.mark.parametrize("version", versions(ApiKey.INIT_PRODUCER_ID))
def test_every_call_gives_a_new_id_with_epoch_0(client: RawClient, version: int) -> None:
    answers = [client.ask(InitProducerIdRequest(), version) for _ in range(3)]
    assert [a.error_code for a in answers] == [ErrorCode.NONE] * 3
    assert [a.producer_epoch for a in answers] == [0] * 3
    first = answers[0].producer_id
    assert [a.producer_id for a in answers] == [first, first + 1, first + 2]


def test_a_producer_that_names_its_old_id_gets_a_new_one(client: RawClient) -> None:
    old = client.ask(InitProducerIdRequest())
    new = client.ask(InitProducerIdRequest(producer_id=old.producer_id, producer_epoch=0))
    assert (new.error_code, new.producer_epoch) == (ErrorCode.NONE, 0)
    assert new.producer_id != old.producer_id


class Producer:
    """Sends numbered batches of two."""

    def __init__(self, client: RawClient, topic: str, producer_id: int, epoch: int = 0) -> None:
        self.client, self.topic, self.id, self.epoch = client, topic, producer_id, epoch

    def send(self, sequence: int, count: int = 2) -> tuple[ErrorCode, int]:
        values = [b"%d" % (sequence + i) for i in range(count)]
        data = batch(*values, producer_id=self.id, epoch=self.epoch, sequence=sequence)
        result = self.client.produce(self.topic, data)
        return result.error_code, result.base_offset


def test_a_retry_of_one_of_the_last_five_batches_is_answered_with_its_old_offset(
    client: RawClient, topic: str
) -> None:
    producer = Producer(client, topic, 1_000_001)
    assert [producer.send(2 * i) for i in range(6)] == [(ErrorCode.NONE, 2 * i) for i in range(6)]
    assert [producer.send(2 * i) for i in range(1, 6)] == [(ErrorCode.NONE, 2 * i) for i in range(1, 6)]
    assert producer.send(0)[0] == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert [r.value for r in client.read(topic)] == [b"%d" % i for i in range(12)]


def test_a_gap_and_an_old_epoch_are_refused(client: RawClient, topic: str) -> None:
    producer = Producer(client, topic, 1_000_002)
    producer.send(0)
    assert producer.send(3) == (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
    assert Producer(client, topic, 1_000_002, epoch=1).send(0) == (ErrorCode.NONE, 2)
    assert producer.send(2) == (ErrorCode.INVALID_PRODUCER_EPOCH, -1)


def test_sequences_wrap(client: RawClient, topic: str) -> None:
    producer = Producer(client, topic, 1_000_003)
    assert producer.send(2**31 - 3) == (ErrorCode.NONE, 0)
    assert producer.send(2**31 - 1) == (ErrorCode.NONE, 2)
    assert producer.send(1) == (ErrorCode.NONE, 4)
    assert producer.send(2**31 - 1) == (ErrorCode.NONE, 2)


def test_partitions_count_sequences_apart(client: RawClient, topic: str) -> None:
    data = batch(b"x", producer_id=1_000_004, epoch=0, sequence=0)
    assert client.produce(topic, data, 0).error_code == ErrorCode.NONE
    assert client.produce(topic, data, 1).error_code == ErrorCode.NONE


def kill_and_start(broker: EmbeddedBroker) -> None:
    broker.kill()
    broker.start()


@pytest.mark.long("a broker that is started more than once")
@pytest.mark.parametrize("again", [EmbeddedBroker.restart, kill_and_start])
def test_producers_and_ids_survive_a_restart_and_a_crash(again: Callable[[EmbeddedBroker], object]) -> None:
    with start_broker({"log.segment.bytes": 300}) as broker:
        with RawClient(broker.port) as client:
            client.create_topic("t")
            before = client.ask(InitProducerIdRequest()).producer_id
            producer = Producer(client, "t", before)
            for i in range(8):
                assert producer.send(2 * i) == (ErrorCode.NONE, 2 * i)
        again(broker)
        with RawClient(broker.port) as client:
            assert client.ask(InitProducerIdRequest()).producer_id > before
            producer = Producer(client, "t", before)
            assert producer.send(14) == (ErrorCode.NONE, 14)
            assert producer.send(6) == (ErrorCode.NONE, 6)
            assert producer.send(4)[0] == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
            assert producer.send(18)[0] == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
            assert producer.send(16) == (ErrorCode.NONE, 16)
            assert [r.value for r in client.read("t")] == [b"%d" % i for i in range(18)]


def test_a_silent_producer_is_forgotten() -> None:
    properties = {"producer.id.expiration.ms": 100, "producer.id.expiration.check.interval.ms": 50}
    with start_broker(properties) as broker, RawClient(broker.port) as client:
        client.create_topic("t")
        producer = Producer(client, "t", 5)
        assert producer.send(0) == (ErrorCode.NONE, 0)
        answers = []

        def accepted() -> bool:
            answers.append(producer.send(50))
            return answers[-1][0] == ErrorCode.NONE

        until(accepted)
        assert answers[-1] == (ErrorCode.NONE, 2)
