"""Files of loads of mode ``dir``: which load owns a path, what it wrote, and which files are in effect.

    <path>/_kafkalog.json                       the load that owns this path; created once
    <path>/load=00000042/kl_run=<run>/...       files of this run of load 42; its commit lists them
    <path>/kl_compact=00000050/kl_run=<run>/... files of several loads, rewritten by commit 50

Two drivers never write to one directory, and readers ignore files that no commit in effect lists.
docs/loads.md describes the layout.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from pyspark_kafkalog.config.definition import masked
from pyspark_kafkalog.errors import InvalidConfig, LoadError, UnsafeStore
from pyspark_kafkalog.ledger.archive import check_not_removed, live_outputs
from pyspark_kafkalog.ledger.commit import ORC, PARQUET, LoadOutput, OutputFile
from pyspark_kafkalog.ledger.ledger import Ledger
from pyspark_kafkalog.ledger.records import OPTIONAL, LedgerRecord, decode, encode
from pyspark_kafkalog.ledger.stores.hadoop_keys import Get, settings_of
from pyspark_kafkalog.ledger.stores.locations import is_remote, is_same_store, open_store
from pyspark_kafkalog.ledger.stores.object_clients import (
    SETTINGS_VARIABLE,
    address_of,
    give_settings,
    is_object_store,
)
from pyspark_kafkalog.ledger.stores.store import FileStore, StoredFile

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CLAIM = "_kafkalog.json"
"""Spark ignores names that begin with ``_``."""
RUN_COLUMN = "kl_run"
COMPACTION_COLUMN = "kl_compact"
"""Spark reads these directory names as columns; readers drop them."""
_GLOB = set("*?[]{}\\")
_READ_AT_ONCE = 8
"""Footers read in parallel: a cloud store takes some milliseconds for each."""
_SPARK_NAME = re.compile(r"part-[0-9]+-([0-9a-f]{8}-[0-9a-f-]{27})")
"""``HadoopMapReduceCommitProtocol.getFilename``: ``part-<task>-<id of the write><ext>``."""


@dataclass(frozen=True, slots=True)
class Claim(LedgerRecord):
    """The load that owns an output path. ``path`` is the path when it was claimed, as commits list it."""

    kind = "output"

    load: str
    offsets: str
    ledger: str
    path: str
    format: str = field(default=PARQUET, metadata=OPTIONAL)


def give_spark_keys(spark: SparkSession, location: str) -> None:
    """Pass Spark's keys for a store to this process and the session's tasks; `InvalidConfig` if unusable."""
    if not is_object_store(location):
        return
    address = address_of(location)
    text = give_settings(address, settings_of(address, _keys(spark)))
    # Spark Connect has no context: there, executors need the environment.
    context = getattr(spark, "_sc", None)
    if context is not None and context.environment.get(SETTINGS_VARIABLE, "{}") != text:
        from pyspark_kafkalog.datasource.source import DefaultSource

        context.environment[SETTINGS_VARIABLE] = text
        spark.dataSource.register(DefaultSource)  # tasks get the environment of the registration


def use_spark_keys(spark: SparkSession, location: str) -> None:
    """Let all later reads and streams of this session open the store at a URL with Spark's keys.

    ``spark.read`` and ``spark.readStream`` with ``offsetsPath`` at ``s3://``, ``gs://``, ``abfss://`` run in
    processes that cannot read Spark's configuration and otherwise use the environment only. `load` and the
    functions that read loads call this themselves.

    Raises `InvalidConfig` in Spark Connect, or for credentials that only Java has, and `UnsafeStore` for
    other URLs.
    """
    if not is_object_store(location):
        raise UnsafeStore(f"{masked(location)}: Spark's keys are of stores at s3://, gs:// or abfss:// only")
    if getattr(spark, "_sc", None) is None:
        raise InvalidConfig(
            "use_spark_keys() cannot reach the processes of a Spark Connect server: set the store's "
            "credentials in the environment of the server and its executors"
        )
    give_spark_keys(spark, location)


_DEFAULTS = "core-default.xml"


def _keys(spark: SparkSession) -> Get:
    """Hadoop's keys as Spark's writers see them, without defaults; in Spark Connect the session's only."""
    context: Any = getattr(spark, "_jsc", None)
    hadoop = None if context is None else context.hadoopConfiguration()

    def get(key: str) -> str | None:
        value = spark.conf.get(key, None)
        if not value and hadoop is not None:
            sources = hadoop.getPropertySources(key)
            if sources is not None and sources[0] != _DEFAULTS:
                value = hadoop.get(key)
        return value or spark.conf.get(f"spark.hadoop.{key}", None)

    return get


def table_store(path: str | os.PathLike[str]) -> FileStore:
    """The store of the table at ``path``; `InvalidConfig` also for what Spark would take for a pattern."""
    text = os.fspath(path)
    if _GLOB & set(text):
        raise InvalidConfig(f"the output path is {text!r}; it must not contain * ? [ ] {{ }} \\")
    try:
        return open_store(text)
    except UnsafeStore as e:
        raise InvalidConfig(
            f"{e}. To write load.df anywhere else, write it yourself and call load.done() (mode job)"
        ) from None


