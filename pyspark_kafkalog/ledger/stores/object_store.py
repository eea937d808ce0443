"""Amazon S3, Google Cloud Storage and Azure as a store, through obstore (extra ``cloud``), and its locks."""

from __future__ import annotations

import errno
import io
import json
import logging
import os
import random
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, BinaryIO, NamedTuple, TypeAlias, TypeGuard, TypeVar, cast

from pyspark_kafkalog.clock import SYSTEM_CLOCK, Clock
from pyspark_kafkalog.errors import LoadBusy, LoadError
from pyspark_kafkalog.ledger.stores.object_clients import (
    RETRY_VARIABLE,
    address_of,
    client,
    marker_client,
    may_pass,
    reason,
    remedy,
    retry_timeout_s,
)
from pyspark_kafkalog.ledger.stores.store import NewFile, Spool, SpooledFile, StoredFile, side_by_side

logger = logging.getLogger(__name__)

T = TypeVar("T")

_WRITE_ID = "kafkalogwrite"
"""Metadata of each record: which call of `create` wrote it. Azure's names take no hyphen."""

_BACKOFF_S = 0.1
_BACKOFF_MAX_S = 5.0
_JITTER = 0.2


class ObjectStore:
    """*Thread-safe.* Needs conditional writes: "if there is none", "if it is still this version"."""

    concurrency = 32

    def __init__(self, location: str, clock: Clock = SYSTEM_CLOCK, retry_s: float | None = None) -> None:
        self._address = address_of(location)
        self.location = self.url = location.rstrip("/")
        self.clock = clock
        self._retry_s = retry_timeout_s() if retry_s is None else retry_s

    def create(self, name: str, data: bytes) -> bool:
        """Does not trust "taken", but reads the object that is there: a repeated request whose answer was
        lost meets its own record, and S3 answers 409 where two creates met and perhaps neither wrote.
        """
        write = uuid.uuid4().hex

        def put(obstore: Any, store: Any, key: str) -> bool:
            from obstore.exceptions import BaseError

            try:
                obstore.put(
                    store, key, data, mode="create", use_multipart=False, attributes={_WRITE_ID: write}
                )
            except (BaseError, OSError) as e:
                found = self._get(store, key) if may_pass(e, 0) else None
                if found is None:
                    raise
                # A store that drops metadata leaves the content to compare.
                return found.data == data and found.write in (None, write)
            return True

        return self._ask(name, "write", put)

    def read(self, name: str) -> bytes | None:
        found = self.get(name)
        return None if found is None else found.data

    def replace(self, name: str, data: bytes) -> None:
        self._ask(
            name, "write", lambda obstore, store, key: obstore.put(store, key, data, use_multipart=False)
        )

    def remove(self, name: str) -> None:
        self._find(name, "remove", lambda obstore, store, key: obstore.delete(store, key))

    def remove_directory(self, directory: str) -> None:
        """A store with real directories keeps them, empty."""
        below = list(self._below(directory))
        side_by_side(self, self.remove, [found.name for found in below if not found.name.endswith("/")])
        for marker in self._marked(below):
            self._ask(
                marker.name.rstrip("/"), "remove",
                lambda obstore, _, key: obstore.delete(marker_client(self._address, self.location, key), ""),
            )  # fmt: skip

    def exists(self, name: str) -> bool:
        return self.file(name) is not None

    def names(self, directory: str) -> list[str]:
        found = self._ask(
            directory, "list",
            lambda obstore, store, key: obstore.list_with_delimiter(store, prefix=f"{key}/" if key else None),
        )  # fmt: skip
        paths = [*found["common_prefixes"], *(str(one["path"]) for one in found["objects"])]
        # Some tools mark a directory by an empty object with its name.
        own = self._key(directory)
        return sorted({path.rpartition("/")[2] for path in paths if path.strip("/") != own})

    @contextmanager
    def hold(self, name: str, holder: str) -> Iterator[None]:
        """A lease of `_LEASE_S`; whoever loses it during a pause cannot create its commit."""
        renewing = ObjectStore(self.location, self.clock, retry_s=_RENEWAL_S)
        lease = Lease(self, renewing, self._address, name, holder)
        lease.take()
        try:
            yield
        finally:
            lease.release()

    def files(self, directory: str) -> Iterator[StoredFile]:
        return (found for found in self._below(directory) if not found.name.endswith("/"))

    def directories(self, directory: str) -> Iterator[StoredFile]:
        return self._marked(self._below(directory))

    def _marked(self, below: Iterable[StoredFile]) -> Iterator[StoredFile]:
        """Directories whose marker is an object with a slash at its name's end."""
        if self._address.cloud == "s3":
            yield from (
                one for one in below if one.name.endswith("/") and not one.name.endswith("_$folder$/")
            )

    def _below(self, directory: str) -> Iterator[StoredFile]:
        """All objects below a directory; those that mark one have a slash after their names."""
        found: list[Any] = []

        def read_on(obstore: Any, store: Any, key: str) -> None:
            after = found[-1]["path"] if found else None
            for page in obstore.list(store, prefix=f"{key}/" if key else None, offset=after):
                found.extend(page)

        self._ask(directory, "list", read_on)
        directories: set[str] = set()
        for one in found:
            directories.update(_above(one["path"], directories))
        for one in found:
            file = self._stored(one)
            marks = not file.bytes and (one["path"] in directories or self._is_marker(file.name))
            yield file._replace(name=f"{file.name}/") if marks else file

    def _is_marker(self, name: str) -> bool:
        """Whether an empty object stands for a directory, as S3A's, EMR's and ABFS's do."""
        if name.endswith("_$folder$"):
            return True
        if name.rpartition("/")[2].startswith(("_", ".")):
            return False
        found = self._find(name, "read", lambda obstore, store, key: obstore.get(store, key))
        # Without an object its name ends with a slash, which obstore does not show.
        return found is None or bool(found.attributes.get("hdi_isfolder") == "true")

    def file(self, name: str) -> StoredFile | None:
        found = self._find(name, "read", lambda obstore, store, key: obstore.head(store, key))
        return None if found is None else self._stored(found)

    def open_file(self, file: StoredFile) -> BinaryIO:
        return cast("BinaryIO", io.BufferedReader(_Reader(self, file), _READ_AHEAD))

    def sync_files(self, names: Iterable[str]) -> None:
        """Does nothing: an object that is there is durable."""

    def new_file(self, name: str) -> NewFile:
        return SpooledFile(partial(self._upload, name))

    def _upload(self, name: str, spool: Spool) -> None:
        """In parts if it is large; obstore aborts an upload that fails."""
        is_large = not spool.is_whole or spool.size > _PART_BYTES

        def put(obstore: Any, store: Any, key: str) -> None:
            spool.check()
            obstore.put(
                store, key, spool.parts(_PART_BYTES), use_multipart=is_large,
                chunk_size=_PART_BYTES, max_concurrency=_PARTS_AT_ONCE,
            )  # fmt: skip

        self._ask(name, "write", put)

    def read_range(self, name: str, start: int, end: int) -> bytes:
        try:
            return self._ask(
                name, "read",
                lambda obstore, store, key: bytes(obstore.get_range(store, key, start=start, end=end)),
            )  # fmt: skip
        except LoadError as e:
            raise OSError(errno.EIO, str(e)) from None

    def get(self, name: str) -> StoredObject | None:
        return self._ask(name, "read", lambda _, store, key: self._get(store, key))

    def put_if(self, name: str, data: bytes, version: Version | None) -> Version | None:
        """Write if there is no object, or still this version; the new version, or None if in doubt."""
        mode: Any = "create" if version is None else version

        def put(obstore: Any, store: Any, key: str) -> Version | None:
            from obstore.exceptions import AlreadyExistsError, PreconditionError

            try:
                return _version_of(obstore.put(store, key, data, mode=mode, use_multipart=False))
            except (AlreadyExistsError, PreconditionError, FileNotFoundError):
                return None

        return self._ask(name, "lock", put)

    def _get(self, store: Any, key: str) -> StoredObject | None:
        import obstore

        try:
            result = obstore.get(store, key)
            data = bytes(result.bytes())
        except FileNotFoundError:
            return None
        return StoredObject(data, _version_of(result.meta), result.attributes.get(_WRITE_ID))

    def _key(self, name: str) -> str:
        return "/".join(part for part in (self._address.prefix, name) if part)

    def _stored(self, meta: Any) -> StoredFile:
        prefix = f"{self._address.prefix}/" if self._address.prefix else ""
        modified_ms = int(meta["last_modified"].timestamp() * 1000)
        return StoredFile(str(meta["path"]).removeprefix(prefix), int(meta["size"]), modified_ms)

    def _find(self, name: str, verb: str, call: Callable[[Any, Any, str], Any]) -> Any:
        """As `_ask`; None if there is no such object."""

        def found(obstore: Any, store: Any, key: str) -> Any:
            with suppress(FileNotFoundError):
                return call(obstore, store, key)

        return self._ask(name, verb, found)

    def _ask(self, name: str, verb: str, call: Callable[[Any, Any, str], T]) -> T:
        """The result of ``call(obstore, store, key)``, which is tried again after what may pass."""
        if (name or verb != "list") and any(part in ("", ".", "..") for part in name.split("/")):
            raise LoadError(f"{name!r} cannot be the name of a record in {self.location}")
        where = f"{self.location}/{name}" if name else self.location
        key = self._key(name)
        failures, first_failed = 0, 0.0
        while True:
            store = client(self._address, self.location)
            import obstore
            from obstore.exceptions import BaseError

            try:
                return call(obstore, store, key)
            except (BaseError, OSError) as e:
                now, failures = self.clock.monotonic(), failures + 1
                first_failed = now if failures == 1 else first_failed
                wait_s = min(_BACKOFF_S * 2 ** (failures - 1), _BACKOFF_MAX_S)
                wait_s *= random.uniform(1 - _JITTER, 1 + _JITTER)
                told = f"cannot {verb} {where}: {reason(e)}"
                failure = f"{told}; {remedy(e, self._address.cloud)}"
                if not may_pass(e, failures):
                    raise LoadError(failure) from None
                if (tried_s := now - first_failed) + wait_s > self._retry_s:
                    raise LoadError(
                        f"{failure} (tried for {tried_s:.0f} s; {RETRY_VARIABLE} sets how long)"
                    ) from None
            except BaseException as e:
                if type(e).__name__ != "PanicException":  # of obstore's Rust, which is no Exception
                    raise
                raise LoadError(
                    f"cannot {verb} {where}: obstore failed, perhaps over a line break in a key: {reason(e)}"
                ) from None
            level = logging.WARNING if wait_s > 1 else logging.INFO
            logger.log(level, "%s; trying again in %.1f s", told, wait_s)
            self.clock.sleep(wait_s)


