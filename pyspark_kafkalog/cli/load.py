"""``kafkalog load``: plan, load here or in Spark, once or again and again, show progress and the result.
Imports late, so that help is fast.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from pyspark_kafkalog.cli.arguments import (
    DEFAULT_SERVER,
    ClusterCommands,
    Servers,
    command_properties,
    duration_ms,
    examples,
    pairs,
    speaks_07,
    topic_names,
)
from pyspark_kafkalog.cli.terminal_output import counted, progress, show, size, words
from pyspark_kafkalog.clock import parse_iso_time
from pyspark_kafkalog.datasource.options.read_options import parse_batch_options
from pyspark_kafkalog.datasource.reading.kafka import open_cluster
from pyspark_kafkalog.errors import InvalidConfig, LoadError
from pyspark_kafkalog.ledger.commit import ORC, PARQUET
from pyspark_kafkalog.loads.partitioning import Partitioning
from pyspark_kafkalog.types import NO_BROKER

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pyspark_kafkalog.ledger.ledger import Ledger
    from pyspark_kafkalog.ledger.plan import Plan
    from pyspark_kafkalog.loads.file_table import Target
    from pyspark_kafkalog.loads.load import Load
    from pyspark_kafkalog.status.load_metrics import LoadMetrics
    from pyspark_kafkalog.types import TopicPartition

Name = Annotated[str, typer.Argument(metavar="LOAD", help="The name of the load.")]
Offsets = Annotated[str, typer.Option("--offsets", help="Directory of the ledgers (offsetsPath).")]

_DELTA = "delta"
_FORMATS = (PARQUET, ORC, _DELTA)

_LOOK_EVERY_SECONDS = 0.2
_ASK_EVERY_SECONDS = 2.0  # how often a remote store is listed for receipts: one request each

loading = ClusterCommands()


@loading.command(
    epilog=examples(
        "load flights --offsets /lake/_offsets --topic flights --to /lake/flights",
        "load flights --offsets /lake/_offsets --topic flights --dry-run",
        "load flights --offsets /lake/_offsets --topic flights --to s3://lake/flights --every 60s",
        "load days --offsets /lake/_offsets --topic flights --to /lake/days --partition-by-time timestamp",
        "load flights --offsets s3://lake/_offsets --topic flights --to s3://lake/flights --format delta",
        "load flights --offsets s3://lake/_offsets --topic flights --to dw.flights --catalog prod",
        "load flights --offsets /lake/_offsets --topic flights --to sqlite:////lake/db --table flights",
        "load all --offsets /lake/_offsets --subscribe-pattern 'f.*' --to /lake/all --option minPartitions=8",
        "load old --offsets /lake --topic old --to /old --option protocol=0.7 --option zk.connect=zk:2181",
    )
)
def load(
    name: Name,
    offsets: Offsets,
    to: Annotated[
        str | None,
        typer.Option(help="Directory of files or a Delta table, Iceberg table's name, or database's URL."),
    ] = None,
    table: Annotated[str | None, typer.Option(help="Table, if --to is a database.")] = None,
    topics: Annotated[
        list[str] | None, typer.Option("--topic", help="Topic; may be repeated.", autocompletion=topic_names)
    ] = None,
    pattern: Annotated[
        str | None, typer.Option("--subscribe-pattern", help="Instead: regular expression for topic names.")
    ] = None,
    server: Servers = DEFAULT_SERVER,
    option: Annotated[
        list[str] | None, typer.Option(help="Data source option, name=value; may be repeated.")
    ] = None,
    on_pending: Annotated[str, typer.Option(help="Uncommitted plan: replay, fail or discard.")] = "replay",
    table_format: Annotated[
        str | None,
        typer.Option("--format", help="parquet (default), orc, delta; Iceberg: see --catalog."),
    ] = None,
    catalog: Annotated[
        str | None, typer.Option(help="Catalog of the Iceberg table --to, by its name for pyiceberg.")
    ] = None,
    by: Annotated[
        list[str] | None, typer.Option("--partition-by", help="Directories by this column; may be repeated.")
    ] = None,
    by_time: Annotated[
        str | None, typer.Option("--partition-by-time", help="Directories by day or hour of this column.")
    ] = None,
    grain: Annotated[str, typer.Option(help="With --partition-by-time: day or hour, in UTC.")] = "day",
    compression: Annotated[
        str | None, typer.Option(help="Of Parquet files: zstd (default), snappy, lz4, gzip, brotli or none.")
    ] = None,
    master: Annotated[
        str | None,
        typer.Option(help="Run in Spark with this master, 'local[*]' for example; else in processes here."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be read.")] = False,
    every: Annotated[
        str | None, typer.Option(help="Repeat, as often as this (60s, 5m), until SIGTERM or Ctrl-C.")
    ] = None,
    grace: Annotated[
        str, typer.Option(help="With --every: how long a load may go on after SIGTERM; its plan stays.")
    ] = "20s",
    compact_every: Annotated[
        str | None, typer.Option(help="With --every: run `compact` and `gc` as often as this (1h).")
    ] = None,
    metrics_file: Annotated[
        Path | None, typer.Option(help="Write Prometheus metrics here after each load, for node_exporter.")
    ] = None,
    metrics_listener: Annotated[
        str | None, typer.Option(help="With --every: serve them at /metrics of this address, host:port.")
    ] = None,
) -> None:
    """Load new records into files, a Delta or Iceberg table, or a database, exactly once.

    Without --master no Spark is needed: tasks run in processes of this machine and write the files.
    """
    options = source_options(server, topics or [], pattern, option or [])
    if dry_run:
        show_plan(propose(name, offsets, on_pending, options), name)
        return
    if to is None:
        raise typer.BadParameter("say where the rows go", param_hint="--to")
    every_ms = None if every is None else duration_ms(every, "--every")
    if every_ms == 0:
        raise typer.BadParameter(
            "0s would ask the brokers without a pause; give 1s or more", param_hint="--every"
        )
    if every_ms is None and compact_every is not None:
        raise typer.BadParameter("goes with --every", param_hint="--compact-every")
    grace_ms = duration_ms(grace, "--grace")
    compact_ms = None if compact_every is None else duration_ms(compact_every, "--compact-every")

    def new_target() -> Target:
        partitioning = Partitioning.of(by or [], by_time, grain)
        return target_of(to, table, table_format, catalog, partitioning, compression, master)

    new_target()  # a wrong option is told first
    if every_ms is None and metrics_listener is not None:
        raise typer.BadParameter("goes with --every", param_hint="--metrics-listener")
    metrics = None
    if metrics_file is not None or metrics_listener is not None:
        from pyspark_kafkalog.status.load_metrics import LoadMetrics

        metrics = LoadMetrics(name, metrics_file)
    loads = Loads(name, offsets, new_target, on_pending, options, catalog, metrics)
    if every_ms is None:
        loads.run_once(master)
        return
    with served(metrics, metrics_listener):
        loads.run_every(every_ms, grace_ms, master, compact_ms)


@contextmanager
def served(metrics: LoadMetrics | None, listener: str | None) -> Iterator[None]:
    if metrics is None or listener is None:
        yield
        return
    from pyspark_kafkalog.status.status_server import parse_listener

    host, port = parse_listener(listener, "--metrics-listener")
    try:
        server, thread = metrics.serve(host, port)
    except OSError as e:
        raise InvalidConfig(f"--metrics-listener={listener}: cannot listen there: {e}") from None
    words(f"metrics: http://{host}:{server.server_port}/metrics")
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def source_options(
    server: str, topics: Sequence[str], pattern: str | None, given: Sequence[str]
) -> dict[str, str]:
    if bool(topics) == (pattern is not None):
        raise typer.BadParameter("give --topic, once or more, or --subscribe-pattern", param_hint="--topic")
    what = {"subscribe": ",".join(topics)} if topics else {"subscribePattern": str(pattern)}
    file = command_properties().items()
    shared = {f"kafka.{key}": value for key, value in file if key != "bootstrap.servers"}
    options = {**shared, **what, **dict(pairs(given, "--option"))}
    if not speaks_07(options):
        options.setdefault("kafka.bootstrap.servers", server)
    if not any(name.lower() == "fetchoffset.numretries" for name in options):
        # Somebody waits: fail after one request.timeout.ms, half a minute in which the client retries itself.
        options["fetchOffset.numRetries"] = "0"
    return options


def show_plan(plan: Plan | None, name: str) -> None:
    if plan is None:
        typer.echo(f"{name}: nothing new")
        return
    unit = unit_of(plan.partitions[0].key)
    rows = [
        {**asdict(p), "partition": p.key.number, f"{unit}s": p.end - p.start, "why": p.reason or "goes on"}
        for p in plan.partitions
    ]
    show(rows, ("topic", "partition", "start", "end", f"{unit}s", "why"), as_json=False)
    total = counted(sum(p.end - p.start for p in plan.partitions), unit)
    tasks = counted(len(plan.ranges), "task")
    typer.echo(f"{name}: load {plan.number} would read {total} in {tasks}")


def unit_of(partition: TopicPartition) -> str:
    return "offset" if partition.broker == NO_BROKER else "byte"


def propose(name: str, offsets: str, on_pending: str, options: Mapping[str, str]) -> Plan | None:
    """The plan that a load would make now, without writing it; None if nothing is new."""
    from pyspark_kafkalog.datasource.batch.load_planning import propose as propose_plan
    from pyspark_kafkalog.ledger.ledger import Ledger

    ledger = Ledger.at(offsets, name)
    where = ledger.offsets_path  # absolute, as the source requires
    ours = {"loadName": name, "offsetsPath": where, "onPendingPlan": on_pending}
    parsed = parse_batch_options({**options, **ours})
    with closing(open_cluster(parsed)) as cluster:
        return propose_plan(parsed, cluster, ledger)


def target_of(
    to: str,
    table: str | None,
    table_format: str | None,
    catalog: str | None,
    partitioning: Partitioning,
    compression: str | None,
    master: str | None,
) -> Target:
    if table_format not in (None, *_FORMATS):
        raise typer.BadParameter(f"it must be one of {', '.join(_FORMATS)}", param_hint="--format")
    given = {"--table": table, "--catalog": catalog, "--format": table_format}
    if len(several := [name for name, value in given.items() if value is not None]) > 1:
        raise typer.BadParameter(f"{' and '.join(several)} contradict each other", param_hint=several[0])
    if table is not None:
        from pyspark_kafkalog.loads.sql.sql_table import SqlTable

        return SqlTable(to, table)
    if table_format == ORC:
        from pyspark_kafkalog.loads.file_table import FileTable
        from pyspark_kafkalog.loads.writers.spark_files import SparkFiles

        if master is None:
            raise typer.BadParameter("Spark writes orc: add --master 'local[*]'", param_hint="--format")
        texts = {} if compression is None else {"compression": compression}
        return FileTable(to, SparkFiles(ORC, partitioning, texts))
    from pyspark_kafkalog.loads.transform import RowFunctions
    from pyspark_kafkalog.loads.writers.parquet_files import Layout

    layout = Layout.of(partitioning, None, compression)
    if catalog is not None:
        from pyspark_kafkalog.loads.writers.iceberg_table import TaskIcebergTable

        return TaskIcebergTable(to, catalog, layout, RowFunctions())
    if table_format == _DELTA:
        from pyspark_kafkalog.loads.writers.delta_table import TaskDeltaTable

        return TaskDeltaTable(to, layout, RowFunctions())
    from pyspark_kafkalog.loads.file_table import FileTable
    from pyspark_kafkalog.loads.writers.task_files import TaskFiles

    return FileTable(to, TaskFiles(layout, RowFunctions()))


class Loads(msgspec.Struct, frozen=True):
    """A load that can be run again and again; each time needs a ``new_target``."""

    name: str
    offsets: str
    new_target: Callable[[], Target]
    on_pending: str
    options: Mapping[str, str]
    catalog: str | None = None
    """That of a table in Iceberg, for `gc`."""
    metrics: LoadMetrics | None = None

    def run_once(self, master: str | None) -> None:
        """Run one load. Raises `InvalidConfig`, or `LoadError`; the next load usually replays the plan
        then.
        """
        with self._failures_counted():
            self._run_once(master)

    def _run_once(self, master: str | None) -> None:
        if master is None:
            self._run(None, report)
            return
        from pyspark_kafkalog.ledger.ledger import Ledger
        from pyspark_kafkalog.loads.manifest import write_manifests

        # First, so that nobody waits for Spark if nothing is new or an option is wrong.
        if propose(self.name, self.offsets, self.on_pending, self.options) is None:
            ledger = Ledger.at(self.offsets, self.name)
            write_manifests(ledger, ledger.head())  # as each load does
            typer.echo(f"{self.name}: nothing new")
            self._note(ledger, None, 0.0)
            return
        with started_spark(master) as spark:
            self._run(spark, report)

    def run_every(self, every_ms: int, grace_ms: int, master: str | None, compact_ms: int | None) -> None:
        """Run loads until SIGTERM, with a line for each that loaded something, and compact in between."""
        from pyspark_kafkalog.loads.schedule import ended_by_signal, repeat

        compacted = time.monotonic()

        def run() -> None:
            nonlocal compacted
            with self._failures_counted():
                self._run(spark, report_line)
            if compact_ms is not None and time.monotonic() >= compacted + compact_ms / 1000:
                compacted = time.monotonic()
                with self._failures_counted(compacting=True):
                    self._compact(spark)

        with ExitStack() as stack:
            spark = None if master is None else stack.enter_context(started_spark(master))
            ended = stack.enter_context(ended_by_signal(grace_ms / 1000))
            repeat(run, every_ms / 1000, ended, words)

    def _compact(self, spark: SparkSession | None) -> None:
        from pyspark_kafkalog.cli.housekeeping import KEPT_FOR, collect_garbage, compact_tables
        from pyspark_kafkalog.ledger.archive import live_outputs
        from pyspark_kafkalog.ledger.ledger import Ledger

        ledger = Ledger.at(self.offsets, self.name)
        paths = dict.fromkeys(out.path for _, out in live_outputs(ledger.lineage()))
        compact_tables(spark, paths, self.offsets)
        collect_garbage(ledger, keep=1, older_than=KEPT_FOR, catalog=self.catalog, is_quiet=True)

    @contextmanager
    def _failures_counted(self, *, compacting: bool = False) -> Iterator[None]:
        try:
            yield
        except Exception:
            if self.metrics is not None:
                (self.metrics.compaction_failed if compacting else self.metrics.failed)()
            raise

    def _note(self, ledger: Ledger, load: Load | None, seconds: float) -> None:
        if self.metrics is None:
            return
        head = ledger.head()
        if head is not None:
            self.metrics.is_at(head.number, head.created)
        plan, commit = (None, None) if load is None else (load.plan, load.commit)
        records, count = (0, 0) if commit is None else (commit.records, commit.bytes)
        left = 0 if plan is None else plan.left
        self.metrics.ended(seconds, records=records, size_bytes=count, lag=left)

    def _run(self, spark: SparkSession | None, tell: Callable[[Load, float], None]) -> None:
        from pyspark_kafkalog.loads.load import load as begin_load

        began, now = time.monotonic(), datetime.now(timezone.utc)
        given: dict[str, Any] = dict(self.options)
        load = begin_load(spark, name=self.name, offsets=self.offsets, on_pending=self.on_pending, **given)
        with load:
            if load.plan is not None:
                if parse_iso_time(load.plan.created) < now:
                    words(f"replaying load {load.number}, planned {load.plan.created}, not committed")
                with _following(load, load.plan):
                    load.write(self.new_target())
        seconds = time.monotonic() - began
        tell(load, seconds)
        self._note(load.ledger, load, seconds)


@contextmanager
def started_spark(master: str) -> Iterator[SparkSession]:
    """A session that writes to a log file, which is kept after Spark's errors, raised as `LoadError`."""
    import tempfile

    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    from pyspark_kafkalog.java_runtime import JavaNotFound

    typer.echo("starting Spark", err=True)
    fd, name = tempfile.mkstemp(prefix="kafkalog-spark-", suffix=".log")
    is_kept = False
    try:
        spark = _spark_session(master, fd)
        try:
            yield spark
        finally:
            spark.stop()
    except (PySparkException, Py4JError, JavaNotFound) as e:
        is_kept = True
        raise LoadError(
            f"{_reason(str(e))}\nNothing was committed; the next load replays the plan, if one was made. "
            f"Spark's log: {name}"
        ) from e
    finally:
        os.close(fd)
        if not is_kept:
            Path(name).unlink()


