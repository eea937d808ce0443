from __future__ import annotations

import operator
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from uuid import uuid4

import pytest

from kafkalog_broker.config.broker_config import LogConfig
from kafkalog_broker.log.log import Log
from kafkalog_broker.log.retention import (
    ByAge,
    BySize,
    Either,
    PolicyFailed,
    SegmentFacts,
    just_written,
    policy_named,
    policy_of,
)
from kafkalog_broker.logs.manager import LogManager
from pyspark_kafkalog.errors import InvalidConfig, OffsetOutOfRange
from pyspark_kafkalog.formats.message_set import records
from tests.support.log.logs import PARTITION, START_MS, batch, contents, open_log, open_manager, values
from tests.support.manual_clock import ManualClock
from tests.support.until import until

ONE = len(batch(b"0"))


def _facts(*pairs: tuple[int, int]) -> list[SegmentFacts]:
    return [SegmentFacts(number, size, time, -1) for number, (size, time) in enumerate(pairs)]


@pytest.mark.parametrize(("now", "count"), [(100, 0), (110, 0), (111, 1), (120, 1), (121, 3), (131, 4)])
def test_by_age_segments_go_from_the_oldest_on_until_one_is_young_enough(now: int, count: int) -> None:
    segments = _facts((1, 100), (1, 110), (1, 90), (1, 120))
    assert ByAge(10).expired(segments, now) == count


@pytest.mark.parametrize(("limit", "count"), [(61, 0), (60, 0), (50, 1), (49, 1), (30, 2), (29, 2), (0, 3)])
def test_by_size_segments_go_while_those_after_them_are_enough(limit: int, count: int) -> None:
    segments = _facts((10, 0), (20, 0), (30, 0))
    assert BySize(limit).expired(segments, 0) == count


class OfOwn:
    """Answers with the number that stands in ``retention.bytes``; -1, 100 and 101 have it fail."""

    def __init__(self, config: LogConfig) -> None:
        self.count = config.retention_bytes

    def expired(self, segments: Sequence[SegmentFacts], now_ms: int) -> int:
        if self.count == -1:
            raise ZeroDivisionError
        if self.count == 100:
            sys.exit(2)
        return True if self.count == 101 else self.count


OWN = f"{__name__}:OfOwn"


def test_a_policy_of_the_users_decides_where_the_cleanup_policy_deletes() -> None:
    segments = _facts((1, 0), (1, 0))
    made = policy_named(OWN)
    assert made(LogConfig(retention_bytes=1)).expired(segments, 0) == 1
    assert made(LogConfig(retention_bytes=1, cleanup_policy=("compact",))).expired(segments, 0) == 0


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (3, "OfOwn answered 3 for 2 segments"),
        (-1, r"OfOwn failed: ZeroDivisionError\(\)"),
        (100, r"OfOwn failed: SystemExit\(2\)"),
        (101, "OfOwn answered True for 2 segments"),
    ],
)
def test_a_policy_that_fails_deletes_nothing(answer: int, said: str) -> None:
    with pytest.raises(PolicyFailed, match=said):
        policy_named(OWN)(LogConfig(retention_bytes=answer)).expired(_facts((1, 0), (1, 0)), 0)


@pytest.mark.parametrize(
    "name",
    [
        "nowhere:Class",
        f"{__name__}:Nothing",
        "OfOwn",
        ":OfOwn",
        f"{__name__}:OWN",
        "os:getcwd",
        "os:PathLike",
        ".rel:OfOwn",
    ],
)
def test_a_policy_that_is_not_a_class_is_refused(name: str) -> None:
    with pytest.raises(InvalidConfig, match=rf"log\.retention\.policy={name} .*allowed: module:Class"):
        policy_named(name)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("class Own(:\n", "SyntaxError"),
        ("raise RuntimeError('boom')\n", "RuntimeError: boom"),
        ("raise SystemExit(3)\n", "SystemExit: 3"),
    ],
    ids=["no Python", "raises", "exits"],
)
def test_a_policy_whose_module_cannot_be_imported_is_refused(
    text: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_policy_module.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InvalidConfig) as e:
        policy_named("own_policy_module:Own")
    assert str(e.value).startswith(f"log.retention.policy=own_policy_module:Own cannot be imported: {said}")
    assert str(e.value).endswith(
        "allowed: module:Class, where Class has a method expired and PYTHONPATH has the module"
    )