_PART_BYTES = 8 << 20
_PARTS_AT_ONCE = 4

_READ_AHEAD = 64 << 10
"""Bytes of a read request: the footer of a small file."""


class _Reader(io.RawIOBase):
    def __init__(self, store: ObjectStore, file: StoredFile) -> None:
        self._store, self._file = store, file
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = (0, self._at, self._file.bytes)[whence] + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        end = min(self._at + len(buffer), self._file.bytes)
        if end <= self._at:
            return 0
        data = self._store.read_range(self._file.name, self._at, end)
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


def _version_of(answer: Any) -> Version:
    return {k: v for k in ("e_tag", "version") if (v := answer.get(k)) is not None}


def _above(path: str, known: set[str]) -> Iterator[str]:
    while (path := path.rpartition("/")[0]) and path not in known:
        yield path


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


_held: set[tuple[object, str]] = set()
_holding = threading.Lock()
_LOADED = uuid.uuid4().hex


class Lease:
    """One hold of a name: a small object that a thread rewrites while it lasts. *Thread-safe.*

    Its id is this process's: with `_held`, an object with it is our own, or one that we could not remove.
    """

    def __init__(
        self, store: ObjectStore, renewing: ObjectStore, place: object, name: str, holder: str
    ) -> None:
        """``renewing``: the same store, which does not try longer than until the next beat."""
        self._store, self._renewing = store, renewing
        self._clock = store.clock
        self._name = name
        self._holder = holder
        self._id = f"{_LOADED}-{os.getpid()}"
        self._beats = 0
        self._version: Version | None = None
        self._renewed = 0.0
        self._mark = (place, name)
        self._ended = threading.Event()
        self._renewal = threading.Thread(target=self._renew, name="kafkalog-lease", daemon=True)

    def take(self) -> None:
        """Create the lock, or wait until its holder lets it expire; `LoadBusy` once it is renewed."""
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
        since = self._clock.monotonic()
        while True:
            expired = seen if self._clock.monotonic() - since > _LEASE_S else None
            may_write = seen is None or expired is not None
            if may_write and self._put(self._store, expired.version if expired else None):
                return
            asked = self._clock.monotonic()
            found = self._store.get(self._name)
            if self._is_ours(found):
                if self._put(self._store, found.version):
                    return
            elif found is not None and seen is not None and found.version != seen.version:
                raise LoadBusy(self._busy(found))
            now = self._clock.monotonic()
            # While the store did not answer us, it may not have answered the holder either.
            if found is None or seen is None or now - asked > _LEASE_S:
                seen, since = found, now
            self._clock.sleep(_RENEWAL_S / 10)

    def release(self) -> None:
        """Remove the lock if it is still ours; one that cannot be removed expires."""
        self._ended.set()
        self._renewal.join()
        if self._clock.monotonic() - self._renewed < _LEASE_S / 2:
            with suppress(LoadError):
                self._renewing.remove(self._name)
        with _holding:
            _held.discard(self._mark)

    def _renew(self) -> None:
        while not self._ended.wait(_RENEWAL_S):
            with suppress(LoadError):  # tried again at the next beat
                self._beats += 1
                if not self._rewrite():
                    return

    def _rewrite(self) -> bool:
        if self._put(self._renewing, self._version):
            return True
        found = self._renewing.get(self._name)  # the answer to our write may have been lost
        return self._is_ours(found) and self._put(self._renewing, found.version)

    def _put(self, store: ObjectStore, version: Version | None) -> bool:
        began = self._clock.monotonic()  # not when the answer came: others count from the write
        content = json.dumps({"holder": self._holder, "id": self._id, "beat": self._beats}).encode()
        written = store.put_if(self._name, content, version)
        if written is not None:
            self._version, self._renewed = written, began
        return written is not None

    def _is_ours(self, found: StoredObject | None) -> TypeGuard[StoredObject]:
        return found is not None and f'"id": "{self._id}"'.encode() in found.data

    def _busy(self, found: StoredObject | None) -> str:
        holder = "another driver"
        with suppress(ValueError, KeyError, TypeError):
            holder = str(json.loads(found.data if found else b"")["holder"])
        return f"{self._store.location}/{self._name} is held by {holder}: wait until that ends, or stop it"
