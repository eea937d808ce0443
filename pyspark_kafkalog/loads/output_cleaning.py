"""Removes files of a load that no commit lists (of runs that died, were abandoned or lost a race), and those
that a compaction replaced. Kept: files of the pending plan and of load numbers the ledger does not have yet,
young files, and files that a rewind undid (a commit still lists them).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from pathlib import PurePosixPath

import msgspec

from pyspark_kafkalog.clock import utc_text
from pyspark_kafkalog.errors import LoadError, LostRace
from pyspark_kafkalog.ledger.archive import FileRemoval, replaced_outputs
from pyspark_kafkalog.ledger.commit import COMPACT, FILE_FORMATS, Commit
from pyspark_kafkalog.ledger.ledger import Ledger
from pyspark_kafkalog.ledger.records import encode, removal_name
from pyspark_kafkalog.ledger.stores.locations import open_store
from pyspark_kafkalog.ledger.stores.store import FileStore, StoredFile, side_by_side
from pyspark_kafkalog.loads import output_files
from pyspark_kafkalog.loads.dead_letters import path_of

_OF_LOAD = re.compile(rf"(?:load|{output_files.COMPACTION_COLUMN})=([0-9]{{8,}})")
_TEMPORARY = "_temporary"
"""Spark's committer keeps the files of tasks here; a killed driver leaves it."""


class Removable(msgspec.Struct, frozen=True):
    """Removable files of the table at ``location``: ``unlisted`` in commits up to ``head``, or ``replaced``
    by ``compactions``; ``directories`` hold nothing else. ``refused`` says why nothing may be removed.
    """

    location: str
    head: int = 0
    unlisted: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()
    compactions: tuple[int, ...] = ()
    directories: tuple[str, ...] = ()
    bytes: int = 0
    young_count: int = 0
    refused: str = ""


def removable_files(ledger: Ledger, before_ms: int) -> list[Removable]:
    """Removable files by table: unlisted and written before ``before_ms``, or replaced by then. Raises
    `LoadError` if a commit, and so what it lists, cannot be read.
    """
    # Read before the directories are listed: a commit made meanwhile has a higher number.
    commits = ledger.history()
    lineage = ledger.lineage(commits[-1].number) if commits else []
    found = []
    for path, location in sorted(_tables(ledger, commits).items()):
        store = open_store(location)
        if not store.names(""):
            continue
        refused = _why_refused(location, path, ledger)
        if refused:
            found.append(Removable(location, refused=refused))
        else:
            found.append(_removable(store, path, commits, lineage, before_ms))
    return found


def remove_files(ledger: Ledger, found: Removable, now_ms: int) -> None:
    """Remove these files, and directories left without data; may be repeated. The caller holds the ledger's
    lock. First records that rewinding to before the compactions is no longer possible; else raises
    `LostRace`.
    """
    store = open_store(found.location)
    for number in found.compactions:
        ledger.store.create(removal_name(number), encode(FileRemoval(number, utc_text(now_ms))))
    # A later rewind finds these records: see `Ledger.rewind_to`.
    if found.compactions and ledger.head_number() != found.head:
        raise LostRace(
            f"another driver committed to {ledger.location} while files of {found.location} were looked for: "
            "nothing was removed there; run gc again"
        )
    side_by_side(store, store.remove, (*found.unlisted, *found.replaced))
    side_by_side(store, store.remove_directory, found.directories)


