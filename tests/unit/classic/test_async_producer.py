"""The queue before a broker: when batches leave, what a full queue does, and the hooks at its stages."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from pyspark_kafkalog.classic.producer.async_producer import (
    AsyncProducer,
    CallbackHandler,
    EventHandler,
    QueueClosed,
    QueueFull,
    QueueItem,
)
from pyspark_kafkalog.classic.producer.router import Encoder
from pyspark_kafkalog.classic.producer.sync_producer import SyncProducer
from pyspark_kafkalog.errors import ConnectionLost, InvalidConfig
from tests.support.until import until

NEVER_MS = 3_600_000


class Recorder(EventHandler):
    """Keeps the batches it is handed; may be stopped, and may fail."""

    def __init__(self) -> None:
        self.batches: list[list[Any]] = []
        self.props: dict[str, str] = {}
        self.closed = 0
        self.failure: Exception | None = None
        self.entered = threading.Semaphore(0)
        self.may_go = threading.Event()
        self.may_go.set()

    def init(self, props: Mapping[str, str]) -> None:
        self.props = dict(props)

    def handle(self, events: Sequence[QueueItem], producer: SyncProducer, encoder: Encoder) -> None:
        self.entered.release()
        assert self.may_go.wait(60)
        if self.failure is not None:
            raise self.failure
        self.batches.append([event.data for event in events])

    def close(self) -> None:
        self.closed += 1


class Hooks(CallbackHandler):
    """Notes each call; refuses to let "drop" pass, doubles "twice", renames "old"."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []

    def init(self, props: Mapping[str, str]) -> None:
        self.calls.append(("init", dict(props)))

    def before_enqueue(self, item: QueueItem) -> QueueItem:
        self.calls.append(("before_enqueue", item.data))
        return replace(item, data="new") if item.data == "old" else item

    def after_enqueue(self, item: QueueItem, added: bool) -> None:
        self.calls.append(("after_enqueue", (item.data, added)))

    def after_dequeuing_existing_data(self, item: QueueItem) -> Sequence[QueueItem]:
        self.calls.append(("after_dequeuing", item.data))
        return [item] * {"drop": 0, "twice": 2}.get(item.data, 1)

    def last_batch_before_close(self) -> Sequence[QueueItem]:
        self.calls.append(("last_batch", None))
        return [QueueItem("last", "t")]

    def after_failure(self, items: Sequence[QueueItem], error: Exception) -> None:
        self.calls.append(("after_failure", ([item.data for item in items], str(error))))

    def close(self) -> None:
        self.calls.append(("close", None))


@pytest.fixture
def handler() -> Iterator[Recorder]:
    handler = Recorder()
    yield handler
    handler.may_go.set()


def producer_of(handler: Recorder, hooks: CallbackHandler | None = None, **properties: Any) -> AsyncProducer:
    """One that never connects: its handler does all."""
    named = {name.replace("_", "."): value for name, value in properties.items()}
    config = {"queue.time": NEVER_MS, **named}
    return AsyncProducer("nowhere.invalid", 9, config, event_handler=handler, callback_handler=hooks)


def test_a_batch_leaves_when_it_is_full(handler: Recorder) -> None:
    with producer_of(handler, batch_size=3) as producer:
        for n in range(7):
            producer.send("t", n)
        assert handler.entered.acquire(timeout=60)
        assert handler.entered.acquire(timeout=60)
        producer.flush(60)
    assert handler.batches == [[0, 1, 2], [3, 4, 5], [6]]
    assert producer.lost_count == 0


def test_a_batch_leaves_after_the_queue_time(handler: Recorder) -> None:
    with producer_of(handler, queue_time=50) as producer:
        producer.send("t", "alone")
        assert handler.entered.acquire(timeout=60)
    assert handler.batches == [["alone"]]


def test_closing_sends_what_is_left(handler: Recorder) -> None:
    producer = producer_of(handler)
    producer.send("t", 1)
    producer.send("t", 2)
    producer.close()
    producer.close()
    assert handler.batches == [[1, 2]]
    assert handler.closed == 1
    with pytest.raises(QueueClosed, match="t: the producer is closed"):
        producer.send("t", 3)


