"""The records of a ledger that never change, kept in memory by a driver whose store is far away."""

from __future__ import annotations

import re
from contextlib import AbstractContextManager

from pyspark_kafkalog.stores.store import Store

_UNCHANGING = re.compile(r"(^|/)((plans|commits)/\d+\.json|receipts/.+|load\.json)\Z")


class RememberingStore:
    """*Thread-safe: a dictionary.* A store that is asked once for each plan, commit, receipt and `load.json`
    that is there. What is not there is asked for again: another driver may create it.
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

    def remove(self, name: str) -> None:
        self._known.pop(name, None)
        self._store.remove(name)

    def exists(self, name: str) -> bool:
        return name in self._known or self._store.exists(name)

    def names(self, directory: str) -> list[str]:
        return self._store.names(directory)

    def hold(self, name: str, holder: str) -> AbstractContextManager[None]:
        return self._store.hold(name, holder)

    def _remember(self, name: str, data: bytes) -> None:
        if _UNCHANGING.search(name):
            self._known[name] = data
