"""Opens the store at a path or URL, and tests whether it does what `Store` promises."""

from __future__ import annotations

import os
import re
import threading
import uuid
from contextlib import suppress

from pyspark_kafkalog.config.definition import masked
from pyspark_kafkalog.errors import LoadBusy, LoadError, UnsafeStore
from pyspark_kafkalog.ledger.stores.hdfs_store import HDFS_SCHEME, HdfsStore
from pyspark_kafkalog.ledger.stores.local_store import LocalStore
from pyspark_kafkalog.ledger.stores.object_clients import OBJECT_SCHEMES, is_object_store
from pyspark_kafkalog.ledger.stores.object_store import ObjectStore
from pyspark_kafkalog.ledger.stores.store import FileStore, Store

REMOTE_SCHEMES = (*OBJECT_SCHEMES, HDFS_SCHEME)

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):")
_FILE_URL = re.compile(r"(?i)file:(?://(?P<host>[^/]*))?(?P<path>/.*)")
_DATABRICKS_MOUNT = re.compile(r"/+(Volumes|dbfs)(/|$)")
_DATABRICKS = "DATABRICKS_RUNTIME_VERSION"
"""Set in every process on a Databricks cluster; elsewhere the two mount names have no special meaning."""


def open_store(location: str | os.PathLike[str]) -> FileStore:
    """The store at a path (relative to the current directory), a ``file:`` URL or one of `REMOTE_SCHEMES`.
    Reads nothing yet. Raises `UnsafeStore` for other URLs, and where no file can be created exclusively.
    """
    text = os.fspath(location)
    if is_object_store(text):
        return ObjectStore(text)
    if is_remote(text):
        return HdfsStore(text)
    path = os.path.abspath(_local_path(text))  # noqa: PTH100  Path.resolve would follow links
    if _DATABRICKS in os.environ and _DATABRICKS_MOUNT.match(path):
        raise _databricks(text)
    return LocalStore(path)


def is_remote(location: str) -> bool:
    scheme, found, _ = location.partition(":/")
    return bool(found) and scheme.lower() in REMOTE_SCHEMES


def _local_path(text: str) -> str:
    if not text:
        raise LoadError("the path of a ledger or table is empty; it must be a directory")
    url = _URL.match(text)
    if url is None:
        return text
    scheme = url[1].lower()
    if scheme == "dbfs":
        raise _databricks(text)
    file = _FILE_URL.fullmatch(text)
    if file is None:
        raise UnsafeStore(
            f"{masked(text)}: a ledger or table of loads cannot be at a URL of {scheme!r}. Allowed: s3://, "
            "gs://, abfss://, hdfs://, file:///path, or a path that driver and executors share; "
            "docs/loads.md, 'Other stores', says what another store must offer"
        )
    if file["host"] not in (None, "", "localhost"):
        raise UnsafeStore(
            f"{masked(text)}: {file['host']!r} is another host; a file: URL must be of this one, file:///path"
        )
    if "%" in file["path"]:  # Spark would look for a directory with this name
        raise UnsafeStore(f"{masked(text)}: a file: URL must not contain %; give the path instead")
    return file["path"]


def _databricks(text: str) -> UnsafeStore:
    return UnsafeStore(
        f"{masked(text)}: a Databricks volume or DBFS path cannot hold a ledger or a load's table: "
        "these mounts cannot create a file exclusively. Use the cloud URL behind it (s3://, gs:// or "
        "abfss://): DESCRIBE VOLUME shows a volume's, dbutils.fs.mounts() that of a DBFS mount"
    )


def is_same_store(one: Store, other: Store) -> bool:
    """Whether a file written in one store is in the other: perhaps one place under two names."""
    if one.location == other.location:
        return True
    name = f"proof-{uuid.uuid4().hex}"
    one.replace(name, b"")
    try:
        return other.exists(name)
    finally:
        with suppress(LoadError):
            one.remove(name)


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
