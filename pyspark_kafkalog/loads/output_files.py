"""The files of loads of mode ``dir``: whose they are, what they hold, which of them count. No Spark.

    <path>/_kafkalog.json          the load that this path belongs to; created once
    <path>/load=00000042/...       what load 42 wrote; its commit lists the files

A file that no commit in effect lists does not exist for a reader. Described in docs/loads.md.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import unquote

from pyspark_kafkalog.config.definition import masked
from pyspark_kafkalog.errors import InvalidConfig
from pyspark_kafkalog.ledger.commit import ORC, PARQUET, Commit, Output, OutputFile
from pyspark_kafkalog.ledger.ledger import Ledger
from pyspark_kafkalog.ledger.ledger_store import open_store
from pyspark_kafkalog.ledger.load_errors import LoadError
from pyspark_kafkalog.ledger.records import ADDED, LedgerRecord, decode, encode

CLAIM = "_kafkalog.json"
"""Spark does not take names that begin with ``_`` for data."""
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
            f"{masked(text)}: loads write and publish files on local file systems only, and {scheme[1]}: is "
            "another. Write load.df there yourself, then call load.done() (mode job)"
        )
    if scheme:
        text = re.sub(r"^//[^/]*", "", text[scheme.end() :])
    if not text or _GLOB & set(text):
        raise InvalidConfig(
            f"{os.fspath(path)!r}: an output path is not empty and has none of * ? [ ] {{ }} \\"
        )
    return Path(os.path.abspath(text))  # noqa: PTH100  Path.resolve would follow links: the user's name is kept


def directory_of(number: int) -> str:
    """Where under an output path the files of load ``number`` are: ``load=00000042``."""
    return f"load={number:08d}"


def claim(path: str | os.PathLike[str], ledger: Ledger, format: str = PARQUET) -> Claim:
    """Make ``path`` belong to this load, for files of this format, or see that it does.

    Raises:
        LoadError: it belongs to another load or to the ledger that this one is a copy of, holds files of
            another format, has directories of loads and no claim, or cannot be written.
    """
    where = local_path(path)
    offsets = _offsets_path(ledger)
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
    refuse_a_copy(found, ledger)
    if found.format != format:
        raise LoadError(
            f"{where} holds {found.format} files of load {found.load!r}, and {format} is to be written: one "
            "table has one format. Write to another path"
        )
    return found


def refuse_a_copy(found: Claim, ledger: Ledger) -> None:
    """Two ledgers with one seal would give one number to two loads, and each replace the other's output.

    Raises:
        LoadError: the one that claimed the output is still there, and ``ledger`` is another.
    """
    theirs = Ledger.at(found.offsets, found.load)
    if theirs.identity() == found.ledger and not Path(theirs.location).samefile(ledger.location):
        raise LoadError(
            f"{found.path} belongs to the ledger {theirs.location}, of which {ledger.location} is a copy: go "
            "on with the one that is claimed, or take it away if the copy is to replace it"
        )


def _refuse_unclaimed(where: Path, ledger: Ledger) -> None:
    """Without a claim, what is there must be listed in this ledger, or it would be written over."""
    if any(where.glob("load=*")) and not any(
        out.path == str(where) for commit in ledger.history() for out in commit.outputs
    ):
        raise LoadError(
            f"{where} has directories of loads and no {CLAIM} that says whose: it was removed, or another "
            "program wrote them. Write somewhere else, or move them away"
        )


def read_claim(path: str | os.PathLike[str]) -> Claim | None:
    """Whose ``path`` is; None where nobody claimed it.

    Raises:
        DamagedRecord: the claim is torn or was edited.
    """
    where = local_path(path)
    data = open_store(where).read(CLAIM)
    if data is None:
        return None
    found = decode(Claim, data, f"{where / CLAIM}")
    return replace(found, offsets=os.path.normpath(where / found.offsets))


def format_of(path: str | os.PathLike[str]) -> str:
    """The format of the files below ``path``: what its claim says."""
    found = read_claim(path)
    return PARQUET if found is None else found.format


def ledger_of(path: str | os.PathLike[str], offsets: str | os.PathLike[str] | None = None) -> Ledger:
    """The ledger of the load that ``path`` belongs to; ``offsets`` where its offsets path was moved.

    Raises:
        LoadError: the path belongs to no load, or its ledger is not where the claim says.
    """
    found = read_claim(path)
    if found is None:
        raise LoadError(
            f"{local_path(path)} is not the output of a load: there is no {CLAIM}. Loads make it with "
            "write_parquet and write_orc; other files are read with spark.read"
        )
    ledger = Ledger.at(found.offsets if offsets is None else offsets, found.load)
    if not ledger.known():
        raise LoadError(
            f"{local_path(path)} is the output of load {found.load!r}, and its ledger is not at "
            f"{ledger.location}: where the offsets path was moved, say so: read_load(..., offsets=...)"
        )
    return ledger


def survey(path: str | os.PathLike[str], number: int) -> Output:
    """What load ``number`` wrote below ``path``: every data file, durable from here on.

    Files and directories are forced to disk, since the commit that lists them is.

    Raises:
        LoadError: the path is nobody's, its directory is not there, a file cannot be read, or there are files
            of more than one write.
    """
    where = local_path(path)
    owner = read_claim(where)
    if owner is None:
        raise LoadError(f"{where} belongs to no load: {CLAIM} is missing")
    directory = where / directory_of(number)
    try:
        files = sorted(_data_files(directory))
        _refuse_two_writes(files, directory)
        with ThreadPoolExecutor(_FSYNCS_AT_ONCE) as pool:
            found = tuple(pool.map(lambda file: _settle(file, directory, owner.format), files))
        for parent in sorted({p for file in files for p in file.parents if p.is_relative_to(directory)}):
            _fsync(parent)
        _fsync(directory)
        _fsync(where)
    except OSError as e:
        raise LoadError(f"{directory}: the files of load {number} cannot be read back: {e}") from e
    return Output(owner.path, directory.name, found, owner.format)


def _refuse_two_writes(files: Iterable[Path], directory: Path) -> None:
    """Refuse what a killed driver's JVM moved here while we wrote: Spark names files after their write."""
    writes = {found[1] for file in files if (found := _SPARK_NAME.match(file.name))}
    if len(writes) > 1:
        raise LoadError(
            f"{directory} has files of {len(writes)} writes: the Spark of a driver that was killed just "
            "now still ended its own. The plan stays: load again, and the directory is written anew"
        )