class InTheMiddle:
    """Lets all segments go, and does something while it is asked, in another thread as a request would."""

    def __init__(self, meanwhile: Callable[[], object]) -> None:
        self.meanwhile = meanwhile
        self.asked: list[Sequence[SegmentFacts]] = []
        self.finished: list[bool] = []

    def expired(self, segments: Sequence[SegmentFacts], now_ms: int) -> int:
        self.asked.append(segments)
        other = threading.Thread(target=self.meanwhile, daemon=True)
        other.start()
        other.join(60)
        self.finished.append(not other.is_alive())
        return len(segments)


def log_of(tmp_path: Path, policy: InTheMiddle, count: int) -> tuple[LogManager, Log]:
    """A log of ``count`` records in as many segments."""
    manager = LogManager(
        [tmp_path],
        defaults=LogConfig(segment_bytes=ONE),
        producer_expiration_ms=1,
        retention=lambda config: policy,
    )
    manager.start()
    manager.create_topic("my_topic", uuid4(), 1, {})
    log = manager.log(PARTITION)
    for number in range(count):
        log.append(batch(b"%d" % number))
    return manager, log


def test_a_slow_policy_delays_neither_appends_nor_flushes_and_is_asked_once(tmp_path: Path) -> None:
    def work() -> None:
        log.append(batch(b"new"))
        log.flush()

    policy = InTheMiddle(work)
    manager, log = log_of(tmp_path, policy, 3)
    manager.apply_retention()
    assert policy.finished == [True]
    assert [len(segments) for segments in policy.asked] == [3]
    assert values(log) == [b"new"], "a segment that the policy has not seen stays"
    manager.close()


def test_a_segment_that_grew_while_the_policy_was_asked_stays(tmp_path: Path) -> None:
    policy = InTheMiddle(lambda: log.append(batch(b"3")))
    manager, log = log_of(tmp_path, policy, 3)
    log.config = LogConfig(segment_bytes=2 * ONE)
    manager.apply_retention()
    assert values(log) == [b"2", b"3"]
    manager.close()


def test_a_log_whose_start_moved_while_the_policy_was_asked_waits_for_the_next_round(tmp_path: Path) -> None:
    policy = InTheMiddle(lambda: log.delete_before(1))
    manager, log = log_of(tmp_path, policy, 3)
    manager.apply_retention()
    assert values(log) == [b"1", b"2"]
    manager.apply_retention()
    assert (values(log), log.start_offset) == ([], 3)
    manager.close()


def test_a_policy_that_keeps_failing_is_logged_once_and_everything_is_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = policy_named(OWN)
    wanted = [100, 100, 100, 0, 100]
    manager = LogManager(
        [tmp_path],
        defaults=LogConfig(segment_bytes=ONE),
        producer_expiration_ms=1,
        retention=lambda _: made(LogConfig(retention_bytes=wanted[0])),
    )
    manager.start()
    manager.create_topic("my_topic", uuid4(), 3, {})
    manager.log(PARTITION).append(batch(b"0"))
    logged = []
    while wanted:
        manager.apply_retention()
        logged.append([record.message for record in caplog.records if record.levelname == "WARNING"])
        caplog.clear()
        wanted.pop(0)
    said = f"{OWN} failed: SystemExit(2). All of my_topic-0 and of 2 other partitions is kept"
    assert logged == [[f"log.retention.policy={said}"], [], [], [], [f"log.retention.policy={said}"]]
    assert values(manager.log(PARTITION)) == [b"0"]
    manager.close()


