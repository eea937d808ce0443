"""Where a ledger is stored: six operations, and their implementation for a local or shared file system.

`object_store` has the one for clouds.

A ledger relies on `Store.create` being whole, durable and exclusive; `check_store` tests that.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import threading
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlsplit

from pyspark_kafkalog.config.definition import masked
from pyspark_kafkalog.errors import LoadBusy, LoadError, UnsafeStore
from pyspark_kafkalog.ledger.object_store import SCHEMES, ObjectStore, address_of

_UNFINISHED = ".tmp-"
"""Prefix of files that are still being written, or were left by a crash."""

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")


class Store(Protocol):
    """A place for a ledger. Names are relative, with '/' between their parts; directories are made as needed.

    Each method raises `LoadError`, with path and reason, if the place itself fails.
    """

    location: str

    def create(self, name: str, data: bytes) -> bool:
        """Store a new record: whole and durable when this returns True, or not at all.

        False if the name is taken; the record that has it is then durable. Of any number of callers, in any
        threads, processes and machines, one gets True.
        """
        ...

    def read(self, name: str) -> bytes | None:
        """The whole record; None if there is none."""
        ...

    def replace(self, name: str, data: bytes) -> None:
        """Store a hint, replacing any other: readers see the old or the new one. A crash may lose it."""
        ...

    def remove(self, name: str) -> None:
        """Remove a hint, or what a newer record replaces, if it exists; or a directory, if it is empty.

        Plans and commits are never removed.
        """
        ...

    def exists(self, name: str) -> bool:
        """Whether the record exists."""
        ...

    def names(self, directory: str) -> list[str]:
        """The names directly in a directory, "" for the top, sorted; empty if it does not exist."""
        ...

    def hold(self, name: str, holder: str) -> AbstractContextManager[None]:
        """Lock this name until the context or this process ends.

        Raises:
            LoadBusy: it is locked, perhaps in this process; the message has the ``holder`` text of its lock.
        """
        ...


class LocalStore:
    """*Thread-safe: its only state is its path.* A directory; its file system needs hard links and flock.

    A record is written under a temporary name and then linked to its own, which fails if that is taken, on
    every POSIX file system and NFS. A crash leaves at most a file ``.tmp-...``, which `names` omits.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root)
        self.location = str(self.root)

    def create(self, name: str, data: bytes) -> bool:
        path = self._path(name)
        with _failures(path, "write"):
            _make_directory(path.parent)
            unfinished = _write_beside(path, data, durable=True)
            try:
                created = _link(unfinished, path)
            finally:
                unfinished.unlink()
            # Even if the name was taken: its owner may not have synced yet.
            _sync_directory(path.parent)
        return created

    def read(self, name: str) -> bytes | None:
        path = self._path(name)
        with _failures(path, "read"):
            try:
                return path.read_bytes()
            except FileNotFoundError:
                return None

    def replace(self, name: str, data: bytes) -> None:
        path = self._path(name)
        with _failures(path, "write"):
            _make_directory(path.parent)
            unfinished = _write_beside(path, data, durable=False)
            try:
                unfinished.replace(path)
            except OSError:
                unfinished.unlink()
                raise

    def remove(self, name: str) -> None:
        path = self._path(name)
        with _failures(path, "remove"):
            if not path.is_dir():
                path.unlink(missing_ok=True)
                return
            with suppress(FileNotFoundError):
                try:
                    path.rmdir()
                except OSError as e:
                    if e.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                        raise

    def exists(self, name: str) -> bool:
        path = self._path(name)
        with _failures(path, "read"):
            try:
                path.stat()
            except FileNotFoundError:
                return False
            return True

    def names(self, directory: str) -> list[str]:
        path = self._path(directory) if directory else self.root
        with _failures(path, "list"):
            try:
                found = [entry.name for entry in path.iterdir()]
            except FileNotFoundError:
                return []
        return sorted(name for name in found if not name.startswith(_UNFINISHED))

    @contextmanager
    def hold(self, name: str, holder: str) -> Iterator[None]:
        path = self._path(name)
        with _failures(path, "lock"):
            _make_directory(path.parent)
            fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            with _failures(path, "lock"):
                _lock(fd, path)
                os.ftruncate(fd, 0)
                os.pwrite(fd, holder.encode(), 0)
            try:
                yield
            finally:
                with suppress(OSError):
                    os.ftruncate(fd, 0)
        finally:
            os.close(fd)

    def _path(self, name: str) -> Path:
        if any(part in ("", ".", "..") for part in name.split("/")):
            raise LoadError(f"{name!r} cannot be the name of a record in {self.location}")
        return self.root / name


