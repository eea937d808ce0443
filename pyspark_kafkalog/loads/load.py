"""``kafkalog.load()``: a batch that starts where the previous one ended.

    with kafkalog.load(spark, name="flights", offsets="/lake/_offsets", subscribe="flights", ...) as load:
        load.write_parquet("/lake/flights")
    kafkalog.read_load(spark, "/lake/flights")

docs/loads.md describes the guarantees, and what happens after a crash at each point.
"""

from __future__ import annotations

import json
import logging
import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from pyspark_kafkalog.config.definition import masked
from pyspark_kafkalog.datasource.batch.load_planning import begin, commit_to_group
from pyspark_kafkalog.datasource.options.read_options import parse_batch_options
from pyspark_kafkalog.datasource.options.row_schema import spark_schema
from pyspark_kafkalog.datasource.reading.kafka import open_cluster
from pyspark_kafkalog.errors import IncompleteLoad, InvalidConfig, LoadError
from pyspark_kafkalog.ledger.commit import ORC, PARQUET, Commit, LoadOutput
from pyspark_kafkalog.ledger.ledger import Ledger
from pyspark_kafkalog.ledger.load_events import LoadEvents
from pyspark_kafkalog.ledger.plan import Plan
from pyspark_kafkalog.loads.dead_letters import DeadLetters
from pyspark_kafkalog.loads.engines.engine import Engine
from pyspark_kafkalog.loads.engines.local_engine import LocalEngine
from pyspark_kafkalog.loads.engines.spark_engine import SparkEngine
from pyspark_kafkalog.loads.file_table import FileTable, FileWriter, Target, Work
from pyspark_kafkalog.loads.manifest import write_manifests
from pyspark_kafkalog.loads.output_files import give_spark_keys
from pyspark_kafkalog.loads.partitioning import Partitioning
from pyspark_kafkalog.loads.reading import option_texts
from pyspark_kafkalog.loads.sql.database import LOAD_COLUMN
from pyspark_kafkalog.loads.transform import RowFunctions
from pyspark_kafkalog.loads.writers.parquet_files import Layout
from pyspark_kafkalog.loads.writers.spark_files import SparkFiles
from pyspark_kafkalog.loads.writers.spark_tables import SparkDeltaTable, SparkIcebergTable
from pyspark_kafkalog.loads.writers.task_files import TaskFiles
from pyspark_kafkalog.types import NO_BROKER

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession

    from pyspark_kafkalog.loads.sql.database import Connect
    from pyspark_kafkalog.loads.transform import Decode, Transform

log = logging.getLogger(__name__)

_SET_HERE = frozenset("loadname offsetspath commitoffsets loadplan loadrun onpendingplan".split())
_PLANNED_OPTIONS = frozenset(
    "assign subscribe subscribepattern startingoffsets endingoffsets startingoffsetsbytimestamp "
    "endingoffsetsbytimestamp startingtimestamp endingtimestamp startingoffsetsbytimestampstrategy "
    "ontopicrecreated maxrecordsperload maxbytesperload".split()
)


def load(
    spark: SparkSession | None,
    *,
    name: str,
    offsets: str | os.PathLike[str],
    on_pending: str = "replay",
    receipts: bool = True,
    **options: object,
) -> Load:
    """A load of everything since the previous load called ``name``; use it in a ``with`` block.

    Tasks run in Spark, or, if ``spark`` is None, in processes of this machine, one for each processor.
    ``offsets`` is the directory of the ledgers; driver and executors must reach it. If executors cannot, pass
    ``receipts=False``: then nothing checks that the tasks read everything. ``on_pending`` says what to do
    with a plan that an earlier run did not commit: ``replay``, ``fail`` or ``discard``. ``options`` are those
    of ``spark.read.format("kafkalog")``: ``subscribe="flights"``, ``**{"kafka.bootstrap.servers": ...}``.
    ``startingOffsets`` applies to the first load only. With ``kafka.group.id`` the load's offsets are also
    committed to that consumer group, for lag tools.

    Raises:
        InvalidConfig: an option is wrong.
    """
    taken = [option for option in options if option.lower() in _SET_HERE]
    if taken:
        raise InvalidConfig(
            f"{', '.join(taken)}: load() sets this from name=..., offsets=... and on_pending=..."
        )
    return Load(spark, name, offsets, on_pending, receipts, option_texts(options))


