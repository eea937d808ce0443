from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from kafkalog_broker.config.broker_config import LogConfig
from kafkalog_broker.logs.manager import LogManager
from kafkalog_broker.logs.state_topic import Placement, Shard, StateTopic, Stored, partition_for
from pyspark_kafkalog.errors import (
    CoordinatorLoading,
    ErrorCode,
    KafkaError,
    ServerError,
    StorageError,
    TopicAlreadyExists,
)
from pyspark_kafkalog.formats.batch import ControlType, encode_batch, encode_control
from pyspark_kafkalog.types import NewRecord, TopicPartition
from tests.support.log.faulty_files import FaultyFiles
from tests.support.manual_clock import ManualClock
from tests.support.placement import ShiftingPlacement

_NAME = "__state"

_State = dict[bytes, "bytes | None"]


class Bench:
    """State topics of one partition, one after the other over one log manager."""

    def __init__(self, directory: Path) -> None:
        self.files = FaultyFiles()
        self.logs = LogManager(
            [directory],
            defaults=LogConfig(),
            clock=ManualClock(),
            files=self.files,
            producer_expiration_ms=1000,
        )
        self.logs.start()
        self.open: dict[int, dict[bytes, tuple[int, bytes | None]]] = {}

    def create(self) -> None:
        self.logs.create_topic(_NAME, uuid4(), 1, {"cleanup.policy": "compact"})

    def build(self, shard: Shard[_State], stored: Stored) -> None:
        shard.state.update((key, value) for _, key, value in stored.values())
        self.open = stored.open

    def topic(self, placement: Placement | None = None) -> StateTopic[_State]:
        """As a broker that starts now has it."""
        made: StateTopic[_State] = StateTopic(
            self.logs,
            _NAME,
            new=lambda _: {},
            build=self.build,
            create=self.create,
            appended=lambda *_: None,
            placement=placement,
        )
        made.look()
        made.load()
        return made

    def state(self) -> _State:
        return self.topic().shards[0].state

    def transactional(self, producer_id: int, *records: tuple[bytes, bytes | None]) -> None:
        self._append(
            encode_batch(
                [NewRecord(value, key) for key, value in records],
                producer_id=producer_id,
                producer_epoch=0,
                base_sequence=0,
                transactional=True,
            )
        )

    def marker(self, producer_id: int, kind: ControlType) -> None:
        self._append(encode_control(kind, producer_id=producer_id, producer_epoch=0, timestamp=0))

    def _append(self, batch: bytes) -> None:
        self.logs.log(TopicPartition(_NAME, 0)).append(bytearray(batch), internal=True)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.files.space_bytes = None
    made.logs.close()


def _put(topic: StateTopic[_State], *records: tuple[bytes, bytes | None]) -> None:
    shard = topic.shard_of("any")
    with shard.lock:
        topic.append(shard, [NewRecord(value, key) for key, value in records])


def test_the_last_value_of_each_key_is_what_is_stored(bench: Bench) -> None:
    topic = bench.topic()
    _put(topic, (b"a", b"1"), (b"b", b"1"), (b"c", b"1"))
    _put(topic, (b"b", None), (b"a", b"2"))
    assert bench.state() == {b"a": b"2", b"c": b"1"}


def test_what_cannot_be_read_for_lack_of_descriptors_is_read_by_a_later_load(bench: Bench) -> None:
    _put(bench.topic(), (b"a", b"1"))
    bench.logs.open_files.forget(bench.logs.log(TopicPartition(_NAME, 0)).segments[0].path)
    bench.files.pass_after(0, errno.EMFILE)
    topic = bench.topic()
    assert (topic.put_off, topic.shards[0].loaded) == (True, False)
    bench.files.pass_after(None)
    topic.load()
    assert (topic.put_off, topic.shards[0].loaded) == (False, True)
    assert topic.shards[0].state == {b"a": b"1"}


def test_more_than_a_batch_holds_is_appended_whole_or_not_at_all(bench: Bench) -> None:
    topic = bench.topic()
    _put(topic, *((b"%d" % n, bytes(100_000)) for n in range(12)))
    log = bench.logs.log(TopicPartition(_NAME, 0))
    assert (len(bench.state()), log.end_offset) == (12, 12)
    bench.files.space_bytes = 800_000
    with pytest.raises(StorageError):
        _put(topic, *((b"more %d" % n, bytes(100_000)) for n in range(12)))
    assert log.end_offset == 12


def test_values_of_a_transaction_count_from_its_commit(bench: Bench) -> None:
    topic = bench.topic()
    _put(topic, (b"a", b"before"), (b"b", b"before"))
    bench.transactional(7, (b"a", b"in 7"))
    bench.transactional(8, (b"b", b"in 8"))
    assert bench.state() == {b"a": b"before", b"b": b"before"}
    assert bench.open == {7: {b"a": (2, b"in 7")}, 8: {b"b": (3, b"in 8")}}
    bench.marker(7, ControlType.COMMIT)
    bench.marker(8, ControlType.ABORT)
    assert bench.state() == {b"a": b"in 7", b"b": b"before"}
    assert bench.open == {}


