"""A lock in an object store: an object that its holder rewrites while it runs, and removes at the end."""

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
"""A lock not renewed for this long, by the waiting driver's clock, is taken over."""


Version: TypeAlias = dict[str, Any]
"""Identifies a version of an object in a conditional request."""


class StoredObject(NamedTuple):
    """An object's content and version, and the id of its `create` call, if the store keeps it."""

    data: bytes
    version: Version
    write: str | None


class Conditional(Protocol):
    """What a lease needs from its store."""

    location: str

    def remove(self, name: str) -> None: ...

    def get(self, name: str) -> StoredObject | None:
        """The object with its version, or None."""
        ...

    def put_if(self, name: str, data: bytes, version: Version | None) -> Version | None:
        """Write if there is no object, or still this version; the new version, or None if in doubt."""
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
        self._renewed = 0.0
        self._mark = (place, name)
        self._ended = threading.Event()
        self._renewal = threading.Thread(target=self._renew, name="kafkalog-lease", daemon=True)

    def take(self) -> None:
        """Create the lock, or wait until its holder renews it, or has it already (`LoadBusy`), or lets it
        expire.
        """
        with _holding:
            if self._mark in _held:
                raise LoadBusy(self._busy(self._store.get(self._name)))
            _held.add(self._mark)
        try:
            self._wait()
        except BaseException:
            with _holding:
                _held.discard(self._mark)
            raise
        self._renewal.start()

    def _wait(self) -> None:
        seen: StoredObject | None = None
        since = time.monotonic()
        while True:
            expired = seen if time.monotonic() - since > _LEASE_S else None
            may_write = seen is None or expired is not None
            if may_write and self._put(expired.version if expired else None):
                return
            found = self._store.get(self._name)
            if found is not None and self._is_ours(found):  # the answer to our write was lost
                self._version, self._renewed = found.version, since
                return
            if found is None or seen is None:
                seen, since = found, time.monotonic()
            elif found.version != seen.version:
                raise LoadBusy(self._busy(found))
            time.sleep(_RENEWAL_S / 10)

    def release(self) -> None:
        """Remove the lock if it is still ours; one that cannot be removed expires."""
        self._ended.set()
        self._renewal.join()
        if time.monotonic() - self._renewed < _LEASE_S / 2:
            with suppress(LoadError):
                self._store.remove(self._name)
        with _holding:
            _held.discard(self._mark)

    def _renew(self) -> None:
        while not self._ended.wait(_RENEWAL_S):
            with suppress(LoadError):  # tried again at the next beat
                self._beats += 1
                if not self._rewrite():
                    return

    def _rewrite(self) -> bool:
        if self._put(self._version):
            return True
        found = self._store.get(self._name)  # the answer to our write may have been lost
        return found is not None and self._is_ours(found) and self._put(found.version)

    def _put(self, version: Version | None) -> bool:
        began = time.monotonic()  # not when the answer came: others count from the write
        written = self._store.put_if(self._name, self._content(), version)
        if written is not None:
            self._version, self._renewed = written, began
        return written is not None

    def _content(self) -> bytes:
        return json.dumps({"holder": self._holder, "id": self._id, "beat": self._beats}).encode()

    def _is_ours(self, found: StoredObject) -> bool:
        return f'"id": "{self._id}"'.encode() in found.data

    def _busy(self, found: StoredObject | None) -> str:
        holder = "another driver"
        with suppress(ValueError, KeyError, TypeError):
            holder = str(json.loads(found.data if found else b"")["holder"])
        return f"{self._store.location}/{self._name} is held by {holder}: wait until that ends, or stop it"
