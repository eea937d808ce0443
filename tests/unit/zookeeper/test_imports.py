"""Whoever has no ZooKeeper does not wait for its client."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.long("many megabytes, or many cases")
@pytest.mark.parametrize(
    "module", ["broker.server.broker", "pyspark_kafkalog.cli.app", "pyspark_kafkalog.zookeeper.paths"]
)
def test_kazoo_is_loaded_by_those_who_connect_only(module: str) -> None:
    program = f"import sys, {module}; print('kazoo' in sys.modules)"
    said = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120
    )
    assert said.stdout == "False\n"
