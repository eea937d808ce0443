"""A power cut drops what was not synced, names of files included; what was synced is there."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path
from uuid import uuid4

import pytest

from kafkalog_broker.log.log import Log
from pyspark_kafkalog.types import TopicPartition
from tests.support.log.faulty_files import PowerCut, VolatileFiles
from tests.support.log.logs import PARTITION, START_MS, TOPIC, batch, crash, open_log, open_manager, values
from tests.support.manual_clock import ManualClock

ONE = len(batch(b"000"))


def _append(log: Log, count: int) -> None:
    for _ in range(count):
        log.append(batch(b"%03d" % log.end_offset))


def _after(path: Path, **config: object) -> list[bytes | None]:
    manager, log = open_log(path, **config)
    found = values(log)
    crash(manager)
    return found


@pytest.mark.long("the disk fails at every call")
@pytest.mark.parametrize(("messages", "segment_bytes"), [(1, ONE), (2, 3 * ONE), (5, 3 * ONE), (5, 1 << 20)])
def test_at_most_m_messages_are_lost(tmp_path: Path, messages: int, segment_bytes: int) -> None:
    root = tmp_path / "disk"
    root.mkdir()
    files = VolatileFiles(root)
    config = {"flush_messages": messages, "segment_bytes": segment_bytes}
    _, log = open_log(root, files=files, **config)
    for number in range(20):
        files.power_cut(tmp_path / f"after {number}")
        survived = _after(tmp_path / f"after {number}", **config)
        assert survived == [b"%03d" % n for n in range(number - number % messages)]
        _append(log, 1)


def test_at_most_the_messages_of_s_seconds_are_lost(tmp_path: Path) -> None:
    root = tmp_path / "disk"
    root.mkdir()
    clock, files = ManualClock(START_MS), VolatileFiles(root)
    manager, log = open_log(root, clock=clock, files=files, flush_ms=3000, segment_bytes=4 * ONE)
    for second in range(30):
        _append(log, 1)
        clock.advance(1)
        manager.flush_due()
        files.power_cut(tmp_path / f"after {second}")
        survived = _after(tmp_path / f"after {second}")
        assert survived == [b"%03d" % n for n in range(len(survived))]
        assert second + 1 - len(survived) < 3


def test_a_clean_stop_loses_nothing(tmp_path: Path) -> None:
    root = tmp_path / "disk"
    root.mkdir()
    files = VolatileFiles(root)
    manager, log = open_log(root, files=files, segment_bytes=3 * ONE)
    _append(log, 10)
    manager.close()
    files.power_cut(tmp_path / "after")
    assert (tmp_path / "after" / ".kafka_cleanshutdown").exists()
    assert _after(tmp_path / "after") == [b"%03d" % n for n in range(10)]


def test_the_marker_of_a_clean_stop_does_not_come_back(tmp_path: Path) -> None:
    root = tmp_path / "disk"
    root.mkdir()
    files = VolatileFiles(root)
    manager, log = open_log(root, files=files)
    _append(log, 2)
    manager.close()
    manager, log = open_log(root, files=files)
    _append(log, 1)
    files.power_cut(tmp_path / "after")
    assert not (tmp_path / "after" / ".kafka_cleanshutdown").exists()
    assert _after(tmp_path / "after") == [b"000", b"001"]


@pytest.mark.long("the disk fails at every call")
@pytest.mark.parametrize("seed", range(60))
def test_after_a_power_cut_the_log_is_what_was_appended_up_to_some_point(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    root = tmp_path / "disk"
    root.mkdir()
    clock, files = ManualClock(START_MS), VolatileFiles(root)
    config = {
        "segment_bytes": chance.choice([ONE, 3 * ONE, 100 * ONE, 1 << 20]),
        "index_interval_bytes": 100,
        "retention_bytes": chance.choice([-1, 10 * ONE]),
        "file_delete_delay_ms": chance.choice([0, 60_000]),
    }
    manager, log = open_log(root, clock=clock, files=files, **config)
    durable = 0
    for _ in range(chance.randint(1, 12)):
        what = chance.random()
        if what < 0.2:
            manager.apply_retention()
        elif what < 0.6:
            _append(log, chance.randint(1, 40))
        elif what < 0.8:
            clock.advance(10)
            manager.flush_due()
            durable = log.end_offset
        else:
            log.flush()
            durable = log.end_offset
    if chance.random() < 0.3:
        files.stop_after = chance.randint(0, 30)
        with contextlib.suppress(PowerCut):
            manager.apply_retention()
    start, end = log.start_offset, log.end_offset
    files.power_cut(tmp_path / "after", chance)
    manager, log = open_log(tmp_path / "after", clock=clock, **config)
    assert durable <= log.end_offset <= end
    assert log.start_offset <= start  # a deletion that was not synced may be undone
    assert values(log) == [b"%03d" % n for n in range(log.start_offset, log.end_offset)]
    _append(log, 5)
    manager.close()
    manager, log = open_log(tmp_path / "after", clock=clock, **config)
    assert values(log) == [b"%03d" % n for n in range(log.start_offset, log.end_offset)]


def _rows(manager: object) -> dict[str, tuple[int, dict[str, str]]]:
    return {n: (len(t.partitions), dict(t.overrides)) for n, t in manager.topics.items()}  # type: ignore[attr-defined]


def test_topics_that_were_made_changed_or_deleted_stay_so(tmp_path: Path) -> None:
    root = tmp_path / "disk"
    root.mkdir()
    files = VolatileFiles(root)
    manager = open_manager(root, files=files)
    cluster = manager.meta
    steps = [
        lambda: manager.create_topic("t", uuid4(), 3, {"retention.ms": "1"}),
        lambda: manager.create_topic("u", uuid4(), 1, {}),
        lambda: manager.add_partitions("t", 5),
        lambda: manager.set_overrides("u", {"segment.bytes": "100"}),
        lambda: manager.delete_topic("t"),
        lambda: manager.create_topic("t", uuid4(), 2, {}),
        lambda: manager.delete_topic("u"),
    ]
    for number, step in enumerate(steps):
        step()
        files.power_cut(tmp_path / f"after {number}")
        after = open_manager(tmp_path / f"after {number}")
        assert (_rows(after), after.meta) == (_rows(manager), cluster)
        for name, topic in after.topics.items():
            for partition in topic.partitions:
                assert after.log(TopicPartition(name, partition)).append(batch(b"x")).base_offset == 0
        crash(after)


@pytest.mark.long("the disk fails at every call")
@pytest.mark.parametrize("seed", range(60))
def test_a_topic_is_there_or_not_wherever_the_power_is_cut(tmp_path: Path, seed: int) -> None:
    """Each call on the disk may be the last one; of what was not synced any part may be there."""
    chance = random.Random(seed)
    root = tmp_path / "disk"
    root.mkdir()

    files = VolatileFiles(root)
    manager = open_manager(root, files=files, segment_bytes=ONE)
    manager.create_topic(TOPIC, uuid4(), 2, {})
    _append(manager.log(PARTITION), 3)
    manager.log(PARTITION).flush()
    manager.create_topic("kept", uuid4(), 1, {})
    before = _rows(manager)
    steps = [
        (
            lambda: manager.create_topic("new", uuid4(), 3, {"retention.ms": "1"}),
            {"new": (3, {"retention.ms": "1"})},
        ),
        (lambda: manager.add_partitions(TOPIC, 4), {TOPIC: (4, {})}),
        (lambda: manager.set_overrides(TOPIC, {"retention.ms": "7"}), {TOPIC: (2, {"retention.ms": "7"})}),
        (lambda: manager.delete_topic(TOPIC), {TOPIC: None}),
    ]
    step, change = steps[seed % 4]
    files.stop_after = chance.randint(0, 40)
    try:
        step()
        done = True
    except PowerCut:
        done = False
    files.power_cut(tmp_path / "after", chance)
    crash(manager)
    after = open_manager(tmp_path / "after", segment_bytes=ONE)
    changed = {name: row for name, row in {**before, **change}.items() if row is not None}
    assert _rows(after) == changed if done else _rows(after) in (before, changed)
    for name, topic in after.topics.items():
        for partition in topic.partitions:
            wanted = [b"000", b"001", b"002"] if (name, partition) == (TOPIC, 0) else []
            assert values(after.log(TopicPartition(name, partition))) == wanted
    wanted_names = {f"{name}_{p}" for name, topic in after.topics.items() for p in topic.partitions}
    assert {p.name for p in (tmp_path / "after").iterdir() if p.is_dir() and p.name[0] != "."} == wanted_names