class SubStore:
    """*As thread-safe as its store.* The part of a store below one directory."""

    def __init__(self, store: Store, directory: str) -> None:
        self._store = store
        self._directory = directory
        self.location = f"{store.location}/{directory}"

    def create(self, name: str, data: bytes) -> bool:
        return self._store.create(f"{self._directory}/{name}", data)

    def read(self, name: str) -> bytes | None:
        return self._store.read(f"{self._directory}/{name}")

    def replace(self, name: str, data: bytes) -> None:
        self._store.replace(f"{self._directory}/{name}", data)

    def remove(self, name: str) -> None:
        self._store.remove(f"{self._directory}/{name}")

    def exists(self, name: str) -> bool:
        return self._store.exists(f"{self._directory}/{name}")

    def names(self, directory: str) -> list[str]:
        return self._store.names(f"{self._directory}/{directory}" if directory else self._directory)

    def hold(self, name: str, holder: str) -> AbstractContextManager[None]:
        return self._store.hold(f"{self._directory}/{name}", holder)


def open_store(location: str | os.PathLike[str]) -> Store:
    """The store at a path, a ``file:`` URL or one of `SCHEMES`; a relative path starts at the current
    directory. Nothing is read yet.

    Raises:
        UnsafeStore: a URL of another kind.
    """
    text = os.fspath(location)
    url = _URL.match(text)
    if is_in_cloud(text):
        return ObjectStore(text)
    if url is not None and url[1].lower() == "file":
        parts = urlsplit(text)
        if parts.netloc not in ("", "localhost"):
            raise UnsafeStore(
                f"{masked(text)}: host {parts.netloc!r} in a file: URL; it must be of this machine, file:///path"
            )
        text = unquote(parts.path)
    elif url is not None:
        raise UnsafeStore(
            f"{masked(text)}: a ledger cannot be stored in {url[1]!r}. Use s3://, gs:// or abfss://, or a "
            "path or file: URL, local or on a volume that driver and executors share; docs/loads.md, 'Other "
            "stores', says what another store must offer"
        )
    if not text:
        raise LoadError("the path of the ledgers is empty; it must be a directory")
    return LocalStore(Path(text).absolute())


def is_in_cloud(location: str) -> bool:
    """Whether `open_store` takes this as a URL of `SCHEMES`."""
    url = _URL.match(location)
    return url is not None and url[1].lower() in SCHEMES


def same_place(one: str, other: str) -> bool:
    """Whether two locations, which exist, are of one ledger."""
    if is_in_cloud(one) or is_in_cloud(other):
        return is_in_cloud(one) and is_in_cloud(other) and address_of(one) == address_of(other)
    return Path(one).samefile(other)


def _write_beside(path: Path, data: bytes, *, durable: bool) -> Path:
    """A new file with a temporary name in ``path``'s directory; removed again if writing fails."""
    unfinished = path.with_name(_UNFINISHED + uuid.uuid4().hex)
    fd = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        try:
            left = memoryview(data)
            while left:
                left = left[os.write(fd, left) :]
            if durable:
                os.fsync(fd)
        finally:
            os.close(fd)
    except BaseException:
        unfinished.unlink()
        raise
    return unfinished


def _link(unfinished: Path, path: Path) -> bool:
    """Give a file its own name; False if that is taken."""
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


def _lock(fd: int, path: Path) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(fd, 4096, 0).decode("utf-8", "replace") or "another driver"
        raise LoadBusy(f"{path} is held by {holder}: wait until that ends, or stop it") from None


def _make_directory(path: Path) -> None:
    """Make a directory and its missing parents, durably."""
    if path.is_dir():
        return
    _make_directory(path.parent)
    with suppress(FileExistsError):
        path.mkdir()
    if not path.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
    _sync_directory(path.parent)


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
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
    """Turn an OSError into a `LoadError` with path and remedy."""
    try:
        yield
    except OSError as e:
        remedy = _REMEDIES.get(e.errno or 0, "check the file system")
        raise LoadError(f"cannot {verb} {path}: {e.strerror or e}; {remedy}") from e


