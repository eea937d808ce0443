"""The lock on a data directory: the lock on its ``.lock`` file says that it is held, its content by whom.

The content, text: ``pid <number>`` and, where the system has it, ``started <mark>``: when that process
began, in the system's own measure. A process id alone names another process once its own has ended. The
content counts only while the lock is held; its holder writes it first and removes it last.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

_MAX_NOTE_BYTES = 200
_STARTED_FIELD = 19
"""Field of ``/proc/<pid>/stat`` after the command's name: when it began, in clock ticks since the boot."""


class Closeable(Protocol):
    """What holding a lock gives."""

    def close(self) -> None:
        """Let go of the lock."""
        ...


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that a lock's holder said it is; ``started`` is empty where the system does not tell."""

    pid: int
    started: str

    @property
    def alive(self) -> bool:
        """Whether that very process is there, and not another with its number."""
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass
        return _started(self.pid) == self.started

    def send(self, number: signal.Signals) -> bool:
        """Signal that very process; False when it is gone. Raises `PermissionError`."""
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
            # What the descriptor names cannot become another process any more; see that it is the right one.
            if not self.alive:
                return False
            signal.pidfd_send_signal(fd, number)
        except ProcessLookupError:
            return False
        finally:
            os.close(fd)
        return True


class _Held:
    """*Not thread-safe.* A held lock, let go with the descriptor."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with contextlib.suppress(OSError):
                os.ftruncate(fd, 0)
            os.close(fd)


def own_mark() -> bytes:
    """What this process writes into the locks that it holds."""
    pid = os.getpid()
    return f"pid {pid}\nstarted {_started(pid)}\n".encode("ascii")


def hold(path: Path, note: bytes) -> Closeable:
    """Hold the lock file at ``path``, made when missing, until closed or until the process ends.

    Raises:
        BlockingIOError: someone holds it, in this process or another.
        OSError: the file cannot be made.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        # flock, not lockf: it also holds off a second manager in the same process.
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        raise
    # On a full disk the lock has no name in it, but holds.
    with contextlib.suppress(OSError):
        os.ftruncate(fd, 0)
        os.pwrite(fd, note, 0)
    return _Held(fd)


def hold_off(path: Path) -> Closeable | None:
    """Keep anybody from holding the lock file at ``path``, without writing to it; others may do so too.

    None when there is no such file: it was never held.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        raise
    return _HeldOff(fd)


def hold_directory(path: Path) -> Closeable:
    """Hold a directory itself, whatever name it gets meanwhile, until closed or until the process ends.

    Raises:
        BlockingIOError: someone holds it.
        OSError: it cannot be opened.
    """
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.path.samestat(os.fstat(fd), path.stat()):
            raise BlockingIOError(f"{path} was replaced")
    except OSError:
        os.close(fd)
        raise
    return _HeldOff(fd)


class _HeldOff(_Held):
    """*Not thread-safe.* A lock on what is not ours to change."""

    __slots__ = ()

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def is_held(path: Path) -> bool:
    """Whether somebody holds the lock file at ``path``. Raises `OSError` when it cannot be read."""
    try:
        free = hold_off(path)
    except BlockingIOError:
        return True
    if free is not None:
        free.close()
    return False


def holder_of(path: Path) -> Holder | None:
    """Who the lock file at ``path`` says its holder is; None when it does not say. Raises `OSError`.

    Says nothing of whether the lock is held: ask `is_held` first.
    """
    with path.open("rb") as file:
        text = file.read(_MAX_NOTE_BYTES).decode("ascii", "replace")
    fields = dict(line.partition(" ")[::2] for line in text.splitlines())
    pid = fields.get("pid", "")
    if not text.endswith("\n") or not (pid.isascii() and pid.isdigit()) or not 0 < int(pid) < 1 << 31:
        return None
    return Holder(int(pid), fields.get("started", ""))


def _started(pid: int) -> str:
    """When a process began; empty when it is gone, has ended, or the system has no ``/proc``."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text("ascii", "replace")
    except OSError:
        return ""
    # The command's name is in brackets and may have anything in it, brackets and blanks too.
    state, *rest = stat.rpartition(")")[2].split()
    return "" if state in "ZX" else rest[_STARTED_FIELD - 1]
