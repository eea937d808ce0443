"""One directory of ``log.dirs``: its lock, its owner, and whether its disk works.

It stores small tables about its logs as text, sealed by a checksum that reveals a torn file::

    kafkalog 1
    <partition directory> <number> <number> ...
    crc32c <eight hex digits, of all lines before>
"""

from __future__ import annotations

import errno
import logging
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec

from kafkalog_broker.disk.filesystem import FileSystem, read_file, replace_file
from kafkalog_broker.disk.process_lock import Closeable, holder_of
from pyspark_kafkalog.clock import Clock
from pyspark_kafkalog.config.properties import format_properties, parse_properties
from pyspark_kafkalog.errors import InvalidConfig, StorageError
from pyspark_kafkalog.formats.base import crc32c
from pyspark_kafkalog.types import encode_id

LOCK_NAME = ".lock"
META_NAME = "meta.properties"
SETTINGS_NAME = "broker.properties"
CLEAN_SHUTDOWN_NAME = ".kafka_cleanshutdown"
RECOVERY_POINTS_NAME = "recovery-points"
FUTURES_NAME = "future-partitions"

_CHANGE = "change"
"""Number of changes of the settings: of two directories the higher one is current."""

_NO_DESCRIPTOR = frozenset({errno.EMFILE, errno.ENFILE})
"""A sync that ends with one of these has not begun: only opening a file needs a descriptor."""
_PASSING = _NO_DESCRIPTOR | {errno.ENOSPC, errno.EDQUOT, errno.ENOMEM, errno.EINTR}
"""Errors that do not mean a broken disk: it is full, or the process lacks descriptors or memory."""

_REFUSALS_LOGGED_SECONDS = 10.0
"""A full disk fails every append: log one line per interval."""

_logger = logging.getLogger(__name__)

_FIRST_LINE = "kafkalog 1"


def write_table(files: FileSystem, path: Path, rows: Mapping[str, tuple[int, ...]], *, durable: bool) -> None:
    lines = [_FIRST_LINE]
    lines += [" ".join((name, *map(str, numbers))) for name, numbers in rows.items()]
    body = ("\n".join(lines) + "\n").encode("ascii")
    replace_file(files, path, body + b"crc32c %08x\n" % crc32c(body), durable=durable)


def read_table(files: FileSystem, path: Path) -> dict[str, tuple[int, ...]] | None:
    """The table at ``path``; None if missing or torn. Raises `OSError`."""
    try:
        data = read_file(files, path)
    except FileNotFoundError:
        return None
    body, mark, seal = data.rpartition(b"crc32c ")
    if not mark or seal != b"%08x\n" % crc32c(body):
        return None
    first, *lines = body.decode("ascii").splitlines()
    if first != _FIRST_LINE:
        return None
    table = {}
    for line in lines:
        name, *numbers = line.split(" ")
        table[name] = tuple(map(int, numbers))
    return table


Table = Mapping[str, tuple[int, ...]]


class PassingError(StorageError):
    """The disk is full, or descriptors or memory are short: nothing is lost, and the same may work later."""


def may_pass(error: OSError) -> bool:
    return error.errno in _PASSING