_ROUNDS = 3
_RACERS = 4
_RACED_BYTES = 64 << 10
"""Large enough for a reader to catch a write half done."""


def check_store(store: Store) -> None:
    """Test that a store does what `Store` says; what the test writes is removed."""
    test = _StoreTest(store)
    try:
        test.create_is_exclusive()
        test.hints_are_replaced()
        test.one_racer_wins()
        test.hold_excludes()
    finally:
        test.clean_up()


class _StoreTest:
    """One run of the test. *Not thread-safe*, though it starts threads."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._name = f"proof-{uuid.uuid4().hex}"
        self._made: list[str] = []

    def create_is_exclusive(self) -> None:
        name, data = self._new("create"), b"first\n"
        self._check(self._store.read(name) is None, "it returns a record that nobody wrote")
        self._check(not self._store.exists(name), "a record that nobody wrote exists")
        self._check(self._store.create(name, data), "create reports a new name as taken")
        self._check(
            not self._store.create(name, b"second, and longer\n"), "create accepts a name that is taken"
        )
        self._check(self._store.read(name) == data, "create changed an existing record")
        self._check(self._store.exists(name), "a created record does not exist")
        self._check(name in self._store.names(""), "a created record is not listed")

    def hints_are_replaced(self) -> None:
        name = self._new("replace")
        for data in (b"long, for a hint\n", b"short\n"):
            self._store.replace(name, data)
            self._check(self._store.read(name) == data, "replace does not leave exactly the new content")
        self._store.remove(name)
        self._check(not self._store.exists(name), "remove leaves the record")

    def one_racer_wins(self) -> None:
        """Threads create the same name at the same time, and one reads it meanwhile."""
        payloads = [bytes([ord("a") + racer]) * _RACED_BYTES for racer in range(_RACERS)]
        for at in range(_ROUNDS):
            won, seen = self._race(self._new(f"race-{at}"), payloads)
            self._check(len(won) == 1, f"of {_RACERS} concurrent creates of one name, {len(won)} succeeded")
            self._check(
                seen <= {None, payloads[won[0]]}, "a reader saw half a record, or one that lost the race"
            )

    def hold_excludes(self) -> None:
        name = self._new("hold")
        with self._store.hold(name, "a test"):
            try:
                with self._store.hold(name, "a second test"):
                    self._check(False, "two callers hold one name at the same time")
            except LoadBusy:
                pass
        with self._store.hold(name, "a third test"):
            pass

    def clean_up(self) -> None:
        for name in self._made:
            try:
                self._store.remove(name)
            except LoadError:  # the result of the test says more
                continue

    def _race(self, name: str, payloads: list[bytes]) -> tuple[list[int], set[bytes | None]]:
        """Who created ``name``, as `create` says, and what readers saw of it during the race and after."""
        won: list[int] = []
        failed: list[LoadError] = []
        start = threading.Barrier(len(payloads) + 1)

        def create(racer: int) -> None:
            start.wait()
            try:
                if self._store.create(name, payloads[racer]):
                    won.append(racer)
            except LoadError as e:
                failed.append(e)

        threads = [threading.Thread(target=create, args=(racer,)) for racer in range(len(payloads))]
        for thread in threads:
            thread.start()
        start.wait()
        seen = {self._store.read(name)}
        while any(thread.is_alive() for thread in threads):
            seen.add(self._store.read(name))
        for thread in threads:
            thread.join()
        if failed:
            raise failed[0]
        return won, seen | {self._store.read(name)}

    def _new(self, what: str) -> str:
        self._made.append(f"{self._name}-{what}")
        return self._made[-1]

    def _check(self, holds: bool, otherwise: str) -> None:
        if not holds:
            raise UnsafeStore(
                f"{self._store.location} cannot hold a ledger: {otherwise}. Choose a path on a local or "
                "NFS file system, or Amazon S3, Google Cloud Storage or Azure; docs/loads.md, 'Other "
                "stores', says what is needed"
            )
