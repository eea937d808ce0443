"""What tests get from package registries, once, into ``.interop`` or the directory that KAFKALOG_INTEROP
names; and why, where it cannot be had.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
DIRECTORY = Path(os.environ.get("KAFKALOG_INTEROP", ROOT / ".interop"))

_FETCH_SECONDS = 600


class NotAvailable(Exception):
    """It cannot be had here; the message says why."""


def fetched(name: str, what: str, pins: Iterable[Path], *commands: list[str]) -> Path:
    """The directory with what the commands fetch, run unless it is there by the same pins.

    The commands find the pins in the directory, where they run. ``what`` is for messages.

    Raises:
        NotAvailable: a program is missing, or its registry cannot be reached.
    """
    directory = DIRECTORY / name
    # .venv/bin/python and .venv/bin/python3 are the same interpreter.
    told = "".join(path.read_text() for path in pins) + repr(commands).replace(sys.executable, "python")
    stamp = directory / ".fetched"
    if stamp.exists() and stamp.read_text() == told:
        return directory
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    for path in pins:
        shutil.copy(path, directory)
    for command in commands:
        _run(command, directory, what)
    stamp.write_text(told)
    return directory


def with_maven(name: str, what: str, pom: Path, *properties: str) -> Path:
    """The directory with the jars that a pom depends on; its properties are given as ``-Dname=value``.

    Raises `NotAvailable` as `fetched` does.
    """
    if shutil.which("java") is None:
        raise NotAvailable("there is no java on PATH")
    command = ["mvn", "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=."]
    return fetched(name, what, [pom], [*command, *properties])


def announce(what: str, fetch: Callable[[], object]) -> None:
    """Fetch, and tell; a machine that cannot is no error: the tests then say what they skip."""
    sys.stderr.write(f"{what} for the tests in tests/peers: in {DIRECTORY}, fetched if it is not there\n")
    try:
        fetch()
    except NotAvailable as e:
        sys.stderr.write(f"{e}: the tests that need it are skipped\n")


def _run(command: list[str], directory: Path, what: str) -> None:
    program = Path(command[0]).name
    if shutil.which(command[0]) is None:
        raise NotAvailable(f"there is no {program} on PATH, which is needed for {what}")
    try:
        done = subprocess.run(
            command, cwd=directory, capture_output=True, text=True, timeout=_FETCH_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise NotAvailable(f"{program} has not fetched {what} within {_FETCH_SECONDS} s") from None
    if done.returncode:
        lines = (done.stdout + done.stderr).splitlines()
        errors = [line for line in lines if "err" in line.lower()]
        raise NotAvailable(f"{program} cannot fetch {what}: {(errors or ['without a word'])[0]}")
