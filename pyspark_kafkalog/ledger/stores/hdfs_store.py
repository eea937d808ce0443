"""HDFS as a store, through hdfs-native (extra ``hdfs``), without Java: settings from ``HADOOP_CONF_DIR``,
login by Kerberos's ticket cache or ``HADOOP_TOKEN_FILE_LOCATION``. A client hangs in a process forked after
its first use, so each process opens its own.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, BinaryIO, NamedTuple, cast
from urllib.parse import urlsplit

from pyspark_kafkalog.config.definition import masked
from pyspark_kafkalog.errors import LoadBusy, LoadError, UnsafeStore
from pyspark_kafkalog.ledger.stores.store import NewFile, Spool, SpooledFile, StoredFile

HDFS_SCHEME = "hdfs"

_UNFINISHED = ".tmp-"
"""Prefix of records that are still being written, or were left by a crash."""

_WAITS_S = (0.5, 2.0)
"""Waits before each retry of a rename whose answer was lost."""

_ATTEMPTS_AT_ONE = {"dfs.client.failover.max.attempts": "4"}
"""For a single NameNode: Hadoop's default, 15, blocks a caller for three minutes, 4 for about ten seconds."""

_COPIED_BYTES = 8 << 20

_RECOVERY_S = 10.0
"""How long to wait for the lock of a dead holder: HDFS closes its file first."""


class HdfsPlace(NamedTuple):
    """``authority`` is a NameNode's host:port or the name of a nameservice, "" for ``fs.defaultFS``."""

    authority: str
    path: str


def hdfs_place(location: str) -> HdfsPlace:
    """The parts of an ``hdfs:`` URL; `UnsafeStore` if it has more than host and absolute path."""
    parts = urlsplit(location)
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise UnsafeStore(
            f"{masked(location.partition('?')[0])}: the URL of a directory in HDFS takes no user, query or "
            "fragment. Hadoop's own login counts: Kerberos, or HADOOP_USER_NAME"
        )
    if not parts.path.startswith("/"):
        raise UnsafeStore(
            f"{masked(location)}: not a directory in HDFS; it must be hdfs://namenode:8020/path, "
            "hdfs://nameservice/path or hdfs:///path"
        )
    names = [name for name in parts.path.split("/") if name]
    if any(name in (".", "..") for name in names):
        raise UnsafeStore(f"{masked(location)}: a path in a store has no . or ..")
    return HdfsPlace(parts.netloc, "/" + "/".join(names))


class HdfsStore:
    """*Thread-safe.* A record is written to a temporary file, forced to disk, and renamed if it is new."""

    concurrency = 16

    def __init__(self, location: str) -> None:
        self._place = hdfs_place(location)
        root = "" if self._place.path == "/" else self._place.path
        self.location = self.url = f"{HDFS_SCHEME}://{self._place.authority}{root}"
        self._root = root

    def create(self, name: str, data: bytes) -> bool:
        """Succeeds if our own temporary file was renamed, whatever the answer was."""
        with self._at(name, "write") as (client, path):
            unfinished = _write_beside(client, path, data, durable=True)
            try:
                renamed = _rename(client, unfinished, path)
                stored = self.read(name) if renamed is None else None
                if renamed is None and stored is None:
                    raise LoadError(
                        f"cannot write {self.location}/{name}: its temporary file is gone, and nothing is "
                        f"there; does another program remove {_UNFINISHED}* files?"
                    )
                return stored == data if renamed is None else renamed
            finally:
                with suppress(OSError, RuntimeError):
                    client.delete(unfinished)

    def read(self, name: str) -> bytes | None:
        with self._at(name, "read") as (client, path), suppress(FileNotFoundError):
            return bytes(client.read(path).read())
        return None

    def replace(self, name: str, data: bytes) -> None:
        with self._at(name, "write") as (client, path):
            unfinished = _write_beside(client, path, data, durable=False)
            client.rename(unfinished, path, overwrite=True)

    def remove(self, name: str) -> None:
        with self._at(name, "remove") as (client, path):
            client.delete(path)

    def remove_directory(self, directory: str) -> None:
        with self._at(directory, "remove") as (client, path):
            client.delete(path, recursive=True)

    def exists(self, name: str) -> bool:
        return self._info(name) is not None

    def names(self, directory: str) -> list[str]:
        names: list[str] = []
        with self._at(directory, "list") as (client, path), suppress(FileNotFoundError):
            names = [one.path.rpartition("/")[2] for one in client.list_status(path)]
        return sorted(name for name in names if not name.startswith(_UNFINISHED))

    @contextmanager
    def hold(self, name: str, holder: str) -> Iterator[None]:
        """The lock is a file open for writing. HDFS ends a dead client's lease after a minute; on the
        holder's own host its process id shows its death earlier.
        """
        holder_name = f"{name}-holder"
        record = {"holder": holder, "host": socket.gethostname(), "pid": os.getpid()}
        with self._at(name, "lock") as (client, path):
            lock = self._take(client, path, holder_name)
            try:
                self.replace(holder_name, json.dumps(record).encode())
            except BaseException:
                lock.close()
                raise
        try:
            yield
        finally:
            with suppress(LoadError):
                self.remove(holder_name)
            with suppress(OSError, RuntimeError):  # its lease ends with this process
                lock.close()

    def files(self, directory: str) -> Iterator[StoredFile]:
        return (found for found in self._below(directory) if not found.name.endswith("/"))

    def directories(self, directory: str) -> Iterator[StoredFile]:
        return (found for found in self._below(directory) if found.name.endswith("/"))

    def _below(self, directory: str) -> Iterator[StoredFile]:
        with self._at(directory, "list") as (client, path), suppress(FileNotFoundError):
            for one in client.list_status(path, recursive=True):
                yield _stored(one.path[len(self._root) + 1 :] + "/" * one.isdir, one)

    def file(self, name: str) -> StoredFile | None:
        found = self._info(name)
        return None if found is None or found.isdir else _stored(name, found)

    def open_file(self, file: StoredFile) -> BinaryIO:
        with self._at(file.name, "read") as (client, path):
            return cast("BinaryIO", client.read(path))

    def sync_files(self, names: Iterable[str]) -> None:
        """Does nothing: a closed file is on a DataNode; ``dfs.datanode.synconclose`` forces it to disk."""

    def new_file(self, name: str) -> NewFile:
        return SpooledFile(partial(self._upload, name))

    def _upload(self, name: str, spool: Spool) -> None:
        with self._at(name, "write") as (client, path):
            _write(client, path, spool.parts(_COPIED_BYTES), durable=True)

    def _info(self, name: str) -> Any:
        with self._at(name, "read") as (client, path), suppress(FileNotFoundError):
            return client.get_file_info(path)
        return None

    def _take(self, client: Any, path: str, holder_name: str) -> Any:
        until: float | None = None
        while True:
            try:
                return _open_for_writing(client, path)
            except (FileExistsError, RuntimeError) as e:
                if isinstance(e, RuntimeError) and "RecoveryInProgressException" not in str(e):
                    raise
                holder, is_dead = _holder(self.read(holder_name))
                if not is_dead or (until is not None and time.monotonic() > until):
                    raise LoadBusy(
                        f"{self.location}{path[len(self._root) :]} is held by {holder}: wait until that "
                        "ends, or stop it; the lock of a driver that died on another host ends a minute "
                        "after it"
                    ) from None
            if until is None:
                until = time.monotonic() + _RECOVERY_S
                client.recover_lease(path)
            time.sleep(0.2)

    @contextmanager
    def _at(self, name: str, verb: str) -> Iterator[tuple[Any, str]]:
        if (name or verb != "list") and any(part in ("", ".", "..") for part in name.split("/")):
            raise LoadError(f"{name!r} cannot be the name of a record in {self.location}")
        where = f"{self.location}/{name}" if name else self.location
        client = _client(self._place.authority, self.location)
        try:
            yield client, f"{self._root}/{name}" if name else self._place.path
        except (OSError, RuntimeError, ValueError) as e:
            if isinstance(e, PermissionError) or "AccessControlException" in str(e):
                remedy = "allow it, or choose a path that driver and executors may write"
            else:
                remedy = "check the NameNode's address, HADOOP_CONF_DIR and the login"
            raise LoadError(f"cannot {verb} {where}: {_reason(e)}; {remedy}") from None


