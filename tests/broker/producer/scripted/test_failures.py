"""The producer against a broker that misbehaves as told: nothing lost, nothing twice, nothing reordered."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from pyspark_kafkalog.client.retry import Deadline
from pyspark_kafkalog.errors import (
    BrokersUnreachable,
    ConnectionLost,
    ErrorCode,
    InvalidRequest,
    KafkaError,
    MessageTooLarge,
    RequestTimedOut,
    ServerError,
    UnknownTopicOrPartition,
    UnsupportedCompression,
    UnsupportedVersion,
)
from pyspark_kafkalog.producer.producer import Producer
from pyspark_kafkalog.protocol.api.produce import ProduceRequest, ProduceResponse
from pyspark_kafkalog.protocol.api.producers import InitProducerIdResponse
from pyspark_kafkalog.protocol.exchange import ApiKey
from tests.support.client.fake_log import FakeLog, refusal
from tests.support.client.scripted_broker import Cut, Layout, ScriptedBroker, WrongCorrelation
from tests.support.client.scripted_producers import producers
from tests.support.client.scripted_server import HOST, Close, Silence
from tests.support.manual_clock import ManualClock
from tests.support.until import until

AT_ONCE = {"retry_backoff_ms": 0, "retry_backoff_max_ms": 0}
"""For a clock that stands still."""

FOUR_HUNDRED_SECONDS = {"request_timeout_ms": 300_000, "delivery_timeout_ms": 400_000}


def until_in_trouble(producer: Producer) -> None:
    """Wait until the producer knows why records are not delivered: only then may their time pass."""
    until(lambda: producer._accumulator.trouble is not None)


def numbered(count: int) -> list[bytes]:
    return [b"value %d" % i for i in range(count)]


def test_a_record_is_delivered_with_its_place(broker: ScriptedBroker, log: FakeLog, make: Any) -> None:
    producer = make()
    first = producer.send("t", b"v", key=b"k", timestamp_ms=123, headers=[("h", b"x"), ("h", None)]).result(
        90
    )
    assert (first.topic, first.partition, first.offset, first.timestamp) == ("t", 0, 0, 123)
    (record,) = log.partitions["t", 0].records
    assert (record.key, record.value, record.timestamp) == (b"k", b"v", 123)
    assert record.headers == (("h", b"x"), ("h", None))
    assert producer.send("t", None).result(90).offset == 1
    assert log.values() == [b"v", None]


@pytest.mark.parametrize(
    "failure",
    [
        refusal(ErrorCode.NOT_LEADER_OR_FOLLOWER),
        refusal(ErrorCode.CORRUPT_MESSAGE),
        refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        Close(),
        Cut(ProduceResponse(), 6),
    ],
)
def test_a_passing_failure_is_repeated(broker: ScriptedBroker, log: FakeLog, make: Any, failure: Any) -> None:
    broker.script(ApiKey.PRODUCE, failure, failure)
    producer = make(batch_size=200)
    deliveries = [producer.send("t", value) for value in numbered(100)]
    assert [delivery.result(90).offset for delivery in deliveries] == list(range(100))
    assert log.values() == numbered(100)


def test_an_answer_that_is_lost_does_not_store_a_batch_twice(
    broker: ScriptedBroker, log: FakeLog, make: Any
) -> None:
    def store_and_hang_up(request: ProduceRequest) -> Any:
        log.produce(request)
        return Close()

    broker.script(ApiKey.PRODUCE, log.produce, store_and_hang_up, store_and_hang_up, store_and_hang_up)
    producer = make(batch_size=200)
    deliveries = [producer.send("t", value) for value in numbered(200)]
    assert [delivery.result(90).offset for delivery in deliveries] == list(range(200))
    assert log.values() == numbered(200)


def test_a_silent_broker_is_given_another_chance(broker: ScriptedBroker, log: FakeLog, make: Any) -> None:
    def silent(_: ProduceRequest) -> Silence:
        clock.advance(601)
        producer._sender._poller.wake()
        return Silence()

    clock = ManualClock()
    broker.script(ApiKey.PRODUCE, silent)
    producer = make(clock, **AT_ONCE)
    assert producer.send("t", b"v").result(90).offset == 0
    assert len(broker.received(ApiKey.PRODUCE)) == 2


def test_several_requests_are_in_flight_and_keep_their_order(
    broker: ScriptedBroker, log: FakeLog, make: Any
) -> None:
    hold = threading.Event()

    def held(request: ProduceRequest) -> Any:
        hold.wait(90)
        return refusal(ErrorCode.NOT_ENOUGH_REPLICAS)(request)

    producer = make(batch_size=1)
    first, *rest = numbered(21)
    assert producer.send("t", first).result(90).offset == 0, "until it is known it sends one by one"
    broker.script(ApiKey.PRODUCE, held)
    deliveries = [producer.send("t", value) for value in rest]
    (link,) = producer._sender._links.values()
    until(lambda: len(link.sent) == 5)
    hold.set()
    assert [delivery.result(90).offset for delivery in deliveries] == list(range(1, 21))
    assert log.values() == numbered(21)
    # Those sent behind the refused one came too early for the broker: 4 of at most 5 in flight.
    assert log.refused == 4 * [ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER]
    assert {epoch for _, epoch in log.partitions["t", 0].epochs} == {0}


def test_a_later_batch_does_not_pass_the_first_that_found_no_leader(
    broker: ScriptedBroker, log: FakeLog, make: Any
) -> None:
    # As with a topic that was just made: its leader is there a moment later. Apache Kafka takes any number as
    # the first of a producer that it does not know, and so would take the second batch.
    broker.script(ApiKey.PRODUCE, refusal(ErrorCode.NOT_LEADER_OR_FOLLOWER))
    producer = make(batch_size=1)
    deliveries = [producer.send("t", value) for value in numbered(10)]
    assert [delivery.result(90).offset for delivery in deliveries] == list(range(10))
    assert log.refused == []
    assert log.values() == numbered(10)


def test_a_leader_that_moved_is_followed_in_order(log: FakeLog) -> None:
    layout = Layout(leaders={"t": {0: 0}})
    with ScriptedBroker(layout, node_id=0) as old, ScriptedBroker(layout, node_id=1) as new:
        old.default(ApiKey.PRODUCE, log.produce)
        new.default(ApiKey.PRODUCE, log.produce)
        with producers(old.address) as make:
            producer = make()
            deliveries = [producer.send("t", value) for value in numbered(50)]
            producer.flush(90)
            old.default(ApiKey.PRODUCE, refusal(ErrorCode.NOT_LEADER_OR_FOLLOWER))
            layout.leaders["t"][0] = 1
            for value in numbered(100)[50:]:
                deliveries.append(producer.send("t", value))
            assert [delivery.result(90).offset for delivery in deliveries] == list(range(100))
        assert log.values() == numbered(100)
        assert new.received(ApiKey.PRODUCE)


def test_a_broker_that_forgot_the_producer_is_gone_on_with_under_a_new_epoch(
    broker: ScriptedBroker, log: FakeLog, make: Any
) -> None:
    producer = make()
    producer.send("t", b"before").result(90)
    log.forget_producers()
    deliveries = [producer.send("t", value) for value in numbered(50)]
    assert [delivery.result(90).offset for delivery in deliveries] == list(range(1, 51))
    assert log.values() == [b"before", *numbered(50)]
    assert log.partitions["t", 0].epochs[-1] == (7000, 1)


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_PRODUCER_ID, ErrorCode.INVALID_PRODUCER_EPOCH])
def test_a_producer_id_that_the_broker_does_not_take_is_replaced(
    broker: ScriptedBroker, log: FakeLog, make: Any, code: ErrorCode
) -> None:
    broker.script(ApiKey.INIT_PRODUCER_ID, InitProducerIdResponse(producer_id=1, producer_epoch=0))
    broker.script(ApiKey.PRODUCE, refusal(code))
    producer = make()
    assert producer.send("t", b"v").result(90).offset == 0
    assert log.partitions["t", 0].epochs == [(7000, 0)]


def test_the_last_epoch_is_followed_by_another_producer_id(
    broker: ScriptedBroker, log: FakeLog, make: Any
) -> None:
    broker.script(ApiKey.INIT_PRODUCER_ID, InitProducerIdResponse(producer_id=1, producer_epoch=2**15 - 1))
    broker.script(ApiKey.PRODUCE, refusal(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER))
    assert make().send("t", b"v").result(90).offset == 0
    assert log.partitions["t", 0].epochs == [(7000, 0)]


def test_a_repeated_batch_that_the_broker_no_longer_remembers_is_a_success(
    broker: ScriptedBroker, log: FakeLog, make: Any
) -> None:
    broker.script(ApiKey.PRODUCE, refusal(ErrorCode.DUPLICATE_SEQUENCE_NUMBER))
    assert make().send("t", b"v").result(90).offset == -1
    assert log.values() == []


def test_a_batch_that_failed_for_good_does_not_stop_those_after_it(
    broker: ScriptedBroker, log: FakeLog, make: Any
) -> None:
    hold = threading.Event()

    def held(request: ProduceRequest) -> Any:
        hold.wait(90)
        return refusal(ErrorCode.TOPIC_AUTHORIZATION_FAILED)(request)

    broker.script(ApiKey.PRODUCE, held)
    producer = make(batch_size=1)
    deliveries = [producer.send("t", value) for value in numbered(20)]
    hold.set()
    with pytest.raises(
        ServerError, match=r"^TOPIC_AUTHORIZATION_FAILED: .* t-0: this needs Write on topic t$"
    ):
        deliveries[0].result(90)
    assert [delivery.result(90).offset for delivery in deliveries[1:]] == list(range(19))
    assert log.values() == numbered(20)[1:]


def test_a_batch_too_large_for_the_topic_is_sent_in_parts(
    broker: ScriptedBroker, log: FakeLog, make: Any
) -> None:
    log.max_batch_bytes = 2000
    told: list[int] = []
    producer = make(batch_size=100_000, linger_ms=50)
    values = [bytes([i]) * 100 for i in range(100)]
    deliveries = [producer.send("t", v, on_delivery=lambda m, e: told.append(m.offset)) for v in values]
    assert [delivery.result(90).offset for delivery in deliveries] == list(range(100))
    assert log.values() == values
    producer.flush(90)
    assert told == list(range(100))
    assert max(log.partitions["t", 0].batch_sizes) <= 2000
    assert producer._accumulator._used == 0


def test_a_record_too_large_for_the_topic_fails_alone(
    broker: ScriptedBroker, log: FakeLog, make: Any
) -> None:
    log.max_batch_bytes = 500
    producer = make(linger_ms=50)
    deliveries = [producer.send("t", value) for value in (b"a", bytes(1000), b"c", b"d")]
    with pytest.raises(MessageTooLarge, match=r"t-0.*max\.message\.bytes"):
        deliveries[1].result(90)
    for delivery in (deliveries[0], *deliveries[2:]):
        delivery.result(90)
    assert log.values() == [b"a", b"c", b"d"]


def test_a_record_above_the_request_limit_is_refused_at_once(make: Any) -> None:
    with pytest.raises(MessageTooLarge, match=r"t: .*max\.request\.size=5000"):
        make(max_request_size=5000).send("t", bytes(5000))


def test_undelivered_records_fail_at_the_delivery_timeout_with_the_reason(
    broker: ScriptedBroker, make: Any
) -> None:
    broker.default(ApiKey.PRODUCE, refusal(ErrorCode.NOT_ENOUGH_REPLICAS))
    clock = ManualClock()
    producer = make(clock, **FOUR_HUNDRED_SECONDS)
    delivery = producer.send("t", b"v")
    until_in_trouble(producer)
    clock.advance(399)
    assert not delivery.done
    clock.advance(2)
    with pytest.raises(
        RequestTimedOut, match=r"t-0: 1 record.*delivery\.timeout\.ms=400000.*NOT_ENOUGH_REPLICAS"
    ):
        delivery.result(90)


def test_records_for_a_broker_that_is_gone_fail_with_its_address(
    broker: ScriptedBroker, log: FakeLog, make: Any
) -> None:
    clock = ManualClock()
    producer = make(clock, **FOUR_HUNDRED_SECONDS)
    producer.send("t", b"before").result(90)
    broker.close()
    delivery = producer.send("t", b"v")
    until_in_trouble(producer)
    clock.advance(401)
    with pytest.raises(RequestTimedOut, match=rf"not delivered within.*{broker.address}"):
        delivery.result(90)


def test_records_for_an_address_that_never_answered_fail_soon_with_it(
    broker: ScriptedBroker, log: FakeLog, make: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_server((HOST, 0)) as closed:
        broker.layout.brokers[1] = closed.getsockname()
    broker.layout.leaders["two"][1] = 1
    clock = ManualClock()
    producer = make(clock, **FOUR_HUNDRED_SECONDS)
    delivery = producer.send("two", b"v", partition=1)
    until_in_trouble(producer)
    clock.advance(10)
    until(lambda: "still trying" in caplog.text)
    assert not delivery.done
    clock.advance(14)
    with pytest.raises(BrokersUnreachable, match=r"^broker 1 advertises 127.*refused.*advertised\.lis"):
        delivery.result(90)
    assert producer.send("two", b"v", partition=0).result(90).offset == 0


def test_order_is_kept_after_a_batch_expired(broker: ScriptedBroker, log: FakeLog, make: Any) -> None:
    clock = ManualClock()
    producer = make(clock, batch_size=1, **FOUR_HUNDRED_SECONDS, **AT_ONCE)
    producer.send("t", b"before").result(90)
    broker.default(ApiKey.PRODUCE, refusal(ErrorCode.NOT_ENOUGH_REPLICAS))
    lost = producer.send("t", b"lost")
    until_in_trouble(producer)
    clock.advance(401)
    with pytest.raises(RequestTimedOut):
        lost.result(90)
    broker.default(ApiKey.PRODUCE, log.produce)
    deliveries = [producer.send("t", value) for value in numbered(20)]
    offsets = [delivery.result(90).offset for delivery in deliveries]
    arrived = len(log.values()) - 21  # what expired on its way to a slow broker arrives all the same, once
    assert arrived in (0, 1)
    assert offsets == list(range(1 + arrived, 21 + arrived))
    assert log.values() == [b"before", *[b"lost"] * arrived, *numbered(20)]


def test_a_full_buffer_accepts_again_as_records_are_delivered(
    broker: ScriptedBroker, log: FakeLog, make: Any
) -> None:
    producer = make(buffer_memory=10_000, linger_ms=600_000)
    values = [b"%05d" % i + bytes(1000) for i in range(100)]
    for value in values:
        producer.send("t", value)
    producer.flush(90)
    assert log.values() == values


def test_a_record_that_can_never_fit_the_buffer_is_refused(make: Any) -> None:
    with pytest.raises(MessageTooLarge, match=r"buffer\.memory is 2000"):
        make(buffer_memory=2000).send("t", bytes(3000))


@pytest.mark.parametrize("nonsense", [WrongCorrelation(ProduceResponse()), ProduceResponse()])
def test_nonsense_is_an_error_that_names_the_broker(broker: ScriptedBroker, make: Any, nonsense: Any) -> None:
    broker.default(ApiKey.PRODUCE, nonsense)
    with pytest.raises(InvalidRequest, match=broker.address):
        make().send("t", b"v").result(90)


def test_an_unknown_topic_is_refused_when_the_broker_does_not_make_it(make: Any) -> None:
    with pytest.raises(UnknownTopicOrPartition, match="topic none"):
        make().send("none", b"v")


def test_an_unknown_partition_is_refused_with_the_number_there_is(make: Any) -> None:
    with pytest.raises(UnknownTopicOrPartition, match="two-2: no such partition; topic two has 2"):
        make().send("two", b"v", partition=2)


def test_no_broker_at_all_is_an_error_within_max_block(broker: ScriptedBroker, make: Any) -> None:
    producer = make(max_block_ms=200)
    broker.close()
    with pytest.raises(ConnectionLost, match=broker.address):
        producer.send("t", b"v")


def test_a_broker_without_producer_ids_is_an_error_that_says_what_to_do(
    broker: ScriptedBroker, log: FakeLog, make: Any
) -> None:
    del broker.versions[ApiKey.INIT_PRODUCER_ID]
    with pytest.raises(UnsupportedVersion, match=r"enable\.idempotence=false"):
        make().send("t", b"v").result(90)
    assert make(enable_idempotence="false").send("t", b"v").result(90).offset == 0


def test_a_producer_that_may_not_write_says_which_right_it_needs_at_once(
    broker: ScriptedBroker, make: Any
) -> None:
    denied = InitProducerIdResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    broker.default(ApiKey.INIT_PRODUCER_ID, denied)
    with pytest.raises(ServerError, match=r"no producer id: this needs Write on topic t, and before Kafka 2"):
        make().send("t", b"v").result(90)
    assert len(broker.received(ApiKey.INIT_PRODUCER_ID)) == 1


def test_zstd_needs_a_broker_that_knows_it(broker: ScriptedBroker, make: Any) -> None:
    broker.versions[ApiKey.PRODUCE] = (3, 6)
    with pytest.raises(UnsupportedCompression, match=rf"{broker.address}.*zstd"):
        make(compression_type="zstd").send("t", b"v").result(90)
    assert make(compression_type="gzip").send("t", b"v").result(90).offset == 0


def test_a_full_buffer_tells_why_nothing_is_delivered(broker: ScriptedBroker, make: Any) -> None:
    broker.default(ApiKey.PRODUCE, Close())
    producer = make(buffer_memory=10_000, max_block_ms=400)
    producer._directory.topic("t", Deadline.after(90))
    for _ in range(8):
        producer.send("t", bytes(1000))
    until_in_trouble(producer)
    with pytest.raises(
        RequestTimedOut,
        match=rf"t-0: no room.*buffer\.memory.*max\.block\.ms=400.*{broker.address}.*(closed|lost)",
    ):
        producer.send("t", bytes(2000))
    producer.close(0)


def test_a_mistake_of_our_own_does_not_leave_records_waiting(
    broker: ScriptedBroker, log: FakeLog, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = make()
    producer.send("t", b"before").result(90)
    request = producer._sender._request
    monkeypatch.setattr(producer._sender, "_request", lambda batches: 1 // 0)
    failed = producer.send("t", b"v")
    with pytest.raises(KafkaError, match="ZeroDivisionError"):
        failed.result(90)
    monkeypatch.setattr(producer._sender, "_request", request)
    assert producer.send("t", b"after").result(90).offset == 1
    assert log.values() == [b"before", b"after"]


def test_a_look_up_ends_soon_after_the_producer_is_closed() -> None:
    with ScriptedBroker(Layout(leaders={"t": {0: 0}})) as broker, producers(broker.address) as make:
        producer = make(request_timeout_ms=3_600_000)
        producer._directory.topic("t", Deadline.after(90))
        broker.close()
        looking = threading.Thread(target=lambda: suppressed(producer._directory.refresh), daemon=True)
        looking.start()
        producer.close(0)
        looking.join(60)
        assert not looking.is_alive()


def suppressed(call: Callable[[], object]) -> None:
    with suppress(KafkaError):
        call()
