"""The few calls through which the broker touches the disk, so that tests can make each of them fail; and a
bounded number of open descriptors for any number of segment files.
"""

from __future__ import annotations

import errno
import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol

from kafkalog_broker.disk.process_lock import Closeable, hold, own_mark

Data = bytes | bytearray | memoryview

_COPY_BYTES = 16 << 20
"""One step of a copy in the kernel, after which somebody may look how far it is."""
_READ_BYTES = 1 << 20
_NO_KERNEL_COPY = frozenset({errno.ENOSYS, errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM})
"""Refusals that say: not between these two disks. An ordinary copy may still do."""


class DirectoryEntry(NamedTuple):
    """One name in a directory. ``size`` is 0 for a directory, ``modified_ms`` is since the epoch."""

    name: str
    is_directory: bool
    size: int
    modified_ms: int


class File(Protocol):
    """A file open for reading and writing at explicit positions; it has no position of its own."""

    def fileno(self) -> int:
        """The descriptor, for ``sendfile``."""
        ...

    def write_at(self, position: int, data: Data) -> int:
        """Write at ``position``; returns how many bytes were taken, which may be fewer than given."""
        ...

    def read_at(self, position: int, size: int) -> bytes:
        """Up to ``size`` bytes; fewer only at the end of the file."""
        ...

    def truncate(self, size: int) -> None:
        """Cut the file to ``size``."""
        ...

    def set_modified(self, time_ms: int) -> None:
        """Have the file changed last at ``time_ms``: it takes the place of one that was."""
        ...

    def sync(self) -> None:
        """Make the content durable. Never called again after it failed: the kernel may have dropped the
        pages it could not write and would report success.
        """
        ...

    def close(self) -> None:
        """Give the descriptor back."""
        ...


class FileSystem(Protocol):
    """All of the disk that the log knows. Every call raises `OSError` when the disk refuses."""

    def open(self, path: Path, *, create: bool = False) -> File:
        """Open for reading and writing; with ``create`` the file is made when missing, never cut."""
        ...

    def scan(self, directory: Path) -> list[DirectoryEntry]:
        """What is in the directory, in no order."""
        ...

    def make_directory(self, path: Path) -> None:
        """Make one directory and those above it; nothing happens when it is there."""
        ...

    def rename(self, source: Path, target: Path) -> None:
        """Rename within one file system; a file at ``target`` is replaced at once."""
        ...

    def remove(self, path: Path) -> None:
        """Remove a file."""
        ...

    def remove_directory(self, path: Path) -> None:
        """Remove an empty directory."""
        ...

    def sync_directory(self, path: Path) -> None:
        """Make the names in a directory durable: what was created, renamed and removed in it."""
        ...

    def lock(self, path: Path) -> Closeable:
        """Hold a lock file until closed or until the process ends.
        Raises `BlockingIOError`: someone holds it, in this process or another.
        """
        ...


