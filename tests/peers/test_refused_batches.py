"""What Apache Kafka answers to batches whose records are not right, and what our broker answers."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from kafkalog_broker.embedded import EmbeddedBroker
from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.formats.compression import Codec
from tests.support.foreign.apache_kafka import ApacheKafka
from tests.support.formats.bad_batches import BLOCKS, CASES, KAFKA_TAKES, UNKNOWN, damaged, sealed
from tests.support.protocol.raw_client import RawClient


class _Asked:
    """A broker with a topic for each cleanup policy."""

    def __init__(self, servers: str, name: str) -> None:
        self.client = RawClient(int(servers.rpartition(":")[2]))
        self._topics = {True: f"{name}-compacted", False: f"{name}-plain"}
        for compacted, topic in self._topics.items():
            policy = {"cleanup.policy": "compact"} if compacted else {}
            assert self.client.create_topic(topic, configs=policy).error_code == ErrorCode.NONE
            good = sealed(CASES["good ones"].block, 3, Codec.NONE, timestamp=_now())
            while self.answer(good, compacted) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                time.sleep(0.1)

    def answer(self, data: bytes, compacted: bool = False) -> ErrorCode:
        return ErrorCode.of(self.client.produce(self._topics[compacted], data).error_code)


def _now() -> int:
    return time.time_ns() // 1_000_000


@pytest.fixture(scope="module")
def kafka(apache_kafka: ApacheKafka) -> Iterator[_Asked]:
    asked = _Asked(apache_kafka.bootstrap_servers, "refused")
    yield asked
    asked.client.close()


@pytest.fixture(scope="module")
def ours(own_broker: EmbeddedBroker) -> Iterator[_Asked]:
    asked = _Asked(own_broker.bootstrap_servers, "refused")
    yield asked
    asked.client.close()


def test_both_brokers_answer_to_bad_records_as_the_table_says(kafka: _Asked, ours: _Asked) -> None:
    found, expected = {}, {}
    for what, case in CASES.items():
        for codec in Codec:
            data = sealed(case.block, case.count, codec, timestamp=_now())
            found[what, codec.name] = kafka.answer(data, case.compacted), ours.answer(data, case.compacted)
            expected[what, codec.name] = (
                (case.kafka_compressed, case.compressed) if codec else (case.kafka_plain, case.plain)
            )
    assert found == expected


def test_both_brokers_answer_to_damaged_blocks_as_the_table_says(kafka: _Asked, ours: _Asked) -> None:
    for what in BLOCKS:
        for codec in (codec for codec in Codec if codec):
            data = damaged(what, codec, _now())
            taken = (what, codec) in KAFKA_TAKES
            assert kafka.answer(data) is (ErrorCode.NONE if taken else UNKNOWN), (what, codec)
            assert ours.answer(data) is ErrorCode.INVALID_RECORD, (what, codec)
