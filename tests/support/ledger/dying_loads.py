"""Loads of plain Python over a directory, which die at each of their calls to the file system.

``python -m tests.support.ledger.dying_loads ROOT``: in ``ROOT/0``, ``ROOT/1``, ... is what is left when the
process dies at that call; a write is done by half. The last one came to its end. It prints how many died.
"""

from __future__ import annotations

import importlib
import itertools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark_kafkalog.ledger import ledger
from pyspark_kafkalog.ledger.commit import Commit
from pyspark_kafkalog.ledger.ledger import Ledger
from pyspark_kafkalog.loads.manifest import write_manifests
from pyspark_kafkalog.loads.output_files import claim_path, load_directory, written_files
from tests.support.ledger.plans import P0, P1, facts, plan_of, read_all
from tests.support.loads.written_tables import write

KNOWN = {P0: facts(0, 2), P1: facts(0, 1)}
ROWS = [0, 1, 2]
_CALLS = ("link", "write", "fsync", "replace", "rename", "unlink", "mkdir", "ftruncate", "pwrite")
_DIED = 9


def ledger_of(root: Path) -> Ledger:
    return Ledger.at(root / "offsets", "flights")


def table_of(root: Path) -> Path:
    return root / "table"


def load(root: Path, run: str) -> Commit | None:
    """What a driver and its tasks do: replay what is pending, else plan; None where nothing is left."""
    own, table = ledger_of(root), table_of(root)
    with own.hold(run):
        plan = own.pending()
        if plan is None:
            plan = plan_of(KNOWN, own.head(), created=run)
            if not plan.ranges:
                write_manifests(own, own.head())
                return None
            plan = own.write_plan(plan)
        claim_path(table, own)
        inside = load_directory(plan.number, run)
        write(table, f"{inside}/a.parquet", rows=ROWS)
        read_all(own, plan, run)
        commit = own.commit(plan, mode="dir", run=run, outputs=[written_files(table, inside)])
        write_manifests(own, commit)
        return commit


def _die_at(number: int) -> None:
    """The process ends at so many calls from now."""
    counted = itertools.count()

    def surrounded(name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            if next(counted) == number:
                if name in ("write", "pwrite"):
                    file, data, *at = arguments
                    plain(file, data[: len(data) // 2], *at)
                os._exit(_DIED)
            return plain(*arguments, **named)

        return call

    for name in _CALLS:
        setattr(os, name, surrounded(name, getattr(os, name)))


def main(root: Path) -> None:
    importlib.import_module("pandas")  # pyarrow looks for it: once, and not in each process
    ledger.check_store = lambda _store: None  # type: ignore[assignment]  # dozens of calls, in each of them
    for number in itertools.count():
        own = root / str(number)
        own.mkdir(parents=True)
        ledger_of(own).identify("cluster-a", {})
        child = os.fork()
        if child == 0:
            try:
                _die_at(number)
                load(own, "died")
            except BaseException:
                sys.excepthook(*sys.exc_info())
                os._exit(1)
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code == 0:
            print(number)  # noqa: T201
            return
        if code != _DIED:
            sys.exit(f"the load that was to die at call {number} ended with {code}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
