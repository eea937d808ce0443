"""A Spark driver in a process of its own, which loads what it is told and dies where it is told.

The parent writes one JSON object a line and reads one answer a line. `SparkDriver` is the parent's side;
``python -m tests.support.loads.spark_driver`` the child.
"""

from __future__ import annotations

import functools
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from tests.support.loads import warehouse_jobs
from tests.support.loads.armed_faults import FAULTS_VARIABLE, ArmedFaults
from tests.support.spark.spark_jvm import flags_of_executors
from tests.support.spark.spark_session import ROOT, environment_of

DRIVER_POINTS = (
    "before plan",
    "plan written beside",
    "plan linked",
    "after plan",
    "files written",
    "before sql commit",
    "after sql commit",
    "before commit",
    "commit written beside",
    "commit linked",
    "after commit",
    "before HEAD",
    "after HEAD",
    "before mirror",
    "after mirror",
    "after load",
)
"""Where a driver can be killed, in the order in which a load comes to them. "Written beside" is the complete
record under its temporary name; "linked" has its own name, and its directory is not forced to disk yet. A
listing is made of files, a "sql commit" in a database, there of the driver's own transactions."""

COMMITTED_FROM = DRIVER_POINTS.index("commit linked")
"""A driver killed here or later leaves a load that counts."""

_RECORDS = {
    "plan": re.compile(r"plans/\d+\.json$"),
    "commit": re.compile(r"commits/\d+\.json$"),
    "HEAD": re.compile(r"HEAD\.json$"),
    "mirror": re.compile(r"offsets/part-"),
}
_ANSWER_SECONDS = 300.0
START_SECONDS = 25.0
"""A session that was started so long ago is probably up."""


class DriverDied(Exception):
    """The driver's process ended instead of answering."""


@dataclass(slots=True)
class SparkDriver:
    """*Not thread-safe: one caller.* The child process and its session."""

    master: str
    faults: ArmedFaults
    process: subprocess.Popen[bytes]
    log: Path
    began: float = field(default_factory=time.monotonic)

    @classmethod
    def start(
        cls,
        master: str,
        directory: Path,
        pyspark: Path | None = None,
        configs: Mapping[str, str] | None = None,
    ) -> SparkDriver:
        """Start a session on ``master``; it is ready when it answers. ``directory`` is this driver's own.

        ``pyspark`` is where another than the suite's is, ``configs`` are those of Spark that are added.
        """
        directory.mkdir(parents=True)
        log = directory / "driver.log"
        with log.open("ab") as errors:
            process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "tests.support.loads.spark_driver",
                    master,
                    json.dumps(dict(configs or {})),
                ],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=os.environ | environment_of(pyspark) | {FAULTS_VARIABLE: str(directory)},
            )
        return cls(master, ArmedFaults(directory), process, log)

    @property
    def alive(self) -> bool:
        """Whether the process is there."""
        return self.process.poll() is None

    def ask(self, command: dict[str, Any], meanwhile: Callable[[], None] = lambda: None) -> dict[str, Any]:
        """The answer to a command; ``meanwhile`` is called again and again until it comes.

        Raises:
            DriverDied: there will be none.
        """
        stdin, stdout = self.process.stdin, self.process.stdout
        assert stdin is not None
        assert stdout is not None
        try:
            stdin.write(json.dumps(command).encode() + b"\n")
            stdin.flush()
        except BrokenPipeError:
            raise DriverDied(command) from None
        deadline = time.monotonic() + _ANSWER_SECONDS
        try:
            while not select.select([stdout], [], [], 0.02)[0]:
                meanwhile()
                assert time.monotonic() < deadline, f"no answer to {command} in time; {self.log_tail()}"
            line = stdout.readline()
        except BaseException:
            self.kill()  # else this answer would be taken for that to the next command
            raise
        if not line:
            self.process.wait()
            raise DriverDied(command)
        answer = json.loads(line)
        assert isinstance(answer, dict)
        return answer

    def log_tail(self) -> str:
        """The end of what Spark and its workers said."""
        return self.log.read_text(errors="replace")[-6000:]

    def kill(self) -> None:
        """SIGKILL to the driver and to the JVM and the workers that it started."""
        family = []
        if self.alive:
            family = psutil.Process(self.process.pid).children(recursive=True)
        self.process.kill()
        for process in family:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        self.close()

    def stop(self) -> None:
        """End the session and the process; no process of it is left."""
        if self.alive:
            try:
                self.ask({"do": "stop"})
                self.process.wait(30)
            except (DriverDied, subprocess.TimeoutExpired):
                self.kill()
        self.close()

    def close(self) -> None:
        """Close the pipes of a process that has ended."""
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:
                    continue


# ---- the child

_HOST = socket.gethostname()
_die_at: str | None = None
_lockless = False
"""As on a volume whose locks do not reach other hosts."""


def _come_to(point: str) -> None:
    if point == _die_at:
        os.kill(os.getpid(), signal.SIGKILL)


def _record(name: str) -> str | None:
    return next((kind for kind, pattern in _RECORDS.items() if pattern.search(name)), None)


