"""A ledger's store in Amazon S3, Google Cloud Storage or Azure, through obstore (extra ``cloud``).

No other module knows obstore. It runs threads of its own and hangs in a process that was forked after its
first use, so each process opens its clients when it needs them, and none is ever pickled.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from pyspark_kafkalog.config.definition import masked
from pyspark_kafkalog.errors import LoadBusy, LoadError, UnsafeStore

_CLOUDS = {"s3": "s3", "s3a": "s3", "s3n": "s3", "gs": "gs", "abfs": "azure", "abfss": "azure"}

SCHEMES = tuple(_CLOUDS)
"""Those that `ObjectStore` opens."""

_WRITE_ID = "kafkalogwrite"
"""Metadata of each record: which call of `create` wrote it. Azure's names take no hyphen."""

_WAITS_S = (0.1, 0.3, 1.0, 3.0)
"""Before each further try of a create that failed and left nothing. obstore has tried repeatedly by then."""

_RETRIES = {"max_retries": 4, "retry_timeout": timedelta(seconds=60)}

_RENEWAL_S = 5.0
_LEASE_S = 20.0
"""A lock whose holder did not renew it for so long, by the clock of who waits, is taken over."""


class Address(NamedTuple):
    """Where a ledger is: ``root`` is a bucket, or container@host; ``prefix`` has no slash at its ends."""

    cloud: str
    root: str
    prefix: str


def address_of(location: str) -> Address:
    """The parts of a URL with one of `SCHEMES`.

    Raises:
        UnsafeStore: it has a user and password, a query or a fragment, or names no bucket.
    """
    parts = urlsplit(location)
    scheme = parts.scheme.lower()
    shown = masked(location.partition("?")[0])
    if parts.query or parts.fragment or ":" in parts.netloc:
        raise UnsafeStore(
            f"{shown}: the URL of a store takes no user, port, query or fragment. Give credentials in the "
            "environment"
        )
    azure = _CLOUDS[scheme] == "azure"
    if not parts.netloc or azure != ("@" in parts.netloc):
        form = (
            f"{scheme}://container@account.dfs.core.windows.net/path" if azure else f"{scheme}://bucket/path"
        )
        raise UnsafeStore(f"{shown}: not the URL of a store; it must be {form}")
    prefix = parts.path.strip("/")
    if any(part in ("", ".", "..") for part in prefix.split("/")) and prefix:
        raise UnsafeStore(f"{shown}: a path in a store has no empty part and no . or ..")
    return Address(_CLOUDS[scheme], parts.netloc, prefix)


