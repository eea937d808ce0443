"""The session that the examples use: local, quiet, with a Java from PyPI where the machine has none."""

from __future__ import annotations

import atexit
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark_kafkalog as kafkalog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def spark_session(master: str = "local[*]") -> SparkSession:
    kafkalog.ensure_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # else Spark warns of a host name on loopback
    from pyspark.sql import SparkSession

    builder = (
        SparkSession.builder.master(master)
        .appName("flight delays")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "4")
        .config("spark.sql.session.timeZone", "UTC")
    )
    with _standard_error_in_a_file():
        return builder.getOrCreate()


@contextmanager
def _standard_error_in_a_file() -> Iterator[None]:
    """What the JVM writes, now and later, stays out of the demo; the file is kept if the demo fails."""
    log, name = tempfile.mkstemp(prefix="flights-spark-", suffix=".log")
    atexit.register(_ended, name)
    own = os.dup(2)
    os.dup2(log, 2)
    try:
        yield
    finally:
        os.dup2(own, 2)
        os.close(own)
        os.close(log)


def _ended(log: str) -> None:
    if hasattr(sys, "last_value"):  # an exception has ended this process
        sys.stderr.write(f"Spark's log: {log}\n")
    else:
        Path(log).unlink()