def _install() -> None:
    """Wrap what the driver does to its store, so that it can be killed between any two steps."""
    from pyspark_kafkalog.ledger.stores.hdfs_store import HdfsStore
    from pyspark_kafkalog.ledger.stores.local_store import LocalStore
    from pyspark_kafkalog.ledger.stores.object_store import ObjectStore
    from pyspark_kafkalog.loads import output_files
    from pyspark_kafkalog.loads.sql.database import DatabaseSession
    from pyspark_kafkalog.loads.writers import task_files

    def surrounded(plain: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: Any, name: str, data: bytes) -> Any:
            kind = _record(name)
            _come_to(f"before {kind}")
            result = plain(self, name, data)
            _come_to(f"after {kind}")
            return result

        return call

    def unless_lockless(hold: Callable[..., Any]) -> Callable[..., Any]:
        def held(self: Any, name: str, holder: str) -> Any:
            return nullcontext() if _lockless and name.endswith("/.lock") else hold(self, name, holder)

        return held

    for store in (LocalStore, ObjectStore, HdfsStore):
        for method in ("create", "replace"):
            setattr(store, method, surrounded(getattr(store, method)))
        store.hold = unless_lockless(store.hold)  # type: ignore[assignment,method-assign]
    link, commit = os.link, DatabaseSession.commit

    def faulty_link(source: Any, target: Any, **options: Any) -> None:
        kind = _record(str(target))
        _come_to(f"{kind} written beside")
        link(source, target, **options)
        _come_to(f"{kind} linked")

    def once_written(plain: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            _come_to("files written")
            return plain(*args, **named)

        return call

    def faulty_commit(self: DatabaseSession) -> None:
        _come_to("before sql commit")
        commit(self)
        _come_to("after sql commit")

    DatabaseSession.commit = faulty_commit  # type: ignore[method-assign]
    os.link = faulty_link
    output_files.written_files = once_written(output_files.written_files)
    task_files.accepted = once_written(task_files.accepted)  # type: ignore[attr-defined]


class Refused(Exception):
    """What a user's own code in the block may raise."""


def _load(spark: Any, order: dict[str, Any]) -> dict[str, Any]:
    import pyspark_kafkalog as kafkalog

    for key, value in order.get("session", {}).items():
        spark.conf.set(key, value)
    with kafkalog.load(
        spark,
        name=order["name"],
        offsets=order["offsets"],
        on_pending=order["on_pending"],
        **order["options"],
    ) as load:
        found = {"number": load.number, "plan": load.plan and load.plan.sha256, "empty": load.is_empty}
        frame = load.df.where("offset >= 0") if order.get("transformed") else None
        if "database" in order:
            load.write_sql(order["database"], order["table"], frame)
        elif "lake" in order:
            rows = (frame or load.df).selectExpr("*", f"{load.number or 0} AS load")
            getattr(load, f"write_{order['lake']}")(order["table"], rows, partition_by="partition")
        else:
            load.write_files(order["path"], frame, **order["how"])
        if order.get("raise"):
            raise Refused(f"after the files of load {load.number} were written")
    _come_to("after load")
    return found | {"records": load.commit.records if load.commit else 0}


def _stage(spark: Any, order: dict[str, Any]) -> dict[str, Any]:
    frame = spark.read.format("kafkalog").options(
        loadName=order["name"], offsetsPath=order["offsets"], commitOffsets="stage", **order["options"]
    )
    frame.load().write.mode("append").parquet(order["path"])
    return {}


def _read(spark: Any, order: dict[str, Any]) -> dict[str, Any]:
    import pyarrow.parquet as pq

    import pyspark_kafkalog as kafkalog

    if "lake" in order:
        frame = warehouse_jobs.rows(spark, order["table"], order["lake"])
    elif order.get("plain"):
        frame = spark.read.parquet(order["path"])
    else:
        frame = kafkalog.read_load(spark, order["path"])
    pq.write_table(frame.toArrow(), order["to"])
    return {}


def _compact(spark: Any, order: dict[str, Any]) -> dict[str, Any]:
    import pyspark_kafkalog as kafkalog

    commit = kafkalog.compact(spark, order["path"])
    return {"number": commit and commit.number}


def _roll_back(spark: Any, order: dict[str, Any]) -> dict[str, Any]:
    warehouse_jobs.restore(spark, order["table"], order["lake"], order["version"])
    return {}


def _hello(spark: Any, _: dict[str, Any]) -> dict[str, Any]:
    return {"application": spark.sparkContext.applicationId}


_ORDERS = {
    "load": _load, "stage": _stage, "read": _read, "compact": _compact, "roll back": _roll_back,
    "hello": _hello,
}  # fmt: skip


@contextmanager
def _session(master: str, configs: Mapping[str, str]) -> Iterator[Any]:
    from pyspark.sql import SparkSession

    from pyspark_kafkalog.java_runtime import ensure_java

    ensure_java()
    faults = os.environ[FAULTS_VARIABLE]
    spark = (
        SparkSession.builder.master(master)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.task.maxFailures", "4")
        .config("spark.executor.memory", "800m")
        .config("spark.executor.extraJavaOptions", flags_of_executors())
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.local.dir", f"{faults}/local")
        .config("spark.sql.warehouse.dir", f"{faults}/warehouse")
        .config("spark.python.daemon.module", "tests.support.loads.faulty_workers")
        .config("spark.executorEnv.PYTHONPATH", os.environ["PYTHONPATH"])
        .config(f"spark.executorEnv.{FAULTS_VARIABLE}", faults)
        .config(map=dict(configs))
        .getOrCreate()
    )
    yield spark
    spark.stop()


def main(master: str, configs: Mapping[str, str]) -> None:
    """The child's life: orders in, answers out, until ``stop`` or the end of input."""
    global _die_at, _lockless
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    _install()
    with _session(master, configs) as spark:
        for line in sys.stdin:
            order = json.loads(line)
            if order["do"] == "stop":
                break
            _die_at, _lockless = order.get("die"), order.get("lockless", False)
            socket.gethostname = functools.partial(str, order.get("host", _HOST))
            try:
                answer = {"ok": True, **_ORDERS[order["do"]](spark, order)}
            except Exception as e:
                answer = {"ok": False, "error": type(e).__name__, "text": str(e)[:3000]}
            _die_at = None
            answers.write(json.dumps(answer) + "\n")
    answers.write('{"ok": true}\n')


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
