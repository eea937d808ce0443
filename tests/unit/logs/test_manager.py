from __future__ import annotations

import re
import resource
from collections.abc import Iterator, Mapping
from itertools import count, islice
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from kafkalog_broker.config.broker_config import LogConfig
from kafkalog_broker.disk.data_directory import SETTINGS_NAME
from kafkalog_broker.logs.manager import LogManager
from kafkalog_broker.logs.topic_store import StoredTopic
from pyspark_kafkalog.errors import (
    InvalidConfig,
    InvalidPartitions,
    InvalidTopic,
    KafkaError,
    StorageError,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)
from pyspark_kafkalog.types import TopicPartition
from tests.support.log.logs import START_MS, batch, crash, open_log, open_manager, values
from tests.support.manual_clock import ManualClock

ID = UUID(int=0x0123456789ABCDEF0123456789ABCDEF)


def test_a_topic_is_there_with_its_id_partitions_and_properties_after_a_stop_and_after_a_crash(
    tmp_path: Path,
) -> None:
    manager = open_manager(tmp_path)
    manager.create_topic("t", ID, 3, {"segment.bytes": "1000", "retention.ms": "-1"})
    wanted = StoredTopic(ID, (0, 1, 2), {"segment.bytes": "1000", "retention.ms": "-1"}, "0.8")
    for end in (crash, type(manager).close):
        assert manager.topics == {"t": wanted}
        assert manager.log(TopicPartition("t", 2)).config.segment_bytes == 1000
        end(manager)
        manager = open_manager(tmp_path)
    assert manager.topics == {"t": wanted}
    assert manager.log(TopicPartition("t", 2)).config.segment_bytes == 1000


def test_partition_metadata_says_whose_the_directory_is(tmp_path: Path) -> None:
    manager = open_manager(tmp_path)
    manager.create_topic("t", ID, 1, {})
    text = (tmp_path / "t_0" / "partition.metadata").read_text()
    assert text == "version=1\ntopic.id=ASNFZ4mrze8BI0VniavN7w\ngeneration=0.8\n"


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\0b", "a b", "a~", "é", "a\n", "x" * 250])
def test_a_name_that_cannot_be_a_directory_is_refused(tmp_path: Path, name: str) -> None:
    manager = open_manager(tmp_path)
    with pytest.raises(InvalidTopic):
        manager.create_topic(name, ID, 1, {})


def test_the_longest_name_works(tmp_path: Path) -> None:
    manager = open_manager(tmp_path)
    manager.create_topic("x" * 249, ID, 1, {})
    manager.set_overrides("x" * 249, {"retention.ms": "5"})
    manager.close()
    manager = open_manager(tmp_path)
    assert manager.log(TopicPartition("x" * 249, 0)).config.retention_ms == 5
    manager.delete_topic("x" * 249)
    crash(manager)
    assert open_manager(tmp_path).topics == {}


@pytest.mark.parametrize("name", [".deleted-x", ".topics", "a_0", "a_0_0", "-", "x.topic", ".x.tmp", "_"])
def test_names_that_look_like_our_own_files_are_topics_all_the_same(tmp_path: Path, name: str) -> None:
    manager = open_manager(tmp_path)
    manager.create_topic("a", uuid4(), 2, {})
    manager.create_topic(name, ID, 2, {})
    manager.log(TopicPartition(name, 1)).append(batch(b"x"))
    for end in (crash, type(manager).close):
        end(manager)
        manager = open_manager(tmp_path)
    assert values(manager.log(TopicPartition(name, 1))) == [b"x"]
    assert values(manager.log(TopicPartition("a", 1))) == []


@pytest.mark.parametrize(
    ("count", "overrides", "error"),
    [
        (0, {}, InvalidPartitions),
        (1, {"segment.byte": "1000"}, InvalidConfig),
        (1, {"segment.bytes": "many"}, InvalidConfig),
    ],
)
def test_a_topic_that_cannot_be_made_leaves_nothing(
    tmp_path: Path, count: int, overrides: dict[str, str], error: type[KafkaError]
) -> None:
    manager = open_manager(tmp_path)
    with pytest.raises(error):
        manager.create_topic("t", ID, count, overrides)
    assert manager.topics == {}
    assert not (tmp_path / "t_0").exists()


def test_a_topic_is_made_only_once(tmp_path: Path) -> None:
    manager = open_manager(tmp_path)
    manager.create_topic("t", ID, 1, {})
    with pytest.raises(TopicAlreadyExists):
        manager.create_topic("t", uuid4(), 2, {})
    assert manager.topics["t"].topic_id == ID


