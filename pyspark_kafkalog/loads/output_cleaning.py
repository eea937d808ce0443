"""Removes files of a load that no commit names, and those that a compaction replaced.

The first are of runs that died, were given up or lost a race. Nothing of the pending plan, of a load whose
number the ledger does not have yet, or younger than asked is touched; nor what a rewind undid: its commit
still names it.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from pyspark_kafkalog.clock import utc_text
from pyspark_kafkalog.errors import LoadError
from pyspark_kafkalog.ledger.commit import COMPACT, FILE_FORMATS, Commit
from pyspark_kafkalog.ledger.in_effect import Removal, replaced_outputs
from pyspark_kafkalog.ledger.ledger import Ledger
from pyspark_kafkalog.ledger.records import encode, removal_name
from pyspark_kafkalog.loads import output_files
from pyspark_kafkalog.loads.dead_letters import path_of
from pyspark_kafkalog.stores.locations import open_store
from pyspark_kafkalog.stores.store import FileStore, StoredFile

_OF_LOAD = re.compile(rf"(?:load|{output_files.COMPACTION_COLUMN})=([0-9]{{8,}})")
_TEMPORARY = "_temporary"
"""Where Spark's committer keeps the files of tasks; a killed driver leaves it."""
_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class Unlisted:
    """Files of the output ``path``, by their names below it, that may go, with their bytes: those that no
    commit names, and the ``replaced`` ones of ``compactions``.

    ``young`` counts files that no commit names and that are too young. ``refused`` says why the path is left
    alone, or "".
    """

    path: str
    files: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()
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
    listed.setdefault(path_of(ledger), set())
    lineage = ledger.lineage(newest) if newest else []
    found = []
    for path, names in sorted(listed.items()):
        store = open_store(path)
        if not store.names(""):
            continue
        refused = _why_refused(path, ledger)
        if refused:
            found.append(Unlisted(path, refused=refused))
            continue
        there = _files_of(store, newest)
        unlisted = _unlisted(path, there, names, directories.get(path, set()), before_ms)
        found.append(_with_replaced(unlisted, there, lineage, utc_text(before_ms)))
    return found


def _unlisted(
    path: str, there: Sequence[StoredFile], names: set[str], directories: set[str], before_ms: int
) -> Unlisted:
    unnamed = [
        file for file in there if file.name not in names and not _is_beside_listed(file.name, directories)
    ]
    old = [file for file in unnamed if file.modified_ms < before_ms]
    return Unlisted(
        path,
        tuple(file.name for file in old),
        bytes=sum(file.bytes for file in old),
        young=len(unnamed) - len(old),
    )


def _with_replaced(
    found: Unlisted, there: Sequence[StoredFile], lineage: Sequence[Commit], before: str
) -> Unlisted:
    """Also the files that compactions in effect replaced, and that are still there."""
    sizes = {file.name: file.bytes for file in there}
    replaced: dict[str, int] = {}
    compactions = []
    for compaction in lineage:
        if compaction.mode != COMPACT or compaction.created > before:
            continue
        old = [out for _, out in replaced_outputs(lineage, compaction) if out.path == found.path]
        files = [f"{out.directory}/{file.name}" for out in old for file in out.files]
        left = {file: sizes[file] for file in files if file in sizes}
        replaced |= left
        compactions += [compaction.number] if left else []
    return replace(
        found,
        replaced=tuple(replaced),
        compactions=tuple(compactions),
        bytes=found.bytes + sum(replaced.values()),
    )


def remove_unlisted(ledger: Ledger, found: Unlisted, now_ms: int) -> None:
    """Remove these files, and the directories that are then empty. The caller holds the ledger's lock.

    If interrupted, it can be repeated. Of compactions it is noted first that there is no way back.
    """
    store, files = open_store(found.path), (*found.files, *found.replaced)
    for number in found.compactions:
        ledger.store.create(removal_name(number), encode(Removal(number, utc_text(now_ms))))
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        deque(pool.map(store.remove, files), maxlen=0)
    emptied = {str(parent) for file in files for parent in PurePosixPath(file).parents} - {"."}
    for directory in sorted(emptied, reverse=True):
        _remove_remains(store, directory)
        store.remove(directory)


def _remove_remains(store: FileStore, directory: str) -> None:
    """Remove what Hadoop keeps beside data, ``_SUCCESS`` and checksums, if there is no data left."""
    left = [file.name for file in store.files(directory)]
    inner = [name[len(directory) + 1 :] for name in left]
    if all(name.startswith((".", "_")) and "/" not in name for name in inner):
        for name in left:
            store.remove(name)


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


def _files_of(store: FileStore, newest: int) -> list[StoredFile]:
    """All files in the directories of loads up to ``newest``."""
    found = []
    for file in store.files(""):
        top, _, inside = file.name.partition("/")
        number = _OF_LOAD.fullmatch(top)
        if number and 0 < int(number[1]) <= newest and inside:
            found.append(file)
    return sorted(found)


def _is_beside_listed(name: str, directories: set[str]) -> bool:
    """Whether a file is one that Hadoop keeps beside those of a commit: ``_SUCCESS``, checksums."""
    parts = name.split("/")
    if not parts[-1].startswith((".", "_")) or _TEMPORARY in parts:
        return False
    # A load that was replayed by a newer release has its directory inside that of the older one's run.
    inner = len(parts) > 2 and parts[1].startswith(f"{output_files.RUN_COLUMN}=")
    return "/".join(parts[: 2 if inner else 1]) in directories