def name_interpreter(master: str) -> None:
    """Local Spark uses this interpreter, not any ``python3``; a cluster has no path of this machine."""
    if master.startswith("local"):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


def _spark_session(master: str, log_fd: int) -> SparkSession:
    """A session whose JVM writes to ``log_fd`` instead of over our progress bar."""
    from pyspark_kafkalog.java_runtime import ensure_java

    ensure_java()
    name_interpreter(master)
    # Otherwise Spark warns about a host name on loopback.
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    from pyspark.sql import SparkSession

    builder = (
        SparkSession.builder.master(master)
        .appName("kafkalog load")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
    )
    # PySpark has no setting for this: the JVM inherits our standard error when it starts.
    ours = os.dup(2)
    os.dup2(log_fd, 2)
    try:
        return builder.getOrCreate()
    finally:
        os.dup2(ours, 2)
        os.close(ours)


def _reason(text: str) -> str:
    raised = re.findall(r"^\s*pyspark_kafkalog[\w.]*\.(\w+: .*)$", text, re.MULTILINE)
    return str(raised[-1]) if raised else text.strip().split("\n")[0]


@contextmanager
def _following(load: Load, plan: Plan) -> Iterator[None]:
    """Show how far the tasks are: as they say, or in Spark by their receipts."""
    from pyspark_kafkalog.ledger.records import receipt_name, receipts_name

    ledger, total = load.ledger, sum(r.end - r.start for r in plan.ranges)
    ended = threading.Event()
    with progress(f"load {plan.number}, offsets", total) as tell:
        spans = {receipt_name(plan.number, r.key, r.start, r.end): r.end - r.start for r in plan.ranges}
        asks = load.offsets_read is None and ledger.store.concurrency > 1
        every_seconds = _ASK_EVERY_SECONDS if asks else _LOOK_EVERY_SECONDS

        def watch() -> None:
            while not ended.wait(every_seconds):
                if (read := load.offsets_read) is not None:
                    tell(read)
                    continue
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


