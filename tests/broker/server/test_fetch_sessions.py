"""A fetch of a session names what has changed since its last one, and nothing else; what is refused to others
is refused to it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kafkalog_broker.config.broker_config import BrokerConfig
from kafkalog_broker.embedded import EmbeddedBroker, start_broker
from kafkalog_broker.log.log import Log
from kafkalog_broker.server.broker import Broker
from kafkalog_broker.server.delayed_fetch import ParkedFetch
from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.api.fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
)
from pyspark_kafkalog.protocol.api.log_offsets import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from pyspark_kafkalog.protocol.api.topics import DeleteTopicsRequest, DeleteTopicState
from pyspark_kafkalog.security.acls import Operation
from pyspark_kafkalog.types import TopicPartition
from tests.support.protocol.raw_client import RawClient, batch, decode, fetch_request

FOR_EVER_MS = 600_000


class Session:
    """A client's side of one session, over partitions of one topic."""

    def __init__(self, client: RawClient, topic: str, *, by_id: bool = False, most: int = 1 << 20) -> None:
        self.client, self.id, self.epoch = client, 0, 0
        self.version = 13 if by_id else 12
        self.named: dict[str, Any] = {"topic_id": client.topic_id(topic)} if by_id else {"topic": topic}
        self.most, self.error = most, ErrorCode.NONE

    def send(self, offsets: dict[int, int], *gone: int, wait_ms: int = 0, **fields: Any) -> None:
        wants = tuple(
            FetchPartition(partition=number, fetch_offset=offset, partition_max_bytes=1 << 20)
            for number, offset in offsets.items()
        )
        given: dict[str, Any] = {
            "session_id": self.id,
            "session_epoch": self.epoch,
            "topics": (FetchTopic(**self.named, partitions=wants),) if wants else (),
            "forgotten_topics_data": (ForgottenTopic(**self.named, partitions=gone),) if gone else (),
            "max_wait_ms": wait_ms,
            "min_bytes": 1,
            "max_bytes": self.most,
        }
        self.client.send(FetchRequest(**given | fields), self.version)

    def receive(self) -> dict[int, PartitionData]:
        answer = self.client.receive()
        self.error = answer.error_code
        if self.error is ErrorCode.NONE:
            self.id, self.epoch = answer.session_id, self.epoch + 1
        return {data.partition_index: data for topic in answer.responses for data in topic.partitions}

    def ask(self, offsets: dict[int, int], *gone: int, **fields: Any) -> dict[int, PartitionData]:
        self.send(offsets, *gone, **fields)
        return self.receive()


def values(data: PartitionData) -> list[bytes | None]:
    return [record.value for record in decode(data)]


@pytest.fixture
def four(client: RawClient, topic: str) -> str:
    """A topic of partitions 0 to 3, without records."""
    name = f"{topic}-4"
    assert client.create_topic(name, 4).error_code == 0
    return name


@pytest.mark.parametrize("by_id", [False, True], ids=["names", "ids"])
def test_only_what_changed_is_named(client: RawClient, four: str, by_id: bool) -> None:
    session = Session(client, four, by_id=by_id)
    assert list(session.ask({0: 0, 1: 0, 2: 0})) == [0, 1, 2]
    assert session.id != 0
    assert session.ask({}) == {}
    client.produce(four, batch(b"a"), 1)
    client.produce(four, batch(b"b"), 3)
    found = session.ask({})
    assert {number: values(data) for number, data in found.items()} == {1: [b"a"]}
    assert list(session.ask({})) == [1], "it is sent until the client has it"
    assert session.ask({1: 1}) == {}
    assert {n: values(data) for n, data in session.ask({3: 0}, 1).items()} == {3: [b"b"]}
    client.produce(four, batch(b"c"), 1)
    assert session.ask({3: 1}) == {}


def test_one_that_waits_is_woken_by_any_of_its_partitions(
    running_broker: EmbeddedBroker, client: RawClient, four: str
) -> None:
    session = Session(client, four)
    session.ask({0: 0, 1: 0})
    session.send({}, wait_ms=FOR_EVER_MS)
    with RawClient(running_broker.port) as writer:
        writer.produce(four, batch(b"new"), 1)
    assert {number: values(data) for number, data in session.receive().items()} == {1: [b"new"]}


def test_a_start_that_moved_is_told(client: RawClient, four: str) -> None:
    client.produce(four, batch(b"a", b"b"), 0)
    session = Session(client, four)
    session.ask({0: 2, 1: 0})
    part = DeleteRecordsPartition(partition_index=0, offset=1)
    client.ask(DeleteRecordsRequest(topics=(DeleteRecordsTopic(four, (part,)),), timeout_ms=1000))
    assert {number: data.log_start_offset for number, data in session.ask({}).items()} == {0: 1}
    assert session.ask({}) == {}


