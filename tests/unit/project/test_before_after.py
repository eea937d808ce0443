"""Which code `benchmarks.before_after` measures: that of the given tree, never what is installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.before_after import speeds

BENCHMARK = """
from types import SimpleNamespace

import {broker} as broker
import pyspark_kafkalog


def run(rounds):
    packages = [pyspark_kafkalog, broker]
    return [SimpleNamespace(question=each.__file__, unit="1/s", ours=rounds) for each in packages]


PARTS = {{"twice": lambda rounds: run(2 * rounds)}}
"""


def tree_with(tmp_path: Path, broker: str, folder: str) -> tuple[Path, list[str]]:
    files = [tmp_path / "pyspark_kafkalog" / "__init__.py", tmp_path / folder / "__init__.py"]
    for file in files:
        file.parent.mkdir(parents=True)
        file.touch()
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "where.py").write_text(BENCHMARK.format(broker=broker))
    return tmp_path, [str(file) for file in files]


@pytest.mark.parametrize(
    ("broker", "folder"),
    [("broker", "broker"), ("kafkalog_broker", "broker/kafkalog_broker")],
    ids=["the package's old name", "its name"],
)
def test_each_tree_runs_its_own_packages(broker: str, folder: str, tmp_path: Path) -> None:
    tree, files = tree_with(tmp_path, broker, folder)
    assert list(speeds(tree, "where", "full")) == files


def test_a_part_of_a_benchmark_is_run_alone(tmp_path: Path) -> None:
    tree, files = tree_with(tmp_path, "kafkalog_broker", "broker/kafkalog_broker")
    assert speeds(tree, "where.twice", "full") == dict.fromkeys(files, 2)


def test_a_tree_without_a_package_is_refused(tmp_path: Path) -> None:
    tree, _ = tree_with(tmp_path, "kafkalog_broker", "elsewhere/kafkalog_broker")
    with pytest.raises(SystemExit, match=rf"kafkalog_broker was imported from .*, not from {tree}"):
        speeds(tree, "where", "full")
