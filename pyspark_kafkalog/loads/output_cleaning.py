"""Removes files of a load that no commit names, and those that a compaction replaced.

The first are of runs that died, were given up or lost a race. Nothing of the pending plan, of a load whose
number the ledger does not have yet, or younger than asked is touched; nor what a rewind undid: its commit
still names it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from pyspark_kafkalog.clock import utc_text
from pyspark_kafkalog.errors import LoadError
from pyspark_kafkalog.ledger.commit import COMPACT, FILE_FORMATS, Commit
from pyspark_kafkalog.ledger.in_effect import Removal, replaced_outputs
from pyspark_kafkalog.ledger.ledger import Ledger
from pyspark_kafkalog.ledger.records import encode, removal_name
from pyspark_kafkalog.loads import output_files
from pyspark_kafkalog.loads.dead_letters import path_of

_OF_LOAD = re.compile(rf"(?:load|{output_files.COMPACTION_COLUMN})=([0-9]{{8,}})")
_TEMPORARY = "_temporary"
"""Where Spark's committer keeps the files of tasks; a killed driver leaves it."""


@dataclass(frozen=True, slots=True)
class Unlisted:
    """Files below the output ``path`` that may go, with their bytes: those that no commit names, and the
    ``replaced`` ones of ``compactions``.

    ``young`` counts files that no commit names and that are too young. ``refused`` says why the path is left
    alone, or "".
    """

    path: str
    files: tuple[Path, ...] = ()
    replaced: tuple[Path, ...] = ()
    compactions: tuple[int, ...] = ()
    bytes: int = 0
    young: int = 0
    refused: str = ""


def unlisted_files(ledger: Ledger, before_ms: int) -> list[Unlisted]:
    """By output path, the files written before ``before_ms`` (UTC, epoch) that no commit names.

    Paths are known from the commits: of one to which no load was ever committed, nothing is found.

    Raises:
        LoadError: a commit cannot be read, so that nobody can say what it names.
    """
    # Before the directories are listed: a commit that is made meanwhile has a higher number.
    commits = ledger.history()
    newest = commits[-1].number if commits else 0
    listed: dict[str, set[str]] = {}
    directories: dict[str, set[str]] = {}
    for output in (out for commit in commits for out in commit.outputs if out.format in FILE_FORMATS):
        names = listed.setdefault(output.path, set())
        names.update(f"{output.directory}/{file.name}" for file in output.files)
        directories.setdefault(output.path, set()).add(output.directory)
    listed.setdefault(str(path_of(ledger)), set())
    lineage = ledger.lineage(newest) if newest else []
    return [
        _with_replaced(
            _unlisted_below(path, ledger, newest, names, directories.get(path, set()), before_ms),
            lineage,
            utc_text(before_ms),
        )
        for path, names in sorted(listed.items())
        if Path(path).is_dir()
    ]


def _with_replaced(found: Unlisted, lineage: Sequence[Commit], before: str) -> Unlisted:
    """Also the files that compactions in effect replaced, and that are still there."""
    if found.refused:
        return found
    replaced: dict[Path, int] = {}
    compactions = []
    for compaction in lineage:
        if compaction.mode != COMPACT or compaction.created > before:
            continue
        old = [out for _, out in replaced_outputs(lineage, compaction) if out.path == found.path]
        files = [Path(out.path, out.directory, file.name) for out in old for file in out.files]
        there = {file: file.lstat().st_size for file in files if file.exists()}
        replaced |= there
        compactions += [compaction.number] if there else []
    return replace(
        found,
        replaced=tuple(replaced),
        compactions=tuple(compactions),
        bytes=found.bytes + sum(replaced.values()),
    )


def _unlisted_below(
    path: str, ledger: Ledger, newest: int, names: set[str], directories: set[str], before_ms: int
) -> Unlisted:
    refused = _why_refused(path, ledger)
    if refused:
        return Unlisted(path, refused=refused)
    found, size, young = [], 0, 0
    try:
        for file in _files_of(Path(path), newest):
            name = file.relative_to(path).as_posix()
            if name in names or _is_beside_listed(name, directories):
                continue
            status = file.lstat()
            if status.st_mtime_ns // 1_000_000 >= before_ms:
                young += 1
                continue
            found.append(file)
            size += status.st_size
    except OSError as e:
        raise LoadError(f"cannot list the files below {path}: {e}") from e
    return Unlisted(path, tuple(found), bytes=size, young=young)


def remove_unlisted(ledger: Ledger, found: Unlisted, now_ms: int) -> None:
    """Remove these files, and the directories that are then empty. The caller holds the ledger's lock.

    If interrupted, it can be repeated. Of compactions it is noted first that there is no way back.
    """
    root, files = Path(found.path), (*found.files, *found.replaced)
    for number in found.compactions:
        ledger.store.create(removal_name(number), encode(Removal(number, utc_text(now_ms))))
    try:
        for file in files:
            file.unlink(missing_ok=True)
        emptied = {p for file in files for p in file.parents if p.is_relative_to(root) and p != root}
        for directory in sorted(emptied, reverse=True):
            with suppress(OSError):  # not empty, or gone
                _remove_remains(directory)
                directory.rmdir()
    except OSError as e:
        raise LoadError(f"cannot remove files below {root}: {e}") from e


def _remove_remains(directory: Path) -> None:
    """Remove what Hadoop keeps beside data, ``_SUCCESS`` and checksums, if there is no data left."""
    left = list(directory.iterdir())
    if all(entry.name.startswith((".", "_")) and entry.is_file() for entry in left):
        for entry in left:
            entry.unlink()


def _why_refused(path: str, ledger: Ledger) -> str:
    """Files are removed only where this ledger is the one that the path belongs to."""
    try:
        owner = output_files.read_claim(path)
        if owner is None:
            return f"it has no {output_files.CLAIM}"
        if (owner.load, owner.ledger) != (ledger.name, ledger.identity()):
            return f"it belongs to load {owner.load!r} with its offsets in {owner.offsets}"
        output_files.check_not_copied(owner, ledger)
    except LoadError as e:
        return str(e)
    return ""


def _files_of(path: Path, newest: int) -> Iterator[Path]:
    """All files in the directories of loads up to ``newest``."""
    for entry in sorted(path.iterdir()):
        number = _OF_LOAD.fullmatch(entry.name)
        if number and 0 < int(number[1]) <= newest and entry.is_dir() and not entry.is_symlink():
            yield from sorted(file for file in entry.rglob("*") if file.is_symlink() or not file.is_dir())


def _is_beside_listed(name: str, directories: set[str]) -> bool:
    """Whether a file is one that Hadoop keeps beside those of a commit: ``_SUCCESS``, checksums."""
    parts = name.split("/")
    if not parts[-1].startswith((".", "_")) or _TEMPORARY in parts:
        return False
    # A load that was replayed by a newer release has its directory inside that of the older one's run.
    inner = len(parts) > 2 and parts[1].startswith(f"{output_files.RUN_COLUMN}=")
    return "/".join(parts[: 2 if inner else 1]) in directories
