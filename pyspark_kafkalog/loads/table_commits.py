"""What a load leaves in the commits of a table of Delta or Iceberg, and what it means to find it.

The record travels in the table's own commit, so that rows and position are published by one step that neither
of the two can miss. Afterwards ours is made; where a crash came between, the next attempt finds this one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pyspark_kafkalog.loads.commit import LOAD_MODES
from pyspark_kafkalog.loads.errors import LoadError
from pyspark_kafkalog.loads.ledger import Ledger
from pyspark_kafkalog.loads.plan import Plan
from pyspark_kafkalog.loads.plan_record import encode_position

_KIND = "kafkalog"
_GIVEN_UP = {"discard": "the ledger discarded it", "rewind": "the ledger was rewound before it was committed"}
"""What commits of these modes say of a plan that has their number."""


@dataclass(frozen=True, slots=True)
class TableCommit:
    """A load that a table's commit tells of. ``version`` is the table's; ``rows`` None where untold."""

    version: int
    load: str
    ledger: str
    number: int
    plan_sha256: str
    run: str
    rows: int | None = None


def encode(ledger: Ledger, plan: Plan, run: str) -> str:
    """The record of a plan that is about to be written, positions included, as JSON in one line."""
    fields = {
        "load": ledger.name,
        "ledger": ledger.identity(),
        "number": plan.number,
        "plan_sha256": plan.sha256,
        "run": run,
        "positions": [encode_position(p) for p in plan.positions.values()],
    }
    return json.dumps({_KIND: fields}, separators=(",", ":"), ensure_ascii=False)


def decode(version: int, text: str | None, rows: int | None) -> TableCommit | None:
    """The record in a table's commit; None where there is none of ours."""
    try:
        found = json.loads(text or "")[_KIND]
        return TableCommit(
            version,
            str(found["load"]),
            str(found["ledger"]),
            int(found["number"]),
            str(found["plan_sha256"]),
            str(found["run"]),
            rows,
        )
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def not_undone(history: Iterable[tuple[int, int | None]]) -> Iterator[int]:
    """The versions of a table that count, of all or some of them, newest first.

    Each comes with the version that it made the table again, where it did: what lies between does not count.
    """
    last: int | None = None
    for version, restored in history:
        if last is None or version <= last:
            yield version
            last = restored if restored is not None else last


def already(table: str, commits: Iterable[TableCommit], ledger: Ledger, plan: Plan) -> TableCommit | None:
    """The commit of the table that holds this very plan; None where it has to be written yet.

    ``commits`` are those in effect, newest first, of whatever ledger.

    Raises:
        LoadError: the table and the ledger do not tell the same, and to write would lose or repeat rows; or
            it holds a load twice.
    """
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
    """No load twice: not this one and, since a killed driver's JVM may end after all, none before it."""
    versions: dict[tuple[int, str], list[int]] = {}
    for commit in ours:
        versions.setdefault((commit.number, commit.plan_sha256), []).append(commit.version)
    for (number, _), found in versions.items():
        if len(found) > 1:
            raise LoadError(
                f"{table} holds load {number} of {ours[0].load!r} more than once, in versions "
                f"{', '.join(map(str, found))}: the driver of an earlier attempt still wrote when another "
                "one did. Roll the table back to before the later one, then load again"
            )


def _check(table: str, newest: TableCommit, ledger: Ledger, plan: Plan) -> None:
    """See that the newest load in the table is one that the ledger committed too."""
    commit = ledger.commit_of(newest.number) if newest.number < plan.number else None
    why = ""
    if commit is not None and commit.plan_sha256 == newest.plan_sha256 and commit.mode in LOAD_MODES:
        if _counts(ledger, newest.number, plan.parent):
            return
        why = "the ledger was rewound to before it"
    elif commit is not None and commit.mode in _GIVEN_UP:
        why = _GIVEN_UP[commit.mode]
    if why:
        raise LoadError(
            f"{table} holds load {newest.number} of {ledger.name!r}, in its version {newest.version}, and "
            f"{why}: its rows would come twice. Roll the table back to before that version, "
            "or rewind the ledger and write to another table"
        )
    raise LoadError(
        f"{table} holds load {newest.number} of {ledger.name!r}, in its version {newest.version}, and "
        f"{ledger.location} does not: it is an old copy. Restore the newer one; to go on without it, begin a "
        "load of another name from the positions that the table's commit tells"
    )


def _counts(ledger: Ledger, number: int, newest: int) -> bool:
    """Whether commit ``number`` is in effect, as seen from commit ``newest``."""
    at = newest
    while at > number:
        at = ledger.commit_at(at).parent
    return at == number
