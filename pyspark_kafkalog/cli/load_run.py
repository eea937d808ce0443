"""``kafkalog load`` at work: plans, starts Spark, shows how far the tasks are, says what was loaded where."""

from __future__ import annotations

import os
import re
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from pyspark_kafkalog.cli.terminal_output import counted, progress, show
from pyspark_kafkalog.datasource.load.load_planning import propose as propose_plan
from pyspark_kafkalog.datasource.options.read_options import parse_batch_options
from pyspark_kafkalog.datasource.reading.opening import open_cluster
from pyspark_kafkalog.errors import LoadError
from pyspark_kafkalog.ledger.ledger import Ledger
from pyspark_kafkalog.ledger.plan import Plan
from pyspark_kafkalog.ledger.records import receipt_name, receipts_name
from pyspark_kafkalog.loads.load import Load
from pyspark_kafkalog.loads.load import load as begin_load
from pyspark_kafkalog.loads.manifest import write_manifests
from pyspark_kafkalog.loads.target import Target

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOOK_EVERY_SECONDS = 0.2
_ASK_EVERY_SECONDS = 2.0
"""How often a far store is asked for receipts: one request each."""


def propose(name: str, offsets: str, on_pending: str, options: Mapping[str, str]) -> Plan | None:
    """The plan that a load would have now, without writing it; None if nothing is new. Needs no Spark."""
    ledger = Ledger.at(offsets, name)
    where = ledger.offsets_path  # absolute, as the source wants it
    ours = {"loadName": name, "offsetsPath": where, "onPendingPlan": on_pending}
    parsed = parse_batch_options({**options, **ours})
    cluster = open_cluster(parsed)
    try:
        return propose_plan(parsed, cluster, ledger)
    finally:
        cluster.close()


def target_of(to: str, table: str | None, file_format: str, by_time: str | None, grain: str) -> Target:
    """What ``--to`` names: files, or with a table a database.

    Raises:
        InvalidConfig: it names neither.
    """
    if table is None:
        from pyspark_kafkalog.loads.file_table import FileTable

        return FileTable(to, format=file_format, partition_by_time=by_time, grain=grain)
    from pyspark_kafkalog.loads.sql.sql_table import SqlTable

    return SqlTable(to, table)


def run(
    name: str, offsets: str, to: Target, on_pending: str, options: Mapping[str, str], master: str
) -> None:
    """Make one load from its plan to its commit.

    Raises:
        InvalidConfig: an option is wrong.
        LoadError: it failed; unless the message says otherwise, the next load replays its plan.
    """
    # First, so that nobody waits for Spark if nothing is new or an option is wrong.
    if propose(name, offsets, on_pending, options) is None:
        ledger = Ledger.at(offsets, name)
        write_manifests(ledger, ledger.head())  # as each load does
        typer.echo(f"{name}: nothing new")
        return
    typer.echo("starting Spark", err=True)
    with spark_log() as log_fd:
        spark = spark_session(master, log_fd)
        try:
            given: dict[str, Any] = dict(options)
            load = begin_load(spark, name=name, offsets=offsets, on_pending=on_pending, **given)
            with load:
                if load.plan is not None:
                    with _following(load.ledger, load.plan):
                        load.write(to)
            _report(load)
        finally:
            spark.stop()


@contextmanager
def spark_log() -> Iterator[int]:
    """A file for the output of Spark and its JVM; kept, and named, if the load fails.

    Raises:
        LoadError: for any error of Spark, with the message of our error that caused it, if one did.
    """
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    from pyspark_kafkalog.java_runtime import JavaNotFound

    fd, name = tempfile.mkstemp(prefix="kafkalog-spark-", suffix=".log")
    try:
        yield fd
    except (PySparkException, Py4JError, JavaNotFound) as e:
        raise LoadError(
            f"{_reason(str(e))}\nNothing was committed; the next load replays the plan, if one was made. "
            f"Spark's log: {name}"
        ) from e
    except BaseException:
        Path(name).unlink()
        raise
    else:
        Path(name).unlink()
    finally:
        os.close(fd)


def name_interpreter(master: str) -> None:
    """Make Spark on this machine use our interpreter instead of any ``python3`` on PATH.

    PYSPARK_PYTHON takes precedence. On a cluster, executors would look for this machine's path.
    """
    if master.startswith("local"):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


def spark_session(master: str, log_fd: int) -> SparkSession:
    """A session whose JVM writes to ``log_fd`` instead of over our progress bar."""
    from pyspark_kafkalog.java_runtime import ensure_java

    ensure_java()
    name_interpreter(master)
    os.environ.setdefault(
        "SPARK_LOCAL_IP", "127.0.0.1"
    )  # otherwise Spark warns about a host name on loopback
    from pyspark.sql import SparkSession

    builder = (
        SparkSession.builder.master(master)
        .appName("kafkalog load")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
    )
    # PySpark has no setting for that: the JVM inherits our standard error when it starts.
    ours = os.dup(2)
    os.dup2(log_fd, 2)
    try:
        return builder.getOrCreate()
    finally:
        os.dup2(ours, 2)
        os.close(ours)


def _reason(text: str) -> str:
    """The message of our error in the traceback that Spark shows; otherwise the first line of that."""
    raised = re.findall(r"^\s*pyspark_kafkalog[\w.]*\.(\w+: .*)$", text, re.MULTILINE)
    return str(raised[-1]) if raised else text.strip().split("\n")[0]


@contextmanager
def _following(ledger: Ledger, plan: Plan) -> Iterator[None]:
    """A bar over the planned offsets, moved by the receipts as the tasks leave them."""
    total = sum(r.end - r.start for r in plan.ranges)
    ended = threading.Event()
    with progress(f"load {plan.number}, offsets", total) as tell:
        spans = {receipt_name(plan.number, r.key, r.start, r.end): r.end - r.start for r in plan.ranges}
        every_seconds = _LOOK_EVERY_SECONDS if ledger.store.concurrency == 1 else _ASK_EVERY_SECONDS

        def watch() -> None:
            while not ended.wait(every_seconds):
                try:
                    there = [file.name for file in ledger.store.files(receipts_name(plan.number))]
                except LoadError:  # the tasks or the commit will raise it
                    return
                tell(sum(spans.get(name, 0) for name in there))

        watcher = threading.Thread(target=watch, name="progress of the load", daemon=True)
        if sys.stderr.isatty():
            watcher.start()
        try:
            yield
        finally:
            ended.set()
            if watcher.is_alive():
                watcher.join()


def _report(load: Load) -> None:
    if load.plan is None or load.commit is None:
        typer.echo(f"{load.ledger.name}: nothing new")
        return
    rows: dict[str, dict[str, int]] = {}
    for p in load.plan.partitions:
        row = rows.setdefault(p.topic, {"offsets": 0, "records": 0, "bytes": 0})
        row["offsets"] += p.end - p.start
    for receipt in load.ledger.receipts(load.plan):
        rows[receipt.topic]["records"] += receipt.records
        rows[receipt.topic]["bytes"] += receipt.bytes
    show(
        [{"topic": topic, **row} for topic, row in sorted(rows.items())],
        ("topic", "offsets", "records", "bytes"),
        as_json=False,
    )
    if load.commit.skipped:
        typer.echo(
            f"{counted(load.commit.skipped, 'offset')} left out as corrupt (onCorruptBatch=skip)", err=True
        )
    for out in load.commit.outputs:
        files = f" in {counted(len(out.files), 'file')}" if out.files else ""
        what = f"{counted(load.commit.records, 'record')}{files}"
        typer.echo(f"load {load.commit.number}: {what}: {out.place}")