def report(load: Load, seconds: float) -> None:
    if load.plan is None or load.commit is None:
        typer.echo(f"{load.ledger.name}: nothing new")
        return
    topics: dict[str, Counter[str]] = defaultdict(Counter)
    for p in load.plan.partitions:
        topics[p.topic]["offsets"] += p.end - p.start
    for receipt in load.ledger.receipts(load.plan):
        topics[receipt.topic].update(records=receipt.records, bytes=receipt.bytes)
    columns = ("topic", "offsets", "records", "bytes")
    rows = [{"records": 0, "bytes": 0, **counts, "topic": topic} for topic, counts in sorted(topics.items())]
    show(rows, columns, as_json=False)
    if load.commit.skipped:
        typer.echo(
            f"{counted(load.commit.skipped, 'offset')} left out as corrupt (onCorruptBatch=skip)", err=True
        )
    report_line(load, seconds)


def report_line(load: Load, seconds: float) -> None:
    """A line for each output, if something was new."""
    plan, commit = load.plan, load.commit
    if plan is None or commit is None:
        return
    for out in commit.outputs:
        files = ""
        if out.files:
            files = (
                f" in {counted(len(out.files), 'file')} with {size(sum(file.bytes for file in out.files))}"
            )
        speed = f"{commit.records / max(seconds, 0.001):,.0f} records/s"
        typer.echo(f"load {commit.number}: {counted(commit.records, 'record')}{files}, {speed}: {out.place}")
    if plan.left:
        left = counted(plan.left, unit_of(plan.partitions[0].key))
        typer.echo(f"load {commit.number}: {left} left for later loads")
