"""The interface of stores for ledgers and tables of loads. A ledger relies on `Store.create` being whole,
durable and exclusive; `check_store` tests that.
"""

from __future__ import annotations

import os
import re
import tempfile
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any, BinaryIO, NamedTuple, Protocol, TypeVar

from pyspark_kafkalog.errors import LoadError
from pyspark_kafkalog.formats.base import crc32c
from pyspark_kafkalog.ledger.records import HEAD, LOAD

K = TypeVar("K")
T = TypeVar("T")


class StoredFile(NamedTuple):
    """A listed file or record; ``modified_ms`` is UTC, epoch."""

    name: str
    bytes: int
    modified_ms: int


class Store(Protocol):
    """A place for a ledger. Names are relative, with '/' between parts. Methods raise `LoadError`."""

    location: str
    concurrency: int
    """Useful number of calls in parallel: 1 if none waits for a network."""

    def create(self, name: str, data: bytes) -> bool:
        """Store a new record: whole and durable when this returns True, or not at all. False if the name is
        taken; that record is then durable. Of any callers, on any machines, one gets True.
        """
        ...

    def read(self, name: str) -> bytes | None: ...

    def replace(self, name: str, data: bytes) -> None:
        """Store a hint, replacing any other: readers see the old or the new one. A crash may lose it."""
        ...

    def remove(self, name: str) -> None:
        """Remove a file if it exists. Plans and commits are never removed."""
        ...

    def remove_directory(self, directory: str) -> None:
        """Remove a directory with all files at any depth. Can be repeated after an interruption."""
        ...

    def exists(self, name: str) -> bool: ...

    def names(self, directory: str) -> list[str]:
        """The names directly in a directory, "" for the top, sorted; empty if it does not exist."""
        ...

    def files(self, directory: str) -> Iterator[StoredFile]:
        """All files at any depth below a directory, "" for the top, unsorted; none if it does not exist."""
        ...

    def hold(self, name: str, holder: str) -> AbstractContextManager[None]:
        """Lock this name until the context or this process ends. Raises `LoadBusy` if it is locked, even by
        this process, with the ``holder`` text of its lock.
        """
        ...


class FileStore(Store, Protocol):
    """A store that also holds a table's files. Names are those of `Store`."""

    url: str
    """Spark's name of this place; a file is at ``url + "/" + name``."""

    def file(self, name: str) -> StoredFile | None: ...

    def directories(self, directory: str) -> Iterator[StoredFile]:
        """The directories below a directory, unsorted, with a slash after their names. An object store has
        only those that are marked: of S3's, by S3A.
        """
        ...

    def open_file(self, file: StoredFile) -> BinaryIO:
        """A file for reading at any position; reading fails with an OSError."""
        ...

    def sync_files(self, names: Iterable[str]) -> None:
        """Make files and their names durable, unless writing them did."""
        ...

    def new_file(self, name: str) -> NewFile:
        """A file to write under a name that nobody else uses."""
        ...


class NewFile(ABC):
    """A file in a store as it is written, with its ``bytes`` and their ``crc32c`` so far. *Not thread-safe.*

    Failures are `LoadError`.
    """

    closed = False

    def __init__(self) -> None:
        self.bytes = 0
        self.crc32c = 0

    def write(self, data: bytes) -> int:
        self._write(data)
        self.bytes += len(data)
        self.crc32c = crc32c(data, self.crc32c)
        return len(data)

    def tell(self) -> int:
        return self.bytes

    def flush(self) -> None:  # noqa: B027  `close` makes the file durable
        """Does nothing, but pyarrow calls it."""

    def close(self) -> None:
        """Make the file whole and durable, or raise and leave none."""
        self.closed = True
        self._close()

    def abort(self) -> None:
        """Leave no file, as far as the store can be reached. Does nothing after `close`."""
        if not self.closed:
            self.closed = True
            self._abort()

    @abstractmethod
    def _write(self, data: bytes) -> None: ...

    @abstractmethod
    def _close(self) -> None: ...

    @abstractmethod
    def _abort(self) -> None: ...


class SpooledFile(NewFile):
    """A file that is written on this machine, and sent to a store elsewhere by ``upload``: a large one by a
    thread while it is written, others in `close`.
    """

    def __init__(self, upload: Callable[[Spool], None]) -> None:
        super().__init__()
        self._upload = upload
        self._spool = Spool()
        self._sending: ThreadPoolExecutor | None = None
        self._sent: Future[None] | None = None

    def _write(self, data: bytes) -> None:
        self._spool.write(data)
        if self._sent is None and self._spool.size >= _SENT_EARLY_BYTES:
            self._sending = ThreadPoolExecutor(1, "kafkalog-upload")
            self._sent = self._sending.submit(self._upload, self._spool)
        if self._sent is not None and self._sent.done():
            self._sent.result()  # it failed: there is more to send

    def _close(self) -> None:
        self._spool.end()
        try:
            if self._sent is None:
                self._upload(self._spool)
            else:
                self._sent.result()
        finally:
            self._end()

    def _abort(self) -> None:
        self._spool.give_up()
        self._end()

    def _end(self) -> None:
        if self._sending is not None:
            self._sending.shutdown()
        self._spool.close()


_SENT_EARLY_BYTES = 16 << 20


class GivenUp(Exception):
    """The writer of a file gave up while it was uploaded."""