def test_partitions_that_had_data_go_last(client: RawClient, four: str) -> None:
    session = Session(client, four, most=1)
    offsets = dict.fromkeys(range(4), 0)
    for number in offsets:
        for _ in range(2):
            client.produce(four, batch(b"x"), number)
    session.ask(offsets)
    order = []
    for _ in range(8):
        served = [n for n, data in session.ask(offsets).items() if len(data.records or b"")]
        order += served
        for number in served:
            offsets[number] += 1
    assert sorted(order[:4]) == [0, 1, 2, 3]
    assert order[4:] == order[:4]


@pytest.mark.parametrize(
    ("by_id", "code"),
    [(False, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), (True, ErrorCode.UNKNOWN_TOPIC_ID)],
    ids=["names", "ids"],
)
def test_a_deleted_topic_is_told_and_a_new_one_of_its_name_is_read(
    client: RawClient, four: str, by_id: bool, code: ErrorCode
) -> None:
    session = Session(client, four, by_id=by_id)
    session.ask({0: 0, 1: 0})
    deletion = DeleteTopicsRequest(topics=(DeleteTopicState(name=four),), timeout_ms=10_000)
    assert client.ask(deletion).responses[0].error_code == 0
    for _ in range(2):
        assert {data.error_code for data in session.ask({}).values()} == {code}
    client.create_topic(four, 4)
    client.produce(four, batch(b"new"), 1)
    found = session.ask({})
    assert {data.error_code for data in found.values()} == ({code} if by_id else {ErrorCode.NONE})
    assert by_id or values(found[1]) == [b"new"]


def test_the_epoch_decides_and_not_the_id(client: RawClient, four: str) -> None:
    """As in Kafka: kafka-go's ``Client.Fetch`` sends -1 for both."""
    session = Session(client, four)
    for unknown in (-1, 0, 5):
        session.ask({0: 0}, session_id=unknown, session_epoch=-1)
        assert (session.error, session.id) == (ErrorCode.NONE, 0)
        for epoch in (1, -2):
            assert session.ask({0: 0}, session_id=unknown, session_epoch=epoch) == {}
            assert session.error == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    session.epoch = 0
    session.ask({0: 0})
    first = session.id
    session.ask({}, session_epoch=7)
    assert session.error == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    session.ask({0: 0}, session_epoch=0)
    assert session.id not in (0, first)
    session.ask({}, session_id=first)
    assert session.error == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    second = session.id
    session.ask({0: 0}, session_epoch=-1)
    assert session.id == 0
    session.ask({}, session_id=second)
    assert session.error == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_ids_and_names_are_not_mixed(client: RawClient, four: str) -> None:
    session = Session(client, four)
    session.ask({0: 0})
    session.version, session.named = 13, {"topic_id": client.topic_id(four)}
    session.ask({1: 0})
    assert session.error == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR


def test_without_slots_each_fetch_is_whole() -> None:
    with (
        start_broker({"max.incremental.fetch.session.cache.slots": 0}) as broker,
        RawClient(broker.port) as client,
    ):
        client.create_topic("t", 2)
        session = Session(client, "t")
        for session.epoch in (0, 0):
            assert list(session.ask({0: 0, 1: 0})) == [0, 1]
            assert session.id == 0


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[Broker]:
    settings = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(tmp_path), "node.id": "1"}
    acls = {"authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer"}
    broker = Broker(BrokerConfig.load(None, settings | acls))
    yield broker
    broker.stop()