def partition_columns(output: Output) -> tuple[str, ...] | None:
    """The columns that its directories stand for (``partition_by``); None where there is no file to tell."""
    for file in output.files:
        # Spark writes what a directory's name may not have as %XX.
        return tuple(unquote(part.partition("=")[0]) for part in file.name.split("/")[:-1])
    return None


def spark_schema(output: Output) -> str | None:
    """The schema that Spark noted in the first file, in its JSON; None where it cannot be had."""
    for file in output.files:
        return noted_schema(Path(output.path, output.directory, file.name))
    return None


def published(
    ledger: Ledger, path: str | os.PathLike[str], after: int = 0, until: int | None = None
) -> list[str]:
    """The files below ``path`` that count: those of the commits in effect, oldest first.

    ``until`` is the commit that was the newest then; of what was in effect then, only loads after commit
    ``after`` are meant.

    Raises:
        LoadError: nothing was committed for this path; or two loads partitioned it differently.
    """
    where = local_path(path)
    owner = read_claim(where)
    known_as = str(where) if owner is None else owner.path
    commits = [c for c in ledger.lineage(until) if c.number > after]
    found = [(c, out) for c in commits for out in c.outputs if out.path == known_as]
    if not found:
        raise LoadError(
            f"{where}: no load was committed yet. A load is published when its with block ends without "
            "an exception; until then there is nothing to read"
        )
    _check_one_partitioning(where, found)
    return [f"{where}/{out.directory}/{file.name}" for _, out in found for file in out.files]


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
    """What is wrong with the files that these commits list, in words; [] where they are all as written."""
    return [
        finding
        for commit in commits
        for output in commit.outputs
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
        elif (found := rows(file, format)) != noted.rows:
            yield f"load {number}: {file} has {found} rows and had {noted.rows} when it was committed"
    except FileNotFoundError:
        yield f"load {number}: {file} is gone; {noted.rows} rows were in it"
    except (OSError, LoadError) as e:
        yield f"load {number}: {file} cannot be read: {e}"


def _data_files(directory: Path) -> Iterator[Path]:
    """The files that Spark would take for data; its rule for hidden names is `_hidden`."""
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
        name=file.relative_to(directory).as_posix(), bytes=file.stat().st_size, rows=rows(file, format)
    )


def _fsync(path: Path) -> None:
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _offsets_path(ledger: Ledger) -> str:
    """The ledger's own place is ``<offsetsPath>/<name>``."""
    return str(Path(ledger.location).parent)


_SPARK_SCHEMA = b"org.apache.spark.sql.parquet.row.metadata"
_NAMES = {PARQUET: "Parquet", ORC: "ORC"}


def rows(file: Path, format: str) -> int:
    """Rows of a file, as its footer says.

    Raises:
        OSError: it cannot be read.
        LoadError: it is no whole file of this format.
    """
    # Here and not above: what only lists commits does not wait for Arrow.
    import pyarrow as pa

    try:
        if format == ORC:
            from pyarrow import orc

            return int(orc.ORCFile(file).nrows)
        import pyarrow.parquet as pq

        return int(pq.read_metadata(file).num_rows)
    except (pa.ArrowException, OSError) as e:
        if isinstance(e, OSError) and e.errno is not None:
            raise  # the file system's; of a wrong byte Arrow's ORC says OSError too
        raise LoadError(f"{file} is not a whole {_NAMES[format]} file: {e}") from e


def noted_schema(file: Path) -> str | None:
    """The schema, in its JSON, that Spark notes in Parquet files; None where it cannot be had."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        noted = pq.read_metadata(file).metadata or {}
    except (OSError, pa.ArrowException):
        return None  # it was moved, or is damaged: `verify_outputs` says so
    return noted[_SPARK_SCHEMA].decode() if _SPARK_SCHEMA in noted else None