def test_flushing_waits_for_no_full_batch(handler: Recorder) -> None:
    with producer_of(handler) as producer:
        producer.flush(60)
        producer.send("t", 1)
        producer.flush(60)
        assert handler.batches == [[1]]
        handler.may_go.clear()
        producer.send("t", 2)
        with pytest.raises(TimeoutError, match="events and a batch are not sent yet"):
            producer.flush(0.05)
        handler.may_go.set()
    assert handler.batches == [[1], [2]]


def fill(producer: AsyncProducer, handler: Recorder) -> None:
    """One event in the handler, which is stopped, and two in the queue, which holds no more."""
    handler.may_go.clear()
    producer.send("t", "in hand")
    assert handler.entered.acquire(timeout=60)
    producer.send("t", 1)
    producer.send("t", 2)


@pytest.mark.parametrize(
    ("properties", "said"), [({}, "queue.size is 2"), ({"queue.enqueueTimeout.ms": 30}, "Timeout.ms 30")]
)
def test_a_full_queue_refuses_an_event_at_once_or_after_the_time_to_wait_and_the_hook_learns_of_it(
    handler: Recorder, properties: dict[str, int], said: str
) -> None:
    hooks = Hooks()
    with producer_of(handler, hooks, batch_size=1, queue_size=2, **properties) as producer:
        fill(producer, handler)
        with pytest.raises(QueueFull, match=f"t: 2 events wait for nowhere.invalid:9: .*{said}"):
            producer.send("t", "refused")
        assert hooks.calls[-1] == ("after_enqueue", ("refused", False))
        handler.may_go.set()
    assert handler.batches == [["in hand"], [1], [2], ["last"]]


def test_a_full_queue_may_be_waited_for_without_end(handler: Recorder) -> None:
    properties = {"queue.enqueueTimeout.ms": -1}
    with producer_of(handler, batch_size=1, queue_size=2, **properties) as producer:
        fill(producer, handler)
        waiting = threading.Thread(target=producer.send, args=("t", "patient"))
        waiting.start()
        waiting.join(0.1)
        assert waiting.is_alive()
        handler.may_go.set()
        waiting.join(60)
        assert not waiting.is_alive()
    assert handler.batches == [["in hand"], [1], [2], ["patient"]]


def test_who_waits_for_room_learns_that_the_producer_was_closed(handler: Recorder) -> None:
    producer = producer_of(handler, batch_size=1, queue_size=2, **{"queue.enqueueTimeout.ms": -1})
    fill(producer, handler)
    told: list[Exception] = []

    def send() -> None:
        try:
            producer.send("t", "too late")
        except QueueClosed as e:
            told.append(e)

    waiting = threading.Thread(target=send)
    waiting.start()
    with pytest.raises(TimeoutError, match="are not sent yet"):
        producer.close(0.05)
    waiting.join(60)
    assert len(told) == 1
    handler.may_go.set()
    producer.close()
    assert handler.batches == [["in hand"], [1], [2]]


def test_hooks_are_called_at_each_stage_and_may_change_what_passes(handler: Recorder) -> None:
    hooks = Hooks()
    with producer_of(handler, hooks, **{"callback.handler.props": "a=1, b=2"}) as producer:
        for event in ("old", "drop", "twice"):
            producer.send("t", event)
    assert handler.batches == [["new", "twice", "twice", "last"]]
    names = [name for name, _ in hooks.calls]
    assert hooks.calls[0] == ("init", {"a": "1", "b": "2"})
    assert hooks.calls[1] == ("before_enqueue", "old")
    assert ("after_enqueue", ("new", True)) in hooks.calls
    assert [value for name, value in hooks.calls if name == "after_dequeuing"] == ["new", "drop", "twice"]
    assert names[-2:] == ["last_batch", "close"]