def _removable(
    store: FileStore, path: str, commits: Sequence[Commit], lineage: Sequence[Commit], before_ms: int
) -> Removable:
    head = commits[-1].number if commits else 0
    outputs = [out for commit in commits for out in commit.outputs if out.path == path]
    listed = {f"{out.directory}/{file.name}" for out in outputs for file in out.files}
    runs = {out.directory for out in outputs}
    files = sorted(file for file in store.files("") if 0 < _load_of(file) <= head)
    unlisted = [file for file in files if file.name not in listed and not _is_kept(file.name, runs)]
    old = [file for file in unlisted if file.modified_ms < before_ms]
    replaced, compactions = _replaced(lineage, path, files, utc_text(before_ms))
    gone = {file.name for file in (*old, *replaced)}
    # As if there were a file in each directory of a run that no commit names.
    gone |= {
        f"{made.name}{_TEMPORARY}"
        for made in store.directories("")
        if 0 < _load_of(made) <= head
        and made.modified_ms < before_ms
        and "/".join(made.name.split("/")[:2]) not in runs
    }
    left = [file for file in files if file.name not in gone]
    return Removable(
        store.location,
        head,
        unlisted=tuple(file.name for file in old),
        replaced=tuple(file.name for file in replaced),
        compactions=tuple(compactions),
        directories=_without_data(gone, left, before_ms),
        bytes=sum(file.bytes for file in (*old, *replaced)),
        young_count=len(unlisted) - len(old),
    )


def _load_of(file: StoredFile) -> int:
    """The number of the load or compaction in whose directory a file is; 0 for other files."""
    top, _, inside = file.name.partition("/")
    number = _OF_LOAD.fullmatch(top)
    return int(number[1]) if number and inside else 0


def _is_kept(name: str, runs: Collection[str]) -> bool:
    """Hadoop's side files in the directory of a committed run: ``_SUCCESS``, checksums."""
    parts = name.split("/")
    if not parts[-1].startswith((".", "_")) or _TEMPORARY in parts:
        return False
    return "/".join(parts[:2]) in runs


def _replaced(
    lineage: Sequence[Commit], path: str, files: Iterable[StoredFile], before: str
) -> tuple[list[StoredFile], list[int]]:
    by_name = {file.name: file for file in files}
    replaced: dict[str, StoredFile] = {}
    compactions = []
    for compaction in lineage:
        if compaction.mode != COMPACT or compaction.created > before:
            continue
        old = [out for _, out in replaced_outputs(lineage, compaction) if out.path == path]
        names = [f"{out.directory}/{file.name}" for out in old for file in out.files]
        left = {name: by_name[name] for name in names if name in by_name}
        replaced |= left
        compactions += [compaction.number] if left else []
    return list(replaced.values()), compactions


def _tables(ledger: Ledger, commits: Iterable[Commit]) -> dict[str, str]:
    """Locations of a load's tables, by the path in the commits (where they were claimed)."""
    found = {out.path: out.path for commit in commits for out in commit.outputs if out.format in FILE_FORMATS}
    dead = path_of(ledger)  # the ledger's current location, perhaps moved
    claim = output_files.read_claim(dead)
    return {**found, (dead if claim is None else claim.path): dead}


def _why_refused(location: str, path: str, ledger: Ledger) -> str:
    try:
        owner = output_files.read_claim(location)
        if owner is None:
            return f"it has no {output_files.CLAIM}"
        if (owner.load, owner.ledger) != (ledger.name, ledger.identity()):
            return f"it belongs to load {owner.load!r} with its offsets in {owner.offsets}"
        if owner.path != path:
            return f"its {output_files.CLAIM} names {owner.path}, and the commits {path}"
        output_files.check_not_copied(owner, ledger)
    except LoadError as e:
        return str(e)
    return ""


def _without_data(gone: Collection[str], left: Sequence[StoredFile], before_ms: int) -> tuple[str, ...]:
    """The outermost directories of removed files in which only old Hadoop side files are left."""
    kept = {
        str(directory)
        for file in left
        if not output_files.is_hidden(file.name) or file.modified_ms >= before_ms
        for directory in PurePosixPath(file.name).parents
    }
    # Outermost first; the last parent is ".", the table itself.
    parents = [list(PurePosixPath(name).parents)[-2::-1] for name in gone]
    emptied = (next((str(one) for one in some if str(one) not in kept), None) for some in parents)
    return tuple(sorted({one for one in emptied if one is not None}))
