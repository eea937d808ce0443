"""InitProducerId and idempotent produce, over restarts and crashes."""

from __future__ import annotations

import pytest

from kafkalog_broker.embedded import start_broker
from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.api.producers import InitProducerIdRequest
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


def test_a_gap_and_an_old_epoch_are_refused(client: RawClient, topic: str) -> None:
    producer = Producer(client, topic, 1_000_002)
    producer.send(0)
    assert producer.send(3) == (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
    assert Producer(client, topic, 1_000_002, epoch=1).send(0) == (ErrorCode.NONE, 2)
    assert producer.send(2) == (ErrorCode.INVALID_PRODUCER_EPOCH, -1)


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
