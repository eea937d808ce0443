"""What a caller of the producer sees: results, callbacks, flush and close, keys, threads, wrong types."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from pyspark_kafkalog.errors import (
    ErrorCode,
    KafkaError,
)
from pyspark_kafkalog.producer.producer import Producer
from pyspark_kafkalog.protocol.api.produce import ProduceRequest
from pyspark_kafkalog.protocol.exchange import ApiKey
from tests.support.client.fake_log import FakeLog, refusal
from tests.support.client.scripted_broker import ScriptedBroker
from tests.support.client.scripted_server import Silence
from tests.support.manual_clock import ManualClock
from tests.support.until import until


def numbered(count: int) -> list[bytes]:
    return [b"value %d" % i for i in range(count)]


def test_without_acks_records_count_as_sent_once_the_system_has_them(
    broker: ScriptedBroker, log: FakeLog, make: Any
) -> None:
    def store(request: ProduceRequest) -> Any:
        log.produce(request)
        return Silence()

    broker.default(ApiKey.PRODUCE, store)
    producer = make(acks=0, enable_idempotence="false")
    assert producer.send("t", b"v").result(90).offset == -1
    producer.send("t", bytes(500_000))
    producer.close(90)
    until(lambda: len(log.values()) == 2)


def test_acks_one_is_asked_for_without_sequences(broker: ScriptedBroker, log: FakeLog, make: Any) -> None:
    make(acks=1, enable_idempotence="false").send("t", b"v").result(90)
    assert broker.received(ApiKey.PRODUCE)[0].acks == 1
    assert log.partitions["t", 0].epochs == [(-1, -1)]


def test_callbacks_hear_of_every_record_and_may_fail(
    broker: ScriptedBroker, log: FakeLog, make: Any, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[tuple[int, str]] = []

    def listen(metadata: Any, error: KafkaError | None) -> None:
        heard.append((metadata.offset, threading.current_thread().name))
        if metadata.offset % 2:
            raise ValueError("the callback's own mistake")

    producer = make()
    for value in numbered(10):
        producer.send("t", value, on_delivery=listen)
    producer.flush(90)
    assert [offset for offset, _ in heard] == list(range(10))
    assert {name for _, name in heard} == {"kafkalog-producer-callbacks"}
    assert caplog.text.count("ValueError: the callback's own mistake") == 5
    assert producer.send("t", b"after").result(90).offset == 10


def test_a_callback_hears_of_a_failure(broker: ScriptedBroker, make: Any) -> None:
    broker.default(ApiKey.PRODUCE, refusal(ErrorCode.TOPIC_AUTHORIZATION_FAILED))
    heard: list[Any] = []
    producer = make()
    producer.send("t", b"v", on_delivery=lambda metadata, error: heard.append((metadata, error)))
    producer.flush(90)
    ((metadata, error),) = heard
    assert metadata is None
    assert error.code == ErrorCode.TOPIC_AUTHORIZATION_FAILED


def test_a_callback_may_use_the_producer(broker: ScriptedBroker, log: FakeLog, make: Any) -> None:
    producer = make()
    done = threading.Event()

    def send_another(metadata: Any, error: Any) -> None:
        producer.send("t", b"second")
        producer.flush(90)
        done.set()

    producer.send("t", b"first", on_delivery=send_another)
    assert done.wait(60)
    assert log.values() == [b"first", b"second"]


def test_flush_waits_for_what_was_sent_up_to_the_timeout(
    broker: ScriptedBroker, log: FakeLog, make: Any
) -> None:
    producer = make(linger_ms=600_000)
    deliveries = [producer.send("t", value) for value in numbered(10)]
    assert not deliveries[0].done
    producer.flush(90)
    assert all(delivery.done for delivery in deliveries)
    broker.default(ApiKey.PRODUCE, Silence())
    producer.send("t", b"v")
    with pytest.raises(TimeoutError, match="1 records are not delivered"):
        producer.flush(0.2)
    producer.close(0)


def test_records_linger_together(broker: ScriptedBroker, log: FakeLog, make: Any) -> None:
    clock = ManualClock()
    producer = make(clock, linger_ms=100)
    deliveries = [producer.send("t", value) for value in numbered(10)]
    clock.advance(0.09)
    assert not deliveries[0].done
    clock.advance(0.02)
    deliveries[-1].result(90)
    assert log.partitions["t", 0].batch_counts == [10]


def test_closing_delivers_what_is_left(broker: ScriptedBroker, log: FakeLog, make: Any) -> None:
    producer = make(linger_ms=600_000)
    for value in numbered(1000):
        producer.send("t", value)
    producer.close(90)
    producer.close(90)
    assert log.values() == numbered(1000)
    with pytest.raises(KafkaError, match="closed"):
        producer.send("t", b"v")


def test_closing_settles_what_it_cannot_deliver_in_time(broker: ScriptedBroker, make: Any) -> None:
    broker.default(ApiKey.PRODUCE, Silence())
    heard: list[Any] = []
    producer = make()
    delivery = producer.send("t", b"v", on_delivery=lambda metadata, error: heard.append(error))
    producer.close(0.2)
    with pytest.raises(KafkaError, match="closed before 1 record"):
        delivery.result(0)
    assert len(heard) == 1


def test_a_result_is_waited_for_up_to_the_timeout(broker: ScriptedBroker, make: Any) -> None:
    broker.default(ApiKey.PRODUCE, Silence())
    producer = make()
    with pytest.raises(TimeoutError):
        producer.send("t", b"v").result(0.1)
    producer.close(0)


def test_keys_decide_the_partition_and_keyless_records_share(
    broker: ScriptedBroker, log: FakeLog, make: Any
) -> None:
    producer = make(batch_size=500)
    keyed = [producer.send("two", b"v", key=b"key-%d" % (i % 7)) for i in range(70)]
    places = {i % 7: delivery.result(90).partition for i, delivery in enumerate(keyed)}
    assert [delivery.result(90).partition for delivery in keyed] == [places[i % 7] for i in range(70)]
    assert set(places.values()) == {0, 1}
    free = [producer.send("two", bytes(50)) for _ in range(2000)]  # too many for chance
    counts = [sum(delivery.result(90).partition == p for delivery in free) for p in (0, 1)]
    assert min(counts) > 20


def test_many_threads_share_a_producer(broker: ScriptedBroker, log: FakeLog, make: Any) -> None:
    producer = make(batch_size=1000)

    def work(worker: int) -> None:
        for i in range(500):
            producer.send("t", b"%d %d" % (worker, i))

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    producer.flush(90)
    for worker in range(4):
        own = [value for value in log.values() if value is not None and value.startswith(b"%d " % worker)]
        assert own == [b"%d %d" % (worker, i) for i in range(500)]


def test_anything_but_bytes_is_a_type_error(make: Any) -> None:
    producer = make()
    with pytest.raises(TypeError, match="value must be bytes or None"):
        producer.send("t", "text")
    with pytest.raises(TypeError, match="key must be bytes or None"):
        producer.send("t", b"v", key=5)


def test_a_forgotten_producer_delivers_what_it_has(broker: ScriptedBroker, log: FakeLog) -> None:
    producer = Producer({"bootstrap.servers": broker.address, "linger.ms": 80_000})
    producer.send("t", b"v")
    del producer
    until(lambda: log.values() == [b"v"])
