"""The command lines ``kafkalog`` and ``kafkalog-broker`` as functions of this process.

A process of its own adds nothing to what most commands say and do, but seconds of a processor; `COMMAND` and
`BROKER_COMMAND` are for tests about the process itself: signals, closed pipes, full disks, what is imported.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import kafkalog_broker.cli
from pyspark_kafkalog.cli import main

COMMAND = [sys.executable, "-m", "pyspark_kafkalog.cli"]
BROKER_COMMAND = [sys.executable, "-m", "kafkalog_broker"]
"""For those who start them themselves."""

SECONDS = 120
"""How long such a process is waited for: what is far longer than it takes, on a machine that stands still."""

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_LOUD = ("kazoo", "pyspark_kafkalog.client")
"""Loggers that some commands turn down."""

Ran = subprocess.CompletedProcess


def environment(server: str | None) -> dict[str, str]:
    """This process's own, for plain output, and with the cluster to be asked."""
    variables = dict(os.environ, COLUMNS="120", NO_COLOR="1")
    if server is not None:
        variables["KAFKALOG_BOOTSTRAP_SERVER"] = server
    return variables


def kafkalog(*arguments: str, server: str | None = None, said: str | bytes = "", cwd: Any = None) -> Ran[str]:
    """Run it to its end; ``said`` is its standard input. Output that is no UTF-8: see `kafkalog_bytes`."""
    return _as_text(kafkalog_bytes(*arguments, server=server, said=said, cwd=cwd))


def kafkalog_bytes(
    *arguments: str, server: str | None = None, said: str | bytes = "", cwd: Any = None
) -> Ran[bytes]:
    """The same, with its output as bytes."""
    return _run(main, ("kafkalog", *arguments), environment(server), said, cwd)


def broker_command(*arguments: str, said: str | bytes = "", cwd: Any = None) -> Ran[str]:
    """The same for the broker's commands; ``start`` only where it cannot."""

    def command() -> None:
        sys.exit(kafkalog_broker.cli.main(arguments))

    return _as_text(_run(command, ("kafkalog-broker", *arguments), environment(None), said, cwd))


def _as_text(ran: Ran[bytes]) -> Ran[str]:
    return Ran(ran.args, ran.returncode, ran.stdout.decode(), ran.stderr.decode())


def _run(
    command: Callable[[], None],
    arguments: tuple[str, ...],
    variables: Mapping[str, str],
    said: str | bytes,
    cwd: Any,
) -> Ran[bytes]:
    with tempfile.TemporaryDirectory() as directory:
        stdin, stdout, stderr = (Path(directory, name) for name in ("stdin", "stdout", "stderr"))
        stdin.write_bytes(said.encode() if isinstance(said, str) else said)
        with _surroundings(arguments, variables, cwd), _streams(stdin, stdout, stderr):
            code = _exit_code(command)
        return Ran(arguments, code, stdout.read_bytes(), stderr.read_bytes())


def _exit_code(command: Callable[[], None]) -> int:
    """What the interpreter would end with. An error that no command lets out is an error of the test."""
    try:
        command()
    except SystemExit as e:
        if isinstance(e.code, str):
            sys.stderr.write(f"{e.code}\n")
            return 1
        return e.code or 0
    return 0


@contextlib.contextmanager
def _surroundings(arguments: tuple[str, ...], variables: Mapping[str, str], cwd: Any) -> Iterator[None]:
    """What a command may read and change of its process; all is put back."""
    before, argv, where, switch = dict(os.environ), sys.argv, Path.cwd(), sys.getswitchinterval()
    levels = {name: logging.getLogger(name).level for name in _LOUD}
    main_thread = threading.current_thread() is threading.main_thread()
    handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    try:
        _set_environment(variables)
        sys.argv = list(arguments)
        if cwd is not None:
            os.chdir(cwd)
        yield
    finally:
        if main_thread:
            for number, handler in handlers.items():
                signal.signal(number, handler)
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
        os.chdir(where)
        sys.setswitchinterval(switch)
        sys.argv = argv
        _set_environment(before)


def _set_environment(variables: Mapping[str, str]) -> None:
    # Not cleared in between: other threads of this process may look.
    for name in set(os.environ) - set(variables):
        del os.environ[name]
    os.environ.update(variables)


@contextlib.contextmanager
def _streams(stdin: Path, stdout: Path, stderr: Path) -> Iterator[None]:
    """Standard streams that are files, as they are of a command in a script."""
    before = sys.stdin, sys.stdout, sys.stderr
    with (
        stdin.open(encoding="utf-8") as sys.stdin,
        stdout.open("w", encoding="utf-8") as sys.stdout,
        stderr.open("w", encoding="utf-8", errors="backslashreplace") as sys.stderr,
    ):
        try:
            yield
        finally:
            sys.stdin, sys.stdout, sys.stderr = before


def table(output: str) -> list[list[str]]:
    """The rows of a printed table, without its heading."""
    return [line.replace("│", " ").split() for line in output.splitlines() if line.startswith("│")]
