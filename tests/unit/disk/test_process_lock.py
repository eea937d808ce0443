"""Who holds a data directory: told while it is held, and never somebody else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kafkalog_broker.disk.filesystem import FileSystem
from kafkalog_broker.disk.process_lock import (
    Holder,
    hold,
    hold_directory,
    hold_off,
    holder_of,
    is_held,
    own_mark,
)

SLEEPER = "import sys; sys.stdout.write('x'); sys.stdout.flush(); sys.stdin.read()"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / ".lock"


def test_who_holds_a_lock_is_written_in_it_and_gone_with_it(path: Path) -> None:
    assert not is_held(path)
    assert not path.exists(), "asking makes no file"
    held = FileSystem().lock(path)
    assert is_held(path)
    found = holder_of(path)
    assert found is not None
    assert (found.pid, found.alive) == (os.getpid(), True)
    with pytest.raises(BlockingIOError):
        hold(path, b"")
    held.close()
    assert not is_held(path)
    assert holder_of(path) is None
    held.close()  # once more is nothing


def test_a_new_holder_leaves_nothing_of_the_one_before(path: Path) -> None:
    path.write_bytes(b"pid 1\nstarted 1\n" * 5)
    held = hold(path, own_mark())
    assert path.read_bytes() == own_mark()
    held.close()


@pytest.mark.parametrize(
    "content",
    [b"", b"pid", b"pid \n", b"pid 12", b"pid 0\n", b"pid -5\n", b"pid 99999999999\n", b"\xff\xfe\n"],
)
def test_a_lock_file_without_a_process_names_nobody(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    assert holder_of(path) is None


def test_a_process_that_has_ended_is_not_alive_and_gets_no_signal() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    gone = Holder(process.pid, "123")
    assert not gone.alive
    assert not gone.send(signal.SIGTERM)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="only /proc tells when a process began")
def test_another_process_with_the_same_number_gets_no_signal() -> None:
    process = subprocess.Popen([sys.executable, "-c", SLEEPER], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with process:
        assert process.stdout is not None
        process.stdout.read(1)
        stale = Holder(process.pid, "1")
        assert not stale.alive
        assert not stale.send(signal.SIGTERM)
        assert process.poll() is None
        process.kill()


def test_a_shared_hold_keeps_a_broker_away_and_writes_nothing(path: Path) -> None:
    assert hold_off(path) is None
    path.write_bytes(b"as it was")
    path.chmod(0o444)
    first, second = hold_off(path), hold_off(path)
    assert first is not None
    assert second is not None
    with pytest.raises(BlockingIOError):
        hold(path, b"")
    first.close()
    second.close()
    assert path.read_bytes() == b"as it was"
    hold(path, b"").close()


def test_a_directory_is_held_under_whatever_name(tmp_path: Path) -> None:
    one = tmp_path / "one"
    one.mkdir()
    held = hold_directory(one)
    with pytest.raises(BlockingIOError):
        hold_directory(one)
    one.rename(tmp_path / "two")
    with pytest.raises(BlockingIOError):
        hold_directory(tmp_path / "two")
    held.close()
    hold_directory(tmp_path / "two").close()