def test_a_handler_that_fails_loses_its_batch_and_is_logged(
    handler: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    hooks = Hooks()
    with producer_of(handler, hooks, batch_size=2) as producer:
        handler.failure = ConnectionLost("gone")
        producer.send("t", 1)
        producer.send("t", 2)
        producer.flush(60)
        handler.failure = None
        producer.send("t", 3)
    assert handler.batches == [[3, "last"]]
    assert producer.lost_count == 2
    assert ("after_failure", ([1, 2], "gone")) in hooks.calls
    assert "nowhere.invalid:9: 2 event(s) are lost: gone" in caplog.text


def test_a_hook_that_fails_on_the_thread_is_logged_and_loses_nothing(
    handler: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(CallbackHandler):
        def after_dequeuing_existing_data(self, item: QueueItem) -> Sequence[QueueItem]:
            raise RuntimeError("after dequeuing")

        def last_batch_before_close(self) -> Sequence[QueueItem]:
            raise RuntimeError("last batch")

        def close(self) -> None:
            raise RuntimeError("closing")

    with producer_of(handler, Broken()) as producer:
        producer.send("t", 1)
    assert handler.batches == [[1]]
    assert handler.closed == 1
    for text in ("after dequeuing", "last batch", "closing"):
        assert text in caplog.text


def test_a_hook_that_fails_in_send_fails_the_send(handler: Recorder) -> None:
    class Refusing(CallbackHandler):
        def before_enqueue(self, item: QueueItem) -> QueueItem:
            raise PermissionError("not this one")

    with producer_of(handler, Refusing()) as producer, pytest.raises(PermissionError, match="not this one"):
        producer.send("t", 1)
    assert handler.batches == []


def test_a_hook_may_flush_without_waiting_for_itself(handler: Recorder) -> None:
    class Flushing(CallbackHandler):
        producer: AsyncProducer

        def after_dequeuing_existing_data(self, item: QueueItem) -> Sequence[QueueItem]:
            self.producer.flush()
            return [item]

    hooks = Flushing()
    with producer_of(handler, hooks) as producer:
        hooks.producer = producer
        producer.send("t", 1)
        producer.flush(60)
    assert handler.batches == [[1]]


def test_a_retired_producer_gives_back_what_it_did_not_send(handler: Recorder) -> None:
    hooks = Hooks()
    producer = producer_of(handler, hooks, batch_size=2)
    for n in range(5):
        producer.send("t", n)
    producer.flush(60)
    handler.may_go.clear()
    handler.failure = ConnectionLost("gone")
    for n in range(5, 10):
        producer.send("t", n)
    while handler.entered.acquire(timeout=0.2):
        pass
    handler.may_go.set()
    given_back = [item.data for item in producer.retire()]
    lost = [call[1][0] for call in hooks.calls if call[0] == "after_failure"]
    assert sorted([*given_back, *(n for batch in lost for n in batch)]) == [5, 6, 7, 8, 9]
    assert handler.batches == [[0, 1], [2, 3], [4]]
    assert "last_batch" not in [name for name, _ in hooks.calls]
    with pytest.raises(QueueClosed):
        producer.send("t", 10)


def test_a_retired_producer_hands_over_no_batch_that_was_not_full(handler: Recorder) -> None:
    hooks = Hooks()
    producer = producer_of(handler, hooks)
    for n in range(3):
        producer.send("t", n)
    until(lambda: ("after_dequeuing", 2) in hooks.calls)
    assert [item.data for item in producer.retire()] == [0, 1, 2]
    assert handler.batches == []


def test_handlers_and_encoders_are_found_by_name() -> None:
    config = {
        "event.handler": "pyspark_kafkalog.classic.producer.async_producer.EventHandler",
        "callback.handler": "pyspark_kafkalog.classic.producer.async_producer.CallbackHandler",
        "serializer.class": "kafka.serializer.StringEncoder",
    }
    with AsyncProducer("nowhere.invalid", 9, config) as producer:
        producer.send("t", "x")
    assert producer.lost_count == 1, "the base class sends nothing"


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("event.handler", "no.such.Class", "is not a class: .*package.module.Class"),
        ("callback.handler", "NoModule", "is not a class: .*package.module.Class"),
        ("serializer.class", "os.nothing", "is not a class: .*package.module.Class"),
        ("serializer.class", "datetime.date", "cannot be made without argum"),
    ],
)
def test_a_class_that_is_not_there_or_wants_arguments_is_an_error(name: str, value: str, said: str) -> None:
    with pytest.raises(InvalidConfig, match=rf"{name}={value} {said}"):
        AsyncProducer("nowhere.invalid", 9, {name: value})
