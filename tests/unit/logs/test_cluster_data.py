"""What a broker's directories keep of its cluster, and partitions that go aside."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from kafkalog_broker.logs.cluster_data import RegistryNote
from kafkalog_broker.logs.topic_store import StoredTopic
from pyspark_kafkalog.errors import StorageError, UnknownTopicOrPartition
from pyspark_kafkalog.formats.batch import read_header
from pyspark_kafkalog.formats.message_set import frames
from pyspark_kafkalog.types import TopicPartition
from tests.support.log.logs import batch, crash, open_manager, values

ID = UUID(int=0x0123456789ABCDEF0123456789ABCDEF)


def test_what_is_noted_of_a_registry_is_there_after_a_crash_in_every_directory(tmp_path: Path) -> None:
    places = tmp_path / "a", tmp_path / "b"
    manager = open_manager(*places)
    assert manager.registry_notes() == []
    for note in (RegistryNote("r", 1, frozenset()), RegistryNote("s", 7, frozenset({10, 2}))):
        manager.note_registry(note)
        assert manager.registry_notes() == [note, note]
    crash(manager)
    assert "registry.brokers=2,10\n" in (tmp_path / "b" / "meta.properties").read_text()
    again = open_manager(*places)
    assert again.registry_notes() == [RegistryNote("s", 7, frozenset({10, 2}))] * 2
    assert again.meta == manager.meta


@pytest.mark.parametrize("name", ["registry.version", "registry.brokers"])
@pytest.mark.parametrize("damaged", ["{}=1,?", ""])
def test_a_damaged_note_is_named(tmp_path: Path, name: str, damaged: str) -> None:
    logs = open_manager(tmp_path)
    logs.note_registry(RegistryNote("r", 3, frozenset({1})))
    meta = tmp_path / "meta.properties"
    kept = [line for line in meta.read_text().splitlines() if not line.startswith(name)]
    meta.write_text("\n".join([*kept, damaged.format(name), ""]))
    with pytest.raises(StorageError, match=r"meta\.properties: .* the file is damaged"):
        logs.registry_notes()
    logs.close()


def test_a_topic_of_which_others_have_the_last_partitions_is_known_with_its_total(tmp_path: Path) -> None:
    manager = open_manager(tmp_path)
    manager.create_topic("t", ID, 4, numbers=(0, 2))
    crash(manager)
    manager = open_manager(tmp_path)
    assert manager.topics["t"] == StoredTopic(ID, (0, 2), total=4)
    manager.set_total("t", 6)
    manager.set_overrides("t", {"retention.ms": "5"})
    crash(manager)
    manager = open_manager(tmp_path)
    assert manager.topics["t"] == StoredTopic(ID, (0, 2), {"retention.ms": "5"}, total=6)
    manager.add_partitions("t", 8, numbers=(7,))
    assert manager.topics["t"] == StoredTopic(ID, (0, 2, 7), {"retention.ms": "5"}, total=8)


def test_a_log_keeps_its_leader_epoch_and_writes_it_into_every_batch(tmp_path: Path) -> None:
    manager = open_manager(tmp_path)
    manager.create_topic("t", ID, 4, numbers=(0, 1), starts={1: 50}, epochs={1: 2, 3: 9})
    manager.add_partitions("t", 5, numbers=(4,), epochs={1: 8, 4: 3})
    manager.set_overrides("t", {"retention.ms": "5"})
    crash(manager)
    assert "\nleader.epochs=1:2,4:3\n" in (tmp_path / ".topics" / "t.topic").read_text()
    manager = open_manager(tmp_path)
    assert manager.topics["t"].epochs == {1: 2, 4: 3}
    for number, epoch in ((0, 0), (1, 2), (4, 3)):
        log = manager.log(TopicPartition("t", number))
        assert log.leader_epoch == epoch
        log.append(batch(b"a") + batch(b"b"))
        log.end_transaction(7, 0, commit=True)
        with closing(log.read(log.start_offset, 1 << 20, at_least_one=True)) as piece:
            data = memoryview(piece.read())
        positions = [frame.position for frame in frames(data, start_offset=0)]
        assert [read_header(data, each).partition_leader_epoch for each in positions] == [epoch] * 3
    manager.set_aside("t", ID, [1])
    assert manager.topics["t"].epochs == {4: 3}
    crash(manager)


@pytest.mark.parametrize("epochs", ["x", "1", "1:", ":1", "1:x"])
def test_damaged_leader_epochs_are_named(tmp_path: Path, epochs: str) -> None:
    manager = open_manager(tmp_path)
    manager.create_topic("t", ID, 2)
    crash(manager)
    with (tmp_path / ".topics" / "t.topic").open("a") as record:
        record.write(f"leader.epochs={epochs}\n")
    with pytest.raises(StorageError, match=r"t\.topic is not a topic's record"):
        open_manager(tmp_path)


def test_a_total_is_never_less_than_the_partitions_here() -> None:
    assert StoredTopic(ID, (0, 3)) == StoredTopic(ID, (0, 3), total=4)


def test_partitions_are_set_aside_with_all_that_is_in_them_and_never_over_others(tmp_path: Path) -> None:
    manager = open_manager(tmp_path)
    manager.create_topic("t", ID, 3)
    manager.log(TopicPartition("t", 1)).append(batch(b"kept"))
    manager.log(TopicPartition("t", 2)).append(batch(b"other"))
    with pytest.raises(UnknownTopicOrPartition, match="another one by now"):
        manager.set_aside("t", uuid4(), [1])
    manager.set_aside("t", ID, [1])
    aside = tmp_path / ".aside" / "ASNFZ4mrze8BI0VniavN7w"
    assert sorted(path.name for path in aside.iterdir()) == ["t.topic", "t_1"]
    assert b"kept" in (aside / "t_1" / "00000000000.kafka").read_bytes()
    assert manager.topics["t"] == StoredTopic(ID, (0, 2), total=3)
    with pytest.raises(UnknownTopicOrPartition):
        manager.log(TopicPartition("t", 1))
    manager.add_partitions("t", 3, numbers=(1,))
    manager.set_aside("t", ID, [1])
    assert sorted(path.name for path in aside.iterdir()) == ["t.topic", "t_1", "t_1~1"]
    crash(manager)
    manager = open_manager(tmp_path)
    assert values(manager.log(TopicPartition("t", 2))) == [b"other"]
    manager.set_aside("t", ID, [0, 2])
    assert manager.topics == {}
    crash(manager)
    assert open_manager(tmp_path).topics == {}