class ObjectStore:
    """*Thread-safe: its only state is its location.* Objects below a prefix; the store must have conditional
    writes, of which `create` uses "if there is none" and `hold` also "if it is still this one".
    """

    def __init__(self, location: str) -> None:
        self._address = address_of(location)
        self.location = location.rstrip("/")

    def create(self, name: str, data: bytes) -> bool:
        """See `Store.create`.

        "Taken" is not believed: a request whose answer was lost is repeated and then meets its own record,
        and S3 answers 409 where two creates met and neither may have written. What is there decides.
        """
        key, write = self._key(name), uuid.uuid4().hex
        for wait_s in (*_WAITS_S, None):
            with self._failures(name, "write") as store:
                import obstore
                from obstore.exceptions import BaseError

                try:
                    obstore.put(
                        store, key, data,
                        mode="create", use_multipart=False, attributes={_WRITE_ID: write},
                    )  # fmt: skip
                    return True
                except _definite():
                    raise
                except (BaseError, OSError):
                    found = self._get(store, key)
                    if found is not None:
                        # A store that drops metadata leaves the content to compare.
                        return found.data == data and found.write in (None, write)
                    if wait_s is None:
                        raise
            time.sleep(wait_s)
        raise AssertionError  # the last round returns or raises

    def read(self, name: str) -> bytes | None:
        key = self._key(name)
        with self._failures(name, "read") as store:
            found = self._get(store, key)
        return None if found is None else found.data

    def replace(self, name: str, data: bytes) -> None:
        key = self._key(name)
        with self._failures(name, "write") as store:
            import obstore

            obstore.put(store, key, data, use_multipart=False)

    def remove(self, name: str) -> None:
        key = self._key(name)
        with self._failures(name, "remove") as store, suppress(FileNotFoundError):
            import obstore

            obstore.delete(store, key)

    def exists(self, name: str) -> bool:
        key = self._key(name)
        with self._failures(name, "read") as store:
            import obstore

            try:
                obstore.head(store, key)
            except FileNotFoundError:
                return False
            return True

    def names(self, directory: str) -> list[str]:
        key = self._key(directory) if directory else self._address.prefix
        with self._failures(directory, "list") as store:
            import obstore

            found = obstore.list_with_delimiter(store, prefix=f"{key}/" if key else None)
        paths = [*found["common_prefixes"], *(str(one["path"]) for one in found["objects"])]
        # Some tools mark a directory by an empty object with its name.
        return sorted({path.rpartition("/")[2] for path in paths if path.strip("/") != key})

    @contextmanager
    def hold(self, name: str, holder: str) -> Iterator[None]:
        """See `Store.hold`. A lease: it ends `_LEASE_S` after its holder died. It only spares a second driver
        its work: a driver that lost it to a pause is stopped by the commit that it cannot create.
        """
        lease = _Lease(self, name, holder)
        lease.take()
        try:
            yield
        finally:
            lease.release()

    def get(self, name: str) -> Found | None:
        """A record with what a conditional write needs."""
        key = self._key(name)
        with self._failures(name, "read") as store:
            return self._get(store, key)

    def put_if(self, name: str, data: bytes, version: dict[str, Any] | None) -> bool:
        """Write if there is no object, or still this version of it; False otherwise, or if nobody knows."""
        key = self._key(name)
        with self._failures(name, "lock") as store:
            import obstore
            from obstore.exceptions import AlreadyExistsError, PreconditionError

            mode: Any = "create" if version is None else version
            try:
                obstore.put(store, key, data, mode=mode, use_multipart=False)
            except (AlreadyExistsError, PreconditionError, FileNotFoundError):
                return False
            return True

    def _get(self, store: Any, key: str) -> Found | None:
        import obstore

        try:
            result = obstore.get(store, key)
            data = bytes(result.bytes())
        except FileNotFoundError:
            return None
        version = {k: v for k in ("e_tag", "version") if (v := result.meta.get(k)) is not None}
        return Found(data, version, result.attributes.get(_WRITE_ID))

    def _key(self, name: str) -> str:
        if any(part in ("", ".", "..") for part in name.split("/")):
            raise LoadError(f"{name!r} cannot be the name of a record in {self.location}")
        return f"{self._address.prefix}/{name}" if self._address.prefix else name

    @contextmanager
    def _failures(self, name: str, verb: str) -> Iterator[Any]:
        """The client; what it raises becomes a `LoadError` with the record's URL and a remedy."""
        store = _client(self._address, self.location)
        from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError

        where = f"{self.location}/{name}" if name else self.location
        try:
            yield store
        except (BaseError, OSError) as e:
            denied = isinstance(e, PermissionDeniedError | UnauthenticatedError)
            remedy = "check the credentials and what they allow" if denied else "check the store"
            if isinstance(e, FileNotFoundError):
                remedy = "check that the bucket or container exists"
            raise LoadError(f"cannot {verb} {where}: {_reason(e)}; {remedy}") from None


class Found(NamedTuple):
    """An object: content, what names this version of it in a condition, and who wrote it if that is kept."""

    data: bytes
    version: dict[str, Any]
    write: str | None


def _definite() -> tuple[type[BaseException], ...]:
    """Failures that a further try would meet as well, and that wrote nothing."""
    from obstore.exceptions import (
        InvalidPathError,
        NotSupportedError,
        PermissionDeniedError,
        UnauthenticatedError,
    )

    return (
        FileNotFoundError, InvalidPathError, NotSupportedError, PermissionDeniedError, UnauthenticatedError,
    )  # fmt: skip


_LONG_REASON = 300


def _reason(error: BaseException) -> str:
    """What obstore says, without the dump of its error's structure, and on one line."""
    text = re.sub(r"\s+", " ", str(error).partition("\n\nDebug source:")[0]).strip()
    return masked(text[:_LONG_REASON])


_Settings = tuple[tuple[str, Any], ...]
_clients: dict[tuple[Address, _Settings], Any] = {}
_opened_in = 0
_opening = threading.Lock()


