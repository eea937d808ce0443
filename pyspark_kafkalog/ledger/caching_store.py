"""A store that caches the unchanging records of a ledger, for a driver with a remote store."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

from pyspark_kafkalog.ledger.records import HEAD, LOAD
from pyspark_kafkalog.ledger.stores.store import Store, StoredFile, at_once

_KEPT = re.compile(r"(^|/)(commits/\d+\.json|receipts/.+|load\.json|HEAD\.json)\Z")
"""Records that never change, and ``HEAD.json``: an old hint only costs more requests.

Plans are read each time: a commit needs its plan unchanged.
"""


class CachingStore:
    """*Thread-safe: a dictionary.* Reads each existing commit, receipt, ``load.json`` and hint once.

    It asks again for missing ones, which another driver may create.
    """

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
