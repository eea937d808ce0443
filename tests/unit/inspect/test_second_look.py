"""verify-log beside a broker that writes: every step of a change, seen half done, and damage that stays."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from kafkalog_broker.disk.data_directory import LOCK_NAME
from kafkalog_broker.disk.filesystem import Data, DirectoryEntry, File, FileSystem, ReadOnlyFiles
from kafkalog_broker.disk.process_lock import hold, own_mark
from kafkalog_broker.inspect.contents import Finding, expected_of, read_contents
from kafkalog_broker.inspect.inspection import inspection_of
from kafkalog_broker.inspect.verify import verify_log
from pyspark_kafkalog.types import TopicPartition
from tests.support.log.cleaning import cleaner_of, keyed, put
from tests.support.log.data_directories import cut, flip, segments, write_log
from tests.support.log.logs import TOPIC, open_log
from tests.support.manual_clock import ManualClock

Step = Callable[[], None]


class ReadingFiles(ReadOnlyFiles):
    """Calls ``before`` before each read of a name."""

    def __init__(self, before: Step = lambda: None) -> None:
        self.before = before

    def open(self, path: Path, *, create: bool = False) -> File:
        self.before()
        return super().open(path, create=create)

    def scan(self, directory: Path, sized: tuple[str, ...] = ("",)) -> list[DirectoryEntry]:
        self.before()
        return super().scan(directory, sized)


class WritingFiles(FileSystem):
    """Calls ``before`` before each change."""

    def __init__(self) -> None:
        self.before: Step = lambda: None

    def open(self, path: Path, *, create: bool = False) -> File:
        if create:
            self.before()
        return _WrittenFile(super().open(path, create=create), self)

    def rename(self, source: Path, target: Path) -> None:
        self.before()
        super().rename(source, target)

    def remove(self, path: Path) -> None:
        self.before()
        super().remove(path)


class _WrittenFile:
    def __init__(self, file: File, files: WritingFiles) -> None:
        self._file, self._files = file, files
        self.fileno, self.read_at = file.fileno, file.read_at
        self.set_modified, self.sync, self.close = file.set_modified, file.sync, file.close

    def write_at(self, position: int, data: Data) -> int:
        self._files.before()
        return self._file.write_at(position, data)

    def truncate(self, size: int) -> None:
        self._files.before()
        self._file.truncate(size)


class SteppingClock(ManualClock):
    """A broker's next steps are done while the clock sleeps."""

    def __init__(self, step: Step) -> None:
        super().__init__()
        self._step = step
        self.sleeps = 0

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        self.sleeps += 1
        self._step()


def damage_in(directory: Path, files: ReadOnlyFiles, clock: ManualClock) -> list[Finding]:
    """What `verify-log` calls damage in a data directory."""
    contents = read_contents(directory, files, clock)
    findings = list(contents.findings)
    for place in contents.partitions:
        inspection = inspection_of(place.path, "0.8", files)
        expect = partial(expected_of, place, files)
        expected = contents.expected(place)
        findings += verify_log(files, place, inspection, expected, expect=expect, clock=clock).findings
    return [finding for finding in findings if finding.damage]