class Load:
    """One load, from its plan to its commit. *Not thread-safe: belongs to one driver, one ``with`` block.*

    The end of the block commits if it called `write`, a ``write_*`` method or `done`. Reading `df`
    (``count()``, ``show()``) and `dead_letters` alone commit nothing. The plan stays, and the next load has
    the same ranges, after an exception, after `keep`, or if the block called none of these (an error).
    """

    plan: Plan | None
    """The ranges to read; None if nothing is new."""
    commit: Commit | None
    """The commit of this block; None before its end, and if the block committed nothing."""

    def __init__(
        self,
        spark: SparkSession | None,
        name: str,
        offsets: str | os.PathLike[str],
        on_pending: str,
        receipts: bool,
        options: Mapping[str, str],
    ) -> None:
        self.ledger = Ledger.at(offsets, name, remembers=True)
        if spark is not None:
            give_spark_keys(spark, self.ledger.offsets_path)
        self.plan = self.commit = None
        self._spark = spark
        self._engine: Engine = LocalEngine() if spark is None else SparkEngine(spark)
        self._df: DataFrame | None = None
        self._receipts = receipts
        self._given = options
        self._own_options = {
            "loadName": name,
            "offsetsPath": self.ledger.offsets_path,  # absolute: executors run elsewhere
            "onPendingPlan": on_pending,
        }
        self._options = parse_batch_options({**options, **self._own_options})
        if self._options.load is not None and self._options.load.looks_back:
            raise InvalidConfig(
                "startingOffsets=commit:N, asOf and between read what earlier loads read; to load it again, "
                "rewind: `kafkalog rewind --to commit:N`"
            )
        self._run = uuid.uuid4().hex
        self._outputs: list[LoadOutput] = []
        self._modes: list[str] = []
        self._found_count = 0  # outputs that an earlier attempt had written
        self._phase: Literal["not entered", "entered", "left"] = "not entered"
        self._ending: Literal["as written", "done", "kept"] = "as written"
        self._lock = ExitStack()
        self._events: LoadEvents | None = None

    @property
    def df(self) -> DataFrame:
        """The planned ranges, the same rows however often it is read; empty if nothing is new."""
        if self._df is None:
            raise LoadError(
                "load.df needs Spark, and this load has none: kafkalog.load(spark, ...). Without Spark "
                "load.write_parquet(path, transform=f) changes rows"
                if self._spark is None
                else "use load.df inside the with block of its load"
            )
        return self._df

    @property
    def number(self) -> int | None:
        return None if self.plan is None else self.plan.number

    @property
    def is_empty(self) -> bool:
        return self.plan is None

    @property
    def offsets_read(self) -> int | None:
        """Offsets that the tasks of a write have read so far; None where Spark runs them. *Thread-safe.*"""
        return self._engine.progress()

    @property
    def last_commit(self) -> Commit | None:
        """The newest commit, where the next load begins; None before the first. Reads the ledger."""
        return self.ledger.head()

    def __enter__(self) -> Load:
        """Lock the load and create its plan, or replay the pending one.

        Raises:
            LoadBusy: another driver holds the load; the message says which and since when.
            LoadError: the ledger is damaged or of another cluster, or the next offsets were deleted.
            KafkaError: the cluster did not answer.
        """
        if self._phase != "not entered":
            raise LoadError(
                f"load {self.ledger.name!r} was {self._phase}: call load() again for the next one"
            )
        with ExitStack() as lock:
            lock.enter_context(self.ledger.hold())
            with closing(open_cluster(self._options)) as cluster:
                self.plan = plan = begin(self._options, cluster, self.ledger, run=self._run)
            if plan is None:
                before = self.ledger.head()
            else:
                lock.enter_context(
                    self._engine.ready(len(plan.ranges), sum(one.end - one.start for one in plan.ranges))
                )
                before = self.ledger.commit_at(plan.parent) if plan.parent else None
            write_manifests(self.ledger, before)
            self._df = None if self._spark is None else self._frame(self._spark)
            self._lock = lock.pop_all()
        self._phase = "entered"
        if plan is not None:
            servers = getattr(self._options.wire, "bootstrap_servers", plan.cluster_id)
            self._events = LoadEvents(
                self.ledger.name, self._run, servers, (one.topic for one in plan.ranges)
            )
            self._events.begun()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Commit what was written, unless an exception was raised, `keep` was called, or nothing was new.

        Raises:
            LoadError: neither ``write_*`` nor `done` nor `keep` was called; the plan stays.
            IncompleteLoad: parts of the plan were not read to their end; the plan stays.
            LostRace: the plan was committed or rewound meanwhile; this run's output is not in effect.
        """
        self._phase = "left"
        with self._end_reported(error), self._lock:
            if self.plan is None:
                return
            number, name = self.plan.number, self.ledger.name
            if kind is not None or self._ending == "kept":
                text = "load %d of %s was not committed: the next one reads the same ranges again"
                log.warning(text, number, name)
                return
            if not self._modes and self._ending != "done":
                written = "only dead letters" if self._outputs else "nothing"
                raise LoadError(
                    f"load {number} of {name} was not committed: its block wrote {written} with "
                    "load.write_*(). If you wrote load.df yourself, call load.done() after that write; to "
                    "commit nothing, call load.keep(). The plan stays: the next load has the same ranges"
                )
            self.commit = self._committed(self.plan)
            write_manifests(self.ledger, self.commit)
            commit_to_group(self._options, self.commit)

    @contextmanager
    def _end_reported(self, error: BaseException | None) -> Iterator[None]:
        if self._events is None:
            yield
            return
        try:
            yield
        except Exception as e:
            self._events.failed(e)
            raise
        if error is not None:
            self._events.failed(error)
        elif self.commit is None:
            self._events.kept()
        else:
            self._events.completed(self.commit)

    def done(self) -> None:
        """Declare that you wrote `df` yourself, so that the end of the block commits the load (mode ``job``).

        Call it in the block, after that write; ``write_*`` needs no `done`. With ``receipts``, the end of the
        block checks that every planned range was read to its end. It cannot check where the rows went:
        ``count()`` reads everything too. Raises `LoadError` outside the block.
        """
        if self._phase != "entered":
            raise LoadError("call done() inside the with block of its load, after your write")
        if self._ending != "kept":
            self._ending = "done"

    def keep(self) -> None:
        """End the block without a commit, whatever was written; the next load replays this plan."""
        self._ending = "kept"

    def write(self, target: Target, df: DataFrame | None = None) -> None:
        """Write the planned rows, or ``df`` made from them, to ``target``, for the block's commit.

        Writes nothing if nothing is new, or if an earlier attempt at this plan wrote it completely and
        durably. Raises `InvalidConfig` and `LoadError` as the target does.
        """
        if self._phase != "entered":
            raise LoadError(f"write {type(target).__name__} inside the with block of its load")
        if self.plan is None:
            log.info("load %s: nothing new, nothing written", self.ledger.name)
            return
        work = Work(
            spark=self._spark,
            engine=self._engine,
            ledger=self.ledger,
            plan=self.plan,
            run=self._run,
            frame=self._df if df is None else df,
            is_whole=df is None,
            has_receipts=self._receipts,
            before=tuple(self._outputs),
            source=self._options,
        )
        target.check(work)
        found = target.find(work)
        self._found_count += len(found)
        self._outputs += found or target.write(work)
        if not isinstance(target, DeadLetters):  # the other outputs determine the mode
            self._modes.append(target.mode)

    def write_files(
        self,
        path: str | os.PathLike[str],
        df: DataFrame | None = None,
        *,
        format: str = PARQUET,
        decode: Decode | None = None,
        transform: Transform | None = None,
        max_dead: float | None = None,
        partition_by: str | Sequence[str] = (),
        partition_by_time: str | None = None,
        grain: str = "day",
        compression: str | None = None,
        target_file_bytes: int | None = None,
        engine: Literal["tasks", "spark"] | None = None,
        **options: object,
    ) -> None:
        """Write ``path/load=<number>/kl_run=<run>``, in ``parquet`` or ``orc``, for `read_load`.

        A replay writes to another directory. ``partition_by_time="timestamp"`` divides the directory by day,
        or with ``grain="hour"`` by hour, in UTC.

        The tasks write Parquet themselves, records do not pass through the JVM, unless there are ``df`` or
        ``options`` of Spark's writer; ``engine`` forces either way. ``decode``, for example
        ``decoding.json_values(...)``, decodes each Arrow batch that a task reads; what it cannot decode
        becomes a dead letter, of which there may be ``max_dead``, as in `dead_letters`. ``transform`` turns
        the batch, decoded, into the rows to write. ``target_file_bytes`` is by default 128 MiB,
        ``compression`` zstd.

        Raises `InvalidConfig` if the path is of an unknown store, a column is called ``load`` or ``kl_run``,
        or the arguments contradict each other; `LoadError` if the path belongs to another load, was written
        in this block before, holds a table of another format, partitioning or types, or if what was written
        is not on this machine; and `ReceiptMismatch` if the number of rows differs from the receipts.
        """
        texts = option_texts(options, self.write_files)
        of_spark = {"df=": df, f"format={format}": None if format == PARQUET else format, **texts}
        of_tasks = {
            "decode=": decode,
            "transform=": transform,
            "max_dead=": max_dead,
            "target_file_bytes=": target_file_bytes,
        }
        partitioning = Partitioning.of(partition_by, partition_by_time, grain)
        writer: FileWriter
        if self._is_for_tasks(os.fspath(path), engine, of_spark, of_tasks):
            layout = Layout.of(partitioning, target_file_bytes, compression)
            writer = TaskFiles(layout, RowFunctions(decode, transform), max_dead)
        else:
            texts |= {} if compression is None else {"compression": compression}
            writer = SparkFiles(format, partitioning, texts)
        self.write(FileTable(path, writer), df)

    def write_parquet(self, path: str | os.PathLike[str], df: DataFrame | None = None, **how: Any) -> None:
        """`write_files` in Parquet, with the same arguments."""
        self.write_files(path, df, format=PARQUET, **how)

    def write_orc(self, path: str | os.PathLike[str], df: DataFrame | None = None, **how: Any) -> None:
        """`write_files` in ORC, which Spark writes, with the same arguments."""
        self.write_files(path, df, format=ORC, **how)

    def write_delta(
        self,
        table: str,
        df: DataFrame | None = None,
        *,
        decode: Decode | None = None,
        transform: Transform | None = None,
        max_dead: float | None = None,
        partition_by: str | Sequence[str] = (),
        partition_by_time: str | None = None,
        grain: str = "day",
        compression: str | None = None,
        target_file_bytes: int | None = None,
        storage_options: Mapping[str, str] | None = None,
        engine: Literal["tasks", "spark"] | None = None,
        **options: object,
    ) -> None:
        """Append to a Delta Lake table, a path or a name, with rows and position in one commit of the table.

        Exactly once: a replay finds that commit. Tasks write the table at a path or URL themselves, through
        deltalake and its ``storage_options``, with the arguments of `write_files`. Spark and Delta's runtime
        write with ``df``, ``options`` of their writer, or the name of a table in Spark's catalog. The table
        is created if it is missing.

        Raises `LoadError` if the table holds loads that the ledger lacks or discarded, has other columns,
        types or partitioning, or features that tasks cannot write.
        """
        texts = option_texts(options, self.write_delta)
        of_spark = {"df=": df, f"the name {table}": None if "/" in table else table, **texts}
        of_tasks = {
            "decode=": decode,
            "transform=": transform,
            "max_dead=": max_dead,
            "partition_by_time=": partition_by_time,
            "compression=": compression,
            "target_file_bytes=": target_file_bytes,
            "storage_options=": storage_options,
        }
        target: Target
        if self._is_for_tasks(table, engine, of_spark, of_tasks):
            from pyspark_kafkalog.loads.writers.delta_table import TaskDeltaTable

            partitioning = Partitioning.of(partition_by, partition_by_time, grain)
            layout = Layout.of(partitioning, target_file_bytes, compression)
            target = TaskDeltaTable(table, layout, RowFunctions(decode, transform), max_dead, storage_options)
        else:
            target = SparkDeltaTable(table, partition_by, texts)
        self.write(target, df)

    def write_iceberg(
        self,
        table: str,
        df: DataFrame | None = None,
        *,
        catalog: object | None = None,
        decode: Decode | None = None,
        transform: Transform | None = None,
        max_dead: float | None = None,
        partition_by: str | Sequence[str] = (),
        partition_by_time: str | None = None,
        grain: str = "day",
        compression: str | None = None,
        target_file_bytes: int | None = None,
        engine: Literal["tasks", "spark"] | None = None,
        **options: object,
    ) -> None:
        """Like `write_delta`, for the table ``namespace.table`` in an Iceberg catalog.

        With ``catalog`` tasks write, through pyiceberg: the name of a catalog in its configuration, a mapping
        of a catalog's properties, or a Catalog. Without it Spark and Iceberg's runtime write to a catalog of
        Spark's. ``partition_by_time`` becomes Iceberg's transform ``day`` or ``hour``.
        """
        texts = option_texts(options, self.write_iceberg)
        of_spark = {"df=": df, "a table without catalog=": table if catalog is None else None, **texts}
        of_tasks = {
            "catalog=": catalog,
            "decode=": decode,
            "transform=": transform,
            "max_dead=": max_dead,
            "partition_by_time=": partition_by_time,
            "compression=": compression,
            "target_file_bytes=": target_file_bytes,
        }
        target: Target
        if self._is_for_tasks(table, engine, of_spark, of_tasks):
            from pyspark_kafkalog.loads.writers.iceberg_table import TaskIcebergTable

            partitioning = Partitioning.of(partition_by, partition_by_time, grain)
            layout = Layout.of(partitioning, target_file_bytes, compression)
            target = TaskIcebergTable(table, catalog, layout, RowFunctions(decode, transform), max_dead)
        else:
            target = SparkIcebergTable(table, partition_by, texts)
        self.write(target, df)

    def dead_letters(
        self, df: DataFrame, *, reason: str = "reason", max_dead: float | None = None
    ) -> DataFrame:
        """Write the rows whose ``reason`` is not null as dead letters of this load, and return the others.

        ``df`` must still have the source's columns; they are written with the reason, for `read_dead`.
        ``max_dead`` limits the dead letters: a whole number, or a share of the records read, for example
        0.001; None is no limit. The topic is read twice, once for the dead letters and once for the others,
        unless you `DataFrame.persist`.

        Raises `InvalidConfig` for a missing column or wrong ``max_dead``, and `TooManyDead` above it.
        """
        self.write(DeadLetters(self.ledger, reason, max_dead), df)
        return df.where(f"`{reason}` IS NULL").drop(reason)

    def write_sql(
        self,
        url: str,
        table: str,
        df: DataFrame | None = None,
        *,
        transform: Transform | None = None,
        connect: Connect | None = None,
        load_column: str | None = LOAD_COLUMN,
    ) -> None:
        """Write rows and offsets into ``table`` of the database at ``url``, in one transaction.

        Without ``df`` each task reads its range, applies ``transform`` to each Arrow batch, and writes it in
        its own transaction. The driver writes ``df`` in one transaction. ``connect`` opens a connection of
        any other DB-API driver. ``load_column`` holds the load's number in each row.

        Raises `InvalidConfig` for a wrong URL or a column without a type in this database, and `LoadError` if
        the table belongs to another load or lacks columns, or the database failed.
        """
        from pyspark_kafkalog.loads.sql.sql_table import SqlTable

        target = SqlTable(url, table, transform=transform, connect=connect, load_column=load_column)
        self.write(target, df)

    def _is_for_tasks(
        self, what: str, engine: str | None, of_spark: Mapping[str, object], of_tasks: Mapping[str, object]
    ) -> bool:
        """As `tasks_write`, of arguments with their values, None if not given; the log says which."""
        spark_only, tasks_only = (
            [name for name, value in each.items() if value is not None] for each in (of_spark, of_tasks)
        )
        by_tasks = tasks_write(engine, spark_only, tasks_only, self._spark)
        who = "tasks" if by_tasks else "Spark's writers"
        log.info("load %s: %s write %s", self.ledger.name, who, masked(what))
        return by_tasks

    def _committed(self, plan: Plan) -> Commit:
        all_found = bool(self._outputs) and self._found_count == len(self._outputs)
        is_done = self._ending == "done"
        try:
            return self.ledger.commit(
                plan,
                mode=self._modes[0] if self._modes else "job",
                run=self._run,
                outputs=tuple(self._outputs),
                receipts=self._receipts,
                read_by_run=self._receipts and (is_done or not all_found),
            )
        except IncompleteLoad as e:
            if not (all_found and is_done):
                raise
            raise IncompleteLoad(
                f"{e}. An earlier attempt had written everything, so load.write_*() did not read load.df: "
                "call load.done() only if you also write load.df yourself"
            ) from e

    def _frame(self, spark: SparkSession) -> DataFrame:
        if self.plan is None:
            return spark.createDataFrame([], spark_schema(self._options.row_columns))
        if self._receipts:
            ours = {"loadPlan": str(self.plan.number), "loadRun": self._run}
            options = {**self._given, **self._own_options, **ours}
        else:
            options = _by_offsets(self._given, self.plan)
        return load_frame(spark.read.format("kafkalog").options(**options))


def tasks_write(
    engine: str | None, of_spark: Sequence[str], of_tasks: Sequence[str], spark: SparkSession | None
) -> bool:
    """Whether tasks write a table's files, or Spark's writers; by default tasks, unless the arguments
    ``of_spark`` need the latter. `InvalidConfig` if arguments contradict each other.
    """
    if engine not in (None, "tasks", "spark"):
        raise InvalidConfig(f"engine is {engine!r}; it must be 'tasks' or 'spark'")
    by_tasks = engine == "tasks" or (engine is None and not of_spark)
    if by_tasks and of_spark:
        raise InvalidConfig(f"engine='tasks' contradicts {', '.join(of_spark)}, which need Spark's writers")
    if not by_tasks and of_tasks:
        reason = ", ".join(of_spark) or "engine='spark'"
        raise InvalidConfig(
            f"{', '.join(of_tasks)} is for tasks that write, and {reason} for Spark's writers"
        )
    if not by_tasks and spark is None:
        reason = ", ".join(of_spark) or "engine='spark'"
        raise InvalidConfig(f"{reason} needs Spark, and this load has none: kafkalog.load(spark, ...)")
    return by_tasks


def load_frame(reader: DataFrameReader) -> DataFrame:
    """The DataFrame of a kafkalog reader. Raises `LoadError` if Spark's Python does not have this package."""
    try:
        return reader.load()
    except Exception as e:  # of Py4J or PySpark, depending on the session
        if "DATA_SOURCE_NOT_FOUND" not in str(e):
            raise
        raise LoadError(
            "Spark does not find the data source kafkalog: the Python that it runs, PYSPARK_PYTHON or else "
            "python3 on PATH, does not have pyspark-kafkalog. On one machine, before the session starts: "
            'os.environ.setdefault("PYSPARK_PYTHON", sys.executable); on a cluster, name a path that exists '
            "on its machines (docs/datasource.md, 'Troubleshooting')"
        ) from None


def _by_offsets(given: Mapping[str, str], plan: Plan) -> dict[str, str]:
    starts: dict[str, dict[str, int]] = {}
    ends: dict[str, dict[str, int]] = {}
    assigned: dict[str, list[int | str]] = {}
    for p in plan.partitions:
        if p.start < p.end:
            starts.setdefault(p.topic, {})[p.key.number] = p.start
            ends.setdefault(p.topic, {})[p.key.number] = p.end
            assigned.setdefault(p.topic, []).append(p.partition if p.broker == NO_BROKER else p.key.number)
    return {
        **{key: value for key, value in given.items() if key.lower() not in _PLANNED_OPTIONS},
        "assign": json.dumps(assigned),
        "startingOffsets": json.dumps(starts),
        "endingOffsets": json.dumps(ends),
    }
