"""Whether a store does what a ledger relies on, tried out before the first record is written."""

from __future__ import annotations

import threading
import uuid

from pyspark_kafkalog.loads.errors import LoadBusy, LoadError, UnsafeStore
from pyspark_kafkalog.loads.store import Store

_ROUNDS = 3
_RACERS = 4
_RACED_BYTES = 64 << 10
"""Enough for a write to be seen half done, where that can be seen."""


def prove(store: Store) -> None:
    """Try the store out, and take away again what that wrote.

    Raises:
        UnsafeStore: it does not do what `Store` says.
        LoadError: it cannot be written to.
    """
    proof = _Proof(store)
    try:
        proof.create_is_exclusive()
        proof.hints_are_replaced()
        proof.one_racer_wins()
        proof.hold_excludes()
    finally:
        proof.clean_up()


class _Proof:
    """One run of the checks. *Not thread-safe*, though it starts threads of its own."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._name = f"proof-{uuid.uuid4().hex}"
        self._made: list[str] = []

    def create_is_exclusive(self) -> None:
        name, data = self._new("create"), b"first\n"
        self._check(self._store.read(name) is None, "a record that nobody wrote can be read")
        self._check(not self._store.exists(name), "a record that nobody wrote is there")
        self._check(self._store.create(name, data), "create says that a new name is taken")
        self._check(
            not self._store.create(name, b"second, and longer\n"), "create takes a name that is taken"
        )
        self._check(self._store.read(name) == data, "create changed what was there")
        self._check(self._store.exists(name), "a record that was created is not there")
        self._check(name in self._store.names(""), "a record that was created is not listed")

    def hints_are_replaced(self) -> None:
        name = self._new("replace")
        for data in (b"long, for a hint\n", b"short\n"):
            self._store.replace(name, data)
            self._check(
                self._store.read(name) == data, "replace does not leave the new content, and that alone"
            )
        self._store.remove(name)
        self._check(not self._store.exists(name), "remove leaves what it should take away")

    def one_racer_wins(self) -> None:
        """Threads create the same name at the same time, and one reads it meanwhile."""
        payloads = [bytes([ord("a") + racer]) * _RACED_BYTES for racer in range(_RACERS)]
        for at in range(_ROUNDS):
            won, seen = self._race(self._new(f"race-{at}"), payloads)
            self._check(
                len(won) == 1, f"of {_RACERS} that created one name at once, {len(won)} were told they did"
            )
            self._check(seen <= {None, payloads[won[0]]}, "a reader saw half a record, or that of a loser")

    def hold_excludes(self) -> None:
        name = self._new("hold")
        with self._store.hold(name, "a proof"):
            try:
                with self._store.hold(name, "a second proof"):
                    self._check(False, "two hold one name at the same time")
            except LoadBusy:
                pass
        with self._store.hold(name, "a third proof"):
            pass

    def clean_up(self) -> None:
        for name in self._made:
            try:
                self._store.remove(name)
            except LoadError:  # the proof's own result says more
                continue

    def _race(self, name: str, payloads: list[bytes]) -> tuple[list[int], set[bytes | None]]:
        """Who were told that they created ``name``, and what could be read of it while they did and after."""
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
                f"{self._store.location} cannot keep a ledger: {otherwise}. Choose a path on a local or "
                "NFS file system; docs/loads.md, 'Other stores', says what is needed"
            )
