"""The files of loads of mode ``dir``: who owns a path, what was written there, what is in effect. No Spark.

    <path>/_kafkalog.json                       the load that this path belongs to; created once
    <path>/load=00000042/kl_run=<run>/...       what this run of load 42 wrote; its commit lists the files

    <path>/kl_compact=00000050/kl_run=<run>/... files of other loads in fewer ones, by commit 50

Two drivers never write to one directory, and readers ignore a file that no commit in effect lists. Older
loads have no ``kl_run=``. docs/loads.md describes the layout.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from pyspark_kafkalog.config.definition import masked
from pyspark_kafkalog.errors import InvalidConfig, LoadError
from pyspark_kafkalog.ledger.commit import ORC, PARQUET, Commit, Output, OutputFile
from pyspark_kafkalog.ledger.in_effect import check_not_removed, live_outputs
from pyspark_kafkalog.ledger.ledger import Ledger
from pyspark_kafkalog.ledger.records import ADDED, LedgerRecord, decode, encode
from pyspark_kafkalog.loads.store_keys import hand_over
from pyspark_kafkalog.stores.locations import is_remote, open_store, same_place

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CLAIM = "_kafkalog.json"
"""Spark ignores names that begin with ``_``."""
RUN_COLUMN = "kl_run"
COMPACTION_COLUMN = "kl_compact"
"""What Spark takes the directories of runs and compactions for; readers drop them."""
_GLOB = set("*?[]{}\\")
_FSYNCS_AT_ONCE = 8
_SPARK_NAME = re.compile(r"part-[0-9]+-([0-9a-f]{8}-[0-9a-f-]{27})")
"""``HadoopMapReduceCommitProtocol.getFilename``: ``part-<task>-<id of the write><ext>``."""


@dataclass(frozen=True, slots=True)
class Claim(LedgerRecord):
    """Which load an output path belongs to. ``path`` is its name when it was claimed, as commits list it."""

    kind = "output"

    load: str
    offsets: str
    ledger: str
    path: str
    format: str = field(default=PARQUET, metadata=ADDED)


def local_path(path: str | os.PathLike[str]) -> Path:
    """The absolute path that ``path`` names: a plain one, or a ``file:`` URL as Hadoop writes it.

    Raises:
        InvalidConfig: it is on another file system, or Spark would take it for a pattern.
    """
    text = os.fspath(path)
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]+):", text)
    if scheme and scheme[1].lower() != "file":
        raise InvalidConfig(
            f"{masked(text)}: loads write files to local file systems only, not to {scheme[1]}:. Write "
            "load.df there yourself, then call load.done() (mode job)"
        )
    if scheme:
        text = re.sub(r"^//[^/]*", "", text[scheme.end() :])
    if not text or _GLOB & set(text):
        raise InvalidConfig(
            f"the output path is {os.fspath(path)!r}; it must not be empty or contain * ? [ ] {{ }} \\"
        )
    return Path(os.path.abspath(text))  # noqa: PTH100  Path.resolve would follow links


def load_directory(number: int, run: str) -> str:
    """The directory below an output path for this run of load ``number``: ``load=00000042/kl_run=<run>``."""
    return f"load={number:08d}/{RUN_COLUMN}={run}"


def compaction_directory(number: int, run: str) -> str:
    """As `load_directory`, for commit ``number``, which replaces files. They have a column ``load``."""
    return f"{COMPACTION_COLUMN}={number:08d}/{RUN_COLUMN}={run}"


def claim_path(path: str | os.PathLike[str], ledger: Ledger, format: str = PARQUET) -> Claim:
    """Make this load the owner of ``path``, for files of this format, or check that it is.

    Raises:
        LoadError: another load, or the ledger that this one was copied from, owns it; or it holds files of
            another format, has directories of loads and no claim, or cannot be written.
    """
    where = local_path(path)
    offsets = ledger.offsets_path
    ours = Claim(ledger.name, offsets, ledger.identity(), str(where), format)
    found = read_claim(where)
    if found is None:
        _refuse_unclaimed(where, ledger)
        inside = Path(offsets).is_relative_to(where)
        stored = replace(ours, offsets=os.path.relpath(offsets, where) if inside else offsets)
        open_store(where).create(CLAIM, encode(stored))
        found = read_claim(where)
        if found is None:
            raise LoadError(f"{where / CLAIM} was created and is gone: does another program clean {where}?")
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
    """Check that ``ledger`` is not a copy of the one that claimed the output, if that still exists.

    Two ledgers with one seal would give one number to two loads, which would replace each other's output.
    """
    theirs = Ledger.at(found.offsets, found.load)
    if theirs.identity() == found.ledger and not same_place(theirs.location, ledger.location):
        raise LoadError(
            f"{found.path} belongs to the ledger {theirs.location}, and {ledger.location} is a copy of it: "
            "use the original, or remove it if the copy replaces it"
        )


def _refuse_unclaimed(where: Path, ledger: Ledger) -> None:
    """Without a claim, existing files must be listed in this ledger, or the load would overwrite them."""
    if any(where.glob("load=*")) and not any(
        out.path == str(where) for commit in ledger.history() for out in commit.outputs
    ):
        raise LoadError(
            f"{where} has directories of loads, but no {CLAIM}: it was removed, or another program wrote "
            "them. Write to another path, or move them away"
        )


def read_claim(path: str | os.PathLike[str]) -> Claim | None:
    """Who owns ``path``; None if nobody does."""
    where = local_path(path)
    data = open_store(where).read(CLAIM)
    if data is None:
        return None
    found = decode(Claim, data, f"{where / CLAIM}")
    if is_remote(found.offsets):
        return found
    return replace(found, offsets=os.path.normpath(where / found.offsets))


def format_of(path: str | os.PathLike[str]) -> str:
    """The format of the files below ``path``, from its claim."""
    found = read_claim(path)
    return PARQUET if found is None else found.format


def ledger_of(
    path: str | os.PathLike[str],
    offsets: str | os.PathLike[str] | None = None,
    spark: SparkSession | None = None,
) -> Ledger:
    """The ledger of the load that owns ``path``; ``offsets`` is its new directory if it was moved.

    A session's keys open a store that is in a cloud.
    """
    found = read_claim(path)
    if found is None:
        raise LoadError(
            f"{local_path(path)} is not the output of a load: it has no {CLAIM}. Read other files with "
            "spark.read"
        )
    ledger = Ledger.at(found.offsets if offsets is None else offsets, found.load)
    if spark is not None:
        hand_over(spark, ledger.offsets_path)
    if not ledger.known():
        raise LoadError(
            f"{local_path(path)} is the output of load {found.load!r}, and its ledger is not at "
            f"{ledger.location}: if it was moved, pass read_load(..., offsets=...)"
        )
    return ledger


def written_files(path: str | os.PathLike[str], inside: str) -> Output:
    """What was written in the directory ``inside`` of ``path``: every data file, durable before it is listed.

    Raises:
        LoadError: no load owns the path, its directory is missing, a file cannot be read, or there are files
            of more than one write.
    """
    where = local_path(path)
    owner = read_claim(where)
    if owner is None:
        raise LoadError(f"no load owns {where}: {CLAIM} is missing")
    directory = where / inside
    try:
        files = sorted(_data_files(directory))
        _refuse_two_writes(files, directory)
        with ThreadPoolExecutor(_FSYNCS_AT_ONCE) as pool:
            found = tuple(pool.map(lambda file: _settle(file, directory, owner.format), files))
        made = {p for file in (*files, directory / "any") for p in file.parents if p.is_relative_to(where)}
        for parent in sorted(made, reverse=True):  # the outermost one last: then all others are there
            _fsync(parent)
    except OSError as e:
        raise LoadError(f"cannot read the files of {directory}: {e}") from e
    return Output(owner.path, inside, found, owner.format)


def _refuse_two_writes(files: Iterable[Path], directory: Path) -> None:
    """The JVM may have completed a write that its driver gave up: Spark names files by their write."""
    writes = {found[1] for file in files if (found := _SPARK_NAME.match(file.name))}
    if len(writes) > 1:
        raise LoadError(
            f"{directory} has files of {len(writes)} writes: Spark completed one that was interrupted. "
            "The plan stays: load again"
        )


def partition_columns(output: Output) -> tuple[str, ...] | None:
    """The columns of its directories (``partition_by``); None without a file."""
    for file in output.files:
        # Spark escapes characters in directory names as %XX.
        return tuple(unquote(part.partition("=")[0]) for part in file.name.split("/")[:-1])
    return None


def spark_schema(output: Output) -> str | None:
    """The schema that Spark stored in the first file, as its JSON; None if there is none."""
    for file in output.files:
        return noted_schema(Path(output.path, output.directory, file.name))
    return None


def files_in_effect(
    ledger: Ledger, path: str | os.PathLike[str], after: int = 0, until: int | None = None
) -> list[str]:
    """The files below ``path`` of the commits in effect, oldest first.

    With ``until``, of those in effect when it was the newest commit; only of loads after commit ``after``.
    """
    where = local_path(path)
    owner = read_claim(where)
    known_as = str(where) if owner is None else owner.path
    live = live_outputs(ledger.lineage(until), known_as)
    if until is not None:
        check_not_removed(ledger, live)
    found = [(commit, out) for commit, out in live if commit.number > after]
    if not found:
        raise LoadError(
            f"{where}: no load was committed yet; that happens when its with block ends without an exception"
        )
    _check_one_partitioning(where, found)
    return [f"{where}/{out.directory}/{file.name}" for _, out in found for file in out.files]


def by_directories(files: Iterable[str], path: str) -> list[list[str]]:
    """Files below ``path`` by the columns of their directories, in order: Spark reads one kind at a time."""
    kinds: dict[tuple[str, bool], list[str]] = {}
    for file in files:
        first, second = file[len(path) + 1 :].split("/", 2)[:2]
        kind = first.partition("=")[0], second.startswith(f"{RUN_COLUMN}=")
        kinds.setdefault(kind, []).append(file)
    return list(kinds.values())


def _check_one_partitioning(where: Path, found: Sequence[tuple[Commit, Output]]) -> None:
    first: tuple[int, tuple[str, ...]] | None = None
    for commit, output in found:
        columns = partition_columns(output)
        if columns is None:
            continue
        if first is None:
            first = commit.number, columns
        elif first[1] != columns:
            raise LoadError(
                f"{where}: load {first[0]} is partitioned by {list(first[1])} and load {commit.number} by "
                f"{list(columns)}; Spark cannot read both as one table. Rewind to before load {commit.number}"
            )


def verify_outputs(commits: Iterable[Commit]) -> list[str]:
    """What is wrong with the files in effect after these commits, in words; empty if nothing is."""
    return [
        finding
        for commit, output in live_outputs(commits)
        for file in output.files
        for finding in _verify_file(
            commit.number, Path(output.path, output.directory, file.name), file, output.format
        )
    ]


def _verify_file(number: int, file: Path, noted: OutputFile, format: str) -> Iterator[str]:
    try:
        size = file.stat().st_size
        if size != noted.bytes:
            yield f"load {number}: {file} has {size} bytes and had {noted.bytes} when it was committed"
        elif (found := count_rows(file, format)) != noted.rows:
            yield f"load {number}: {file} has {found} rows and had {noted.rows} when it was committed"
    except FileNotFoundError:
        yield f"load {number}: {file} is missing; it had {noted.rows} rows"
    except (OSError, LoadError) as e:
        yield f"load {number}: {file} cannot be read: {e}"


def _data_files(directory: Path) -> Iterator[Path]:
    """The files that Spark would read."""
    for entry in directory.iterdir():
        if _hidden(entry.name):
            continue
        if entry.is_dir():
            yield from _data_files(entry)
        else:
            yield entry


def _hidden(name: str) -> bool:
    """Spark's ``HadoopFSUtils.shouldFilterOutPathName``."""
    return name.startswith(".") or (name.startswith("_") and "=" not in name) or name.endswith("._COPYING_")