def test_a_later_value_outside_a_transaction_wins_over_its_commit(bench: Bench) -> None:
    topic = bench.topic()
    _put(topic, (b"a", b"before"), (b"b", b"before"))
    bench.transactional(7, (b"a", b"in 7"), (b"b", b"in 7"))
    _put(topic, (b"a", b"later"), (b"b", None))
    bench.marker(7, ControlType.COMMIT)
    assert bench.state() == {b"a": b"later"}


@pytest.mark.parametrize(
    ("group", "count", "partition"),
    [
        # Java's hashCode: "" 0, "a" 97, "test" 3556498, "hello" 99162322.
        ("", 50, 0),
        ("a", 50, 47),
        ("test", 50, 3556498 % 50),
        ("hello", 50, 99162322 % 50),
        ("consumer-group", 50, 1738392088 % 50),  # of a negative hash the sign does not count
        ("polygenelubricants", 50, 0),  # the known string whose hash is Java's smallest int
        ("\U0001f600", 50, (0xD83D * 31 + 0xDE00) % 50),  # two UTF-16 units, as in Java
    ],
)
def test_a_groups_partition_follows_javas_hash(group: str, count: int, partition: int) -> None:
    assert partition_for(group, count) == partition


def refusal_of(shard: Shard[_State]) -> ErrorCode:
    with shard.lock:
        try:
            shard.check_loaded()
        except KafkaError as e:
            return e.code
    return ErrorCode.NONE


def test_what_another_broker_keeps_is_refused_at_once_and_read_when_it_comes_back(bench: Bench) -> None:
    cluster = ShiftingPlacement()
    bench.create()
    topic = bench.topic(cluster)
    first = topic.shard_of("any")
    _put(topic, (b"a", b"1"))
    cluster.code = ErrorCode.NOT_COORDINATOR
    assert refusal_of(first) is ErrorCode.NOT_COORDINATOR, "before anybody looks"
    with pytest.raises(ServerError), first.lock:
        topic.append(first, [NewRecord(b"2", b"a")])
    assert topic.look() == [first]
    assert (topic.look(), topic.load()) == ([], [])
    cluster.code = None
    assert refusal_of(first) is ErrorCode.NOT_COORDINATOR, "who still has it writes nothing"
    second = topic.shard_of("any")
    assert refusal_of(second) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert topic.load() == [second]
    assert (refusal_of(second), second.state) == (ErrorCode.NONE, {b"a": b"1"})


def test_what_is_given_up_while_it_is_read_stays_given_up(bench: Bench) -> None:
    cluster, build = ShiftingPlacement(ErrorCode.NOT_COORDINATOR), bench.build

    def interrupted(shard: Shard[_State], stored: Stored) -> None:
        build(shard, stored)
        cluster.code = ErrorCode.NOT_COORDINATOR
        assert topic.look() == [shard]
        cluster.code = None

    bench.build = interrupted  # type: ignore[method-assign]
    bench.create()
    topic = bench.topic(cluster)
    cluster.code = None
    (begun,) = topic.load()
    assert refusal_of(begun) is ErrorCode.NOT_COORDINATOR
    assert refusal_of(topic.shard_of("any")) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


def test_a_partition_whose_data_is_lost_is_not_read_and_says_that_nobody_has_it(bench: Bench) -> None:
    bench.create()
    topic = bench.topic(ShiftingPlacement(ErrorCode.COORDINATOR_NOT_AVAILABLE))
    shard = topic.shard_of("any")
    assert (refusal_of(shard), shard.begun, shard.elsewhere) == (
        ErrorCode.COORDINATOR_NOT_AVAILABLE, False, False,
    )  # fmt: skip


def test_where_the_cluster_has_no_topic_nobody_coordinates_and_only_opening_makes_it(bench: Bench) -> None:
    cluster = ShiftingPlacement(partitions=None)
    topic = bench.topic(cluster)
    with pytest.raises(CoordinatorLoading, match="does not know yet"):
        topic.shard_of("any")
    cluster.partitions = 0
    with pytest.raises(ServerError) as refused:
        topic.shard_of("any")
    assert refused.value.code is ErrorCode.NOT_COORDINATOR
    create = bench.create

    def made_by_another() -> None:
        create()
        cluster.partitions = 1
        raise TopicAlreadyExists("another broker was faster")

    bench.create = made_by_another  # type: ignore[method-assign]
    topic = bench.topic(cluster)
    topic.open()
    assert refusal_of(topic.shard_of("any")) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    topic.load()
    _put(topic, (b"a", b"1"))
    assert topic.shard_of("any").loaded


@pytest.mark.parametrize("code", [ErrorCode.NONE, ErrorCode.NOT_COORDINATOR])
def test_who_is_asked_before_it_has_looked_answers_by_what_the_cluster_says(
    bench: Bench, code: ErrorCode
) -> None:
    cluster = ShiftingPlacement(code or None, partitions=None)
    topic = bench.topic(cluster)
    cluster.partitions = 1
    assert refusal_of(topic.shard_of("any")) is (code or ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    topic.open()
    assert not Path(bench.logs.directories()[0].path, f"{_NAME}_0").exists(), "another broker has made it"
