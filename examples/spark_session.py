"""The session that the examples use: local, quiet, with a Java from PyPI where the machine has none."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pyspark_kafkalog as kafkalog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def spark_session(master: str = "local[*]") -> SparkSession:
    kafkalog.ensure_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # else Spark warns of a host name on loopback
    from pyspark.sql import SparkSession

    return (
        SparkSession.builder.master(master)
        .appName("flight delays")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", str(sys.stdout.isatty()).lower())
        .config("spark.sql.shuffle.partitions", "4")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
