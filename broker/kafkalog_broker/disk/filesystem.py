"""The file system calls of the broker, which tests can make fail; and a bounded pool of open files."""

from __future__ import annotations

import errno
import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, NoReturn

from kafkalog_broker.disk.process_lock import Closeable, hold, own_mark

Data = bytes | bytearray | memoryview

_COPY_BYTES = 16 << 20
"""Size of one kernel copy step, between progress reports."""
_READ_BYTES = 1 << 20
_SMALL_FILE_BYTES = 1 << 16
_NO_KERNEL_COPY = frozenset({errno.ENOSYS, errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM})
"""Errors meaning that these disks do not support kernel copies; an ordinary copy may work."""


class DirectoryEntry(NamedTuple):
    """A directory entry. ``size`` is 0 for a directory; ``modified_ms`` is since the epoch."""

    name: str
    is_directory: bool
    size: int
    modified_ms: int


class File:
    """*Thread-safe.* A file for reading and writing at explicit positions."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def fileno(self) -> int:
        return self._fd

    def write_at(self, position: int, data: Data) -> int:
        """Write at ``position``; returns the number of bytes written, possibly fewer than given."""
        return os.pwrite(self._fd, data, position)

    def read_at(self, position: int, size: int) -> bytes:
        """Up to ``size`` bytes; fewer only at the end of the file."""
        data = os.pread(self._fd, size, position)
        if len(data) == size or not data:
            return data
        parts = [data]
        have = len(data)
        while have < size:
            more = os.pread(self._fd, size - have, position + have)
            if not more:
                break
            parts.append(more)
            have += len(more)
        return b"".join(parts)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def set_modified(self, time_ms: int) -> None:
        os.utime(self._fd, ns=(time_ms * 1_000_000, time_ms * 1_000_000))

    def sync(self) -> None:
        """Make the content durable. Do not repeat after a failure: the kernel may drop unwritten pages and
        then report success.
        """
        _fsync(self._fd)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _fsync(fd: int) -> None:
    """A failure must not look like a full disk, since the content is then unknown."""
    try:
        os.fsync(fd)
    except OSError as e:
        raise OSError(errno.EIO, f"sync failed: {e}") from e


class FileSystem:
    """*Thread-safe.* Every call raises `OSError` if the disk fails. Tests pass file systems that do."""

    def open(self, path: Path, *, create: bool = False) -> File:
        """Open for reading and writing; ``create`` creates a missing file, never truncates."""
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return File(os.open(path, flags, 0o644))

    def scan(self, directory: Path, sized: tuple[str, ...] = ("",)) -> list[DirectoryEntry]:
        """Its entries. Sizes and times, a system call each, only of files whose names end with ``sized``."""
        found = []
        with os.scandir(directory) as entries:
            for entry in entries:
                name, is_directory, size, modified_ms = entry.name, entry.is_dir(follow_symlinks=False), 0, 0
                if not is_directory and name.endswith(sized):
                    try:
                        facts = entry.stat()
                    except FileNotFoundError:
                        continue  # just removed, or a link to nothing
                    size, modified_ms = facts.st_size, facts.st_mtime_ns // 1_000_000
                found.append(DirectoryEntry(name, is_directory, size, modified_ms))
        return found

    def make_directory(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)

    def rename(self, source: Path, target: Path) -> None:
        source.replace(target)

    def remove(self, path: Path) -> None:
        path.unlink()

    def remove_directory(self, path: Path) -> None:
        path.rmdir()

    def open_directory(self, path: Path) -> File:
        """Open a directory, only to `File.sync` its entries: files created, renamed and removed."""
        return File(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))

    def sync_directory(self, path: Path) -> None:
        with closing(self.open_directory(path)) as directory:
            directory.sync()

    def lock(self, path: Path) -> Closeable:
        """Lock a file until closed or process end. Raises `BlockingIOError`: locked, even by us."""
        return hold(path, note=own_mark())


class ReadOnlyFiles(FileSystem):
    """*Thread-safe.* Read-only access, also for read-only media and beside a running broker."""

    def open(self, path: Path, *, create: bool = False) -> File:
        if create:
            self._refuse(path)
        return File(os.open(path, os.O_RDONLY | os.O_CLOEXEC))

    def rename(self, source: Path, target: Path) -> None:  # noqa: ARG002
        self._refuse(source)

    def _refuse(self, path: Path) -> NoReturn:
        raise OSError(errno.EROFS, "only to be read", str(path))

    make_directory = remove = remove_directory = lock = _refuse


def write_all(file: File, position: int, data: Data) -> None:
    """Write all of ``data``. On `OSError` part of it may have been written."""
    written = file.write_at(position, data)
    if written == len(data):
        return
    view = memoryview(data)
    while written < len(view):
        taken = file.write_at(position + written, view[written:])
        if taken <= 0:
            raise OSError(errno.EIO, "the disk takes no more bytes and gives no reason")
        written += taken


def copy_bytes(
    source: File, target: File, size: int, progress: Callable[[int], object], *, position: int = 0
) -> None:
    """Copy bytes ``[position, size)``, in the kernel if possible; ``progress`` gets each step's bytes.
    Raises `EOFError`: the source became shorter; `OSError`.
    """
    while position < size:
        taken = _copy_some(source, target, position, min(_COPY_BYTES, size - position))
        if not taken:
            raise EOFError(f"the file became shorter than {size} bytes while it was copied")
        position += taken
        progress(taken)


def _copy_some(source: File, target: File, position: int, size: int) -> int:
    if hasattr(os, "copy_file_range"):
        try:
            taken = os.copy_file_range(source.fileno(), target.fileno(), size, position, position)
        except OSError as e:
            if e.errno not in _NO_KERNEL_COPY:
                raise
        else:
            if taken:
                return taken
    data = source.read_at(position, min(size, _READ_BYTES))
    write_all(target, position, data)
    return len(data)


def read_file(files: FileSystem, path: Path) -> bytes:
    """Content of a small file. Raises `FileNotFoundError`."""
    parts: list[bytes] = []
    position = 0
    with closing(files.open(path)) as file:
        while position == len(parts) * _SMALL_FILE_BYTES:  # a shorter part is the last
            parts.append(file.read_at(position, _SMALL_FILE_BYTES))
            position += len(parts[-1])
    return b"".join(parts)


def replace_file(files: FileSystem, path: Path, data: bytes, *, durable: bool, private: bool = False) -> None:
    """Replace the file at ``path`` atomically; unless ``durable``, a power cut may leave it torn.
    ``private``: readable by the owner only.
    """
    new = path.with_name(f".{path.name}.tmp" if len(path.name) < 240 else ".long-name.tmp")
    with closing(files.open(new, create=True)) as file:
        if private:
            os.fchmod(file.fileno(), 0o600)  # before any content
        write_all(file, 0, data)
        file.truncate(len(data))  # last: ext4 flushes a file on close if it was truncated to zero before
        if durable:
            file.sync()
    if not durable:
        files.rename(new, path)
        return
    with closing(files.open_directory(path.parent)) as directory:  # first: there may be no descriptor
        files.rename(new, path)
        try:
            directory.sync()
        except OSError as e:  # whatever it says: the old content is gone, the new one not durable
            raise OSError(errno.EIO, f"sync failed: {e}", str(path)) from e


def remove_tree(files: FileSystem, directory: Path) -> None:
    try:
        entries = files.scan(directory)
    except FileNotFoundError:
        return
    for entry in entries:
        if entry.is_directory:
            remove_tree(files, directory / entry.name)
        else:
            files.remove(directory / entry.name)
    files.remove_directory(directory)


@dataclass(slots=True, eq=False)
class OpenFile:
    """A file in the pool and its number of users, guarded by the pool's lock; ``with`` releases it."""

    pool: OpenFiles
    path: Path
    file: File
    leases: int = 0
    retired: bool = False

    def __enter__(self) -> File:
        return self.file

    def __exit__(self, *_: object) -> None:
        self.pool.release(self)


