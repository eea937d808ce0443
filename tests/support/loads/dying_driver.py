"""A driver that is killed between a load's files and its commit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

_DRIVER = """
import json, os, signal, sys
from pyspark.sql import SparkSession
import pyspark_kafkalog as kafkalog

name, offsets, table, options = sys.argv[1:]
spark = (
    SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    .config("spark.log.level", "ERROR").getOrCreate()
)
with kafkalog.load(spark, name=name, offsets=offsets, **json.loads(options)) as load:
    load.write_parquet(table)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def die_before_the_commit(name: str, offsets: Path, table: Path, options: Mapping[str, str]) -> None:
    """Load ``name`` into ``table`` in a process of its own, which kills itself when the files are there."""
    died = subprocess.run(
        [sys.executable, "-c", _DRIVER, name, str(offsets), str(table), json.dumps(dict(options))],
        env=dict(os.environ, PYSPARK_PYTHON=sys.executable),
        timeout=150,
        check=False,
    )
    assert died.returncode == -signal.SIGKILL