def _client(address: Address, location: str) -> Any:
    """This process's client of a bucket.

    Raises:
        UnsafeStore: obstore is not installed.
        LoadError: this process was forked from one that had a client, or the client's settings are bad.
    """
    global _opened_in
    address = address._replace(prefix="")
    settings = _settings(address)
    with _opening:
        if _opened_in not in (0, os.getpid()):
            raise LoadError(
                f"{location}: this process was forked from one that had opened a store, and cannot use it: "
                "start processes by spawn, or open ledgers in the new process only"
            )
        if (address, settings) not in _clients:
            _clients[address, settings] = _open(address, dict(settings), location)
            _opened_in = os.getpid()
        return _clients[address, settings]


SETTINGS_VARIABLE = "KAFKALOG_STORES"
"""Of Python workers' environment: what `give_settings` returned in the driver."""

_given: dict[str, dict[str, Any]] = {}


def give_settings(address: Address, settings: dict[str, Any]) -> str:
    """Use these settings of obstore's, by its names, for a bucket, in this process.

    Returns all that were given, for `SETTINGS_VARIABLE` of other processes; it holds secrets.
    """
    with _opening:
        _given[f"{address.cloud}:{address.root}"] = settings
        return json.dumps(_given, sort_keys=True)


def _settings(address: Address) -> _Settings:
    """What was given, and what obstore does not find by itself in the environment."""
    here = f"{address.cloud}:{address.root}"
    given: dict[str, Any] | None = _given.get(here)
    if given is None:
        given = json.loads(os.environ.get(SETTINGS_VARIABLE) or "{}").get(here)
    settings = dict(given or {})
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    if endpoint and address.cloud == "s3":
        settings.setdefault("endpoint", endpoint)
    return tuple(sorted(settings.items()))


def _open(address: Address, settings: dict[str, Any], location: str) -> Any:
    try:
        from obstore.exceptions import BaseError
        from obstore.store import AzureStore, GCSStore, S3Store
    except ImportError:
        raise UnsafeStore(
            f"{location}: a ledger in a cloud's store needs obstore: pip install 'pyspark-kafkalog[cloud]'"
        ) from None
    # A plain endpoint is only ever given on purpose.
    plain = settings.get("endpoint", "").startswith("http:")
    given: dict[str, Any] = {**settings, "retry_config": _RETRIES, "client_options": {"allow_http": plain}}
    try:
        if address.cloud == "s3":
            return S3Store(address.root, **given)
        if address.cloud == "gs":
            return GCSStore(address.root, **given)
        container, _, host = address.root.partition("@")
        return AzureStore(container, account_name=host.partition(".")[0], **given)
    except (BaseError, ValueError) as e:
        raise LoadError(f"cannot open {location}: {_reason(e)}; check its settings") from None


_held: set[tuple[Address, str]] = set()
_holding = threading.Lock()


class _Lease:
    """One hold of a name: a small object that a thread rewrites while it lasts. *Thread-safe.*"""

    def __init__(self, store: ObjectStore, name: str, holder: str) -> None:
        self._store = store
        self._name = name
        self._holder = holder
        self._id = uuid.uuid4().hex
        self._beats = 0
        self._mark = (address_of(store.location), name)
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
            found = self._store.get(self._name)
            if found is not None and self._is_ours(found):
                self._store.put_if(self._name, b"", found.version)
        with _holding:
            _held.discard(self._mark)

    def _take_over(self, seen: Found | None, since: float) -> bool:
        free = seen is None or not seen.data or time.monotonic() - since > _LEASE_S
        return free and self._store.put_if(self._name, self._content(), seen.version if seen else None)

    def _renew(self) -> None:
        while not self._ended.wait(_RENEWAL_S):
            with suppress(LoadError):  # tried again at the next beat
                found = self._store.get(self._name)
                if found is None or not self._is_ours(found):
                    return
                self._beats += 1
                self._store.put_if(self._name, self._content(), found.version)

    def _content(self) -> bytes:
        return json.dumps({"holder": self._holder, "id": self._id, "beat": self._beats}).encode()

    def _is_ours(self, found: Found) -> bool:
        return f'"id": "{self._id}"'.encode() in found.data

    def _busy(self, found: Found | None) -> str:
        holder = "another driver"
        with suppress(ValueError, KeyError, TypeError):
            holder = str(json.loads(found.data if found else b"")["holder"])
        return f"{self._store.location}/{self._name} is held by {holder}: wait until that ends, or stop it"