def test_unknown_topics_and_partitions_are_distinguished_from_offline_ones(tmp_path: Path) -> None:
    manager = open_manager(tmp_path)
    manager.create_topic("t", ID, 1, {})
    for partition in (TopicPartition("u", 0), TopicPartition("t", 1), TopicPartition("t", -1)):
        with pytest.raises(UnknownTopicOrPartition):
            manager.log(partition)
    for change in (
        lambda: manager.delete_topic("u"),
        lambda: manager.add_partitions("u", 2),
        lambda: manager.set_overrides("u", {}),
    ):
        with pytest.raises(UnknownTopicOrPartition):
            change()


def test_partitions_are_added_and_the_old_ones_keep_their_records(tmp_path: Path) -> None:
    manager, log = open_log(tmp_path)
    log.append(batch(b"kept"))
    manager.set_overrides("my_topic", {"segment.bytes": "2000"})
    manager.add_partitions("my_topic", 3)
    assert manager.topics["my_topic"].partitions == (0, 1, 2)
    assert manager.log(TopicPartition("my_topic", 2)).config.segment_bytes == 2000
    for total in (3, 1):
        with pytest.raises(InvalidPartitions):
            manager.add_partitions("my_topic", total)
    crash(manager)
    manager, log = open_log(tmp_path)
    assert manager.topics["my_topic"].partitions == (0, 1, 2)
    assert values(log) == [b"kept"]


def test_properties_of_a_topic_are_replaced_at_once_and_for_good(tmp_path: Path) -> None:
    manager, log = open_log(tmp_path, retention_ms=77)
    manager.set_overrides("my_topic", {"segment.bytes": "2000"})
    manager.set_overrides("my_topic", {"max.message.bytes": "10"})
    assert (log.config.segment_bytes, log.config.max_message_bytes, log.config.retention_ms) == (
        1 << 30,
        10,
        77,
    )
    with pytest.raises(InvalidConfig):
        manager.set_overrides("my_topic", {"max.message.bytes": "-10"})
    crash(manager)
    manager, log = open_log(tmp_path, retention_ms=77)
    assert log.config.max_message_bytes == 10
    assert manager.topics["my_topic"].overrides == {"max.message.bytes": "10"}


def test_a_deleted_topic_is_gone_at_once_and_its_name_is_free(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    manager, log = open_log(tmp_path, clock=clock)
    log.append(batch(b"old"))
    piece = log.read(0, 1000, at_least_one=True)
    manager.delete_topic("my_topic")
    assert manager.topics == {}
    for use in (
        lambda: log.append(batch(b"x")),
        lambda: log.read(0, 1000, at_least_one=True),
        log.flush,
        lambda: log.offset_for_timestamp(0),
    ):
        with pytest.raises(UnknownTopicOrPartition):
            use()
    assert len(piece.read()) == len(piece)
    manager.create_topic("my_topic", ID, 1, {})
    new = manager.log(log.topic_partition)
    assert values(new) == []
    new.append(batch(b"new"))
    assert values(new) == [b"new"]
    assert len(list(tmp_path.glob(".deleted~*"))) == 1
    clock.advance(60)
    manager.remove_deleted()
    assert list(tmp_path.glob(".deleted~*")) == []
    assert values(new) == [b"new"]


def test_recovery_points_of_a_deleted_topic_mean_nothing_for_its_successor(tmp_path: Path) -> None:
    manager, log = open_log(tmp_path, segment_bytes=100, flush_ms=0)
    for number in range(10):
        log.append(batch(b"%d" % number))
    manager.flush_due()
    manager.delete_topic("my_topic")
    manager.create_topic("my_topic", ID, 1, {})
    new = manager.log(log.topic_partition)
    for number in range(4):
        new.append(batch(b"%d" % number))
    crash(manager)
    with (tmp_path / "my_topic_0" / "00000000001.kafka").open("r+b") as file:
        file.seek(20)
        file.write(b"\xff")
    manager, log = open_log(tmp_path, segment_bytes=100)
    assert values(log) == [b"0"]


def test_the_cluster_id_is_made_once_and_has_22_characters(tmp_path: Path) -> None:
    manager = open_manager(tmp_path / "a", tmp_path / "b", node_id=5)
    meta = manager.meta
    assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_-]{21}", meta.cluster_id)
    assert meta.node_id == 5
    manager.close()
    (tmp_path / "b" / "meta.properties").unlink()
    assert open_manager(tmp_path / "b", tmp_path / "a", node_id=5).meta == meta


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"\xff\xfe\x00garbled\x80", "it is not text"),
        (b"cluster.id=\\u12", "properties, line 1: .*"),
        (b"\x00\x01\x02 nonsense", "it has no cluster.id"),
        (b"", "it has no cluster.id"),
        (b"version=1\ncluster.id=abc\n", "it has no node.id"),
    ],
)
def test_a_garbled_meta_properties_is_an_error_that_names_it_and_stays_as_it_is(
    tmp_path: Path, content: bytes, why: str
) -> None:
    open_manager(tmp_path / "a", tmp_path / "b").close()
    path = tmp_path / "a" / "meta.properties"
    path.write_bytes(content)
    with pytest.raises(InvalidConfig, match=rf"a/meta\.properties is damaged: {why}\. Restore it from") as e:
        open_manager(tmp_path / "a", tmp_path / "b")
    assert "\n" not in str(e.value)
    assert path.read_bytes() == content
    path.unlink()
    open_manager(tmp_path / "a", tmp_path / "b")