def _write_beside(client: Any, path: str, data: bytes, *, durable: bool) -> str:
    unfinished = f"{path.rpartition('/')[0]}/{_UNFINISHED}{uuid.uuid4().hex}"
    _write(client, unfinished, [data] if data else [], durable=durable)
    return unfinished


def _write(client: Any, path: str, chunks: Iterable[bytes], *, durable: bool) -> None:
    opened = client.create(path)
    try:
        written = [opened.write(data) for data in chunks]
        if durable and written:
            opened.hsync()
        opened.close()
    except BaseException:
        with suppress(OSError, RuntimeError):
            client.delete(path)
        raise


def _rename(client: Any, unfinished: str, path: str) -> bool | None:
    """Rename to the final name; False if that is taken, None if the temporary file is gone."""
    for wait_s in (*_WAITS_S, None):
        try:
            client.rename(unfinished, path)
            return True
        except FileNotFoundError:
            return None  # most likely done by a request whose answer was lost
        except FileExistsError:
            return not _is_there(client, unfinished)
        except (OSError, RuntimeError):
            if wait_s is None:
                raise
        time.sleep(wait_s)
    raise AssertionError  # the last round returns or raises


def _is_there(client: Any, path: str) -> bool:
    try:
        client.get_file_info(path)
    except FileNotFoundError:
        return False
    return True


def _open_for_writing(client: Any, path: str) -> Any:
    if not _is_there(client, path):
        with suppress(FileExistsError):  # another driver was first, and may have closed it again
            return client.create(path)
    return client.append(path)


def _holder(record: bytes | None) -> tuple[str, bool]:
    try:
        found = json.loads(record or b"")
        holder, host, pid = str(found["holder"]), str(found["host"]), int(found["pid"])
    except (ValueError, KeyError, TypeError):
        return "another driver", False
    if host == socket.gethostname():
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return holder, True
        except OSError:
            pass  # of another user
    return holder, False


def _stored(name: str, info: Any) -> StoredFile:
    return StoredFile(name, int(info.length), int(info.modification_time))


def _reason(error: BaseException) -> str:
    text = str(error).partition("\n")[0].partition("\\n")[0]
    return masked(text.strip()[:300])


_clients: dict[tuple[int, str], Any] = {}
_opening = threading.Lock()


def _client(authority: str, location: str) -> Any:
    """This process's client; `UnsafeStore` without hdfs-native, `LoadError` if the cluster is unknown."""
    mark = os.getpid(), authority
    with _opening:
        if mark not in _clients:
            try:
                from hdfs_native import Client
            except ImportError:
                raise UnsafeStore(
                    f"{location}: HDFS needs hdfs-native: pip install 'pyspark-kafkalog[hdfs]'"
                ) from None
            try:
                url = f"{HDFS_SCHEME}://{authority}" if authority else None
                _clients[mark] = Client(url, _ATTEMPTS_AT_ONE if ":" in authority else None)
            except (OSError, RuntimeError, ValueError) as e:
                raise LoadError(
                    f"cannot open {location}: {_reason(e)}; name host:port of the NameNode, or set "
                    "HADOOP_CONF_DIR"
                ) from None
        return _clients[mark]