def load_directory(number: int, run: str) -> str:
    """The directory of this run of load ``number`` below an output path: ``load=00000042/kl_run=<run>``."""
    return f"load={number:08d}/{RUN_COLUMN}={run}"


def compaction_directory(number: int, run: str) -> str:
    """Like `load_directory`, for compaction ``number``. Its files have a column ``load``."""
    return f"{COMPACTION_COLUMN}={number:08d}/{RUN_COLUMN}={run}"


def claim_path(path: str | os.PathLike[str], ledger: Ledger, format: str = PARQUET) -> Claim:
    """Make this load the owner of ``path``, or check that it is. `LoadError`: another load owns it or the
    original of a copied ledger, or it holds files of another format or of unclaimed loads.
    """
    store = table_store(path)
    where, offsets = store.location, ledger.offsets_path
    ours = Claim(ledger.name, offsets, ledger.identity(), where, format)
    found = read_claim(where)
    if found is None:
        # Without a claim, this ledger must list the existing files, or the load would overwrite them.
        if any(name.startswith("load=") for name in store.names("")) and not any(
            out.path == where for commit in ledger.history() for out in commit.outputs
        ):
            raise LoadError(
                f"{where} has directories of loads, but no {CLAIM}: it was removed, or another program "
                "wrote them. Write to another path, or move them away"
            )
        inside = offsets == where or offsets.startswith(f"{where}/")
        # A relative path, so that both can be moved together.
        stored = replace(ours, offsets=offsets[len(where) + 1 :] or ".") if inside else ours
        store.create(CLAIM, encode(stored))
        found = read_claim(where)
        if found is None:
            raise LoadError(f"{where}/{CLAIM} was created and is gone: does another program clean {where}?")
    if (found.load, found.ledger) != (ours.load, ours.ledger):
        recreated = f": the ledger was created again since; if it is the right one, delete {CLAIM}. "
        raise LoadError(
            f"{where} belongs to load {found.load!r} with its offsets in {found.offsets}, not to load "
            f"{ours.load!r} with its offsets in {offsets}"
            + (recreated if found.load == ours.load else ". ")
            + "One path belongs to one load: write to another path; what is here stays readable"
        )
    check_not_copied(found, ledger)
    if found.format != format:
        raise LoadError(
            f"{where} holds {found.format} files of load {found.load!r}; {format} files cannot be added. "
            "Write to another path"
        )
    return found


def check_not_copied(found: Claim, ledger: Ledger) -> None:
    """Two ledgers with one seal would number their loads alike and replace each other's output."""
    theirs = Ledger.at(found.offsets, found.load)
    if theirs.location == ledger.location or theirs.identity() != found.ledger:
        return
    if not is_same_store(ledger.store, theirs.store):
        raise LoadError(
            f"{found.path} belongs to the ledger {theirs.location}, and {ledger.location} is a copy of it: "
            "use the original. If the copy is to take its place, move the original away first"
        )


def read_claim(path: str | os.PathLike[str]) -> Claim | None:
    store = table_store(path)
    data = store.read(CLAIM)
    if data is None:
        return None
    found = decode(Claim, data, f"{store.location}/{CLAIM}")
    if is_remote(found.offsets):
        return found
    if is_remote(store.location) and not found.offsets.startswith("/"):
        inside = "" if found.offsets == "." else f"/{found.offsets}"
        return replace(found, offsets=f"{store.location}{inside}")
    return replace(found, offsets=os.path.normpath(Path(store.location) / found.offsets))


def ledger_of(
    path: str | os.PathLike[str],
    offsets: str | os.PathLike[str] | None = None,
    spark: SparkSession | None = None,
) -> Ledger:
    """The ledger of the load that owns ``path``; ``offsets``, its new directory. Uses ``spark``'s keys."""
    where = table_store(path).location
    if spark is not None:
        give_spark_keys(spark, where)
    found = read_claim(where)
    if found is None:
        raise LoadError(
            f"{where} is not the output of a load: it has no {CLAIM}. Read other files with spark.read"
        )
    ledger = Ledger.at(found.offsets if offsets is None else offsets, found.load)
    if spark is not None:
        give_spark_keys(spark, ledger.offsets_path)
    if not ledger.known():
        raise LoadError(
            f"{where} is the output of load {found.load!r}, and its ledger is not at "
            f"{ledger.location}: if it was moved, pass read_load(..., offsets=...)"
        )
    return ledger


