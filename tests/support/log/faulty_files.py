"""File systems that fail on purpose: full disks, short writes, broken syncs, power cuts."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from kafkalog_broker.disk.filesystem import Data, DirectoryEntry, File, FileSystem
from kafkalog_broker.disk.process_lock import Closeable

PAGE_BYTES = 4096


class FaultyFiles:
    """The real disk, until a test says otherwise. *Not thread-safe: one test.*

    ``space_bytes``: what may still be written, None without limit. ``longest_write``: most bytes that one
    write takes. ``sync_fails`` and ``write_fails``: asked with the path before each such call. `pass_after`:
    errors that pass, from the n-th call on. Without ``syncs`` nothing is made durable, which is faster.
    """

    def __init__(self, *, syncs: bool = True) -> None:
        self._real = FileSystem()
        self.syncs = syncs
        self.space_bytes: int | None = None
        self.longest_write: int | None = None
        self.sync_fails: Callable[[Path], bool] = lambda path: False
        self.write_fails: Callable[[Path], bool] = lambda path: False
        self.open_fails: Callable[[Path], bool] = lambda path: False
        self.truncate_fails: Callable[[Path], bool] = lambda path: False
        self.rename_fails: Callable[[Path], bool] = lambda source: False
        self._calls_left: int | None = None
        self._passing = errno.ENOSPC
        self._lasting = True
        self.refused_count = 0
        self.synced: list[Path] = []
        self.open_count = 0
        self.most_open = 0

    def pass_after(self, calls: int | None, error: int = errno.ENOSPC, *, lasting: bool = True) -> None:
        """After so many calls that take space, or with EMFILE descriptors, there is none: for one call, or if
        it is ``lasting`` until this is called again. None: there is enough.
        """
        self._calls_left, self._passing, self._lasting = calls, error, lasting
        self.refused_count = 0

    def take(self, path: Path, error: int = errno.ENOSPC) -> None:
        if self._calls_left is None or error != self._passing:
            return
        if self._calls_left > 0:
            self._calls_left -= 1
            return
        self.refused_count += 1
        if not self._lasting:
            self._calls_left = None
        raise OSError(error, os.strerror(error), str(path))

    def open(self, path: Path, *, create: bool = False) -> File:
        self.take(path, errno.EMFILE)
        if self.open_fails(path):
            raise OSError(errno.EIO, "open fails", str(path))
        if create and not path.exists():
            self.take(path)
        if create and self.space_bytes == 0 and not path.exists():
            raise OSError(errno.ENOSPC, "no space left", str(path))
        file = _FaultyFile(self, path, self._real.open(path, create=create))
        self.open_count += 1
        self.most_open = max(self.most_open, self.open_count)
        return file

    def scan(self, directory: Path, sized: tuple[str, ...] = ("",)) -> list[DirectoryEntry]:
        self.take(directory, errno.EMFILE)
        if self.open_fails(directory):
            raise OSError(errno.EIO, "scan fails", str(directory))
        return self._real.scan(directory, sized)

    def make_directory(self, path: Path) -> None:
        if not path.exists():
            self.take(path)
        if self.space_bytes == 0 and not path.exists():
            raise OSError(errno.ENOSPC, "no space left", str(path))
        self._real.make_directory(path)

    def rename(self, source: Path, target: Path) -> None:
        self.take(source)
        if self.rename_fails(source):
            raise OSError(errno.EIO, "rename fails", str(source))
        self._real.rename(source, target)

    def remove(self, path: Path) -> None:
        if path.exists():
            self.take(path)  # where even this needs a block, as on Btrfs
        self._real.remove(path)

    def remove_directory(self, path: Path) -> None:
        self.take(path)
        self._real.remove_directory(path)

    def open_directory(self, path: Path) -> File:
        self.take(path, errno.EMFILE)
        self.open_count += 1
        return _FaultyFile(self, path, self._real.open_directory(path))

    def sync_directory(self, path: Path) -> None:
        with closing(self.open_directory(path)) as directory:
            directory.sync()

    def lock(self, path: Path) -> Closeable:
        return self._real.lock(path)

    def note_sync(self, path: Path) -> None:
        self.synced.append(path)
        if self.sync_fails(path):
            raise OSError(errno.EIO, "sync fails", str(path))

    def take_space(self, path: Path, wanted: int) -> int:
        """How many bytes a write of ``wanted`` may take."""
        self.take(path)
        if self.write_fails(path):
            raise OSError(errno.EIO, "write fails", str(path))
        taken = min(wanted, self.longest_write or wanted)
        if self.space_bytes is not None:
            if self.space_bytes == 0:
                raise OSError(errno.ENOSPC, "no space left", str(path))
            taken = min(taken, self.space_bytes)
            self.space_bytes -= taken
        return taken


class _FaultyFile:
    def __init__(self, files: FaultyFiles, path: Path, real: File) -> None:
        self._files = files
        self._path = path
        self._real = real
        self._closed = False

    def fileno(self) -> int:
        return self._real.fileno()

    def write_at(self, position: int, data: Data) -> int:
        taken = self._files.take_space(self._path, len(data))
        return self._real.write_at(position, memoryview(data)[:taken])

    def read_at(self, position: int, size: int) -> bytes:
        return self._real.read_at(position, size)

    def truncate(self, size: int) -> None:
        self._files.take(self._path)
        if self._files.truncate_fails(self._path):
            raise OSError(errno.EIO, "truncate fails", str(self._path))
        self._real.truncate(size)

    def set_modified(self, time_ms: int) -> None:
        self._real.set_modified(time_ms)

    def sync(self) -> None:
        self._files.note_sync(self._path)
        if self._files.syncs:
            self._real.sync()

    def close(self) -> None:
        self._real.close()
        if not self._closed:
            self._closed = True
            self._files.open_count -= 1


class _Node:
    """A file or directory, whatever its name: what it holds, and what of that has been synced."""

    def __init__(self, *, is_directory: bool) -> None:
        self.is_directory = is_directory
        self.names: dict[str, _Node] = {}
        self.synced_names: dict[str, _Node] = {}
        self.synced_data = b""
        self.data: Callable[[], bytes] = lambda: b""


class PowerCut(Exception):
    """The machine is off: nothing after this call happens."""


class VolatileFiles:
    """A disk whose writes are lost at a power cut unless they were synced, names of files included.

    *Not thread-safe: one test.* ``root`` must be empty; it is durable itself. `power_cut` lays out in another
    directory what a machine would find when it comes up again.
    """

    def __init__(self, root: Path) -> None:
        self._real = FileSystem()
        self._root = root
        self._tree = _Node(is_directory=True)
        self.stop_after: int | None = None

    def step(self) -> None:
        """One more call that changes the disk; after ``stop_after`` of them the power is gone."""
        if self.stop_after is not None:
            if self.stop_after == 0:
                raise PowerCut
            self.stop_after -= 1

    def open(self, path: Path, *, create: bool = False) -> File:
        self.step()
        existed = path.exists()
        file = self._real.open(path, create=create)
        parent = self._node(path.parent)
        if not existed:
            parent.names[path.name] = _Node(is_directory=False)
        node = parent.names[path.name]
        node.data = lambda: file.read_at(0, 1 << 30)
        return _VolatileFile(self, file, node)

    def scan(self, directory: Path, sized: tuple[str, ...] = ("",)) -> list[DirectoryEntry]:
        return self._real.scan(directory, sized)

    def make_directory(self, path: Path) -> None:
        self.step()
        self._real.make_directory(path)
        node = self._tree
        for name in path.relative_to(self._root).parts:
            node = node.names.setdefault(name, _Node(is_directory=True))

    def rename(self, source: Path, target: Path) -> None:
        self.step()
        self._real.rename(source, target)
        self._node(target.parent).names[target.name] = self._node(source.parent).names.pop(source.name)

    def remove(self, path: Path) -> None:
        self.step()
        self._real.remove(path)
        del self._node(path.parent).names[path.name]

    def remove_directory(self, path: Path) -> None:
        self.step()
        self._real.remove_directory(path)
        del self._node(path.parent).names[path.name]

    def open_directory(self, path: Path) -> File:
        return _VolatileDirectory(self, path)

    def sync_directory(self, path: Path) -> None:
        self.step()
        if path == self._root.parent:
            return
        node = self._node(path)
        node.synced_names = dict(node.names)

    def lock(self, path: Path) -> Closeable:
        return self._real.lock(path)

    def power_cut(self, after: Path, chance: random.Random | None = None) -> None:
        """Lay out in ``after`` what was synced. With ``chance``, some of the rest as well, as a kernel does
        that writes pages and names back in any order: beginnings of files, and pages of zeros in them.
        """
        after.mkdir()
        self._lay_out(self._tree, after, chance)

    def _lay_out(self, node: _Node, path: Path, chance: random.Random | None) -> None:
        names = dict(node.synced_names)
        if chance is not None:
            for name in sorted(node.names.keys() | node.synced_names.keys()):
                if chance.random() < 0.5:
                    if name in node.names:
                        names[name] = node.names[name]
                    else:
                        del names[name]
            # A rename is one change: what was on the disk has its old name or its new one.
            for name, child in node.names.items():
                if child in node.synced_names.values() and child not in names.values():
                    names[name] = child
        for name, child in names.items():
            if child.is_directory:
                (path / name).mkdir()
                self._lay_out(child, path / name, chance)
            else:
                (path / name).write_bytes(_after_cut(child, chance))

    def _node(self, path: Path) -> _Node:
        node = self._tree
        for name in path.relative_to(self._root).parts:
            node = node.names[name]
        return node


def _after_cut(node: _Node, chance: random.Random | None) -> bytes:
    durable = node.synced_data
    if chance is None:
        return durable
    data = node.data()
    if not data.startswith(durable):
        return chance.choice((durable, data))
    end = chance.randint(len(durable), len(data))
    kept = bytearray(data[:end])
    for page in range(len(durable) // PAGE_BYTES, len(kept) // PAGE_BYTES + 1):
        if chance.random() < 0.2:  # the size was written, this page was not
            start = max(page * PAGE_BYTES, len(durable))
            stop = min((page + 1) * PAGE_BYTES, len(kept))
            kept[start:stop] = bytes(max(0, stop - start))
    return bytes(kept)


class _VolatileDirectory(File):
    def __init__(self, files: VolatileFiles, path: Path) -> None:
        super().__init__(-1)
        self._files = files
        self._path = path

    def sync(self) -> None:
        self._files.sync_directory(self._path)


class _VolatileFile:
    def __init__(self, files: VolatileFiles, real: File, node: _Node) -> None:
        self._files = files
        self._real = real
        self._node = node

    def fileno(self) -> int:
        return self._real.fileno()

    def write_at(self, position: int, data: Data) -> int:
        self._files.step()
        return self._real.write_at(position, data)

    def read_at(self, position: int, size: int) -> bytes:
        return self._real.read_at(position, size)

    def truncate(self, size: int) -> None:
        self._files.step()
        self._real.truncate(size)

    def set_modified(self, time_ms: int) -> None:
        self._files.step()
        self._real.set_modified(time_ms)

    def sync(self) -> None:
        self._files.step()
        self._node.synced_data = self._real.read_at(0, 1 << 30)

    def close(self) -> None:
        data = self._real.read_at(0, 1 << 30)
        self._node.data = lambda: data
        self._real.close()