def test_a_right_that_is_taken_away_is_missed_at_the_next_fetch(
    secured: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    denied: set[Operation] = set()
    monkeypatch.setattr(
        secured._authorizer, "allows", lambda _, operation, *__, **___: operation not in denied
    )
    secured.start()
    with RawClient(secured.port) as client:
        client.create_topic("t", 2)
        session = Session(client, "t")
        session.ask({0: 0, 1: 0})
        assert session.ask({}) == {}
        denied.add(Operation.READ)
        found = session.ask({})
        assert {n: data.error_code for n, data in found.items()} == dict.fromkeys(
            (0, 1), ErrorCode.TOPIC_AUTHORIZATION_FAILED
        )
        denied.clear()
        assert {n: data.error_code for n, data in session.ask({}).items()} == {0: 0, 1: 0}
        assert session.ask({}) == {}


def test_a_session_tells_what_full_fetches_tell(client: RawClient, four: str) -> None:
    """Whatever is produced, deleted, added and forgotten: what a session's client knows is what is there."""
    rng = random.Random("fetch sessions")
    session, whole = Session(client, four), Session(client, four)
    offsets: dict[int, int] = {0: 0, 1: 0}
    known: dict[int, tuple[int, int]] = {}
    session_offsets: dict[int, int] = {}
    for _ in range(150):
        number = rng.randrange(4)
        for _ in range(rng.randrange(3)):
            client.produce(four, batch(*[b"x"] * rng.randint(1, 3)), rng.randrange(4))
        if rng.random() < 0.1 and known.get(number, (0, 0))[0]:
            at = rng.randint(0, known[number][0])
            part = DeleteRecordsPartition(partition_index=number, offset=at)
            client.ask(DeleteRecordsRequest(topics=(DeleteRecordsTopic(four, (part,)),), timeout_ms=1000))
        gone = []
        if rng.random() < 0.2:
            if number not in offsets:
                offsets[number] = 0
            elif len(offsets) > 1:
                del offsets[number]
                gone = [number] if number in session_offsets else []
                session_offsets.pop(number, None)
                known.pop(number, None)
        news = {n: at for n, at in offsets.items() if session_offsets.get(n) != at}
        session_offsets |= news
        found = session.ask(news, *gone)
        whole.epoch = -1
        for n, data in whole.ask(offsets).items():
            state = (data.high_watermark, data.log_start_offset)
            if data.error_code is ErrorCode.OFFSET_OUT_OF_RANGE:
                assert found[n].error_code is ErrorCode.OFFSET_OUT_OF_RANGE
                offsets[n] = data.log_start_offset
                known.pop(n, None)
                continue
            records = values(data)
            if n in found:
                assert (values(found[n]), found[n].error_code) == (records, ErrorCode.NONE)
                assert records or known.get(n) != state, "nothing is new"
                known[n] = (found[n].high_watermark, found[n].log_start_offset)
                offsets[n] += len(records)
            assert (known[n], bool(records and n not in found)) == (state, False)


@pytest.fixture
def inside(tmp_path: Path) -> Iterator[Broker]:
    """A broker in this process, with a topic ``t`` of two partitions."""
    settings = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(tmp_path), "node.id": "1"}
    broker = Broker(BrokerConfig.load(None, settings))
    broker.start()
    with RawClient(broker.port) as client:
        client.create_topic("t", 2)
    yield broker
    broker.stop()


def test_an_append_while_it_begins_to_wait_wakes_it(inside: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    park = inside._fetches.park

    def after_an_append(fetch: ParkedFetch, wait_seconds: float) -> None:
        monkeypatch.undo()
        inside._logs.log(TopicPartition("t", 1)).append(bytearray(batch(b"new")))
        park(fetch, wait_seconds)

    with RawClient(inside.port) as client:
        session = Session(client, "t")
        session.ask({0: 0, 1: 0})
        monkeypatch.setattr(inside._fetches, "park", after_an_append)
        found = session.ask({}, wait_ms=FOR_EVER_MS)
        assert {number: values(data) for number, data in found.items()} == {1: [b"new"]}


def test_a_wait_that_ends_in_vain_reads_nothing_again(
    inside: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, read_of = Log.read, []

    def counted(log: Log, *given: Any, **named: Any) -> Any:
        read_of.append(log.topic_partition.partition)
        return read(log, *given, **named)

    with RawClient(inside.port) as client:
        monkeypatch.setattr(Log, "read", counted)
        got = client.ask(fetch_request({("t", 0): 0, ("t", 1): 0}, max_wait_ms=50)).responses
        assert [(t.partitions[0].error_code, t.partitions[0].high_watermark) for t in got] == [(0, 0), (0, 0)]
        assert read_of == [0, 1]


def test_what_came_as_a_wait_ended_is_answered(inside: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    park = inside._fetches.park

    def expired_after_an_append(fetch: ParkedFetch, wait_seconds: float) -> None:
        monkeypatch.undo()
        inside._logs.log(TopicPartition("t", 1)).append(bytearray(batch(b"new")))
        wake = inside._fetches.wake
        monkeypatch.setattr(inside._fetches, "wake", partial(wake, expired=True))
        park(fetch, wait_seconds)

    with RawClient(inside.port) as client:
        monkeypatch.setattr(inside._fetches, "park", expired_after_an_append)
        got = client.ask(fetch_request({("t", 0): 0, ("t", 1): 0}, max_wait_ms=FOR_EVER_MS)).responses
        assert [values(t.partitions[0]) for t in got] == [[], [b"new"]]