def _settle(file: Path, directory: Path, format: str) -> OutputFile:
    _fsync(file)
    return OutputFile(
        name=file.relative_to(directory).as_posix(), bytes=file.stat().st_size, rows=count_rows(file, format)
    )


def _fsync(path: Path) -> None:
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


_SPARK_SCHEMA = b"org.apache.spark.sql.parquet.row.metadata"
_NAMES = {PARQUET: "Parquet", ORC: "ORC"}


def count_rows(file: Path, format: str) -> int:
    """Rows of a file, from its footer.

    Raises:
        OSError: it cannot be read.
        LoadError: it is not a complete file of this format.
    """
    # Imported here: listing commits needs no Arrow.
    import pyarrow as pa

    try:
        if format == ORC:
            from pyarrow import orc

            return int(orc.ORCFile(file).nrows)
        import pyarrow.parquet as pq

        return int(pq.read_metadata(file).num_rows)
    except (pa.ArrowException, OSError) as e:
        if isinstance(e, OSError) and e.errno is not None:
            raise  # of the file system; Arrow raises OSError for damaged ORC too
        raise LoadError(f"{file} is not a complete {_NAMES[format]} file: {e}") from e


def noted_schema(file: Path) -> str | None:
    """The schema that Spark stores in Parquet files, as its JSON; None if there is none."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        noted = pq.read_metadata(file).metadata or {}
    except (OSError, pa.ArrowException):
        return None  # moved or damaged: `verify_outputs` reports it
    return noted[_SPARK_SCHEMA].decode() if _SPARK_SCHEMA in noted else None
