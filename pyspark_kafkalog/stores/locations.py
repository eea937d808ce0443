"""Which store a location means: a path, a ``file:`` URL, or a URL of HDFS or an object store."""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from pyspark_kafkalog.config.definition import masked
from pyspark_kafkalog.errors import LoadError, UnsafeStore
from pyspark_kafkalog.stores.hdfs_store import SCHEME, HdfsStore, hdfs_place
from pyspark_kafkalog.stores.local_store import LocalStore
from pyspark_kafkalog.stores.object_clients import SCHEMES, address_of
from pyspark_kafkalog.stores.object_store import ObjectStore
from pyspark_kafkalog.stores.store import FileStore

REMOTE_SCHEMES = (*SCHEMES, SCHEME)
"""Of URLs that `open_store` takes besides ``file:``."""

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")
_DATABRICKS_MOUNT = re.compile(r"/+(Volumes|dbfs)(/|$)")
_DATABRICKS = "DATABRICKS_RUNTIME_VERSION"
"""Set in every process on a cluster of Databricks; elsewhere the two names are as good as any other."""


def open_store(location: str | os.PathLike[str]) -> FileStore:
    """The store at a path, a ``file:`` URL or one of `REMOTE_SCHEMES`; a relative path starts at the current
    directory. Nothing is read yet.

    Raises:
        UnsafeStore: a URL of another kind.
    """
    text = os.fspath(location)
    url = _URL.match(text)
    if is_in_cloud(text):
        return ObjectStore(text)
    if is_remote(text):
        return HdfsStore(text)
    if url is not None and url[1].lower() == "file":
        parts = urlsplit(text)
        if parts.netloc not in ("", "localhost"):
            raise UnsafeStore(
                f"{masked(text)}: host {parts.netloc!r} in a file: URL; it must be of this machine, file:///path"
            )
        text = unquote(parts.path)
    elif url is not None:
        _refuse_databricks(text, mounted=url[1].lower() == "dbfs")
        raise UnsafeStore(
            f"{masked(text)}: a ledger cannot be stored in {url[1]!r}. Use s3://, gs://, abfss:// or "
            "hdfs://, or a path or file: URL, local or on a volume that driver and executors share; "
            "docs/loads.md, 'Other stores', says what another store must offer"
        )
    if not text:
        raise LoadError("the path of the ledgers is empty; it must be a directory")
    path = Path(text).absolute()
    mounted = _DATABRICKS in os.environ and _DATABRICKS_MOUNT.match(str(path)) is not None
    _refuse_databricks(text, mounted=mounted)
    return LocalStore(path)


def is_remote(location: str) -> bool:
    """Whether `open_store` takes this as a URL of `REMOTE_SCHEMES`."""
    url = _URL.match(location)
    return url is not None and url[1].lower() in REMOTE_SCHEMES


def _refuse_databricks(text: str, *, mounted: bool) -> None:
    if mounted:
        raise UnsafeStore(
            f"{masked(text)}: a Databricks volume or DBFS path cannot hold a ledger or a load's table: "
            "these mounts cannot create a file exclusively. Use the cloud URL behind it (s3://, gs:// or "
            "abfss://): DESCRIBE VOLUME shows a volume's, dbutils.fs.mounts() that of a DBFS mount"
        )


def is_in_cloud(location: str) -> bool:
    """Whether this is a URL of an object store."""
    return is_remote(location) and location.partition(":")[0].lower() in SCHEMES


def same_place(one: str, other: str) -> bool:
    """Whether two locations, which exist, are of one ledger."""
    if is_remote(one) or is_remote(other):
        return is_remote(one) and is_remote(other) and _place(one) == _place(other)
    return Path(one).samefile(other)


def _place(location: str) -> tuple[str, ...]:
    return address_of(location) if is_in_cloud(location) else hdfs_place(location)
