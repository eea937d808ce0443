"""Loads without Spark that die at their N-th durable step. Their tasks run in the driver's process, so that
one number goes through all steps of driver and tasks.

The program forks itself for each line of its input, ``N KIND ROOT SERVERS TOPIC``, and answers with a line:
the number of steps, or "died".
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from deltalake import DeltaTable
from pyiceberg.catalog.sql import SqlCatalog

import pyspark_kafkalog as kafkalog
from pyspark_kafkalog.loads import load as _load_first  # noqa: F401  before any fork
from tests.support.loads.tasks_here import run_tasks_here

_steps = 0


def catalog(root: Path) -> dict[str, str]:
    return {"type": "sql", "uri": f"sqlite:///{root}/catalog.db", "warehouse": f"file://{root}/lake"}


def _dying(call: Callable[..., Any], at: int) -> Callable[..., Any]:
    """Dies before its step, or after it, where that is number ``at``."""

    def step(*args: Any, **named: Any) -> Any:
        _count(at)
        result = call(*args, **named)
        _count(at)
        return result

    return step


def _count(at: int) -> None:
    global _steps
    _steps += 1
    if _steps == at:
        os.kill(os.getpid(), signal.SIGKILL)


def load(at: int, kind: str, root: Path, servers: str, topic: str) -> None:
    for name in ("fsync", "link", "replace"):
        setattr(os, name, _dying(getattr(os, name), at))
    DeltaTable.create_write_transaction = _dying(DeltaTable.create_write_transaction, at)  # type: ignore[method-assign]
    SqlCatalog.commit_table = _dying(SqlCatalog.commit_table, at)  # type: ignore[method-assign]
    run_tasks_here(setattr)
    options: dict[str, Any] = {"kafka.bootstrap.servers": servers, "subscribe": topic}
    with kafkalog.load(None, name="events", offsets=root / "offsets", **options) as load:
        if kind == "delta":
            load.write_delta(str(root / "table"))
        elif kind == "iceberg":
            load.write_iceberg("db.events", catalog=catalog(root))
        else:
            load.write_parquet(root / "table", partition_by="partition")


def main() -> None:
    for line in sys.stdin:
        at, kind, root, servers, topic = line.split()
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            load(int(at), kind, Path(root), servers, topic)
            os.write(writer, str(_steps).encode())
            os._exit(0)
        os.close(writer)
        _, status = os.waitpid(child, 0)
        died = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        said = os.read(reader, 100).decode() or ("died" if died else f"failed: {status}")
        os.close(reader)
        sys.stdout.write(f"{said}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
