"""Stores for the tests of ledgers: in memory, and of kinds that crash, count or overwrite."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from pyspark_kafkalog.errors import LoadBusy
from pyspark_kafkalog.ledger.stores.store import Store, StoredFile


class MemoryStore:
    """*Thread-safe.* What `Store` asks for, in a dictionary."""

    concurrency = 1

    def __init__(self) -> None:
        self.location = "memory"
        self.records: dict[str, bytes] = {}
        self._held: dict[str, str] = {}
        self._lock = threading.Lock()

    def create(self, name: str, data: bytes) -> bool:
        with self._lock:
            if name in self.records:
                return False
            self.records[name] = data
            return True

    def read(self, name: str) -> bytes | None:
        return self.records.get(name)

    def replace(self, name: str, data: bytes) -> None:
        self.records[name] = data

    def remove(self, name: str) -> None:
        self.records.pop(name, None)

    def exists(self, name: str) -> bool:
        return name in self.records

    def names(self, directory: str) -> list[str]:
        prefix = f"{directory}/" if directory else ""
        with self._lock:
            below = [name[len(prefix) :] for name in self.records if name.startswith(prefix)]
        return sorted({name.partition("/")[0] for name in below})

    def files(self, directory: str) -> Iterator[StoredFile]:
        prefix = f"{directory}/" if directory else ""
        with self._lock:
            found = [
                StoredFile(name, len(data), 0)
                for name, data in self.records.items()
                if name.startswith(prefix)
            ]
        yield from found

    def remove_directory(self, directory: str) -> None:
        for file in self.files(directory):
            self.remove(file.name)

    @contextmanager
    def hold(self, name: str, holder: str) -> Iterator[None]:
        with self._lock:
            if name in self._held:
                raise LoadBusy(f"held by {self._held[name]}")
            self._held[name] = holder
        try:
            yield
        finally:
            del self._held[name]


class ForgetfulStore(MemoryStore):
    """Its create overwrites what is there, as a plain ``open(path, "w")`` would."""

    def create(self, name: str, data: bytes) -> bool:
        self.records[name] = data
        return True


class Crash(BaseException):
    """The process died. No code that goes on after an `Exception` sees it."""


class WatchedStore:
    """A store whose every operation is told to ``before`` and ``after``, with its name and its record's."""

    def __init__(
        self,
        store: Store,
        before: Callable[[str, str], None] = lambda operation, name: None,
        after: Callable[[str, str], None] = lambda operation, name: None,
    ) -> None:
        self.location, self.concurrency = store.location, store.concurrency
        self._store = store
        self._before = before
        self._after = after

    def create(self, name: str, data: bytes) -> bool:
        with self._watched("create", name):
            return self._store.create(name, data)

    def read(self, name: str) -> bytes | None:
        with self._watched("read", name):
            return self._store.read(name)

    def replace(self, name: str, data: bytes) -> None:
        with self._watched("replace", name):
            self._store.replace(name, data)

    def remove(self, name: str) -> None:
        with self._watched("remove", name):
            self._store.remove(name)

    def remove_directory(self, directory: str) -> None:
        for file in list(self._store.files(directory)):
            self.remove(file.name)

    def exists(self, name: str) -> bool:
        with self._watched("exists", name):
            return self._store.exists(name)

    def names(self, directory: str) -> list[str]:
        with self._watched("names", directory):
            return self._store.names(directory)

    def files(self, directory: str) -> Iterator[StoredFile]:
        with self._watched("files", directory):
            return self._store.files(directory)

    def hold(self, name: str, holder: str) -> AbstractContextManager[None]:
        return self._store.hold(name, holder)

    @contextmanager
    def _watched(self, operation: str, name: str) -> Iterator[None]:
        self._before(operation, name)
        yield
        self._after(operation, name)


def counting(store: Store) -> tuple[WatchedStore, Counter[str]]:
    """The store, and how often each operation was called."""
    counts: Counter[str] = Counter()

    def count(operation: str, name: str) -> None:
        counts[operation] += 1

    return WatchedStore(store, before=count), counts


def crashing(store: Store, at: int | None, *, after: bool) -> WatchedStore:
    """The store, in a process that dies just before or after its operation ``at``, counted from 0."""
    left = [-1 if at is None else at]

    def count(operation: str, name: str) -> None:
        left[0] -= 1
        if left[0] == -1:
            raise Crash(f"{'after' if after else 'before'} {operation} {name}")

    if at is None:
        return WatchedStore(store)
    return WatchedStore(store, after=count) if after else WatchedStore(store, before=count)
