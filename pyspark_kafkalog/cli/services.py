"""``kafkalog mirror`` and ``kafkalog zookeeper``: commands that run until stopped."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pyspark_kafkalog.cli.arguments import ClusterCommands, Quiet, examples
from pyspark_kafkalog.cli.terminal_output import counted, size, status_line
from pyspark_kafkalog.config.mirror_config import mirror_config
from pyspark_kafkalog.config.properties import load_properties
from pyspark_kafkalog.config.zookeeper_config import ZooKeeperServerConfig

if TYPE_CHECKING:
    from pyspark_kafkalog.classic.mirror import Mirror, SourceProgress


_POLL_SECONDS = 0.2
_RATE_SECONDS = 5.0  # window for messages per second

mirroring = ClusterCommands()


@mirroring.command(
    epilog=examples("mirror conf/mirror.properties", "mirror --quiet conf/mirror.properties 2> mirror.log")
)
def mirror(
    properties: Annotated[Path, typer.Argument(help="Properties: see conf/mirror.properties.")],
    quiet: Quiet = False,
) -> None:
    """Copy topics from the source clusters to the target, at least once, until SIGTERM or Ctrl-C.

    Mirrors with the same group share the work. On the first signal the mirror sends and commits what it has
    read; a second one ends it at once, and messages not yet committed are copied again at the next start.

    If the target rejects a message, the mirror exits with code 1 and commits nothing more, unless
    abort.on.send.failure=false.
    """
    config = mirror_config(load_properties(properties), source=str(properties))
    # Slow to import; --help does not need it.
    from pyspark_kafkalog.classic.mirror import Mirror

    stops: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _frame: _asked(number, stops))
    running = Mirror(config).start()
    if not quiet:
        typer.echo(f"mirroring {', '.join(config.sources)}", err=True)
    try:
        with status_line(quiet=quiet) as show:
            rate = _Rate()
            while stops.empty() and not running.wait(_POLL_SECONDS):
                show(_status(running, rate))
    finally:
        try:
            running.stop()
        finally:
            if not quiet:
                typer.echo(f"read {_amount(running.progress())}{_undelivered(running)}", err=True)


def _asked(number: int, stops: queue.SimpleQueue[int]) -> None:
    stops.put(number)
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, signal.SIG_DFL)


class _Rate:
    def __init__(self) -> None:
        self._seen: list[tuple[float, int]] = []

    def of(self, count: int) -> float:
        now = time.monotonic()
        self._seen = [(at, had) for at, had in self._seen if at > now - _RATE_SECONDS]
        self._seen.append((now, count))
        since, had = self._seen[0]
        return (count - had) / (now - since) if now > since else 0.0


def _status(running: Mirror, rate: _Rate) -> str:
    sources = running.progress()
    a_second = rate.of(sum(source.message_count for source in sources))
    texts = []
    for source in sources:
        lag = "lag unknown" if source.lag is None else f"lag {source.lag:,}"
        partitions = counted(source.partition_count, "partition")
        texts.append(f"{source.name}: {_amount([source])}, {partitions}, {lag}")
    return f"{a_second:,.0f} messages/s{_undelivered(running)}; {'; '.join(texts)}"


def _undelivered(running: Mirror) -> str:
    return f", {counted(running.lost_count, 'message')} not delivered" if running.lost_count else ""


def _amount(sources: Sequence[SourceProgress]) -> str:
    messages = sum(source.message_count for source in sources)
    return f"{counted(messages, 'message')}, {size(sum(source.byte_count for source in sources))}"


zookeeper = typer.Typer(
    name="zookeeper", no_args_is_help=True, help="Run a ZooKeeper server on this machine."
)


@zookeeper.command("start", epilog=examples("zookeeper start", "zookeeper start conf/zookeeper.properties"))
def start(
    properties: Annotated[Path | None, typer.Argument(help="Defaults apply if omitted.")] = None,
) -> None:
    """Run ZooKeeper until SIGTERM or Ctrl-C. Prints one line on standard output when it is ready."""
    from pyspark_kafkalog.zookeeper.server import ZooKeeperNotStarted, ZooKeeperServer

    config = ZooKeeperServerConfig.load(properties)
    stops: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _frame: stops.put(number))
    with ZooKeeperServer(config) as server:
        secured = f", with TLS on {server.secure_connect}" if config.secure_client_port >= 0 else ""
        # Run even if standard output is closed.
        with contextlib.suppress(OSError):
            os.write(
                1, f"zookeeper listens on {server.connect}{secured}; data in {server.data_dir}\n".encode()
            )
        # Polled: a signal is handled within 0.2 s.
        while stops.empty():
            code = server.wait(0.2)
            if code is not None:
                raise ZooKeeperNotStarted(f"ZooKeeper exited with code {code}")