class Running:
    """A broker's directory, kept before each step of what it does with it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.files = WritingFiles()
        self.clock = ManualClock()
        self.open()
        for number in range(4):
            put(self.log, (b"key", b"%d" % number * 40), (b"%d" % number, b"x"))
            self.abort(number)
        self.log.flush()
        self.manager.flush_due()

    def open(self) -> None:
        self.manager, self.log = open_log(
            self.directory, files=self.files, clock=self.clock, cleanup_policy=("compact", "delete"),
            min_cleanable_dirty_ratio=0.0, segment_bytes=400, index_interval_bytes=100,
        )  # fmt: skip

    def abort(self, number: int) -> None:
        """Append a transaction and abort it."""
        fields = {"transactional": True, "producer_id": 1, "producer_epoch": 0, "base_sequence": number}
        self.log.append(keyed((b"aborted", b"y" * 90), **fields))
        self.log.end_transaction(1, 0, commit=False)

    def append(self) -> None:
        for number in range(4, 7):
            self.abort(number)
        self.log.flush()
        self.manager.flush_due()

    def delete_records(self) -> None:
        self.log.delete_before(self.log.segments[2].base_offset + 1)
        self.clock.advance(3600)
        self.manager.remove_deleted()

    def clean(self) -> None:
        cleaner_of(self.manager, self.clock, self.files).run()

    def restart(self) -> None:
        self.manager.close()
        self.open()
        self.append()

    def start(self) -> None:
        self.open()
        self.append()

    def delete_the_topic(self) -> None:
        self.manager.delete_topic(TOPIC)
        self.clock.advance(3600)
        self.manager.remove_deleted()

    def create_a_topic(self) -> None:
        self.manager.create_topic("another", uuid.uuid4(), 2, {}, generation="0.8")
        self.manager.log(TopicPartition("another", 0)).append(keyed((b"key", b"x")))
        self.manager.flush_due()


@pytest.fixture(
    params=["append", "delete_records", "clean", "restart", "start", "delete_the_topic", "create_a_topic"]
)
def states(request: pytest.FixtureRequest, tmp_path: Path) -> list[Path]:
    """Copies of the directory: before each step of a change, and after the last one."""
    running = Running(tmp_path / "data")
    if request.param == "start":
        running.manager.close()
    kept: list[Path] = []

    def keep() -> None:
        kept.append(tmp_path / f"state{len(kept)}")
        shutil.copytree(running.directory, kept[-1])

    running.files.before = keep
    getattr(running, request.param)()
    keep()
    assert len(kept) > 4
    return kept


def show(state: Path, seen: Path) -> None:
    """Give a directory the content of another as a broker would: a file grows in place, or is replaced."""
    seen.mkdir(exist_ok=True)
    for path in seen.iterdir():
        if not (state / path.name).exists():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    for path in state.iterdir():
        target = seen / path.name
        if path.is_dir():
            show(path, target)
            continue
        content, old = path.read_bytes(), target.read_bytes() if target.exists() else b""
        if target.exists() and content.startswith(old):
            with target.open("ab") as file:
                file.write(content[len(old) :])
        else:
            (seen / ".new").write_bytes(content)
            (seen / ".new").replace(target)


def test_a_change_seen_at_any_of_its_steps_is_not_damage(states: list[Path], tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    for state in states:
        show(state, seen)
        clock = SteppingClock(partial(show, states[-1], seen))
        assert damage_in(seen, ReadingFiles(), clock) == [], state


@pytest.mark.long("every change before every read")
def test_a_change_between_any_two_reads_is_not_damage(states: list[Path], tmp_path: Path) -> None:
    reads, seen = 0, tmp_path / "seen"
    at = -1

    def step() -> None:
        nonlocal reads
        if reads == at:
            show(states[-1], seen)
        reads += 1

    show(states[0], seen)
    assert damage_in(seen, ReadingFiles(step), ManualClock()) == []
    for at in range(reads):
        reads = 0
        show(states[0], seen)
        assert damage_in(seen, ReadingFiles(step), ManualClock()) == [], at


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Path]:
    """The partition's directory of a broker that runs."""
    path = write_log(tmp_path / "data")
    with closing(hold(tmp_path / "data" / LOCK_NAME, own_mark())):
        yield path


def test_damage_that_stays_while_a_log_is_written_is_found_in_the_second_look(served: Path) -> None:
    flip(segments(served)[0], 70)
    looks = 0

    def write() -> None:
        nonlocal looks
        looks += 1
        (served / f"{looks}.tmp").touch()

    clock = SteppingClock(write)
    (finding,) = damage_in(served.parent, ReadingFiles(), clock)
    assert finding.path == segments(served)[0]
    assert clock.sleeps == 1


def test_an_index_that_a_running_broker_leaves_cut_short_is_damage(served: Path) -> None:
    path = segments(served)[0].with_suffix(".timeindex")
    cut(path, 1)
    clock = SteppingClock(lambda: None)
    (finding,) = damage_in(served.parent, ReadingFiles(), clock)
    assert finding.path == path
    assert clock.sleeps == 1


def test_new_damage_in_each_look_does_not_keep_it_looking_for_ever(served: Path) -> None:
    indexes = iter([*served.glob("*.index"), *served.glob("*.timeindex")])

    def spoil() -> None:
        cut(next(indexes), 1)

    spoil()
    clock = SteppingClock(spoil)
    assert len(damage_in(served.parent, ReadingFiles(), clock)) == 5
    assert clock.sleeps == 4


def test_damage_is_looked_at_once_where_nobody_writes(tmp_path: Path) -> None:
    path = write_log(tmp_path / "data")
    flip(segments(path)[0], 70)
    opened = []
    files = ReadingFiles()
    opening = files.open

    def open_noted(path: Path, *, create: bool = False) -> File:
        opened.append(path)
        return opening(path, create=create)

    files.open = open_noted  # type: ignore[method-assign]
    clock = SteppingClock(lambda: None)
    (finding,) = damage_in(path.parent, files, clock)
    assert opened.count(finding.path) == 1
    assert clock.sleeps == 0
