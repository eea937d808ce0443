"""A lock in an object store: an object that its holder rewrites while he lives."""

from __future__ import annotations

import json
import threading
import time
import uuid
from contextlib import suppress
from typing import Any, NamedTuple, Protocol, TypeAlias

from pyspark_kafkalog.errors import LoadBusy, LoadError

_RENEWAL_S = 5.0
_LEASE_S = 20.0
"""A lock whose holder did not renew it for so long, by the clock of who waits, is taken over."""


Version: TypeAlias = dict[str, Any]
"""What names a version of an object in a condition."""


class Found(NamedTuple):
    """An object: its content and version, and who wrote it if that is kept."""

    data: bytes
    version: Version
    write: str | None


class Conditional(Protocol):
    """What a lease needs of its store."""

    location: str

    def get(self, name: str) -> Found | None:
        """A record with what a conditional write needs."""
        ...

    def put_if(self, name: str, data: bytes, version: Version | None) -> Version | None:
        """Write if there is no object, or still this version of it, and return the version that was written;
        None if there is another, or nobody knows.
        """
        ...


_held: set[tuple[object, str]] = set()
_holding = threading.Lock()


class Lease:
    """One hold of a name: a small object that a thread rewrites while it lasts. *Thread-safe.*"""

    def __init__(self, store: Conditional, place: object, name: str, holder: str) -> None:
        self._store = store
        self._name = name
        self._holder = holder
        self._id = uuid.uuid4().hex
        self._beats = 0
        self._version: Version | None = None
        self._mark = (place, name)
        self._ended = threading.Event()
        self._renewal = threading.Thread(target=self._renew, name="kafkalog-lease", daemon=True)

    def take(self) -> None:
        """Write the lock, or wait until its holder is known to be alive or dead.

        Raises:
            LoadBusy: he is alive, or in this process.
        """
        with _holding:
            if self._mark in _held:
                raise LoadBusy(self._busy(self._store.get(self._name)))
            _held.add(self._mark)
        try:
            seen, since = self._store.get(self._name), time.monotonic()
            while not self._take_over(seen, since):
                time.sleep(_RENEWAL_S / 10)
                found = self._store.get(self._name)
                if found is not None and found.data and (seen is None or found.version != seen.version):
                    if self._is_ours(found):  # its answer was lost
                        self._version = found.version
                        break
                    raise LoadBusy(self._busy(found))
                if found is None or not found.data:
                    seen = found
        except BaseException:
            with _holding:
                _held.discard(self._mark)
            raise
        self._renewal.start()

    def release(self) -> None:
        """Leave the lock empty if it is still ours; a lease that cannot be released ends by itself."""
        self._ended.set()
        self._renewal.join()
        with suppress(LoadError):
            self._rewrite(b"")
        with _holding:
            _held.discard(self._mark)

    def _take_over(self, seen: Found | None, since: float) -> bool:
        free = seen is None or not seen.data or time.monotonic() - since > _LEASE_S
        if free:
            self._version = self._store.put_if(self._name, self._content(), seen.version if seen else None)
        return self._version is not None

    def _renew(self) -> None:
        while not self._ended.wait(_RENEWAL_S):
            with suppress(LoadError):  # tried again at the next beat
                self._beats += 1
                if not self._rewrite(self._content()):
                    return

    def _rewrite(self, data: bytes) -> bool:
        """Replace the lock; False if it is not ours any more."""
        written = self._store.put_if(self._name, data, self._version)
        if written is None:  # or it was, and the answer was lost
            found = self._store.get(self._name)
            if found is None or not self._is_ours(found):
                return False
            written = self._store.put_if(self._name, data, found.version)
        self._version = written or self._version
        return True

    def _content(self) -> bytes:
        return json.dumps({"holder": self._holder, "id": self._id, "beat": self._beats}).encode()

    def _is_ours(self, found: Found) -> bool:
        return f'"id": "{self._id}"'.encode() in found.data

    def _busy(self, found: Found | None) -> str:
        holder = "another driver"
        with suppress(ValueError, KeyError, TypeError):
            holder = str(json.loads(found.data if found else b"")["holder"])
        return f"{self._store.location}/{self._name} is held by {holder}: wait until that ends, or stop it"