class OsFile:
    """*Thread-safe*, as every call names its position. A descriptor of the operating system."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def fileno(self) -> int:
        return self._fd

    def write_at(self, position: int, data: Data) -> int:
        return os.pwrite(self._fd, data, position)

    def read_at(self, position: int, size: int) -> bytes:
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
        os.fsync(self._fd)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class OsFileSystem:
    """*Thread-safe.* The operating system's files."""

    def open(self, path: Path, *, create: bool = False) -> File:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return OsFile(os.open(path, flags, 0o644))

    def scan(self, directory: Path) -> list[DirectoryEntry]:
        found = []
        with os.scandir(directory) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    found.append(DirectoryEntry(entry.name, True, 0, 0))
                else:
                    try:
                        facts = entry.stat()
                    except FileNotFoundError:
                        continue  # just removed, or a link to nothing
                    found.append(
                        DirectoryEntry(entry.name, False, facts.st_size, facts.st_mtime_ns // 1_000_000)
                    )
        return found

    def make_directory(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)

    def rename(self, source: Path, target: Path) -> None:
        source.replace(target)

    def remove(self, path: Path) -> None:
        path.unlink()

    def remove_directory(self, path: Path) -> None:
        path.rmdir()

    def sync_directory(self, path: Path) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def lock(self, path: Path) -> Closeable:
        return hold(path, note=own_mark())


class ReadOnlyFiles(OsFileSystem):
    """*Thread-safe.* The same files for those who only look: nothing is written, not even on request.

    Works on what may only be read, and beside a running broker.
    """

    def open(self, path: Path, *, create: bool = False) -> File:
        if create:
            raise OSError(errno.EROFS, "only to be read", str(path))
        return OsFile(os.open(path, os.O_RDONLY | os.O_CLOEXEC))

    def make_directory(self, path: Path) -> None:
        raise OSError(errno.EROFS, "only to be read", str(path))

    def rename(self, source: Path, target: Path) -> None:  # noqa: ARG002
        raise OSError(errno.EROFS, "only to be read", str(source))

    def remove(self, path: Path) -> None:
        raise OSError(errno.EROFS, "only to be read", str(path))

    def remove_directory(self, path: Path) -> None:
        raise OSError(errno.EROFS, "only to be read", str(path))

    def lock(self, path: Path) -> Closeable:
        raise OSError(errno.EROFS, "only to be read", str(path))


def write_all(file: File, position: int, data: Data) -> None:
    """Write all of ``data``, however few bytes the disk takes at once.
    Raises `OSError`: the disk refused; some of the data may have been written.
    """
    written = file.write_at(position, data)
    if written == len(data):
        return
    view = memoryview(data)
    while written < len(view):
        taken = file.write_at(position + written, view[written:])
        if taken <= 0:
            raise OSError(errno.EIO, "the disk takes no more bytes and gives no reason")
        written += taken


def copy_bytes(source: File, target: File, size: int, progress: Callable[[int], object]) -> None:
    """Copy the first ``size`` bytes within the kernel where it can: without a copy at all on disks that share
    blocks, elsewhere as an ordinary one. ``progress`` gets the bytes of each step.

    Raises:
        EOFError: the source became shorter.
        OSError: a disk refused.
    """
    position = 0
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
    """The whole content of a small file. Raises `FileNotFoundError` when there is none."""
    file = files.open(path)
    try:
        parts = []
        position = 0
        while chunk := file.read_at(position, 1 << 16):
            parts.append(chunk)
            position += len(chunk)
        return b"".join(parts)
    finally:
        file.close()


def replace_file(files: FileSystem, path: Path, data: bytes, *, durable: bool, private: bool = False) -> None:
    """Put ``data`` in the place of what is at ``path``, so that a reader finds the old or the new.

    With ``durable`` the new content is on the disk when this returns. Without, a power cut may leave
    either, or a file that is cut short: its reader must be able to tell. A ``private`` one only its owner may
    read.
    """
    new = path.with_name(f".{path.name}.tmp" if len(path.name) < 240 else ".long-name.tmp")
    file = files.open(new, create=True)
    try:
        if private:
            os.fchmod(file.fileno(), 0o600)  # before there is anything to read
        write_all(file, 0, data)
        file.truncate(len(data))  # last: ext4 writes a file that was cut to nothing when it is closed
        if durable:
            _sync(file.sync, path)
    finally:
        file.close()
    files.rename(new, path)
    if durable:
        _sync(partial(files.sync_directory, path.parent), path)


def _sync(sync: Callable[[], None], path: Path) -> None:
    """A failed sync must not look like a full disk: after it nobody knows what was written."""
    try:
        sync()
    except OSError as e:
        raise OSError(errno.EIO, f"sync failed: {e}", str(path)) from e


def remove_tree(files: FileSystem, directory: Path) -> None:
    """Remove a directory with all that is in it; nothing happens when it is gone already."""
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


class OpenFile:
    """A file in the pool with the number of those who use it just now; the pool's lock guards it."""

    __slots__ = ("file", "leases", "path", "retired")

    def __init__(self, path: Path, file: File) -> None:
        self.path = path
        self.file = file
        self.leases = 0
        self.retired = False


class OpenFiles:
    """*Thread-safe.* Keeps the files used last open, at most ``max_open`` of them.

    A file in use is never closed, even if the pool holds more than ``max_open`` for that time: so an
    answer on its way to a slow reader keeps its segment, also when retention has removed the name.
    Every call costs the same however many files are open: those in use and those not are kept apart.
    ``_lock`` guards the tables and every `OpenFile`. It may be taken again by its holder: the garbage
    collector can end a forgotten slice, and so call `release`, in the middle of any other call.
    """

    def __init__(self, files: FileSystem, max_open: int) -> None:
        if max_open < 1:
            raise ValueError(f"at least one file must be open; {max_open} allowed")
        self._files = files
        self.max_open = max_open
        """The most files that stay open while fewer are in use."""
        self._open: dict[Path, OpenFile] = {}
        self._unused: OrderedDict[Path, OpenFile] = OrderedDict()
        """Those of ``_open`` that are not in use, the one given back first at the front."""
        self._lock = threading.RLock()

    def __len__(self) -> int:
        return len(self._open)

    @property
    def in_use(self) -> int:
        """Files that somebody uses just now, those without a name left aside."""
        return len(self._open) - len(self._unused)

    def acquire(self, path: Path, *, create: bool = False) -> OpenFile:
        """The file at ``path``, open until `release`.

        Raises:
            FileNotFoundError: there is none, and ``create`` was not asked for.
            OSError: it cannot be opened.
        """
        with self._lock:
            entry = self._open.get(path)
            if entry is not None:
                entry.leases += 1  # first of all: a slice that is collected now must not close it
                if not entry.retired:
                    self._unused.pop(path, None)
                    return entry
            entry = OpenFile(path, self._open_file(path, create))
            entry.leases = 1
            self._open[path] = entry
            self._close_unused(self.max_open)
            return entry

    def again(self, entry: OpenFile) -> OpenFile:
        """One more lease of a file that the caller has one of, whatever its name is now."""
        with self._lock:
            entry.leases += 1
            return entry

    def release(self, entry: OpenFile) -> None:
        """Give a lease back; a forgotten file is closed with its last one."""
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
        """The name now means another file or none: let go of this one when its users have."""
        with self._lock:
            entry = self._open.pop(path, None)
            if entry is not None:
                self._retire(entry)

    def close(self) -> None:
        """Close all files; those in use when their users have done."""
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
            self._close_unused(0)  # sockets need descriptors too, and have taken the last one
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