class DataDirectory:
    """*Thread-safe.* A data directory. ``_lock`` guards ``failure``, set once, the rate limit of error lines
    and the count of names made; ``_syncing_names`` the durable ones. After a failed write or fsync the disk's
    content is unknown: the directory stays offline until the next start recovers it.
    """

    def __init__(self, path: Path, files: FileSystem, clock: Clock) -> None:
        self.path = path
        self.files = files
        self._clock = clock
        self._refusal_logged: float | None = None
        self._refusals_unlogged = 0
        self._held: Closeable | None = None
        self.failure: str | None = None
        self._noted: Table | None = None
        """The last written recovery points."""
        self._lock = threading.Lock()
        self._names_made = self._names_synced = 0
        self._syncing_names = threading.Lock()

    @property
    def online(self) -> bool:
        return self.failure is None

    @property
    def held(self) -> bool:
        return self._held is not None

    def check(self) -> None:
        if self.failure is not None:
            raise StorageError(self.failure)

    def refused(self, doing: str, error: OSError) -> StorageError:
        """Log a failure and return its error: a `PassingError` if it `may_pass`, else as `failed`."""
        if not may_pass(error):
            return self.failed(doing, error)
        text = f"{self.path}: {doing} failed: {error}"
        self._log_refusal(text)
        return PassingError(text)

    @contextmanager
    def refusing(self, doing: str) -> Iterator[None]:
        try:
            yield
        except OSError as e:
            raise self.refused(doing, e) from e

    def _log_refusal(self, text: str) -> None:
        with self._lock:
            now, last = self._clock.monotonic(), self._refusal_logged
            if last is not None and now - last < _REFUSALS_LOGGED_SECONDS:
                self._refusals_unlogged += 1
                return
            others, self._refusals_unlogged = self._refusals_unlogged, 0
            self._refusal_logged = now
        _logger.error("%s%s", text, f" (and {others} more since the last such line)" if others else "")

    @contextmanager
    def syncing(self, doing: str) -> Iterator[None]:
        """As `refusing`, but the directory goes offline unless the file could not even be opened."""
        try:
            yield
        except OSError as e:
            raise (self.refused if e.errno in _NO_DESCRIPTOR else self.failed)(doing, e) from e

    def failed(self, doing: str, error: OSError) -> StorageError:
        """Take the directory offline and return the error."""
        with self._lock:
            if self.failure is None:
                self.failure = f"{self.path} is offline: {doing} failed: {error}"
                _logger.error("%s", self.failure)
            return StorageError(self.failure)

    def open(self) -> None:
        """Create the directory if missing, and lock it. Raises `StorageError`: it is in use; `OSError`."""
        self.files.make_directory(self.path)
        self.files.sync_directory(self.path.parent)
        try:
            self._held = self.files.lock(self.path / LOCK_NAME)
        except BlockingIOError:
            holder = holder_of(self.path / LOCK_NAME)
            if holder is not None and holder.alive:
                raise StorageError(f"{self.path} is in use by another broker, process {holder.pid}") from None
            raise StorageError(f"{self.path} is in use by another broker or an export") from None

    def close(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            held.close()

    def name_made(self) -> int:
        """Register a created partition directory; returns its number for `sync_names`."""
        with self._lock:
            self._names_made += 1
            return self._names_made

    def sync_names(self, number: int) -> None:
        """Make the name with this number durable, with all earlier ones."""
        with self._syncing_names:
            if self._names_synced < number:
                made = self._names_made
                self.files.sync_directory(self.path)
                self._names_synced = made

    def read_meta(self) -> dict[str, str]:
        """Read ``meta.properties``; empty if missing."""
        path, meta = self.path / META_NAME, {}
        try:
            data = read_file(self.files, path)
        except FileNotFoundError:
            return {}
        try:
            meta = parse_properties(data.decode("utf-8"))
            missing = [name for name in ("cluster.id", "node.id") if not meta.get(name)]
            why = f"it has no {missing[0]}" if missing else None
        except UnicodeDecodeError:
            why = "it is not text"
        except InvalidConfig as e:
            why = str(e)
        if why is not None:
            raise InvalidConfig(
                f"{path} is damaged: {why}. Restore it from a backup, or remove it: the broker then writes "
                "a new one, with the cluster id of the other log.dirs or of ZooKeeper, or else a new id"
            )
        return meta

    def write_meta(self, meta: Mapping[str, str]) -> None:
        text = format_properties(meta)
        replace_file(self.files, self.path / META_NAME, text.encode("utf-8"), durable=True)

    def read_settings(self) -> tuple[int, dict[str, str]]:
        """Number of runtime property changes, and the changed ones. Raises `InvalidConfig`: damaged."""
        path = self.path / SETTINGS_NAME
        try:
            fields = parse_properties(read_file(self.files, path).decode("utf-8"))
            return int(fields.pop(_CHANGE)), fields
        except FileNotFoundError:
            return 0, {}
        except (InvalidConfig, KeyError, ValueError) as e:
            raise InvalidConfig(
                f"{path} is damaged: {e!r}. Remove it: the broker then starts without the properties that"
                " were changed while it ran, or with what the other log.dirs say of them"
            ) from e

    def write_settings(self, change: int, fields: Mapping[str, str]) -> None:
        text = format_properties({_CHANGE: str(change), **fields})
        replace_file(self.files, self.path / SETTINGS_NAME, text.encode("utf-8"), durable=True)

    def take_clean_shutdown(self) -> dict[str, tuple[int, ...]] | None:
        """Read and remove the table of a clean stop; None after a crash. Raises `OSError`."""
        marker = self.path / CLEAN_SHUTDOWN_NAME
        table = read_table(self.files, marker)
        try:
            self.files.remove(marker)
        except FileNotFoundError:
            return None
        self.files.sync_directory(self.path)
        return table

    def mark_clean_shutdown(self, table: Table) -> None:
        write_table(self.files, self.path / CLEAN_SHUTDOWN_NAME, table, durable=True)

    def read_recovery_points(self) -> dict[str, tuple[int, ...]]:
        """Offset below which each log is durable. Raises `OSError`."""
        return read_table(self.files, self.path / RECOVERY_POINTS_NAME) or {}

    def read_futures(self) -> dict[str, tuple[int, ...]]:
        """Partitions being moved here: the number of each one's move. Raises `OSError`."""
        return read_table(self.files, self.path / FUTURES_NAME) or {}

    def write_futures(self, table: Table) -> None:
        write_table(self.files, self.path / FUTURES_NAME, table, durable=True)

    def write_recovery_points(self, table: Table) -> None:
        """Write the offsets if changed; an outdated table only makes recovery read more."""
        if table != self._noted:
            write_table(self.files, self.path / RECOVERY_POINTS_NAME, table, durable=False)
            self._noted = table


class Meta(msgspec.Struct, frozen=True):
    """Owner of the data: ``meta.properties``."""

    cluster_id: str
    node_id: int


def agree_on_meta(
    found: Mapping[DataDirectory, Mapping[str, str]], node_id: int, name_cluster: Callable[[str | None], str]
) -> Meta:
    """Check that all ``meta.properties`` agree, and write missing ones; ``name_cluster`` maps the known
    cluster id, or None, to the final one. Raises `InvalidConfig`: different clusters or brokers.
    """
    clusters = {meta["cluster.id"] for meta in found.values() if "cluster.id" in meta}
    if len(clusters) > 1:
        raise InvalidConfig(f"log.dirs belong to different clusters: {', '.join(sorted(clusters))}")
    for directory, meta in found.items():
        owner = meta.get("node.id", str(node_id))
        if owner != str(node_id):
            raise InvalidConfig(f"{directory.path} belongs to node.id {owner}, not to {node_id}")
    agreed = Meta(name_cluster(next(iter(clusters), None)), node_id)
    for directory, meta in found.items():
        if not {"cluster.id", "node.id"} <= meta.keys():
            directory.write_meta({"version": "1", "cluster.id": agreed.cluster_id, "node.id": str(node_id)})
    return agreed


def keep_or_make(known: str | None) -> str:
    return known or new_cluster_id()


def new_cluster_id() -> str:
    """A random id of 22 characters ``[a-zA-Z0-9_-]``, without a leading dash, which looks like an option."""
    while (name := encode_id(uuid.uuid4())).startswith("-"):
        pass
    return name