def test_a_directory_of_another_broker_or_cluster_is_refused(tmp_path: Path) -> None:
    open_manager(tmp_path / "a", node_id=1).close()
    with pytest.raises(InvalidConfig, match=r"belongs to node.id 1, not to 2"):
        open_manager(tmp_path / "a", node_id=2)
    open_manager(tmp_path / "b", node_id=1).close()
    with pytest.raises(InvalidConfig, match="different clusters"):
        open_manager(tmp_path / "a", tmp_path / "b", node_id=1)
    open_manager(tmp_path / "a", node_id=1)


def test_two_managers_cannot_share_a_directory(tmp_path: Path) -> None:
    first = open_manager(tmp_path / "a", tmp_path / "b")
    with pytest.raises(StorageError, match="in use by another broker"):
        open_manager(tmp_path / "c", tmp_path / "b")
    first.close()
    second = open_manager(tmp_path / "c")
    second.close()
    second.close()


def test_before_it_is_started_a_manager_has_no_meta(tmp_path: Path) -> None:
    manager = open_manager(tmp_path)
    manager._meta = None
    with pytest.raises(StorageError):
        _ = manager.meta


def test_new_partitions_go_where_the_fewest_are(tmp_path: Path) -> None:
    manager = open_manager(tmp_path / "a", tmp_path / "b")
    manager.create_topic("t", ID, 3, {})
    manager.create_topic("u", uuid4(), 3, {})
    assert [len(list((tmp_path / place).glob("?_?"))) for place in "ab"] == [3, 3]
    manager.log(TopicPartition("t", 1)).append(batch(b"x"))
    manager.close()
    manager = open_manager(tmp_path / "b", tmp_path / "a")
    assert values(manager.log(TopicPartition("t", 1))) == [b"x"]
    assert [len(list((tmp_path / place).glob("?_?"))) for place in "ab"] == [3, 3]


def test_leftovers_of_a_creation_are_removed_but_data_is_left_alone(tmp_path: Path) -> None:
    manager = open_manager(tmp_path)
    manager.create_topic("half", ID, 2, {})
    manager.create_topic("lost", uuid4(), 1, {})
    manager.log(TopicPartition("lost", 0)).append(batch(b"precious"))
    manager.close()
    (tmp_path / ".topics" / "half.topic").unlink()
    (tmp_path / ".topics" / "lost.topic").unlink()
    (tmp_path / "notes_2020").mkdir()
    (tmp_path / "notes_2020" / "mine.txt").write_text("mine")
    manager = open_manager(tmp_path)
    assert manager.topics == {}
    assert sorted(p.name for p in tmp_path.glob("*_*") if p.is_dir()) == ["lost_0", "notes_2020"]
    with pytest.raises(StorageError, match="has data and belongs to no topic"):
        manager.create_topic("lost", ID, 1, {})
    assert manager.topics == {}


def test_a_deletion_that_was_interrupted_is_finished_at_the_next_start(tmp_path: Path) -> None:
    manager = open_manager(tmp_path)
    manager.create_topic("t", ID, 3, {})
    manager.log(TopicPartition("t", 1)).append(batch(b"x"))
    manager.close()
    record = tmp_path / ".topics" / "t.topic"
    record.write_text(record.read_text() + "deleting=true\n")
    manager = open_manager(tmp_path)
    assert manager.topics == {}
    assert not record.exists()
    assert list(tmp_path.glob("t_*")) == []