def written_files(path: str | os.PathLike[str], inside: str) -> LoadOutput:
    """The data files in directory ``inside``, synced; `LoadError` if they are of more than one write."""
    store = table_store(path)
    where = store.location
    owner = read_claim(where)
    if owner is None:
        raise LoadError(f"no load owns {where}: {CLAIM} is missing")
    there = list(store.files(inside))
    if not there and not store.exists(inside):
        raise LoadError(
            f"Spark wrote {store.url}/{inside}, and nothing is there: it uses another endpoint or other "
            "credentials than this process, or it was told to leave no _SUCCESS and had no rows to write"
            if is_remote(where)
            else f"Spark wrote {where}/{inside}, and it is not on this machine: driver and executors must "
            "share that file system. Or write load.df yourself, then call load.done() (mode job)"
        )
    files = sorted(file for file in there if not is_hidden(file.name[len(inside) + 1 :]))
    # The JVM may complete a write after its driver gave up; Spark puts the write's id into file names.
    names = (_SPARK_NAME.match(file.name.rpartition("/")[2]) for file in files)
    if (writes := len({name[1] for name in names if name})) > 1:
        raise LoadError(
            f"{where}/{inside} has files of {writes} writes: Spark completed one that was interrupted. "
            "The plan stays: load again"
        )
    store.sync_files([file.name for file in files])
    try:
        with ThreadPoolExecutor(_READ_AT_ONCE) as pool:
            rows = list(pool.map(lambda file: count_rows(store, file, owner.format), files))
    except OSError as e:
        raise LoadError(f"cannot read the files of {where}/{inside}: {e}") from e
    found = tuple(
        OutputFile(file.name[len(inside) + 1 :], file.bytes, count)
        for file, count in zip(files, rows, strict=True)
    )
    return LoadOutput(owner.path, inside, found, owner.format)


def partition_columns(output: LoadOutput) -> tuple[str, ...] | None:
    if not output.files:
        return None
    # Spark escapes characters in directory names as %XX.
    return tuple(unquote(part.partition("=")[0]) for part in output.files[0].name.split("/")[:-1])


def files_in_effect(
    ledger: Ledger, path: str | os.PathLike[str], after: int = 0, until: int | None = None
) -> list[str]:
    """Files of loads after commit ``after``, as of commit ``until``, relative to ``path``, oldest first."""
    where = table_store(path).location
    owner = read_claim(where)
    known_as = where if owner is None else owner.path
    live = live_outputs(ledger.lineage(until), known_as)
    if until is not None:
        check_not_removed(ledger, live)
    found = [(commit, out) for commit, out in live if commit.number > after]
    if not found:
        raise LoadError(
            f"{where}: no load was committed yet; that happens when its with block ends without an exception"
        )
    return [f"{out.directory}/{file.name}" for _, out in found for file in out.files]


def check_one_partitioning(where: str, files: Iterable[str]) -> None:
    first: tuple[str, tuple[str, ...]] | None = None
    for file in files:
        load, *inside = file.split("/")
        columns = tuple(unquote(directory.partition("=")[0]) for directory in inside[1:-1])
        if first is None:
            first = load, columns
        elif first[1] != columns:
            before, number = (name.partition("=")[2].lstrip("0") for name in (first[0], load))
            raise LoadError(
                f"{where}: load {before} is partitioned by {list(first[1])} and load {number} by "
                f"{list(columns)}; Spark cannot read both as one table. Rewind to before load {number}"
            )


def is_hidden(name: str) -> bool:
    """Whether Spark ignores this file, see ``HadoopFSUtils.shouldFilterOutPathName``."""
    return any(
        part.startswith(".") or (part.startswith("_") and "=" not in part) or part.endswith("._COPYING_")
        for part in name.split("/")
    )


SPARK_SCHEMA_KEY = b"org.apache.spark.sql.parquet.row.metadata"
_NAMES = {PARQUET: "Parquet", ORC: "ORC"}


def count_rows(store: FileStore, file: StoredFile, format: str) -> int:
    """Rows of a file, from its footer; OSError if it cannot be read, `LoadError` if it is incomplete."""
    # Imported here: listing commits needs no Arrow.
    import pyarrow as pa

    try:
        with store.open_file(file) as opened:
            if format == ORC:
                from pyarrow import orc

                return int(orc.ORCFile(opened).nrows)
            import pyarrow.parquet as pq

            return int(pq.read_metadata(opened).num_rows)
    except (pa.ArrowException, OSError) as e:
        if isinstance(e, OSError) and e.errno is not None:
            raise  # from the store; Arrow raises OSError for damaged ORC too
        raise LoadError(f"{store.location}/{file.name} is not a complete {_NAMES[format]} file: {e}") from e


def spark_schema(output: LoadOutput) -> str | None:
    """The schema that Spark stored in the first file, as JSON; None if there is none."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not output.files:
        return None
    store, noted = open_store(output.path), output.files[0]
    try:
        with store.open_file(StoredFile(f"{output.directory}/{noted.name}", noted.bytes, 0)) as opened:
            found = pq.read_metadata(opened).metadata or {}
    except (OSError, pa.ArrowException):
        return None  # moved or damaged: `verify_outputs` reports it
    return found[SPARK_SCHEMA_KEY].decode() if SPARK_SCHEMA_KEY in found else None
