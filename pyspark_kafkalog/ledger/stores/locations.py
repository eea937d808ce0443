"""Opens the store at a location: a path, a ``file:`` URL, or a URL of HDFS or an object store."""

from __future__ import annotations

import os
import re
import uuid
from contextlib import suppress

from pyspark_kafkalog.config.definition import masked
from pyspark_kafkalog.errors import LoadError, UnsafeStore
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
    """Whether two stores are one place, perhaps under two names (a link, two spellings of a bucket or host).

    Writes a file in one and looks for it in the other.
    """
    if one.location == other.location:
        return True
    name = f"proof-{uuid.uuid4().hex}"
    one.replace(name, b"")
    try:
        return other.exists(name)
    finally:
        with suppress(LoadError):
            one.remove(name)
