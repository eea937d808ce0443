"""A record that cannot be sent is refused by the call that brings it, and its neighbours are delivered."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from kafkalog_broker.embedded import EmbeddedBroker, start_broker
from pyspark_kafkalog.client.admin import NewTopic, create_topics
from pyspark_kafkalog.errors import InvalidRecord, KafkaError
from pyspark_kafkalog.producer import sender
from pyspark_kafkalog.producer.producer import Producer
from pyspark_kafkalog.producer.producer_batch import ProducerBatch
from tests.support.protocol.raw_client import RawClient


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with start_broker() as running:
        create_topics(running.bootstrap_servers, [NewTopic("t", partitions=1)])
        yield running


@pytest.fixture
def producer(broker: EmbeddedBroker) -> Iterator[Producer]:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 300})
    yield producer
    producer.close(90)


WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"timestamp_ms": 2**63}, InvalidRecord, "timestamp 9223372036854775808 does not fit 64 bits"),
    ({"timestamp_ms": -(2**63) - 1}, InvalidRecord, "does not fit 64 bits"),
    ({"timestamp_ms": 1.5}, TypeError, "float"),
    ({"headers": [("a", "x")]}, TypeError, "a header's value must be bytes or None, not str"),
    ({"headers": [(None, b"x")]}, TypeError, "a header's name must be str, not NoneType"),
    ({"headers": [("\ud800", b"x")]}, InvalidRecord, "is not UTF-8"),
    ({"headers": {"abc": b"x"}}, TypeError, "headers must be pairs of name and value, not 'abc'"),
    ({"headers": [b"x"]}, TypeError, "headers must be pairs"),
    ({"key": "text"}, TypeError, "key must be bytes or None, not str"),
]


def test_a_wrong_record_is_refused_at_once_and_harms_no_other(producer: Producer) -> None:
    before = producer.send("t", b"before")
    for wrong, error, says in WRONG:
        with pytest.raises(error, match=says):
            producer.send("t", b"v", **wrong)
    after = producer.send("t", b"after")
    assert after.result(90).offset == before.result(90).offset + 1


def test_only_the_records_that_a_broker_names_are_blamed(broker: EmbeddedBroker) -> None:
    compacted = NewTopic("compacted", 1, configs={"cleanup.policy": "compact"})
    create_topics(broker.bootstrap_servers, [compacted])
    called: list[KafkaError | None] = []
    with Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 600_000}) as producer:
        sent = [
            producer.send("compacted", b"v", key, on_delivery=lambda _, error: called.append(error))
            for key in (b"k0", None, None, b"k3")
        ]
        producer.flush(90)
    errors = []
    for delivery in sent:
        with pytest.raises(KafkaError) as refused:
            delivery.result(90)
        errors.append(refused.value)
    assert [str(error) for error in called] == [str(error) for error in errors]
    assert [type(error) for error in errors] == [KafkaError, InvalidRecord, InvalidRecord, KafkaError]
    assert str(errors[1]).endswith("compacted-0: no key, which a compacted topic requires")
    assert "not written, because other records of its batch were refused: " in str(errors[3])


def test_headers_belong_to_the_producer_from_the_call_on(broker: EmbeddedBroker, producer: Producer) -> None:
    content, headers = bytearray(b"one"), [("a", b"1")]
    headers.append(("b", content))  # type: ignore[arg-type]
    sent = producer.send("t", b"v", headers=headers)
    headers[0] = ("x" * 10_000, b"")
    content[:] = b"two"
    offset = sent.result(90).offset
    with RawClient(broker.port) as client:
        (record,) = (r for r in client.read("t", offset) if r.offset == offset)
    assert record.headers == (("a", b"1"), ("b", b"one"))


def test_whole_numbers_of_other_types_are_times(producer: Producer) -> None:
    class Number:
        def __index__(self) -> int:
            return 1234

    assert producer.send("t", b"v", timestamp_ms=Number()).result(90).timestamp == 1234  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"timestamp": pa.array([2**63], pa.uint64())}, "column timestamp: "),
        (
            {"headers": pa.array([[{"key": "a", "value": "text"}]])},
            "column headers.*value must be bytes or None, not str",
        ),
        (
            {"headers": pa.array([[{"key": None, "value": b"x"}]])},
            "column headers.*name must be str, not NoneType",
        ),
    ],
)
def test_arrow_columns_that_cannot_be_sent_are_refused(
    producer: Producer, columns: dict[str, pa.Array], says: str
) -> None:
    table = pa.table({"value": [b"v"], **columns})
    with pytest.raises(InvalidRecord, match=says):
        producer.send_arrow("t", table)
    assert producer.send("t", b"after").result(90).offset >= 0


def test_a_batch_that_cannot_be_made_into_bytes_is_reported_and_nothing_waits_for_it(
    producer: Producer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_memory(*_: object) -> bytes:
        raise MemoryError("not for a batch")

    with monkeypatch.context() as patch:
        patch.setattr(ProducerBatch, "encode", no_memory)
        lost = producer.send("t", b"lost")
        with pytest.raises(KafkaError, match=r"t-0: cannot be encoded: MemoryError\('not for a batch'\)"):
            lost.result(90)
    assert [r.name for r in caplog.records if r.levelname == "ERROR"] == [sender.__name__]
    assert producer.send("t", b"next").result(90).offset >= 0
    producer.flush(90)
