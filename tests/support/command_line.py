"""The command line ``kafkalog`` as its users start it: a process of its own.

Importing the commands takes longer than most of them run, so each process is forked from one that has
imported them.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from pyspark_kafkalog.cli import main

COMMAND = [sys.executable, "-m", "pyspark_kafkalog.cli"]
"""For those who start it themselves."""

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["pyspark_kafkalog.cli.app"])
_SECONDS = 60
_STREAMS = ("stdin", "stdout", "stderr")


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
    with tempfile.TemporaryDirectory() as directory:
        stdin, stdout, stderr = (Path(directory, name) for name in _STREAMS)
        stdin.write_bytes(said.encode() if isinstance(said, str) else said)
        run = _FORKS.Process(target=_command, args=(arguments, environment(server), cwd, directory))
        run.start()
        run.join(_SECONDS)
        if run.exitcode is None:
            run.kill()
            raise subprocess.TimeoutExpired(arguments, _SECONDS, stdout.read_bytes(), stderr.read_bytes())
        ran = subprocess.CompletedProcess(arguments, run.exitcode, stdout.read_bytes(), stderr.read_bytes())
        run.close()
        return ran


def _command(arguments: tuple[str, ...], variables: dict[str, str], cwd: Any, directory: str) -> None:
    """In the forked process: the files of ``directory`` are its standard streams."""
    for descriptor, (name, mode) in enumerate(zip(_STREAMS, ("rb", "wb", "wb"), strict=True)):
        with Path(directory, name).open(mode) as file:
            os.dup2(file.fileno(), descriptor)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - for as long as the process lives
    os.environ.clear()
    os.environ.update(variables)
    if cwd is not None:
        os.chdir(cwd)
    sys.argv = ["kafkalog", *arguments]
    main()


def table(output: str) -> list[list[str]]:
    """The rows of a printed table, without its heading."""
    return [line.replace("│", " ").split() for line in output.splitlines() if line.startswith("│")]
