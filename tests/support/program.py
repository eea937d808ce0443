"""Runs a program in an interpreter of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def run_program(program: str, *arguments: str, path: str, directory: Path) -> dict[str, str]:
    """What it printed, by the first word of each line; ``path`` is its PYTHONPATH."""
    ran = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=directory, env=dict(os.environ, PYSPARK_PYTHON=sys.executable, PYTHONPATH=path),
        capture_output=True, text=True, timeout=150, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    return dict(line.split(" ", 1) for line in ran.stdout.splitlines() if " " in line)
