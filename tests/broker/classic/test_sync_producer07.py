"""The producer of one broker on 0.7's wire, where nothing is answered and yet nothing may be lost unseen."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from pyspark_kafkalog.classic.producer.sync_producer import ProducerRequest, SyncProducer
from pyspark_kafkalog.errors import (
    ConnectionLost,
    InvalidConfig,
    InvalidRecord,
    InvalidTopic,
    KafkaError,
    MessageTooLarge,
)
from pyspark_kafkalog.formats import v07
from pyspark_kafkalog.formats.compression import Codec
from pyspark_kafkalog.protocol.v07 import MultiFetchRequest, MultiProduceRequest, ProduceRequest
from pyspark_kafkalog.types import NewRecord
from tests.support.client.broker07 import Broker07
from tests.support.client.scripted_server import Close, Silence
from tests.support.manual_clock import ManualClock
from tests.support.protocol.wire07 import entry
from tests.support.until import until


@pytest.fixture
def broker() -> Iterator[Broker07]:
    with Broker07() as broker:
        yield broker


def producer_of(broker: Broker07, **properties: Any) -> SyncProducer:
    named = {name.replace("_", "."): value for name, value in properties.items()}
    return SyncProducer("127.0.0.1", broker.port, named)


def test_messages_are_there_when_send_returns(broker: Broker07) -> None:
    with producer_of(broker) as producer:
        producer.send("t", [b"one", b"", NewRecord(b"two")], partition=1)
        assert broker.payloads("t", 1) == [b"one", b"", b"two"]
        producer.send("t", [])
        producer.send("t", [b"any"])
        assert len(broker.payloads("t")) == 4
    assert [request.partition for request in broker.received(ProduceRequest)] == [1, -1]
    assert broker.connection_count == 1


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY])
def test_a_set_is_compressed_as_one_entry(broker: Broker07, codec: Codec) -> None:
    with producer_of(broker) as producer:
        producer.send("t", [b"one" * 50, b"two" * 50], 0, codec)
    entries = list(v07.entries(bytes(broker.logs["t", 0])))
    assert [entry.codec for entry in entries] == [codec]
    assert broker.payloads("t", 0) == [b"one" * 50, b"two" * 50]


@pytest.mark.parametrize("magic", [0, 1])
def test_messages_have_the_magic_that_their_readers_need(broker: Broker07, magic: int) -> None:
    with producer_of(broker, message_magic=magic) as producer:
        producer.send("t", [b"one", b"two"], 0)
        producer.send("t", [b"three"], 1, Codec.GZIP)
    assert broker.logs["t", 0] == entry(b"one", magic=magic) + entry(b"two", magic=magic)
    (wrapper,) = v07.entries(bytes(broker.logs["t", 1]))
    assert wrapper.codec is Codec.GZIP, "which magic 0 cannot say"
    assert gzip.decompress(bytes(wrapper.payload)) == entry(b"three", magic=magic)
    with pytest.raises(InvalidConfig, match=r"message\.magic=2 is not allowed; allowed: 0 to 1"):
        producer_of(broker, message_magic=2)


def test_several_partitions_go_in_one_request(broker: Broker07) -> None:
    with producer_of(broker) as producer:
        producer.multi_send(
            [ProducerRequest("a", [b"1"], 0), ProducerRequest("b", [b"2", b"3"], 1), ProducerRequest("c", [])]
        )
    assert [len(request.produces) for request in broker.received(MultiProduceRequest)] == [2]
    assert broker.payloads("a", 0) == [b"1"]
    assert broker.payloads("b", 1) == [b"2", b"3"]


def test_what_a_broker_refuses_is_an_error_at_that_send(broker: Broker07) -> None:
    with producer_of(broker) as producer:
        with pytest.raises(ConnectionLost, match=r"for a partition that it does not have"):
            producer.send("t", [b"lost"], partition=9)
        producer.send("t", [b"kept"], partition=0)
    assert broker.payloads("t") == [b"kept"]
    assert broker.connection_count == 2


def test_without_confirmation_what_is_refused_shows_at_the_next_send(broker: Broker07) -> None:
    with producer_of(broker, request_required_acks=0) as producer:
        producer.send("t", [b"lost"], partition=9)
        until(lambda: broker.connection_count == 1 and broker.open_connections == 0)
        with pytest.raises(ConnectionLost, match=r"the last 1 request.* this one was not sent"):
            producer.send("t", [b"not sent"], partition=0)
        producer.send("t", [b"kept"], partition=0)
        producer.confirm()
        assert broker.payloads("t") == [b"kept"]
        producer.send("t", [b"lost"], partition=9)
        with pytest.raises(ConnectionLost, match=broker.address):
            producer.confirm()
        producer.confirm()


def test_a_connection_closed_while_nothing_was_sent_is_recreated(broker: Broker07) -> None:
    with producer_of(broker) as producer:
        producer.send("t", [b"one"], 0)
        broker.cut_connections()
        producer.send("t", [b"two"], 0)
        assert broker.payloads("t") == [b"one", b"two"]


def test_a_dead_broker_fails_the_send_and_a_later_one_works_when_it_is_back() -> None:
    with Broker07() as broker:
        port = broker.port
        producer = producer_of(broker)
        producer.send("t", [b"one"], 0)
    for _ in range(2):
        with pytest.raises(ConnectionLost, match=f"127.0.0.1:{port}"):
            producer.send("t", [b"lost"], 0)
    with Broker07(port=port) as again:
        producer.send("t", [b"two"], 0)
        assert again.payloads("t") == [b"two"]
    producer.close()


def test_a_broker_that_does_not_answer_fails_the_send_in_time(broker: Broker07) -> None:
    broker.script(MultiFetchRequest, Silence())
    with producer_of(broker, socket_timeout_ms=1000) as producer:
        with pytest.raises(ConnectionLost, match="no answer in time"):
            producer.send("t", [b"perhaps"], 0)

        def sent() -> bool:
            """Again, if the broker was not given a second of the machine's time."""
            try:
                producer.send("t", [b"surely"], 0)
            except ConnectionLost:
                return False
            return True

        until(sent)
    assert list(dict.fromkeys(broker.payloads("t"))) == [b"perhaps", b"surely"]


