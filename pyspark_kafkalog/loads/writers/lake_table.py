"""Tables of Delta Lake and Iceberg as targets of a load (mode ``sink``), whoever writes them. One commit
of the table holds both the rows and the record of their plan, which the next attempt finds after a crash.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from pyspark_kafkalog.errors import InvalidConfig, LoadError
from pyspark_kafkalog.ledger.commit import LoadOutput
from pyspark_kafkalog.ledger.ledger import Ledger
from pyspark_kafkalog.ledger.plan import Plan
from pyspark_kafkalog.ledger.records import entry
from pyspark_kafkalog.loads.file_table import Work

if TYPE_CHECKING:
    pass

_KIND = "kafkalog"
_ABANDONED = {
    "discard": "the ledger discarded it",
    "rewind": "the ledger was rewound before it was committed",
    "compact": "the load's files were compacted before it was committed",
}
"""Why the plan of that number is not in effect, by the mode of its commit."""


class TableCommit(msgspec.Struct, frozen=True):
    """A load in a commit of a table. ``version`` is the table's; ``rows`` is None if unknown."""

    version: int
    load: str
    ledger: str
    number: int
    plan_sha256: str
    run: str
    rows: int | None = None


def encode_table_commit(ledger: Ledger, plan: Plan, run: str) -> str:
    fields = {
        "load": ledger.name,
        "ledger": ledger.identity(),
        "number": plan.number,
        "plan_sha256": plan.sha256,
        "run": run,
        "positions": [entry(p) for p in plan.positions.values()],
    }
    return json.dumps({_KIND: fields}, separators=(",", ":"), ensure_ascii=False)


def decode_table_commit(version: int, text: str | None, rows: int | None) -> TableCommit | None:
    try:
        found = json.loads(text or "")[_KIND]
        load, ledger, sha256, run = (str(found[name]) for name in ("load", "ledger", "plan_sha256", "run"))
        return TableCommit(version, load, ledger, int(found["number"]), sha256, run, rows)
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def versions_in_effect(history: Iterable[tuple[int, int | None]]) -> Iterator[int]:
    """Versions in effect, newest first, from ``(version, restored)``: a restore undoes those in between."""
    last: int | None = None
    for version, restored in history:
        if last is None or version <= last:
            yield version
            last = restored if restored is not None else last


def commit_of_plan(
    table: str, commits: Iterable[TableCommit], ledger: Ledger, plan: Plan
) -> TableCommit | None:
    """This plan's commit among ``commits``, newest first; `LoadError` if table and ledger disagree."""
    identity = ledger.identity()
    ours = [c for c in commits if (c.load, c.ledger) == (ledger.name, identity)]
    _refuse_repeated(table, ours)
    same = [c for c in ours if (c.number, c.plan_sha256) == (plan.number, plan.sha256)]
    if same:
        return same[0]
    if ours:
        _check(table, ours[0], ledger, plan)
    return None


def _refuse_repeated(table: str, ours: list[TableCommit]) -> None:
    """The JVM of a killed driver may still have written the load a second time."""
    versions: dict[tuple[int, str], list[int]] = {}
    for commit in ours:
        versions.setdefault((commit.number, commit.plan_sha256), []).append(commit.version)
    for (number, _), found in versions.items():
        if len(found) > 1:
            raise LoadError(
                f"{table} holds load {number} of {ours[0].load!r} more than once, in versions "
                f"{', '.join(map(str, found))}: an earlier attempt was still writing. Roll the table back to "
                "before the later one, then load again"
            )


def _check(table: str, newest: TableCommit, ledger: Ledger, plan: Plan) -> None:
    commit = ledger.commit_of(newest.number) if newest.number < plan.number else None
    why = ""
    if commit is not None and commit.plan_sha256 == newest.plan_sha256 and commit.is_load:
        at = plan.parent
        while at > newest.number:
            at = ledger.commit_at(at).parent
        if at == newest.number:
            return
        why = "the ledger was rewound to before it"
    elif commit is not None and commit.mode in _ABANDONED:
        why = _ABANDONED[commit.mode]
    if why:
        raise LoadError(
            f"{table} holds load {newest.number} of {ledger.name!r}, in its version {newest.version}, and "
            f"{why}: its rows would be there twice. Roll the table back to before that version, "
            "or rewind the ledger and write to another table"
        )
    raise LoadError(
        f"{table} holds load {newest.number} of {ledger.name!r}, in its version {newest.version}, and "
        f"{ledger.location} does not: it is an old copy. Restore the newer one; to continue without it, "
        "begin a load of another name at the positions in the table's commit"
    )


SHORT_IDENTITY = 12
"""Characters of a ledger's seal that tell it from a ledger created again."""


ICEBERG_PROPERTY = "kafkalog.commit"
"""The snapshot property with a load's record."""


def delta_application(ledger: Ledger) -> str:
    """The application id of a ledger's loads; with its seal, for a new ledger counts from 1 again."""
    return f"kafkalog:{ledger.name}:{ledger.identity()[:SHORT_IDENTITY]}"


class LakeTable(ABC):
    """A table whose commits hold the record of each load. *Not thread-safe.*"""

    mode = "sink"
    format: str

    def __init__(self, table: str) -> None:
        if not table or "`" in table:
            raise InvalidConfig(
                f"the name of the table is {table!r}; it must not be empty or contain a backquote"
            )
        self.table = table

    def check(self, work: Work) -> None:
        if any((done.path, done.format) == (self.table, self.format) for done in work.before):
            raise LoadError(
                f"{self.table} was written in this block already: union the frames and write once"
            )

    def find(self, work: Work) -> tuple[LoadOutput, ...]:
        found = self._found(work, self._commits(work))
        return () if found is None else (found,)

    def _found(self, work: Work, commits: Iterable[TableCommit]) -> LoadOutput | None:
        found = commit_of_plan(self.table, commits, work.ledger, work.plan)
        if found is None:
            return None
        evidence: dict[str, str | int] = {"version": found.version, "run": found.run}
        if found.rows is not None:
            evidence["rows"] = found.rows
        return LoadOutput(self.table, format=self.format, evidence=evidence)

    def write(self, work: Work) -> tuple[LoadOutput, ...]:
        self._append(work, encode_table_commit(work.ledger, work.plan, work.run))
        output = self.find(work)
        if not output:
            raise LoadError(
                f"{self.table} has no commit of load {work.plan.number} after writing it: the plan "
                "stays. Does another writer of the same name, or a trigger, change its history?"
            )
        return output

    @abstractmethod
    def _commits(self, work: Work) -> list[TableCommit]:
        """The loads in the table's commits in effect, newest first; empty without a table."""

    @abstractmethod
    def _append(self, work: Work, record: str) -> None:
        """Append the rows in one commit that holds ``record``; create the table if it is missing."""


def count_of(metrics: Mapping[str, Any] | None, name: str) -> int | None:
    value = (metrics or {}).get(name)
    return int(value) if value is not None and str(value).isdecimal() else None