class Spool:
    """*Thread-safe: one thread writes, one reads.* A file without a name, so it is gone with this process."""

    size: int
    """Bytes so far."""
    is_whole: bool
    """Whether that is all."""

    def __init__(self) -> None:
        self.size, self.is_whole, self._is_given_up = 0, False, False
        self._changed = threading.Condition()
        with _of_spool():
            self._file = tempfile.TemporaryFile(prefix="kafkalog-", buffering=0)  # noqa: SIM115

    def write(self, data: bytes) -> None:
        left = memoryview(data)
        with _of_spool():
            while left:
                left = left[self._file.write(left) :]
        with self._changed:
            self.size += len(data)
            self._changed.notify()

    def end(self) -> None:
        with self._changed:
            self.is_whole = True
            self._changed.notify()

    def give_up(self) -> None:
        with self._changed:
            self._is_given_up = True
            self._changed.notify()

    def check(self) -> None:
        """Raise `GivenUp` if the writer gave up."""
        if self._is_given_up:
            raise GivenUp

    def parts(self, part_bytes: int) -> Iterator[bytes]:
        """All of it from the start, in parts of ``part_bytes``, the last one shorter; waits for what is not
        written yet. Raises `GivenUp`.
        """
        end = 0
        while True:
            start, end = end, end + part_bytes
            with self._changed:
                while self.size < end and not (self.is_whole or self._is_given_up):
                    self._changed.wait()
            self.check()
            if start >= self.size:
                return
            with _of_spool():
                part = os.pread(self._file.fileno(), part_bytes, start)
            yield part

    def close(self) -> None:
        self._file.close()


@contextmanager
def _of_spool() -> Iterator[None]:
    try:
        yield
    except OSError as e:
        raise LoadError(
            f"cannot write a temporary file in {tempfile.gettempdir()}: {e.strerror or e}; free space there, "
            "or set TMPDIR to another directory"
        ) from e


def side_by_side(store: Store, call: Callable[[K], T], given: Iterable[K]) -> list[T]:
    """The results of ``call`` for each of the ``given``, in order; up to `Store.concurrency` in parallel."""
    wanted = list(given)
    if min(store.concurrency, len(wanted)) < 2:
        return [call(one) for one in wanted]
    with ThreadPoolExecutor(min(store.concurrency, len(wanted))) as pool:
        return list(pool.map(call, wanted))


def at_once(store: Store, *calls: Callable[[], Any]) -> list[Any]:
    return side_by_side(store, lambda call: call(), calls)


class SubStore:
    """*As thread-safe as its store.* The part of a store below one directory."""

    def __init__(self, store: Store, directory: str) -> None:
        self._store = store
        self._directory = directory
        self.location, self.concurrency = f"{store.location}/{directory}", store.concurrency

    def create(self, name: str, data: bytes) -> bool:
        return self._store.create(f"{self._directory}/{name}", data)

    def read(self, name: str) -> bytes | None:
        return self._store.read(f"{self._directory}/{name}")

    def replace(self, name: str, data: bytes) -> None:
        self._store.replace(f"{self._directory}/{name}", data)

    def remove(self, name: str) -> None:
        self._store.remove(f"{self._directory}/{name}")

    def remove_directory(self, directory: str) -> None:
        self._store.remove_directory(f"{self._directory}/{directory}")

    def exists(self, name: str) -> bool:
        return self._store.exists(f"{self._directory}/{name}")

    def names(self, directory: str) -> list[str]:
        return self._store.names(f"{self._directory}/{directory}" if directory else self._directory)

    def files(self, directory: str) -> Iterator[StoredFile]:
        for file in self._store.files(f"{self._directory}/{directory}" if directory else self._directory):
            yield file._replace(name=file.name.removeprefix(f"{self._directory}/"))

    def hold(self, name: str, holder: str) -> AbstractContextManager[None]:
        return self._store.hold(f"{self._directory}/{name}", holder)


_KEPT = re.compile(r"(^|/)(commits/\d+\.json|receipts/.+|load\.json|HEAD\.json)\Z")
"""Records that never change, and ``HEAD.json``: an old hint only costs more requests.

Plans are read each time: a commit needs its plan unchanged.
"""


class CachingStore:
    """*Thread-safe: a dictionary.* Missing records, which another driver may create, are not cached."""

    def __init__(self, store: Store) -> None:
        self.location, self.concurrency = store.location, store.concurrency
        self._store = store
        self._known: dict[str, bytes] = {}

    def create(self, name: str, data: bytes) -> bool:
        created = self._store.create(name, data)
        if created:
            self._remember(name, data)
        return created

    def read(self, name: str) -> bytes | None:
        data = self._known.get(name)
        if data is None:
            data = self._store.read(name)
            if data is not None:
                self._remember(name, data)
        return data

    def replace(self, name: str, data: bytes) -> None:
        self._known.pop(name, None)
        self._store.replace(name, data)
        self._remember(name, data)

    def remove(self, name: str) -> None:
        self._known.pop(name, None)
        self._store.remove(name)

    def remove_directory(self, directory: str) -> None:
        self._known = {
            name: data for name, data in self._known.items() if not name.startswith(f"{directory}/")
        }
        self._store.remove_directory(directory)

    def exists(self, name: str) -> bool:
        return name in self._known or self._store.exists(name)

    def names(self, directory: str) -> list[str]:
        return self._store.names(directory)

    def files(self, directory: str) -> Iterator[StoredFile]:
        return self._store.files(directory)

    @contextmanager
    def hold(self, name: str, holder: str) -> Iterator[None]:
        """Also reads the records that the holder of a ledger's lock needs first, in parallel."""
        directory = name.rpartition("/")[0]
        with ExitStack() as lock:
            at_once(
                self._store,
                partial(lock.enter_context, self._store.hold(name, holder)),
                *(partial(self.read, f"{directory}/{first}") for first in (LOAD, HEAD)),
            )
            yield

    def _remember(self, name: str, data: bytes) -> None:
        if _KEPT.search(name):
            self._known[name] = data
