"""What a ledger and the tables of loads need of the place where they lie.

A ledger relies on `Store.create` being whole, durable and exclusive; `store_check` tests that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any, BinaryIO, NamedTuple, Protocol, TypeVar

K = TypeVar("K")
T = TypeVar("T")


class StoredFile(NamedTuple):
    """A file or record as it is listed; ``modified_ms`` is UTC, epoch."""

    name: str
    bytes: int
    modified_ms: int


class Store(Protocol):
    """A place for a ledger. Names are relative, with '/' between their parts; directories are made as needed.

    Each method raises `LoadError`, with path and reason, if the place itself fails.
    """

    location: str
    concurrency: int
    """How many calls at once are worth it: 1 where none waits for a network."""

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
        """Remove a file if it exists. Plans and commits are never removed."""
        ...

    def remove_directory(self, directory: str) -> None:
        """Remove all files at any depth below a directory, and the directory. If interrupted, repeat it."""
        ...

    def exists(self, name: str) -> bool:
        """Whether the record exists."""
        ...

    def names(self, directory: str) -> list[str]:
        """The names directly in a directory, "" for the top, sorted; empty if it does not exist."""
        ...

    def files(self, directory: str) -> Iterator[StoredFile]:
        """All files at any depth below a directory, "" for the top, unsorted; none if it does not exist."""
        ...

    def hold(self, name: str, holder: str) -> AbstractContextManager[None]:
        """Lock this name until the context or this process ends.

        Raises:
            LoadBusy: it is locked, perhaps in this process; the message has the ``holder`` text of its lock.
        """
        ...


class FileStore(Store, Protocol):
    """A store whose other files, which Spark wrote, can be read. Names are those of `Store`."""

    url: str
    """What Spark calls this place; a file is at ``url + "/" + name``."""

    def file(self, name: str) -> StoredFile | None:
        """One file; None if it does not exist."""
        ...

    def open_file(self, file: StoredFile) -> BinaryIO:
        """A file for reading at any position; reading fails with an OSError."""
        ...

    def sync_files(self, names: Iterable[str]) -> None:
        """Make files and their names durable, if that was not done when they were written."""
        ...


def side_by_side(store: Store, call: Callable[[K], T], given: Iterable[K]) -> list[T]:
    """What ``call`` returns for each of the ``given``, in order; as many at once as the store is worth."""
    wanted = list(given)
    if min(store.concurrency, len(wanted)) < 2:
        return [call(one) for one in wanted]
    with ThreadPoolExecutor(min(store.concurrency, len(wanted))) as pool:
        return list(pool.map(call, wanted))


def at_once(store: Store, *calls: Callable[[], Any]) -> list[Any]:
    """As `side_by_side`, what each of the calls returns."""
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
