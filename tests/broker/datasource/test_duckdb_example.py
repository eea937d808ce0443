"""``make demo-duckdb`` finds what it produced."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.long("real data, or many rows")
def test_duckdb_finds_every_flight_and_its_delay() -> None:
    ran = subprocess.run(
        [sys.executable, "examples/flight_duckdb.py"],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "28,135 events acknowledged" in ran.stdout
    assert "EV:  4,307 flights,  27.9 minutes late" in ran.stdout
    assert "HA:     28 flights,  -3.1 minutes late" in ran.stdout