class OpenFiles:
    """*Thread-safe.* Keeps recently used files open, at most ``max_open`` of them.

    Files in use are never closed, even above ``max_open`` or when deleted, so a slow reader's answer keeps
    its segment. ``_lock`` guards the tables and every `OpenFile`; reentrant: garbage collection may call
    `release`.
    """

    def __init__(self, files: FileSystem, max_open: int) -> None:
        if max_open < 1:
            raise ValueError(f"at least one file must be open; {max_open} allowed")
        self._files = files
        self.max_open = max_open
        """Limit, unless more files are in use."""
        self._open: dict[Path, OpenFile] = {}
        self._unused: OrderedDict[Path, OpenFile] = OrderedDict()
        """Files of ``_open`` not in use, least recently released first."""
        self._lock = threading.RLock()

    def __len__(self) -> int:
        return len(self._open)

    @property
    def in_use(self) -> int:
        return len(self._open) - len(self._unused)

    def share(self) -> int:
        """Files that one answer may keep open: at most half of ``max_open``, at least 1."""
        return max(1, min(self.max_open // 2, self.max_open - self.in_use))

    def acquire(self, path: Path, *, create: bool = False) -> OpenFile:
        """The file at ``path``, open until `release`. Raises `OSError`, `FileNotFoundError` among it."""
        with self._lock:
            entry = self._open.get(path)
            if entry is not None:
                entry.leases += 1  # first: a slice collected now must not close it
                if not entry.retired:
                    self._unused.pop(path, None)
                    return entry
            entry = OpenFile(self, path, self._open_file(path, create))
            entry.leases = 1
            self._open[path] = entry
            self._close_unused(self.max_open)
            return entry

    def again(self, entry: OpenFile) -> OpenFile:
        """Take another lease of a file the caller holds, whatever its name is now."""
        with self._lock:
            entry.leases += 1
            return entry

    def release(self, entry: OpenFile) -> None:
        """Return a lease; the last one closes a forgotten file."""
        with self._lock:
            entry.leases -= 1
            if entry.leases:
                return
            if entry.retired:
                entry.file.close()
                return
            self._unused[entry.path] = entry
            self._close_unused(self.max_open)

    def forget(self, path: Path) -> None:
        """Drop the file at ``path``, since the name now means another or none; users keep it open."""
        with self._lock:
            entry = self._open.pop(path, None)
            if entry is not None:
                self._retire(entry)

    def close(self) -> None:
        """Close all files; those in use on their last release."""
        with self._lock:
            entries = list(self._open.values())
            self._open.clear()
            for entry in entries:
                self._retire(entry)

    def _open_file(self, path: Path, create: bool) -> File:
        try:
            return self._files.open(path, create=create)
        except OSError as e:
            if e.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            self._close_unused(0)  # sockets have taken the last descriptor
            return self._files.open(path, create=create)

    def _retire(self, entry: OpenFile) -> None:
        entry.retired = True
        if not entry.leases:
            self._unused.pop(entry.path, None)
            entry.file.close()

    def _close_unused(self, keep: int) -> None:
        while len(self._open) > keep and self._unused:
            path, entry = self._unused.popitem(last=False)
            if not entry.leases:
                del self._open[path]
                self._retire(entry)
