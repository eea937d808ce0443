"""Tests whether a store does what `Store` promises: ``kafkalog verify --store``, and each new ledger."""

from __future__ import annotations

import threading
import uuid
from contextlib import suppress

from pyspark_kafkalog.errors import LoadBusy, LoadError, UnsafeStore
from pyspark_kafkalog.ledger.stores.store import Store

_ROUNDS = 3
_RACERS = 4
_RACED_BYTES = 64 << 10
"""Large enough for a reader to catch a partial write."""


def check_store(store: Store) -> None:
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
        self._check(self._store.read(name) is None, "it returns a record that was never written")
        self._check(not self._store.exists(name), "a record that was never written exists")
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
        payloads = [bytes([ord("a") + racer]) * _RACED_BYTES for racer in range(_RACERS)]
        for at in range(_ROUNDS):
            won, seen = self._race(self._new(f"race-{at}"), payloads)
            self._check(len(won) == 1, f"of {_RACERS} concurrent creates of one name, {len(won)} succeeded")
            self._check(
                seen <= {None, payloads[won[0]]}, "a reader saw half a record, or one that lost the race"
            )

    def hold_excludes(self) -> None:
        name = self._new("hold")
        with self._store.hold(name, "a test"), suppress(LoadBusy), self._store.hold(name, "a second test"):
            self._check(False, "two callers hold one name at the same time")
        with self._store.hold(name, "a third test"):
            pass

    def clean_up(self) -> None:
        for name in self._made:
            with suppress(LoadError):  # the result of the test says more
                self._store.remove(name)

    def _race(self, name: str, payloads: list[bytes]) -> tuple[list[int], set[bytes | None]]:
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