def test_what_no_broker_would_take_is_refused_before_anything_is_sent(broker: Broker07) -> None:
    with producer_of(broker, max_message_size=100) as producer:
        with pytest.raises(MessageTooLarge, match=r"t: a message of 101 bytes is above max.message.size=100"):
            producer.multi_send([ProducerRequest("ok", [b"x"]), ProducerRequest("t", [b"a", b"x" * 101])])
        for name in ("", "a/b", ".", "x" * 256):
            with pytest.raises(InvalidTopic):
                producer.send(name, [b"x"])
        for record in (NewRecord(None), NewRecord(b"v", b"k"), NewRecord(b"v", headers=(("h", b""),))):
            with pytest.raises(InvalidRecord, match=r"t: messages of protocol=0.7 have no key"):
                producer.send("t", [record])
        producer.send("t", [b"x" * 100], 0)
    assert len(broker.requests) == 2, "the last one and its confirmation"
    assert broker.connection_count == 1


def test_a_compressed_set_above_the_limit_is_sent_as_several(broker: Broker07) -> None:
    payloads = [bytes([n]) + b"%d" % (n * 7919) * 5 for n in range(40)]
    with producer_of(broker, max_message_size=200) as producer:
        producer.send("t", payloads, 0, Codec.GZIP)
        with pytest.raises(MessageTooLarge):
            producer.send("t", [bytes(range(256))], 0, Codec.GZIP)
    entries = list(v07.entries(bytes(broker.logs["t", 0])))
    assert len(entries) > 1
    assert all(len(entry.payload) <= 200 for entry in entries)
    assert broker.payloads("t") == payloads


def test_a_new_connection_is_made_after_so_many_requests(broker: Broker07) -> None:
    with producer_of(broker, reconnect_interval=2, request_required_acks=0) as producer:
        for n in range(5):
            producer.send("t", [b"%d" % n], 0)
        producer.confirm()
    assert broker.connection_count == 3
    assert broker.payloads("t") == [b"0", b"1", b"2", b"3", b"4"]


def test_a_connection_is_given_up_only_when_its_requests_are_confirmed(broker: Broker07) -> None:
    with producer_of(broker, reconnect_interval=1, request_required_acks=0) as producer:
        with pytest.raises(ConnectionLost, match="may not be stored"):
            producer.send("t", [b"lost"], 9)
        producer.send("t", [b"kept"], 0)
    assert broker.payloads("t") == [b"kept"]


def test_a_new_connection_is_made_after_so_long(broker: Broker07) -> None:
    clock = ManualClock()
    config = {"reconnect.time.interval.ms": 1000}
    with SyncProducer("127.0.0.1", broker.port, config, clock=clock) as producer:
        for _ in range(4):
            producer.send("t", [b"x"], 0)
            clock.advance(0.6)
    assert broker.connection_count == 2


def test_several_threads_may_share_a_producer(broker: Broker07) -> None:
    with producer_of(broker) as producer:

        def send(name: int) -> None:
            for n in range(20):
                producer.send("t", [b"%d-%d" % (name, n)], name % 2)

        threads = [threading.Thread(target=send, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(broker.payloads("t")) == sorted(
        b"%d-%d" % (name, n) for name in range(4) for n in range(20)
    )
    assert broker.connection_count == 1


def test_a_closed_producer_sends_nothing(broker: Broker07) -> None:
    producer = producer_of(broker)
    producer.close()
    producer.close()
    with pytest.raises(KafkaError, match="the producer is closed"):
        producer.send("t", [b"x"])
    assert broker.connection_count == 0


def test_a_broker_that_closes_before_it_confirms_leaves_it_open_what_was_stored(broker: Broker07) -> None:
    broker.script(MultiFetchRequest, Close())
    with producer_of(broker) as producer, pytest.raises(ConnectionLost, match="may not be stored"):
        producer.send("t", [b"stored all the same"], 0)
    assert broker.payloads("t") == [b"stored all the same"]


def test_today_s_wire_always_answers() -> None:
    with pytest.raises(InvalidConfig, match=r"request.required.acks=0 .*protocol=0.8: 1 and -1"):
        SyncProducer("127.0.0.1", 1, {"protocol": "0.8", "request.required.acks": 0})
