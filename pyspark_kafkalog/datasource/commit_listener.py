"""Commits a load once a write of its rows has succeeded. Tasks do not know that and readers are planned in a
process without py4j, so a listener in the driver commits: Spark tells it of every query that has ended.
"""

from __future__ import annotations

import json
import logging
import pickle
import re
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from pyspark_kafkalog.datasource.batch.load_planning import commit_to_group
from pyspark_kafkalog.datasource.batch.load_reader import LoadInputPartition
from pyspark_kafkalog.datasource.options.option_definitions import BatchOptions
from pyspark_kafkalog.datasource.options.read_options import parse_batch_options
from pyspark_kafkalog.datasource.source import options_for
from pyspark_kafkalog.errors import InvalidConfig
from pyspark_kafkalog.ledger.ledger import Ledger

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

_WRITES = re.compile(r"Append|Overwrite|Replace|Write|Insert|Save|Merge|Create\w*AsSelect")
"""Names of Spark's commands that write the rows of a query. Others, such as views and caches, hold it too."""
_LIMIT = re.compile(r"^[\s:|+-]*(Global|Local)Limit\b", re.MULTILINE)
_PATIENCE_MS = 60_000


def commit_on_success(spark: SparkSession) -> dict[str, str]:
    """Options with which a load of ``commitOffsets=stage`` is committed once a write of it has succeeded.

        ours = kafkalog.commit_on_success(spark)
        spark.read.format("kafkalog").options(**options, loadName="nightly", offsetsPath=..., **ours)

    Spark tells of a query's end a moment later. Each further call in the session returns the same options,
    once the writes that ended before it are committed, and so does ``spark.stop()``. Raises `InvalidConfig`
    in Spark Connect.
    """
    session: Any = getattr(spark, "_jsparkSession", None)
    if session is None:
        raise InvalidConfig(
            "commit_on_success() needs a classic session: Spark Connect does not tell clients how a "
            "query ended. Write load.df in a block of kafkalog.load(), and call load.done() after the write"
        )
    if spark not in _LISTENERS:
        from pyspark.java_gateway import ensure_callback_server_started

        ensure_callback_server_started(spark.sparkContext._gateway)  # type: ignore[no-untyped-call]
        _LISTENERS[spark] = CommitListener()
        session.listenerManager().register(_LISTENERS[spark])
    session.sparkContext().listenerBus().waitUntilEmpty(_PATIENCE_MS)
    return dict(_LISTENERS[spark].options)


class CommitListener:
    """Spark's ``QueryExecutionListener`` of one session. *Thread-safe: its only state is its token.*"""

    class Java:
        implements = ("org.apache.spark.sql.util.QueryExecutionListener",)

    def __init__(self) -> None:
        self.options = {"commitOffsets": "stage", "commitToken": uuid.uuid4().hex}

    def onSuccess(self, name: str, execution: Any, _duration_ns: int) -> None:  # noqa: N802
        """Commit the loads that this query read, if it is a write. Spark ignores exceptions: log them."""
        try:
            plan = execution.analyzed()
            # Since Spark 4.3 the name of a query within another has blanks; the outer one may still fail.
            if " " in name or not _WRITES.match(_class(plan)):
                return
            for relation in _relations(plan):
                options = _options_of(relation)
                if options.get("committoken") == self.options["commitToken"]:
                    _commit(relation, parse_batch_options(options), plan.toString())
        except Exception:
            log.exception("what a write has read could not be looked up; its loads are not committed")

    def onFailure(self, name: str, execution: Any, error: Any) -> None:  # noqa: N802
        """Does nothing: the next load replays the plan."""


_LISTENERS: WeakKeyDictionary[SparkSession, CommitListener] = WeakKeyDictionary()


def _relations(plan: Any) -> Iterator[Any]:
    """The Python data sources in a logical plan, in its subqueries and in commands that hold a query."""
    for tree in (plan, *_each(plan.subqueriesAll())):
        for leaf in _each(tree.collectLeaves()):
            if _class(leaf) == "DataSourceV2Relation" and _class(leaf.table()) == "PythonTable":
                yield leaf
            for inner in _each(leaf.innerChildren()):
                yield from _relations(inner)


def _class(of: Any) -> str:
    return str(of.getClass().getSimpleName())


def _each(seq: Any) -> list[Any]:
    return [seq.apply(index) for index in range(seq.size())]


def _options_of(relation: Any) -> dict[str, str]:
    from pyspark.sql.types import StructType

    given = {str(key).lower(): str(value) for key, value in relation.options().items()}
    return options_for(given, StructType.fromJson(json.loads(relation.schema().json())))


def _commit(relation: Any, options: BatchOptions, plan: str) -> None:
    # Spark planned the read once for this DataFrame; it returns the same tasks, or plans the same again.
    scan = relation.table().newScanBuilder(relation.options()).build()
    task = pickle.loads(scan.toBatch().planInputPartitions()[0].pickedPartition())
    if options.load is None or not isinstance(task, LoadInputPartition):
        return  # nothing was new
    ledger = Ledger.at(options.load.offsets_path, options.load.name)
    if _LIMIT.search(plan):
        log.warning("load %d of %s is not committed: its write has a LIMIT", task.plan, ledger.location)
        return
    try:
        made = ledger.commit_of(task.plan)
        if made is None or made.run != task.run:  # else an earlier write of this DataFrame was committed
            found = ledger.commit(ledger.plan(task.plan), mode="stage", run=task.run, read_by_run=True)
            commit_to_group(options, found)
    except Exception as e:
        log.error(
            "a write of load %d of %s succeeded, and the load is not committed: the next one reads the same "
            "rows again. Before it, remove those that this write added: %s",
            task.plan, ledger.location, e,
        )  # fmt: skip
