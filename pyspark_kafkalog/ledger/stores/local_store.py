"""A directory of a local or shared file system as a store."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import uuid
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from pyspark_kafkalog.errors import LoadBusy, LoadError, UnsafeStore
from pyspark_kafkalog.ledger.stores.store import NewFile, StoredFile

_UNFINISHED = ".tmp-"

_FSYNCS_AT_ONCE = 8


class LocalStore:
    """*Thread-safe.* A directory; its file system needs hard links and flock. A record is written as
    ``.tmp-...``, which `names` omits, and linked to its name, which fails if that is taken, on POSIX and NFS.
    """

    concurrency = 1

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root)
        self.location = str(self.root)
        self.url = f"file:{self.root}"

    def create(self, name: str, data: bytes) -> bool:
        with self._at(name, "write") as path:
            _make_directory(path.parent)
            unfinished = _write_beside(path, data, durable=True)
            try:
                created = _link(unfinished, path)
            finally:
                unfinished.unlink()
            # Even if the name was taken: its owner may not have synced yet.
            _sync(path.parent)
        return created

    def read(self, name: str) -> bytes | None:
        with self._at(name, "read") as path, suppress(FileNotFoundError):
            return path.read_bytes()
        return None

    def replace(self, name: str, data: bytes) -> None:
        with self._at(name, "write") as path:
            _make_directory(path.parent)
            unfinished = _write_beside(path, data, durable=False)
            try:
                unfinished.replace(path)
            except OSError:
                unfinished.unlink()
                raise

    def remove(self, name: str) -> None:
        with self._at(name, "remove") as path:
            path.unlink(missing_ok=True)

    def remove_directory(self, directory: str) -> None:
        with self._at(directory, "remove") as path, suppress(FileNotFoundError):
            shutil.rmtree(path)

    def exists(self, name: str) -> bool:
        return self._status(name) is not None

    def names(self, directory: str) -> list[str]:
        names: list[str] = []
        with self._at(directory, "list") as path, suppress(FileNotFoundError):
            names = [entry.name for entry in path.iterdir()]
        return sorted(name for name in names if not name.startswith(_UNFINISHED))

    @contextmanager
    def hold(self, name: str, holder: str) -> Iterator[None]:
        with self._at(name, "lock") as path:
            _make_directory(path.parent)
            fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            with _failures(path, "lock"):
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    other = os.pread(fd, 4096, 0).decode("utf-8", "replace") or "another driver"
                    raise LoadBusy(f"{path} is held by {other}: wait until that ends, or stop it") from None
                os.ftruncate(fd, 0)
                os.pwrite(fd, holder.encode(), 0)
            try:
                yield
            finally:
                with suppress(OSError):
                    os.ftruncate(fd, 0)
        finally:
            os.close(fd)

    def files(self, directory: str) -> Iterator[StoredFile]:
        """A symbolic link is a file and is not followed."""
        with self._at(directory, "list") as path:
            yield from self._files(path)

    def directories(self, directory: str) -> Iterator[StoredFile]:
        with self._at(directory, "list") as path:
            for above, names, _ in os.walk(path):
                for below in (Path(above, name) for name in names):
                    with suppress(FileNotFoundError):
                        yield _stored(f"{below.relative_to(self.root).as_posix()}/", below.lstat())

    def file(self, name: str) -> StoredFile | None:
        status = self._status(name)
        return None if status is None else _stored(name, status)

    def open_file(self, file: StoredFile) -> BinaryIO:
        return self._path(file.name).open("rb")

    def sync_files(self, names: Iterable[str]) -> None:
        paths = [self._path(name) for name in names]
        with _failures(self.root, "write"):
            with ThreadPoolExecutor(_FSYNCS_AT_ONCE) as pool:
                deque(pool.map(_sync, paths), maxlen=0)
            made = {parent for path in paths for parent in path.parents if parent.is_relative_to(self.root)}
            for parent in sorted(made, reverse=True):  # outermost last, when all others exist
                _sync(parent)

    def new_file(self, name: str) -> NewFile:
        return _LocalFile(self._path(name))

    def _files(self, path: Path) -> Iterator[StoredFile]:
        try:
            entries = list(os.scandir(path))
        except FileNotFoundError:
            return
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from self._files(Path(entry.path))
                continue
            with suppress(FileNotFoundError):
                name = Path(entry.path).relative_to(self.root).as_posix()
                yield _stored(name, entry.stat(follow_symlinks=False))

    def _status(self, name: str) -> os.stat_result | None:
        with self._at(name, "read") as path, suppress(FileNotFoundError):
            return path.stat()
        return None

    @contextmanager
    def _at(self, name: str, verb: str) -> Iterator[Path]:
        path = self.root if (name, verb) == ("", "list") else self._path(name)
        with _failures(path, verb):
            yield path

    def _path(self, name: str) -> Path:
        if any(part in ("", ".", "..") for part in name.split("/")):
            raise LoadError(f"{name!r} cannot be the name of a record in {self.location}")
        return self.root / name


class _LocalFile(NewFile):
    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        with _failures(path, "write"):
            _make_directory(path.parent)
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)

    def _write(self, data: bytes) -> None:
        with _failures(self._path, "write"):
            _write_all(self._fd, data)

    def _close(self) -> None:
        with _failures(self._path, "write"):
            try:
                os.fsync(self._fd)
                _sync(self._path.parent)
            except OSError:
                self._path.unlink(missing_ok=True)
                raise
            finally:
                os.close(self._fd)

    def _abort(self) -> None:
        os.close(self._fd)
        with suppress(OSError):
            self._path.unlink()


def _write_all(fd: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(fd, left) :]


def _stored(name: str, status: os.stat_result) -> StoredFile:
    return StoredFile(name, status.st_size, status.st_mtime_ns // 1_000_000)


def _write_beside(path: Path, data: bytes, *, durable: bool) -> Path:
    unfinished = path.with_name(_UNFINISHED + uuid.uuid4().hex)
    fd = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        try:
            _write_all(fd, data)
            if durable:
                os.fsync(fd)
        finally:
            os.close(fd)
    except BaseException:
        unfinished.unlink()
        raise
    return unfinished


def _link(unfinished: Path, path: Path) -> bool:
    try:
        os.link(unfinished, path)
    except FileExistsError:
        # NFS may have made the link, lost the reply, and found the link when it tried again.
        return unfinished.stat().st_nlink > 1
    except OSError as e:
        if e.errno in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EXDEV):
            raise UnsafeStore(
                f"{path}: this file system has no hard links ({e.strerror}), needed for an exclusive create; "
                "choose a path on another one"
            ) from e
        raise
    return True


def _make_directory(path: Path) -> None:
    if path.is_dir():
        return
    _make_directory(path.parent)
    with suppress(FileExistsError):
        path.mkdir()
    if not path.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
    _sync(path.parent)


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


_REMEDIES = {
    errno.ENOSPC: "free space there",
    errno.EDQUOT: "free space there",
    errno.EACCES: "allow it, or choose a path that driver and executors may write",
    errno.EPERM: "allow it, or choose a path that driver and executors may write",
    errno.EROFS: "choose a path that driver and executors may write",
    errno.ENOTDIR: "a part of the path is a file; choose another",
    errno.ENAMETOOLONG: "choose a shorter one",
}


@contextmanager
def _failures(path: Path, verb: str) -> Iterator[None]:
    try:
        yield
    except OSError as e:
        remedy = _REMEDIES.get(e.errno or 0, "check the file system")
        raise LoadError(f"cannot {verb} {path}: {e.strerror or e}; {remedy}") from e
