"""The queue's own sender on 0.7's wire: what it serialises, compresses, repeats and gives up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from pyspark_kafkalog.classic.producer.async_producer import AsyncProducer, CallbackHandler, QueueItem
from pyspark_kafkalog.formats import v07
from pyspark_kafkalog.formats.compression import Codec
from pyspark_kafkalog.protocol.v07 import MultiFetchRequest, MultiProduceRequest, ProduceRequest
from tests.support.client.broker07 import Broker07
from tests.support.client.scripted_server import Close


@pytest.fixture
def broker() -> Iterator[Broker07]:
    with Broker07() as broker:
        yield broker


class Failures(CallbackHandler):
    """Keeps what is lost."""

    def __init__(self) -> None:
        self.lost: list[tuple[Any, str]] = []

    def after_failure(self, items: Sequence[QueueItem], error: Exception) -> None:
        self.lost += [(item.data, str(error)) for item in items]


def producer_of(broker: Broker07, hooks: CallbackHandler | None = None, **properties: Any) -> AsyncProducer:
    named = {name.replace("_", "."): value for name, value in properties.items()}
    config = {"queue.time": 3_600_000, "retry.backoff.ms": 10, **named}
    return AsyncProducer("127.0.0.1", broker.port, config, callback_handler=hooks)


def test_a_batch_is_one_request_with_each_partition_s_order(broker: Broker07) -> None:
    with producer_of(broker) as producer:
        for n in range(6):
            producer.send("t", b"%d" % n, partition=n % 2)
        producer.send("other", b"x", partition=0)
    assert [len(request.produces) for request in broker.received(MultiProduceRequest)] == [3]
    assert broker.payloads("t", 0) == [b"0", b"2", b"4"]
    assert broker.payloads("t", 1) == [b"1", b"3", b"5"]
    assert broker.payloads("other", 0) == [b"x"]


@pytest.mark.parametrize("codec", [1, "gzip", 2, "snappy"])
def test_chosen_topics_are_compressed(broker: Broker07, codec: object) -> None:
    with producer_of(broker, compression_codec=codec, compressed_topics="packed,other") as producer:
        for topic in ("packed", "plain"):
            producer.send(topic, b"one", 0)
            producer.send(topic, b"two", 0)
    codecs = {
        topic: [entry.codec for entry in v07.entries(bytes(log))] for (topic, _), log in broker.logs.items()
    }
    wanted = {1: Codec.GZIP, "gzip": Codec.GZIP, 2: Codec.SNAPPY, "snappy": Codec.SNAPPY}[codec]
    assert codecs == {"packed": [wanted], "plain": [Codec.NONE, Codec.NONE]}
    assert broker.payloads("packed") == [b"one", b"two"]


def test_all_topics_are_compressed_where_none_is_named(broker: Broker07) -> None:
    with producer_of(broker, compression_codec="gzip") as producer:
        producer.send("t", b"one", 0)
    assert [entry.codec for entry in v07.entries(bytes(broker.logs["t", 0]))] == [Codec.GZIP]


def test_events_are_serialised_by_the_encoder(broker: Broker07) -> None:
    with producer_of(broker, serializer_class="kafka.serializer.StringEncoder") as producer:
        producer.send("t", "té", 0)
    assert broker.payloads("t") == ["té".encode()]


def test_a_batch_that_failed_is_sent_again(broker: Broker07) -> None:
    broker.script(ProduceRequest, Close(), Close())
    with producer_of(broker, num_retries=2) as producer:
        producer.send("t", b"kept", 0)
    assert producer.lost_count == 0
    assert broker.payloads("t") == [b"kept"]
    assert len(broker.received(ProduceRequest)) == 3


def test_a_batch_is_lost_after_the_last_attempt_and_the_next_one_is_sent(broker: Broker07) -> None:
    broker.script(ProduceRequest, Close(), Close())
    hooks = Failures()
    with producer_of(broker, hooks, num_retries=1) as producer:
        producer.send("t", b"lost", 0)
        producer.flush(10)
        producer.send("t", b"kept", 0)
    assert [data for data, _ in hooks.lost] == [b"lost"]
    assert producer.lost_count == 1
    assert broker.payloads("t") == [b"kept"]


def test_a_batch_whose_confirmation_was_lost_may_be_there_twice(broker: Broker07) -> None:
    broker.script(MultiFetchRequest, Close())
    with producer_of(broker) as producer:
        producer.send("t", b"twice", 0)
    assert broker.payloads("t") == [b"twice", b"twice"]


@pytest.mark.parametrize("bad", [b"x" * 101, "no bytes", None])
def test_one_bad_event_does_not_take_the_others_with_it(broker: Broker07, bad: object) -> None:
    hooks = Failures()
    with producer_of(broker, hooks, max_message_size=100) as producer:
        for n in range(9):
            producer.send("t", b"%d" % n if n != 5 else bad, 0)
    assert [data for data, _ in hooks.lost] == [bad]
    assert broker.payloads("t") == [b"%d" % n for n in range(9) if n != 5]


def test_a_topic_that_is_not_allowed_loses_its_own_events_only(broker: Broker07) -> None:
    hooks = Failures()
    with producer_of(broker, hooks) as producer:
        for topic in ("good", "a/b", "good"):
            producer.send(topic, topic.encode(), 0)
    assert [data for data, _ in hooks.lost] == [b"a/b"]
    assert broker.payloads("good") == [b"good", b"good"]


def test_a_hook_that_fails_before_sending_leaves_the_batch_as_it_is(broker: Broker07) -> None:
    class Broken(CallbackHandler):
        def before_sending_data(self, items: Sequence[QueueItem]) -> Sequence[QueueItem]:
            raise RuntimeError("before sending")

    with producer_of(broker, Broken()) as producer:
        producer.send("t", b"kept", 0)
    assert broker.payloads("t") == [b"kept"]
