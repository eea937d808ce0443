"""The Spark session of commands that need one. Imports late, so that help is fast."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from pyspark_kafkalog.errors import LoadError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
