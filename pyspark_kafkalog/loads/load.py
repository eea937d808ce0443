"""``kafkalog.load()``: a batch that begins where the last one ended.

    with kafkalog.load(spark, name="flights", offsets="/lake/_offsets", subscribe="flights", ...) as load:
        load.write_parquet("/lake/flights")
    kafkalog.read_load(spark, "/lake/flights")

The guarantees, and what happens after a crash at each point, stand in docs/loads.md.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import uuid
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from pyspark_kafkalog.clock import SYSTEM_CLOCK, utc_text
from pyspark_kafkalog.datasource.load.load_planning import begin, tell_group
from pyspark_kafkalog.datasource.options.read_options import parse_batch_options
from pyspark_kafkalog.datasource.options.row_schema import column_names, spark_schema
from pyspark_kafkalog.datasource.reading.opening import open_cluster
from pyspark_kafkalog.errors import InvalidConfig
from pyspark_kafkalog.ledger.commit import ORC, PARQUET, Commit, Output
from pyspark_kafkalog.ledger.ledger import Ledger
from pyspark_kafkalog.ledger.load_errors import IncompleteLoad, LoadError
from pyspark_kafkalog.ledger.plan import Plan
from pyspark_kafkalog.loads.dead_letters import DeadLetters
from pyspark_kafkalog.loads.file_table import FileTable
from pyspark_kafkalog.loads.lake_table import DeltaTable, IcebergTable
from pyspark_kafkalog.loads.reading import option_texts
from pyspark_kafkalog.loads.sql.database import LOAD_COLUMN
from pyspark_kafkalog.loads.target import Target, Work
from pyspark_kafkalog.types import NO_BROKER

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession

    from pyspark_kafkalog.loads.sql.database import Connect
    from pyspark_kafkalog.loads.sql.sql_task import Transform

log = logging.getLogger(__name__)

_OURS = frozenset("loadname offsetspath commitoffsets loadplan loadrun onpendingplan".split())
_WHAT_TO_READ = frozenset(
    "assign subscribe subscribepattern startingoffsets endingoffsets startingoffsetsbytimestamp "
    "endingoffsetsbytimestamp startingtimestamp endingtimestamp startingoffsetsbytimestampstrategy "
    "ontopicrecreated".split()
)
"""Options that a plan has answered; without a ledger none of them may be given again."""


def load(
    spark: SparkSession,
    *,
    name: str,
    offsets: str | os.PathLike[str],
    on_pending: str = "replay",
    receipts: bool = True,
    **options: object,
) -> Load:
    """A load of everything that came since the last one called ``name``; use it in a ``with`` block.

    ``offsets`` is the directory of the ledgers; driver and executors must reach it. Where executors cannot,
    ``receipts=False``: then nothing checks that the tasks read everything.
    ``on_pending`` says what becomes of a plan that an earlier run left without a commit: ``replay``, ``fail``
    or ``discard``. ``options`` are those of ``spark.read.format("kafkalog")``: ``subscribe="flights"``,
    ``**{"kafka.bootstrap.servers": ...}``. ``startingOffsets`` counts for the first load only. With
    ``kafka.group.id`` that group is told the next offsets after the commit, for lag tools.

    Raises:
        InvalidConfig: an option is wrong.
    """
    taken = [option for option in options if option.lower() in _OURS]
    if taken:
        raise InvalidConfig(
            f"{', '.join(taken)}: load() sets this itself, by name=..., offsets=... and on_pending=..."
        )
    return Load(spark, name, offsets, on_pending, receipts, option_texts(options))


class Load:
    """One load, from its plan to its commit. *Not thread-safe: belongs to one driver, one ``with`` block.*

    Leaving the block commits if `write`, one of the ``write_*`` or `done` was called in it; ``count()``,
    ``show()`` and ``limit()`` on `df`, and `dead_letters` alone, commit nothing. Leaving it by an exception,
    after `keep`, or without any of these (an error), leaves the plan: the next load has the same ranges.
    """

    df: DataFrame
    """Exactly the planned ranges, however often it is read; no rows where nothing is new."""
    plan: Plan | None
    """What is read; None where nothing is new: then no load was made and none will be committed."""
    commit: Commit | None
    """What this block committed; None before its end, and after it where nothing was committed: nothing was
    new, `keep` was called, or it failed. `last_commit` is then the one before.
    """

    def __init__(
        self,
        spark: SparkSession,
        name: str,
        offsets: str | os.PathLike[str],
        on_pending: str,
        receipts: bool,
        options: Mapping[str, str],
    ) -> None:
        self.ledger = Ledger.at(offsets, name)
        self.plan = self.commit = None
        self._spark = spark
        self._receipts = receipts
        self._given = options
        self._ours = {
            "loadName": name,
            "offsetsPath": str(Path(self.ledger.location).parent),  # absolute: executors run elsewhere
            "onPendingPlan": on_pending,
        }
        self._options = parse_batch_options({**options, **self._ours})
        if self._options.load is not None and self._options.load.looks_back:
            raise InvalidConfig(
                "startingOffsets=commit:N, asOf and between read what was loaded formerly; to load it again, "
                "rewind: `kafkalog rewind --to commit:N`"
            )
        self._run = uuid.uuid4().hex
        self._outputs: list[Output] = []
        self._modes: list[str] = []
        self._found = 0  # of these outputs, those that an earlier attempt had written for good
        self._kept = self._done = False
        self._state = "not entered"
        self._held = ExitStack()

    @property
    def number(self) -> int | None:
        """The load's number; None where nothing is new."""
        return None if self.plan is None else self.plan.number

    @property
    def is_empty(self) -> bool:
        """Whether there is no offset to read anywhere."""
        return self.plan is None

    @property
    def last_commit(self) -> Commit | None:
        """The newest commit of this name, by this block or before it; None before the first.

        Its ``positions`` say where the next load begins. Reads the ledger.
        """
        return self.ledger.head()

    def __enter__(self) -> Load:
        """Take the load's lock and make its plan, or take up the one that was left.

        Raises:
            LoadBusy: another driver has the load; the text says which and since when.
            LoadError: the ledger is damaged, of another cluster, or offsets that should come next are gone.
            KafkaError: the cluster could not be asked.
        """
        if self._state != "not entered":
            raise LoadError(
                f"load {self.ledger.name!r} was {self._state}: call load() again for the next one"
            )
        with ExitStack() as held:
            held.enter_context(self.ledger.hold(_holder()))
            cluster = open_cluster(self._options)
            try:
                self.plan = begin(self._options, cluster, self.ledger, run=self._run)
            finally:
                cluster.close()
            self.df = self._frame()
            self._held = held.pop_all()
        self._state = "entered"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Commit what was written, unless an exception passes through or `keep` was called.

        Where nothing was new there is nothing to commit.

        Raises:
            LoadError: neither ``write_*`` nor `done` nor `keep` was called; the plan stays.
            IncompleteLoad: parts of the plan were not read to their end; the plan stays.
            LostRace: the plan was committed or rewound over meanwhile; this run's output does not count.
        """
        self._state = "left"
        with self._held:
            if self.plan is None:
                return
            if kind is not None or self._kept:
                log.warning(
                    "load %d of %s was left without a commit: the next one reads the same ranges again",
                    self.plan.number,
                    self.ledger.name,
                )
                return
            if not self._modes and not self._done:
                raise LoadError(self._not_written(self.plan))
            if self._receipts:
                self._check_read(self.plan)
            self.commit = self.ledger.commit(
                self.plan,
                mode=self._modes[0] if self._modes else "job",
                run=self._run,
                outputs=tuple(self._outputs),
                receipts=self._receipts,
            )
            tell_group(self._options, self.commit)

    def done(self) -> None:
        """Say that you wrote `df` yourself, so that the end of the block commits the load (mode ``job``).

        Call it in the block, after that write; ``write_*`` needs no `done`. With ``receipts``, the end of the
        block checks that every planned range was read to its end in it. It cannot see what became of the
        rows: a ``count()`` reads everything too, and so may a ``limit()`` of a small partition.

        Raises:
            LoadError: it is called outside the block.
        """
        if self._state != "entered":
            raise LoadError("done() is called inside the with block of its load, after your write")
        self._done = True

    def keep(self) -> None:
        """Let the block end without a commit, whatever was written; the next load replays this plan."""
        self._kept = True

    def write(self, target: Target, df: DataFrame | None = None) -> None:
        """Write the planned rows to ``target``; the commit at the end of the block says what was written.

        ``df`` is what to write where it is not `df` as it is: something made of it. With nothing new, nothing
        is written. Where an earlier attempt at this plan wrote it whole, and for good, it is not done again.

        Raises:
            InvalidConfig, LoadError: as the target says.
        """
        if self._state != "entered":
            raise LoadError(f"{type(target).__name__} is written inside the with block of its load")
        if self.plan is None:
            log.info("load %s: nothing new, nothing written", self.ledger.name)
            return
        work = Work(
            spark=self._spark,
            ledger=self.ledger,
            plan=self.plan,
            run=self._run,
            frame=self.df if df is None else df,
            is_whole=df is None,
            has_receipts=self._receipts,
            before=tuple(self._outputs),
            source=self._options,
        )
        target.check(work)
        found = target.find(work)
        self._found += found is not None
        self._outputs.append(target.write(work) if found is None else found)
        if not isinstance(target, DeadLetters):  # what became of the others says which mode this is
            self._modes.append(target.mode)

    def write_files(
        self,
        path: str | os.PathLike[str],
        df: DataFrame | None = None,
        *,
        format: str = PARQUET,
        partition_by: str | Sequence[str] = (),
        partition_by_time: str | None = None,
        grain: str = "day",
        **options: object,
    ) -> None:
        """Write ``path/load=<number>``, ``parquet`` or ``orc``; the commit publishes it for `read_load`.

        A replay overwrites the same directory. With ``partition_by_time="timestamp"`` there is a directory
        for each day in it, or with ``grain="hour"`` for each hour, in UTC. ``options`` are those of Spark's
        writer.

        Raises:
            InvalidConfig: the path is not local, or a column is called ``load``.
            LoadError: the path belongs to another load, was written in this block before, holds a table of
                another format or partitioning or with other types, or what Spark wrote is not here.
            ReceiptMismatch: not as many rows were written as the tasks say they read.
        """
        table = FileTable(
            path,
            format=format,
            partition_by=partition_by,
            partition_by_time=partition_by_time,
            grain=grain,
            options=option_texts(options),
        )
        self.write(table, df)

    def write_parquet(self, path: str | os.PathLike[str], df: DataFrame | None = None, **how: Any) -> None:
        """`write_files` in Parquet, with the same arguments."""
        self.write_files(path, df, format=PARQUET, **how)

    def write_orc(self, path: str | os.PathLike[str], df: DataFrame | None = None, **how: Any) -> None:
        """`write_files` in ORC, with the same arguments."""
        self.write_files(path, df, format=ORC, **how)

    def write_delta(
        self,
        table: str,
        df: DataFrame | None = None,
        *,
        partition_by: str | Sequence[str] = (),
        **options: object,
    ) -> None:
        """Append to a table of Delta Lake, a path or a name; its commit holds the position too.

        Exactly once: a replay finds what is there. ``options`` are those of Delta's writer.

        Raises:
            LoadError: the table holds loads that the ledger does not know, or discarded.
        """
        self.write(DeltaTable(table, partition_by, option_texts(options)), df)

    def write_iceberg(
        self,
        table: str,
        df: DataFrame | None = None,
        *,
        partition_by: str | Sequence[str] = (),
        **options: object,
    ) -> None:
        """`write_delta` for a table in a catalog of Iceberg."""
        self.write(IcebergTable(table, partition_by, option_texts(options)), df)

    def dead_letters(
        self, df: DataFrame, *, reason: str = "reason", max_dead: float | None = None
    ) -> DataFrame:
        """Keep the rows whose ``reason`` is not null as dead letters of this load, and return the others.

        ``df`` has the columns of the source beside what was made of them; they are kept as they were, with
        the reason. The commit publishes them for `read_dead`. ``max_dead`` is how many there may be: a whole
        number, or a share of the records read, as 0.001; None does not limit. The topic is read once for the
        dead and once for what is done with the others: `DataFrame.persist` spares the second time.

        Raises:
            InvalidConfig: a column is missing, or ``max_dead`` is no number or share.
            TooManyDead: there are more.
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
        """Write rows and offsets into ``table`` of the database at ``url``, together in one transaction.

        Without ``df`` each task reads its range, applies ``transform`` to each Arrow batch if there is one,
        and writes it in a transaction of its own. ``df`` is written by the driver, in one transaction.
        ``connect`` opens a connection of any other DB-API driver. Each row has the number of its load in
        ``load_column``.

        Raises:
            InvalidConfig: the URL is none, or a column has no type in this database.
            LoadError: the table is another load's or lacks columns, or the database refuses.
        """
        from pyspark_kafkalog.loads.sql.sql_table import SqlTable

        target = SqlTable(url, table, transform=transform, connect=connect, load_column=load_column)
        self.write(target, df)

    def _check_read(self, plan: Plan) -> None:
        """See that this block read the whole plan, unless all was found written by an earlier attempt."""
        found_all = bool(self._outputs) and self._found == len(self._outputs)
        if found_all and not self._done:
            return
        try:
            self.ledger.check_read(plan, self._run)
        except IncompleteLoad as e:
            if not found_all:
                raise
            raise IncompleteLoad(
                f"{e}. All that load.write_*() was to write was there already, so nothing read load.df: call "
                "load.done() only if you also write load.df yourself"
            ) from e

    def _not_written(self, plan: Plan) -> str:
        written = "dead letters and nothing else" if self._outputs else "nothing"
        return (
            f"load {plan.number} of {self.ledger.name} was not committed: its block ended with {written} "
            "written by load.write_*(). If you wrote load.df yourself, call load.done() after that write; if "
            "nothing is to be committed, call load.keep(). The plan stays: the next load has the same ranges"
        )

    def _frame(self) -> DataFrame:
        if self.plan is None:
            asked = self._options
            headers, node = asked.include_headers, asked.include_broker
            names = column_names(
                asked.columns,
                include_headers=headers,
                include_broker=node,
                per_broker=asked.v07 is not None,
            )
            return self._spark.createDataFrame([], spark_schema(names))
        options = {**self._given, **self._ours, "loadPlan": str(self.plan.number), "loadRun": self._run}
        if not self._receipts:
            options = _by_offsets(self._given, self.plan)
        return opened(self._spark.read.format("kafkalog").options(**options))


