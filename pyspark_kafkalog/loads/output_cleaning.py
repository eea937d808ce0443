"""Removes files of a load that no commit lists (of runs that died, were abandoned or lost a race), and those
that a compaction replaced. Kept: files of the pending plan and of load numbers the ledger does not have yet,
young files, and files that a rewind undid (a commit still lists them).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from pyspark_kafkalog.clock import utc_text
from pyspark_kafkalog.errors import LoadError, LostRace
from pyspark_kafkalog.ledger.archive import FileRemoval, replaced_outputs
from pyspark_kafkalog.ledger.commit import COMPACT, FILE_FORMATS, Commit
from pyspark_kafkalog.ledger.ledger import Ledger
from pyspark_kafkalog.ledger.records import encode, removal_name
from pyspark_kafkalog.ledger.stores.store import FileStore, StoredFile, open_store, side_by_side
from pyspark_kafkalog.loads import output_files
from pyspark_kafkalog.loads.dead_letters import path_of

_OF_LOAD = re.compile(rf"(?:load|{output_files.COMPACTION_COLUMN})=([0-9]{{8,}})")
_TEMPORARY = "_temporary"
"""Spark's committer keeps the files of tasks here; a killed driver leaves it."""


@dataclass(frozen=True, slots=True)
class Removable:
    """Removable files of the table at ``location``, relative to it, with their total ``bytes``: ``unlisted``
    in commits up to ``head``, or ``replaced`` by ``compactions``; ``directories`` hold nothing else.
    ``young_count`` counts unlisted files that are too young. ``refused`` says why nothing may be removed, or
    "".
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
    """Removable files by table: unlisted and written before ``before_ms`` (UTC, epoch), or replaced by then.
    Tables are known from the commits. Raises `LoadError` if a commit cannot be read, so the files it lists
    are unknown.
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
            found.append(_Table(store, path, commits, lineage).removable(before_ms))
    return found


def remove_files(ledger: Ledger, found: Removable, now_ms: int) -> None:
    """Remove these files, and directories left without data; can be repeated. The caller holds the ledger's
    lock. First records in the ledger that rewinding to before the compactions is no longer possible. Raises
    `LostRace`, having removed nothing, if another driver committed meanwhile, perhaps such a rewind.
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


class _Table:
    def __init__(
        self, store: FileStore, path: str, commits: Sequence[Commit], lineage: Sequence[Commit]
    ) -> None:
        """``path`` is the table's name in the commits."""
        self._store, self._path = store, path
        self._lineage = lineage
        self._head = commits[-1].number if commits else 0
        outputs = [out for commit in commits for out in commit.outputs if out.path == path]
        self._named = {f"{out.directory}/{file.name}" for out in outputs for file in out.files}
        self._directories = {out.directory for out in outputs}

    def removable(self, before_ms: int) -> Removable:
        there = self._files()
        unnamed = [file for file in there if file.name not in self._named and not self._is_kept(file.name)]
        old = [file for file in unnamed if file.modified_ms < before_ms]
        replaced, compactions = self._replaced(there, utc_text(before_ms))
        gone = {file.name for file in (*old, *replaced)}
        left = [file for file in there if file.name not in gone]
        return Removable(
            self._store.location,
            self._head,
            unlisted=tuple(file.name for file in old),
            replaced=tuple(file.name for file in replaced),
            compactions=tuple(compactions),
            directories=_without_data(gone, left, before_ms),
            bytes=sum(file.bytes for file in (*old, *replaced)),
            young_count=len(unnamed) - len(old),
        )

    def _files(self) -> list[StoredFile]:
        found = []
        for file in self._store.files(""):
            top, _, inside = file.name.partition("/")
            number = _OF_LOAD.fullmatch(top)
            if number and 0 < int(number[1]) <= self._head and inside:
                found.append(file)
        return sorted(found)

    def _is_kept(self, name: str) -> bool:
        """Hadoop's side files of a commit, which are kept: ``_SUCCESS``, checksums."""
        parts = name.split("/")
        if not parts[-1].startswith((".", "_")) or _TEMPORARY in parts:
            return False
        return "/".join(parts[:2]) in self._directories

    def _replaced(self, there: Iterable[StoredFile], before: str) -> tuple[list[StoredFile], list[int]]:
        """Existing files replaced by compactions in effect, and those compactions."""
        by_name = {file.name: file for file in there}
        found: dict[str, StoredFile] = {}
        compactions = []
        for compaction in self._lineage:
            if compaction.mode != COMPACT or compaction.created > before:
                continue
            old = [out for _, out in replaced_outputs(self._lineage, compaction) if out.path == self._path]
            names = [f"{out.directory}/{file.name}" for out in old for file in out.files]
            left = {name: by_name[name] for name in names if name in by_name}
            found |= left
            compactions += [compaction.number] if left else []
        return list(found.values()), compactions


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
