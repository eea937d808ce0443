"""The Spark session of a suite."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark_kafkalog.java_runtime import ensure_java
from tests.support.spark.spark_jvm import spark_home

ROOT = Path(__file__).parents[3]


def environment_of(pyspark: Path | None = None) -> dict[str, str]:
    """Variables for a process that runs the suite's PySpark, or the one in this directory, as Spark's driver.

    Its workers find the suite's packages.
    """
    path = [
        *([str(pyspark)] if pyspark else []),
        str(ROOT),
        str(ROOT / "broker"),
        os.environ.get("PYTHONPATH", ""),
    ]
    return {
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_HOME": str(spark_home(pyspark)),
    }


@contextmanager
def running_session(configs: Mapping[str, str] | None = None) -> Iterator[Any]:
    """A session of two cores, in UTC; stopped at the end. ``configs`` are those of Spark that are added.

    ``spark.remote`` among them makes it one of Spark Connect, ``spark.master`` one of a local cluster.
    """
    ensure_java()
    # Spark starts its workers with this interpreter, not with the one that runs the tests.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    given: dict[str, Any] = dict(configs or {})
    if "spark.remote" in given:
        # Then the local server of Connect takes any free port, and else one that another may have.
        os.environ.setdefault("SPARK_TESTING", "true")
    else:
        given.setdefault("spark.master", "local[2]")
    from pyspark.sql import SparkSession

    session = (
        SparkSession.builder.appName("kafkalog tests")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .config(map=given)
        .getOrCreate()
    )
    yield session
    session.stop()
