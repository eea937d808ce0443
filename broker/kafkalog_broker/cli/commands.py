"""Shared by the commands: options, exit codes, messages, progress, and data directories."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from kafkalog_broker.config.broker_config import BrokerConfig
from pyspark_kafkalog.errors import InvalidConfig

if TYPE_CHECKING:
    from pyspark_kafkalog.zookeeper.session import ZooKeeperSession

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
Run = Callable[[argparse.Namespace], int]


def add_command(
    commands: Commands, name: str, run: Run, *, summary: str, description: str, examples: str
) -> argparse.ArgumentParser:
    """Add a command with its help; ``run`` gets the options and returns the exit code."""
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
    """The data directories at ``path``: itself, or the ``log.dirs`` of a properties file, None for defaults.
    Raises `InvalidConfig`: a directory is missing, or the file is not a configuration.
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
    parser.add_argument(
        "--generation", default="0.8", metavar="GENERATION",
        help="0.7, or 0.8 (the default, which is 0.8 and later): of segments for which neither their topic's"
        " record nor a partition.metadata says it",
    )  # fmt: skip


def is_properties(path: Path) -> bool:
    return path.suffix == ".properties" and path.is_file()


@contextmanager
def zookeeper_session(config: BrokerConfig) -> Iterator[ZooKeeperSession]:
    """A session with the configured ZooKeeper. Raises `ConnectionLost`, instead of its client's log lines."""
    from pyspark_kafkalog.zookeeper.session import session_of  # without ZooKeeper its client is not loaded

    logging.getLogger("kazoo").setLevel(logging.CRITICAL)
    with session_of(config.zookeeper) as session:
        yield session


PROGRAM = "kafkalog-broker"

DONE, FAILED, MISUSED = 0, 1, 2
"""Exit codes: done; failed or found damage; wrong arguments or configuration."""


def say(line: str) -> None:
    """Write a message to standard error; standard output is for results."""
    sys.stderr.write(f"{PROGRAM}: {line}\n")
    sys.stderr.flush()


def fail(error: Exception, code: int) -> int:
    say(" ".join(str(error).split()) or type(error).__name__)
    return code


Advance = Callable[[int], object]


@contextmanager
def byte_progress(what: str, total_bytes: int) -> Iterator[Advance]:
    """Show progress on a terminal; call the yielded function with each number of bytes done."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console  # only needed on a terminal
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total_bytes)
        yield lambda count: bar.advance(task, count)
