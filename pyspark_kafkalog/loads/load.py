"""``kafkalog.load()``: a batch that begins where the last one ended, and ``read_load()`` for what it wrote.

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
from typing import TYPE_CHECKING

from pyspark_kafkalog.clock import SYSTEM_CLOCK
from pyspark_kafkalog.datasource.generations import open_lookup
from pyspark_kafkalog.datasource.load_planning import begin, tell_group
from pyspark_kafkalog.datasource.options import parse_batch_options
from pyspark_kafkalog.datasource.schema import column_names, spark_schema
from pyspark_kafkalog.errors import InvalidConfig
from pyspark_kafkalog.loads import output
from pyspark_kafkalog.loads.commit import Commit, Output
from pyspark_kafkalog.loads.errors import LoadError, ReceiptMismatch
from pyspark_kafkalog.loads.ledger import Ledger
from pyspark_kafkalog.loads.plan import Plan
from pyspark_kafkalog.loads.records import utc_text
from pyspark_kafkalog.types import NO_BROKER

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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
    ``receipts=False``: then only the end of the block, not what the tasks read, vouches for the load.
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
    return Load(spark, name, offsets, on_pending, receipts, _texts(options))


class Load:
    """One load, from its plan to its commit. *Not thread-safe: belongs to one driver, one ``with`` block.*

    Leaving the block commits, and nothing else does: ``count()``, ``show()`` and ``limit()`` on `df` move
    nothing. Leaving it by an exception, or after `keep`, leaves the plan: the next load has the same ranges.
    """

    df: DataFrame
    """Exactly the planned ranges, however often it is read; no rows where nothing is new."""
    plan: Plan | None
    """What is read; None where nothing is new: then no load was made and none will be committed."""
    commit: Commit | None
    """The commit, once the block was left without an exception."""

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
        self._run = uuid.uuid4().hex
        self._outputs: list[Output] = []
        self._kept = False
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
            lookup = open_lookup(self._options)
            try:
                self.plan = begin(self._options, lookup, self.ledger, run=self._run)
            finally:
                lookup.close()
            self.df = self._frame()
            self._held = held.pop_all()
        self._state = "entered"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Commit, unless an exception passes through, `keep` was called or there was nothing to read.

        Raises:
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
            if self._receipts:
                self.ledger.check_read(self.plan, self._run)
            self.commit = self.ledger.commit(
                self.plan,
                mode="dir" if self._outputs else "job",
                run=self._run,
                outputs=tuple(self._outputs),
                receipts=self._receipts,
            )
            tell_group(self._options, self.commit)

    def keep(self) -> None:
        """Let the block end without a commit; the next load replays this plan."""
        self._kept = True

    def write_parquet(
        self,
        path: str | os.PathLike[str],
        df: DataFrame | None = None,
        *,
        partition_by: str | Sequence[str] = (),
        **options: object,
    ) -> None:
        """Write ``path/load=<number>``; the commit at the end of the block publishes it for `read_load`.

        ``df`` is what to write where it is not `df` as it is: something made of it. A replay overwrites the
        same directory. ``options`` are those of Spark's Parquet writer. With nothing new, nothing is written.

        Raises:
            InvalidConfig: the path is not local, or a column is called ``load``.
            LoadError: the path belongs to another load, was written in this block before, holds a table of
                another partitioning or with other types, or what Spark wrote is not here.
            ReceiptMismatch: not as many rows were written as the tasks say they read.
        """
        if self._state != "entered":
            raise LoadError("write_parquet writes inside the with block of its load")
        if self.plan is None:
            log.info("load %s: nothing new, nothing written to %s", self.ledger.name, path)
            return
        where = output.local_path(path)
        frame = self.df if df is None else df
        columns = (partition_by,) if isinstance(partition_by, str) else tuple(partition_by)
        _check_columns(frame, columns)
        claimed = output.claim(where, self.ledger)
        self._check_table(claimed.path, frame, columns)
        writer = frame.write.mode("overwrite").options(**_texts(options))
        # Else a session that overwrites by partition would leave the files of a killed attempt in place.
        writer = writer.option("partitionOverwriteMode", "static")
        if columns:
            writer = writer.partitionBy(*columns)
        directory = where / output.directory_of(self.plan.number)
        writer.parquet(f"file:{directory}")
        if not directory.is_dir():
            raise LoadError(
                f"Spark wrote {directory}, and it is not on this machine: driver and executors need one "
                "file system for it. Write load.df yourself instead; leaving the block commits (mode job)"
            )
        written = output.survey(where, self.plan.number)
        if df is None and self._receipts:
            self._check_rows(self.plan, written, directory)
        self._outputs.append(written)

    def _check_table(self, path: str, frame: DataFrame, columns: tuple[str, ...]) -> None:
        """See that what is to be written can be read together with what the last load wrote there."""
        if any(done.path == path for done in self._outputs):
            raise LoadError(
                f"{path} was written in this block already, and a second write would replace it: union the "
                "frames and write once"
            )
        number, before = self._last_output(path)
        if before is None:
            return
        theirs = output.partition_columns(before)
        if theirs != columns:
            raise LoadError(
                f"{path}: load {number} is partitioned by {list(theirs or ())}, this one by {list(columns)}; "
                "one table has one partitioning. Write to another path"
            )
        types = _types_of(output.spark_schema(before))
        changed = [
            f"{field.name} was {types[field.name]} and is {field.dataType.simpleString()}"
            for field in frame.schema.fields
            if types.get(field.name, field.dataType.simpleString()) != field.dataType.simpleString()
        ]
        if changed:
            raise LoadError(
                f"{path}: since load {number} {'; '.join(changed)}. Spark cannot read two types of one "
                "column as one table: cast, use another name for the column, or write to another path"
            )

    def _last_output(self, path: str) -> tuple[int, Output | None]:
        """What the newest commit in effect that wrote files to ``path`` wrote there, and its number."""
        at = self.plan.parent if self.plan is not None else 0
        while at:
            commit = self.ledger.commit_at(at)
            for done in commit.outputs:
                if done.path == path and done.files:
                    return at, done
            at = commit.parent
        return 0, None

    def _check_rows(self, plan: Plan, written: Output, directory: os.PathLike[str]) -> None:
        rows, read = output.rows_of(written), sum(r.records for r in self.ledger.receipts(plan))
        if rows != read:
            raise ReceiptMismatch(
                f"load {plan.number}: the tasks read {read} records and {directory} holds {rows} rows. Do "
                "all executors write to this machine's file system? The plan stays: the next load replays it"
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
        return self._spark.read.format("kafkalog").options(**options).load()


def read_load(
    spark: SparkSession,
    path: str | os.PathLike[str],
    offsets: str | os.PathLike[str] | None = None,
    **options: object,
) -> DataFrame:
    """What loads published below ``path``, every record once, with the number of its load in ``load``.

    Only files that a commit in effect lists are read: not those of a load that runs, died or was rewound
    over. ``offsets`` says where the ledgers are if they were moved; ``options`` are those of Spark's Parquet
    reader, as ``mergeSchema=True``.

    Raises:
        LoadError: the path is not a load's, nothing was committed for it yet, or nothing in it has rows.
    """
    where = output.local_path(path)
    files = output.published(output.ledger_of(where, offsets), where)
    if not files:
        raise LoadError(f"{where}: every load so far wrote no file, so not even the columns are known")
    reader = spark.read.options(**_texts(options)).option("basePath", f"file:{where}")
    return reader.parquet(*(f"file:{file}" for file in files))


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


def _types_of(schema: str | None) -> dict[str, str]:
    """The columns of a Spark schema in JSON, by name; none where there is no schema."""
    from pyspark.sql.types import StructType

    fields = StructType.fromJson(json.loads(schema)).fields if schema else []
    return {field.name: field.dataType.simpleString() for field in fields}


def _check_columns(frame: DataFrame, partition_by: Sequence[str]) -> None:
    if any(name.lower() == "load" for name in frame.columns):
        raise InvalidConfig("a column may not be called load: read_load gives it the number of the load")
    unknown = [name for name in partition_by if name not in frame.columns]
    if unknown:
        raise InvalidConfig(f"partition_by names {', '.join(unknown)}; columns: {', '.join(frame.columns)}")


def _texts(options: Mapping[str, object]) -> dict[str, str]:
    """Options as Spark takes them; what is None was not given."""
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in options.items()
        if value is not None
    }


def _holder() -> str:
    return f"process {os.getpid()} on {socket.gethostname()} since {utc_text(SYSTEM_CLOCK.time_ms())}"
