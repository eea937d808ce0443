"""Shared by the commands: options, exit codes, progress, and which data directories are meant."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from kafkalog_broker.config.broker import BrokerConfig
from pyspark_kafkalog.errors import InvalidConfig

if TYPE_CHECKING:
    from pyspark_kafkalog.zookeeper.session import ZooKeeperSession

    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

Run = Callable[[argparse.Namespace], int]


def add_command(
    commands: Commands, name: str, run: Run, *, summary: str, description: str, examples: str
) -> argparse.ArgumentParser:
    """A command with its help; ``run`` gets the options and returns the exit code."""
    parser = commands.add_parser(
        name,
        help=summary,
        description=description,
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run)
    return parser


def directories_of(path: Path | None) -> tuple[Path, ...]:
    """The data directories that ``path`` names: itself, or the ``log.dirs`` of a properties file; without it
    those of a broker that is started without one.

    Raises `InvalidConfig`: there is no such directory, or the file is no configuration.
    """
    if path is not None and path.is_dir():
        return (path,)
    if path is not None and not path.exists():
        raise InvalidConfig(f"{path}: no such data directory or properties file")
    found = BrokerConfig.load(path, {}).directories()
    missing = [directory for directory in found if not directory.is_dir()]
    if missing:
        raise InvalidConfig(
            f"{missing[0]}: no such data directory; it is in the log.dirs of {path or 'the defaults'}"
        )
    return found


def add_generation(parser: argparse.ArgumentParser) -> None:
    """The option for the generation of a log that no file names."""
    parser.add_argument(
        "--generation", default="0.8", metavar="GENERATION",
        help="0.7, or 0.8 (the default, which is 0.8 and later): of segments for which neither their topic's"
        " record nor a partition.metadata says it",
    )  # fmt: skip


def is_properties(path: Path) -> bool:
    """Whether ``path`` is a properties file, by its name."""
    return path.suffix == ".properties" and path.is_file()


@contextmanager
def zookeeper_session(config: BrokerConfig) -> Iterator[ZooKeeperSession]:
    """A session with the ZooKeeper of a configuration.
    Raises `ConnectionLost`: it does not answer; that says all that its client would log.
    """
    from pyspark_kafkalog.zookeeper.session import session_of  # without ZooKeeper its client is not loaded

    logging.getLogger("kazoo").setLevel(logging.CRITICAL)
    with session_of(config.zookeeper) as session:
        yield session


PROGRAM = "kafkalog-broker"

DONE, FAILED, MISUSED = 0, 1, 2
"""Done; could not be done, or found damage; the user must change arguments or configuration."""


def say(line: str) -> None:
    """A line of words, on standard error: standard output is for what was asked for."""
    sys.stderr.write(f"{PROGRAM}: {line}\n")
    sys.stderr.flush()


def fail(error: Exception, code: int) -> int:
    """Say what went wrong in one line; returns ``code``."""
    say(" ".join(str(error).split()) or type(error).__name__)
    return code


Advance = Callable[[int], object]


@contextmanager
def byte_progress(what: str, total_bytes: int) -> Iterator[Advance]:
    """Shows how far the work is while the block runs; call what it gives with the bytes that were done.

    Where standard error is no terminal nothing is shown, and nothing loaded.
    """
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console  # here: without a terminal it is not needed
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total_bytes)
        yield lambda count: bar.advance(task, count)