def test_directories_that_a_crash_lost_are_made_again(tmp_path: Path) -> None:
    manager = open_manager(tmp_path)
    manager.create_topic("t", ID, 2, {})
    crash(manager)
    for file in (tmp_path / "t_1").iterdir():
        file.unlink()
    (tmp_path / "t_1").rmdir()
    (tmp_path / "t_0" / "partition.metadata").write_bytes(b"ver")
    manager = open_manager(tmp_path)
    for number in (0, 1):
        assert manager.log(TopicPartition("t", number)).append(batch(b"x")).base_offset == 0
    assert "ASNFZ4mrze8BI0VniavN7w" in (tmp_path / "t_0" / "partition.metadata").read_text()


def test_a_record_or_directory_that_contradicts_itself_stops_the_start(tmp_path: Path) -> None:
    manager = open_manager(tmp_path / "a")
    manager.create_topic("t", ID, 1, {})
    manager.close()
    record = tmp_path / "a" / ".topics" / "t.topic"
    good = record.read_text()
    for bad in (
        "",
        "partitions=1\n",
        good.replace("0.8", "0.7"),
        good.replace("partitions=1", "partitions=x"),
    ):
        record.write_text(bad)
        with pytest.raises(StorageError):
            open_manager(tmp_path / "a")
    record.write_text(good.replace("ASNFZ4mrze8BI0VniavN7w", "ASNFZ4mrze8BI0VniavN7A"))
    with pytest.raises(StorageError, match="belongs to another topic"):
        open_manager(tmp_path / "a")
    record.write_text(good)
    open_manager(tmp_path / "b").close()
    (tmp_path / "b" / "meta.properties").unlink()
    (tmp_path / "b" / ".topics" / "t.topic").write_text(good)
    with pytest.raises(StorageError, match="topic t is in"):
        open_manager(tmp_path / "a", tmp_path / "b")
    (tmp_path / "b" / ".topics" / "t.topic").unlink()
    (tmp_path / "b" / "t_0").mkdir()
    with pytest.raises(StorageError, match="t-0 is in"):
        open_manager(tmp_path / "a", tmp_path / "b")


@pytest.fixture
def _few_descriptors() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    # The limit is on the number of a descriptor, and earlier tests of this process may hold many.
    held = {int(entry.name) for entry in Path("/proc/self/fd").iterdir()}
    free = (number for number in count() if number not in held)
    resource.setrlimit(resource.RLIMIT_NOFILE, (next(islice(free, 64, None)), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.usefixtures("_few_descriptors")
def test_many_partitions_work_with_few_descriptors(tmp_path: Path) -> None:
    manager = open_manager(tmp_path, max_open_files=16)
    manager.create_topic("t", ID, 400, {})
    for turn in range(2):
        for number in range(400):
            manager.log(TopicPartition("t", number)).append(batch(b"%d" % turn))
    pieces = [manager.log(TopicPartition("t", n)).read(0, 1 << 20, at_least_one=True) for n in range(30)]
    assert all(piece.read() for piece in pieces)
    manager.close()
    manager = open_manager(tmp_path, max_open_files=16)
    assert [values(manager.log(TopicPartition("t", number))) for number in range(400)] == [[b"0", b"1"]] * 400
    assert len(manager.open_files) <= 16


def test_of_settings_that_directories_kept_the_newest_count(tmp_path: Path) -> None:
    kept: list[dict[str, str]] = []

    def defaults(settings: Mapping[str, str]) -> LogConfig:
        kept.append(dict(settings))
        return LogConfig(retention_ms=int(settings.get("retention", -1)))

    def open_both() -> LogManager:
        manager = LogManager(
            [tmp_path / "a", tmp_path / "b"],
            defaults=defaults,
            producer_expiration_ms=1,
            clock=ManualClock(0),
        )
        manager.start()
        return manager

    manager = open_both()
    manager.create_topic("t", ID, 1, {})
    manager.set_defaults(LogConfig(retention_ms=1), {"retention": "1"})
    older = (tmp_path / "a" / SETTINGS_NAME).read_bytes()
    manager.set_defaults(LogConfig(retention_ms=2), {"retention": "2"})
    assert manager.log(TopicPartition("t", 0)).config.retention_ms == 2
    manager.close()
    (tmp_path / "a" / SETTINGS_NAME).write_bytes(older)
    manager = open_both()
    assert kept == [{}, {"retention": "2"}]
    assert manager.log(TopicPartition("t", 0)).config.retention_ms == 2
    manager.close()
    (tmp_path / "b" / SETTINGS_NAME).write_bytes(b"retention=2\n")
    with pytest.raises(InvalidConfig, match=r"broker.properties is damaged: .* Remove it"):
        open_both()
