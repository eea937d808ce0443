"""The lock of a data directory: a lock on its ``.lock`` file, whose content names the holder.

Content: ``pid <number>`` and, if known, ``started <mark>``, as process ids are reused; valid only while
locked. The holder writes it first and removes it last.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
from pathlib import Path

import msgspec

_MAX_NOTE_BYTES = 200
_STARTED_FIELD = 19
"""Field of ``/proc/<pid>/stat`` after the command name: start time in clock ticks since boot."""


class Holder(msgspec.Struct, frozen=True):
    """Process named in a lock file; ``started`` is empty if unknown."""

    pid: int
    started: str

    @property
    def alive(self) -> bool:
        """Whether this very process runs, not another with its pid."""
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass
        return _started(self.pid) == self.started

    def send(self, number: signal.Signals) -> bool:
        """Signal this process; False if it is gone. Raises `PermissionError`."""
        if not hasattr(os, "pidfd_open"):
            if self.alive:
                os.kill(self.pid, number)
                return True
            return False
        try:
            fd = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return False
        try:
            # The descriptor pins one process; check that it is the right one.
            if not self.alive:
                return False
            signal.pidfd_send_signal(fd, number)
        except ProcessLookupError:
            return False
        finally:
            os.close(fd)
        return True


class Closeable:
    """*Not thread-safe.* A held lock, released with its descriptor. ``noted``: first empty its file."""

    def __init__(self, fd: int, *, noted: bool = False) -> None:
        self._fd = fd
        self._noted = noted

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            if self._noted:
                with contextlib.suppress(OSError):
                    os.ftruncate(fd, 0)
            os.close(fd)


def own_mark() -> bytes:
    pid = os.getpid()
    return f"pid {pid}\nstarted {_started(pid)}\n".encode("ascii")


def _lock(path: Path, flags: int, operation: int) -> int:
    fd = os.open(path, flags | os.O_CLOEXEC, 0o644)
    try:
        # flock, not lockf: it also excludes a second manager in this process.
        fcntl.flock(fd, operation | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        raise
    return fd


def hold(path: Path, note: bytes) -> Closeable:
    """Create and lock the file at ``path``, until closed or process end. Raises `BlockingIOError`."""
    fd = _lock(path, os.O_RDWR | os.O_CREAT, fcntl.LOCK_EX)
    # On a full disk the lock holds without a name in it.
    with contextlib.suppress(OSError):
        os.ftruncate(fd, 0)
        os.pwrite(fd, note, 0)
    return Closeable(fd, noted=True)


def hold_off(path: Path) -> Closeable | None:
    """Share-lock the file at ``path``, which keeps others from locking it; None if it does not exist."""
    try:
        return Closeable(_lock(path, os.O_RDONLY, fcntl.LOCK_SH))
    except FileNotFoundError:
        return None


def hold_directory(path: Path) -> Closeable:
    """Lock a directory, even if renamed, until closed or process end. Raises `BlockingIOError`; `OSError`."""
    fd = _lock(path, os.O_RDONLY | os.O_DIRECTORY, fcntl.LOCK_EX)
    try:
        if not os.path.samestat(os.fstat(fd), path.stat()):
            raise BlockingIOError(f"{path} was replaced")
    except OSError:
        os.close(fd)
        raise
    return Closeable(fd)


def is_held(path: Path) -> bool:
    """Whether the file at ``path`` is locked. Raises `OSError`."""
    try:
        free = hold_off(path)
    except BlockingIOError:
        return True
    if free is not None:
        free.close()
    return False


def holder_of(path: Path) -> Holder | None:
    """Holder named in the lock file at ``path``, or None; valid only if `is_held`. Raises `OSError`."""
    with path.open("rb") as file:
        text = file.read(_MAX_NOTE_BYTES).decode("ascii", "replace")
    fields = dict(line.partition(" ")[::2] for line in text.splitlines())
    pid = fields.get("pid", "")
    if not text.endswith("\n") or not (pid.isascii() and pid.isdigit()) or not 0 < int(pid) < 1 << 31:
        return None
    return Holder(int(pid), fields.get("started", ""))


def _started(pid: int) -> str:
    """Start time of a process; empty if it has ended or there is no ``/proc``."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text("ascii", "replace")
    except OSError:
        return ""
    # The command name is in parentheses and may itself contain parentheses and blanks.
    state, *rest = stat.rpartition(")")[2].split()
    return "" if state in "ZX" else rest[_STARTED_FIELD - 1]
