"""A bounded number of open descriptors for any number of segment files."""

from __future__ import annotations

import errno
import threading
from collections import OrderedDict
from pathlib import Path

from broker.disk.filesystem import File, FileSystem


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
        """Files that may be open while fewer than so many are in use."""
        self._open: dict[Path, OpenFile] = {}
        self._unused: OrderedDict[Path, OpenFile] = OrderedDict()
        """Those of ``_open`` that nobody uses, the one given back first at the front."""
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