def opened(reader: DataFrameReader) -> DataFrame:
    """The frame of a reader of this source.

    Raises:
        LoadError: Spark does not find the source, though this program has it: it runs another Python.
    """
    try:
        return reader.load()
    except Exception as e:  # Py4J's own or PySpark's: that differs
        if "DATA_SOURCE_NOT_FOUND" not in str(e):
            raise
        raise LoadError(
            "Spark does not find the data source kafkalog: it runs the Python that PYSPARK_PYTHON names, or "
            "else the python3 on PATH, and that one does not have pyspark-kafkalog. Before a session on one "
            'machine starts: os.environ.setdefault("PYSPARK_PYTHON", sys.executable); on a cluster, name a '
            "path that is right on its machines (docs/datasource.md, 'Troubleshooting')"
        ) from None


def _by_offsets(given: Mapping[str, str], plan: Plan) -> dict[str, str]:
    """Options that read the plan's ranges without the ledger."""
    starts: dict[str, dict[str, int]] = {}
    ends: dict[str, dict[str, int]] = {}
    assigned: dict[str, list[int | str]] = {}
    for p in plan.partitions:
        if p.start < p.end:
            starts.setdefault(p.topic, {})[p.key.number] = p.start
            ends.setdefault(p.topic, {})[p.key.number] = p.end
            assigned.setdefault(p.topic, []).append(p.partition if p.broker == NO_BROKER else p.key.number)
    return {
        **{key: value for key, value in given.items() if key.lower() not in _WHAT_TO_READ},
        "assign": json.dumps(assigned),
        "startingOffsets": json.dumps(starts),
        "endingOffsets": json.dumps(ends),
    }


def _holder() -> str:
    return f"process {os.getpid()} on {socket.gethostname()} since {utc_text(SYSTEM_CLOCK.time_ms())}"
