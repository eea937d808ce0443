"""The command line ``kafkalog`` as its users start it: a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

COMMAND = [sys.executable, "-m", "pyspark_kafkalog.cli"]


def environment(server: str | None) -> dict[str, str]:
    """This process's own, for plain output, and with the cluster to be asked."""
    variables = dict(os.environ, COLUMNS="120", NO_COLOR="1")
    if server is not None:
        variables["KAFKALOG_BOOTSTRAP_SERVER"] = server
    return variables


def kafkalog(
    *arguments: str, server: str | None = None, said: str | bytes = "", cwd: Any = None
) -> subprocess.CompletedProcess[str]:
    """Run it to its end; ``said`` is its standard input. Output that is no UTF-8: see `kafkalog_bytes`."""
    ran = kafkalog_bytes(*arguments, server=server, said=said, cwd=cwd)
    return subprocess.CompletedProcess(ran.args, ran.returncode, ran.stdout.decode(), ran.stderr.decode())


def kafkalog_bytes(
    *arguments: str, server: str | None = None, said: str | bytes = "", cwd: Any = None
) -> subprocess.CompletedProcess[bytes]:
    """The same, with its output as bytes."""
    return subprocess.run(
        [*COMMAND, *arguments],
        env=environment(server), input=said.encode() if isinstance(said, str) else said,
        capture_output=True, timeout=60, check=False, cwd=cwd,
    )  # fmt: skip


def table(output: str) -> list[list[str]]:
    """The rows of a printed table, without its heading."""
    return [line.replace("│", " ").split() for line in output.splitlines() if line.startswith("│")]