def test_either_policy_suffices() -> None:
    segments = _facts((10, 100), (10, 200), (10, 300))
    assert Either((ByAge(50), BySize(20))).expired(segments, 160) == 1
    assert Either((ByAge(50), BySize(0))).expired(segments, 160) == 3
    assert Either((ByAge(50), BySize(100))).expired(segments, 260) == 2
    assert Either(()).expired(segments, 10**15) == 0


def test_minus_one_turns_a_bound_off_and_compacted_topics_keep_everything() -> None:
    segments = _facts((10, 0), (10, 0))
    assert policy_of(LogConfig(retention_ms=-1)).expired(segments, 10**15) == 0
    assert policy_of(LogConfig(retention_ms=-1, retention_bytes=0)).expired(segments, 0) == 2
    assert policy_of(LogConfig()).expired(segments, 10**15) == 2
    assert policy_of(LogConfig(cleanup_policy=("compact",))).expired(segments, 10**15) == 0
    assert policy_of(LogConfig(cleanup_policy=("compact", "delete"))).expired(segments, 10**15) == 2


def test_segments_go_by_the_time_of_their_newest_record(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    manager, log = open_log(tmp_path, clock=clock, segment_bytes=2 * ONE, retention_ms=10_000)
    for number, ms in enumerate((0, 5000, 1000, 2000, 9000)):
        log.append(batch(b"%d" % number, timestamps=[START_MS + ms]))
    manager.apply_retention()
    assert log.start_offset == 0
    clock.advance(12)
    manager.apply_retention()
    assert log.start_offset == 0  # the second is old enough, but not the first
    clock.advance(3.001)
    manager.apply_retention()
    assert (log.start_offset, log.end_offset) == (4, 5)
    clock.advance(4)
    manager.apply_retention()
    assert (log.start_offset, log.end_offset) == (5, 5)
    assert sorted(p.name for p in log.path.glob("*.kafka")) == ["00000000005.kafka"]
    assert log.append(batch(b"5")).base_offset == 5


def test_times_of_segments_are_known_after_a_restart(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    config = {"segment_bytes": 2 * ONE, "retention_ms": 10_000}
    manager, log = open_log(tmp_path, clock=clock, **config)
    for number, ms in enumerate((5000, 0, 1000, 20_000, 9000)):
        log.append(batch(b"%d" % number, timestamps=[START_MS + ms]))
    manager.close()
    clock.advance(15.001)
    manager, log = open_log(tmp_path, clock=clock, **config)
    manager.apply_retention()
    assert values(log) == [b"2", b"3", b"4"]


HOUR = 3_600_000


@pytest.mark.parametrize(
    ("written_ms_ago", "age_ms", "policy", "told"),
    [
        (60_000, 90 * 24 * HOUR, ByAge(24 * HOUR), True),
        (2 * HOUR, 90 * 24 * HOUR, ByAge(24 * HOUR), False),  # it was there for a while
        (60_000, 60_000, ByAge(1000), False),  # a short retention, and records of their time
        (60_000, 90 * 24 * HOUR, BySize(0), False),  # it went because of its size
    ],
)
def test_segments_just_written_that_go_because_of_their_records_times_are_reported(
    written_ms_ago: int, age_ms: int, policy: ByAge | BySize, told: bool
) -> None:
    now = 1_700_000_000_000
    segments = [SegmentFacts(0, 10, now - age_ms, now - written_ms_ago)]
    assert policy.expired(segments, now) == 1
    assert just_written(Either((policy,)), segments, 1, now) == (segments if told else [])


def test_deleting_what_was_just_written_is_a_warning_that_says_how_to_keep_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock(START_MS)
    manager, log = open_log(tmp_path, clock=clock, retention_ms=7 * 24 * HOUR)
    log.append(batch(b"0", timestamps=[1_370_000_000_000]))
    clock.advance(300)
    manager.apply_retention()
    assert log.start_offset == 1
    (told,) = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert "1 segment(s) that were written less than an hour ago" in told
    assert "2013-05-31 11:33 UTC at the latest, are older than retention.ms=604800000" in told
    log.append(batch(b"1", timestamps=[START_MS]))
    clock.advance(8 * 24 * 3600)
    manager.apply_retention()
    assert log.start_offset == 2
    assert len([record for record in caplog.records if record.levelname == "WARNING"]) == 1


def test_without_timestamps_a_segment_is_as_old_as_its_file(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    manager, log = open_log(tmp_path, clock=clock, retention_ms=10_000)
    log.append(batch(b"0", timestamps=[-1]))
    clock.advance(5)
    log.append(batch(b"1", timestamps=[-1]))
    clock.advance(10)
    manager.apply_retention()
    assert log.start_offset == 0
    clock.advance(0.001)
    manager.apply_retention()
    assert log.start_offset == 2


def test_files_of_deleted_segments_stay_for_the_delay_and_then_go(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    manager, log = open_log(
        tmp_path, clock=clock, segment_bytes=ONE, retention_bytes=ONE, file_delete_delay_ms=60_000
    )
    log.append(batch(b"0"))
    log.append(batch(b"1"))
    manager.apply_retention()
    names = {p.name for p in log.path.iterdir()}
    assert "00000000000.kafka.deleted" in names
    assert not {"00000000000.kafka", "00000000000.index", "00000000000.timeindex"} & names
    clock.advance(59.9)
    manager.remove_deleted()
    assert (log.path / "00000000000.kafka.deleted").exists()
    clock.advance(0.1)
    manager.remove_deleted()
    assert not list(log.path.glob("*.deleted"))


def test_files_left_to_be_deleted_are_removed_at_the_next_start(tmp_path: Path) -> None:
    manager, log = open_log(tmp_path, segment_bytes=ONE, retention_bytes=ONE)
    for number in range(3):
        log.append(batch(b"%d" % number))
    manager.apply_retention()
    manager.close()
    open_manager(tmp_path)
    assert not list(log.path.glob("*.deleted"))


@pytest.fixture
def _threads_take_turns_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.mark.long("threads that race")
@pytest.mark.usefixtures("_threads_take_turns_often")
def test_readers_see_whole_data_or_the_new_range_while_segments_go(tmp_path: Path) -> None:
    """Readers follow a log of a few segments while a writer appends and retention deletes."""
    manager, log = open_log(
        tmp_path, segment_bytes=4 * ONE, retention_bytes=8 * ONE, file_delete_delay_ms=0, max_open_files=3
    )
    stop = threading.Event()
    failures: list[str] = []
    seen = [0, 0, 0]

    def read(reader: int) -> None:
        offset = 0
        while not stop.is_set():
            try:
                data = contents(log.read(offset, 3 * ONE, at_least_one=True))
            except OffsetOutOfRange as e:
                if not e.start > offset:
                    failures.append(str(e))
                offset = e.start
                continue
            if not data:
                time.sleep(0.0002)
            for record in records(memoryview(data), start_offset=offset, max_bytes=1000):
                if record.offset != offset or record.value != b"%d" % (offset % 10):
                    failures.append(f"{record} at {offset}")
                offset = record.next_offset
                seen[reader] += 1

    readers = [threading.Thread(target=read, args=(reader,)) for reader in range(3)]
    for reader in readers:
        reader.start()
    before = [0, 0, 0]
    for number in range(1500):
        log.append(batch(b"%d" % (number % 10)))
        if number % 20 == 19:
            manager.apply_retention()
            # However they are scheduled, each has read something since the last deletion.
            until(lambda before=list(before): all(map(operator.gt, seen, before)))  # type: ignore[misc]
            before = list(seen)
    stop.set()
    for reader in readers:
        reader.join()
    assert failures == []
    assert min(seen) >= 75
    assert log.start_offset > 1400
