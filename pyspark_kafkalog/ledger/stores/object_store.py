"""Amazon S3, Google Cloud Storage and Azure as a store, through obstore (extra ``cloud``), and its locks."""

from __future__ import annotations

import errno
import io
import json
import re
import threading
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO, NamedTuple, TypeAlias, cast

from pyspark_kafkalog.errors import LoadBusy, LoadError
from pyspark_kafkalog.ledger.stores.object_clients import INSTEAD, address_of, client, reason
from pyspark_kafkalog.ledger.stores.store import StoredFile, side_by_side

_WRITE_ID = "kafkalogwrite"
"""Metadata of each record: which call of `create` wrote it. Azure's names take no hyphen."""

_WAITS_S = (0.1, 0.3, 1.0, 3.0)
"""Waits before each retry of a create that failed and left nothing; obstore has retried by then."""


class ObjectStore:
    """*Thread-safe.* Needs conditional writes: "if there is none", "if it is still this version"."""

    concurrency = 16

    def __init__(self, location: str) -> None:
        self._address = address_of(location)
        self.location = self.url = location.rstrip("/")

    def create(self, name: str, data: bytes) -> bool:
        """Does not trust "taken", but reads the object that is there: a repeated request whose answer was
        lost meets its own record, and S3 answers 409 where two creates met and perhaps neither wrote.
        """
        write = uuid.uuid4().hex
        for wait_s in (*_WAITS_S, None):
            with self._at(name, "write") as (obstore, store, key):
                from obstore import exceptions as e

                try:
                    obstore.put(
                        store, key, data,
                        mode="create", use_multipart=False, attributes={_WRITE_ID: write},
                    )  # fmt: skip
                    return True
                except (
                    FileNotFoundError, e.InvalidPathError, e.NotSupportedError, e.PermissionDeniedError,
                    e.UnauthenticatedError,
                ):  # fmt: skip
                    raise  # nothing was written, and a retry would fail as well
                except (e.BaseError, OSError):
                    found = self._get(store, key)
                    if found is not None:
                        # A store that drops metadata leaves the content to compare.
                        return found.data == data and found.write in (None, write)
                    if wait_s is None:
                        raise
            time.sleep(wait_s)
        raise AssertionError  # the last round returns or raises

    def read(self, name: str) -> bytes | None:
        found = self.get(name)
        return None if found is None else found.data

    def replace(self, name: str, data: bytes) -> None:
        with self._at(name, "write") as (obstore, store, key):
            obstore.put(store, key, data, use_multipart=False)

    def remove(self, name: str) -> None:
        with self._at(name, "remove") as (obstore, store, key), suppress(FileNotFoundError):
            obstore.delete(store, key)

    def remove_directory(self, directory: str) -> None:
        """A store with real directories keeps them, empty."""
        side_by_side(self, self.remove, [file.name for file in self.files(directory)])

    def exists(self, name: str) -> bool:
        return self.file(name) is not None

    def names(self, directory: str) -> list[str]:
        with self._at(directory, "list") as (obstore, store, key):
            found = obstore.list_with_delimiter(store, prefix=f"{key}/" if key else None)
        paths = [*found["common_prefixes"], *(str(one["path"]) for one in found["objects"])]
        # Some tools mark a directory by an empty object with its name.
        return sorted({path.rpartition("/")[2] for path in paths if path.strip("/") != key})

    @contextmanager
    def hold(self, name: str, holder: str) -> Iterator[None]:
        """A lease of `_LEASE_S`; whoever loses it during a pause cannot create its commit."""
        lease = Lease(self, self._address, name, holder)
        lease.take()
        try:
            yield
        finally:
            lease.release()

    def files(self, directory: str) -> Iterator[StoredFile]:
        directories: set[str] = set()
        empty: list[Any] = []
        with self._at(directory, "list") as (obstore, store, key):
            for found in obstore.list(store, prefix=f"{key}/" if key else None):
                for one in found:
                    directories.update(_above(one["path"], directories))
                    if one["size"]:
                        yield self._stored(one)
                    else:
                        empty.append(one)
            for one in empty:
                if one["path"] not in directories and not self._is_marker(store, one["path"]):
                    yield self._stored(one)

    def _is_marker(self, store: Any, path: str) -> bool:
        """Whether an empty object stands for a directory, as S3A's, EMR's and ABFS's do."""
        if path.endswith("_$folder$"):
            return True
        if path.rpartition("/")[2].startswith(("_", ".")):
            return False
        import obstore

        try:
            return bool(obstore.get(store, path).attributes.get("hdi_isfolder") == "true")
        except FileNotFoundError:  # its name ends with a slash, which obstore does not show
            return True

    def file(self, name: str) -> StoredFile | None:
        with self._at(name, "read") as (obstore, store, key), suppress(FileNotFoundError):
            return self._stored(obstore.head(store, key))
        return None

    def open_file(self, file: StoredFile) -> BinaryIO:
        return cast("BinaryIO", io.BufferedReader(_Reader(self, file), _READ_AHEAD))

    def sync_files(self, names: Iterable[str]) -> None:
        """Does nothing: an object that is there is durable."""

    def read_range(self, name: str, start: int, end: int) -> bytes:
        try:
            with self._at(name, "read") as (obstore, store, key):
                return bytes(obstore.get_range(store, key, start=start, end=end))
        except LoadError as e:
            raise OSError(errno.EIO, str(e)) from None

    def get(self, name: str) -> StoredObject | None:
        with self._at(name, "read") as (_, store, key):
            return self._get(store, key)

    def put_if(self, name: str, data: bytes, version: Version | None) -> Version | None:
        """Write if there is no object, or still this version; the new version, or None if in doubt."""
        with self._at(name, "lock") as (obstore, store, key):
            from obstore.exceptions import AlreadyExistsError, PreconditionError

            mode: Any = "create" if version is None else version
            try:
                return _version_of(obstore.put(store, key, data, mode=mode, use_multipart=False))
            except (AlreadyExistsError, PreconditionError, FileNotFoundError):
                return None

    def _get(self, store: Any, key: str) -> StoredObject | None:
        import obstore

        try:
            result = obstore.get(store, key)
            data = bytes(result.bytes())
        except FileNotFoundError:
            return None
        return StoredObject(data, _version_of(result.meta), result.attributes.get(_WRITE_ID))

    def _stored(self, meta: Any) -> StoredFile:
        prefix = f"{self._address.prefix}/" if self._address.prefix else ""
        modified_ms = int(meta["last_modified"].timestamp() * 1000)
        return StoredFile(str(meta["path"]).removeprefix(prefix), int(meta["size"]), modified_ms)

    @contextmanager
    def _at(self, name: str, verb: str) -> Iterator[tuple[Any, Any, str]]:
        if (name or verb != "list") and any(part in ("", ".", "..") for part in name.split("/")):
            raise LoadError(f"{name!r} cannot be the name of a record in {self.location}")
        store = client(self._address, self.location)
        import obstore
        from obstore.exceptions import BaseError

        where = f"{self.location}/{name}" if name else self.location
        try:
            yield obstore, store, "/".join(part for part in (self._address.prefix, name) if part)
        except (BaseError, OSError) as e:
            if _NO_CREDENTIALS.search(str(e)):
                raise LoadError(
                    f"cannot {verb} {where}: no credentials were found in Spark's keys or the environment, "
                    f"and this machine has no role. Set {INSTEAD[self._address.cloud]}"
                ) from None
            remedy = "check the credentials and what they allow" if _is_denied(e) else "check the store"
            if isinstance(e, FileNotFoundError):
                remedy = "check that the bucket or container exists"
            raise LoadError(f"cannot {verb} {where}: {reason(e)}; {remedy}") from None
        except BaseException as e:
            if type(e).__name__ != "PanicException":  # of obstore's Rust, which is no Exception
                raise
            raise LoadError(
                f"cannot {verb} {where}: obstore failed, perhaps over a line break in a key: {reason(e)}"
            ) from None


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


_NO_CREDENTIALS = re.compile(r"//169\.254\.169\.254/|//metadata(\.google\.internal)?/")
"""Where obstore asks for the role of the machine, after everything else."""

_NO_LOGIN = re.compile("token request|federated token|>InvalidAuthenticationInfo<")
"""In failures that obstore has no class for."""


def _is_denied(error: BaseException) -> bool:
    from obstore.exceptions import PermissionDeniedError, UnauthenticatedError

    refused = isinstance(error, PermissionDeniedError | UnauthenticatedError)
    return refused or _NO_LOGIN.search(str(error)) is not None


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


class Lease:
    """One hold of a name: a small object that a thread rewrites while it lasts. *Thread-safe.*"""

    def __init__(self, store: ObjectStore, place: object, name: str, holder: str) -> None:
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
        content = json.dumps({"holder": self._holder, "id": self._id, "beat": self._beats}).encode()
        written = self._store.put_if(self._name, content, version)
        if written is not None:
            self._version, self._renewed = written, began
        return written is not None

    def _is_ours(self, found: StoredObject) -> bool:
        return f'"id": "{self._id}"'.encode() in found.data

    def _busy(self, found: StoredObject | None) -> str:
        holder = "another driver"
        with suppress(ValueError, KeyError, TypeError):
            holder = str(json.loads(found.data if found else b"")["holder"])
        return f"{self._store.location}/{self._name} is held by {holder}: wait until that ends, or stop it"
