"""``kafkalog mirror``: topics of one or several clusters into another, until somebody stops it."""

from __future__ import annotations

import queue
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pyspark_kafkalog.cli.connecting import Quiet
from pyspark_kafkalog.cli.terminal_output import counted, size, status_line
from pyspark_kafkalog.config.mirror import mirror_config
from pyspark_kafkalog.config.properties import load_properties

if TYPE_CHECKING:
    from pyspark_kafkalog.classic.mirror.mirror import Mirror, SourceProgress

MIRROR_EPILOG = """\
Examples:

kafkalog mirror conf/mirror.properties

kafkalog mirror --quiet conf/mirror.properties 2> mirror.log
"""

_LOOK_SECONDS = 0.2
_RATE_SECONDS = 5.0
"""Messages per second are counted over so long."""


def mirror(
    properties: Annotated[
        Path, typer.Argument(help="Sources, target and topics: see conf/mirror.properties.")
    ],
    quiet: Quiet = False,
) -> None:
    """Copy topics of the source clusters to the target until SIGTERM or Ctrl-C, at least once.

    Several mirrors with the same group share the work. On a signal what was read is sent and committed; a
    second signal ends at once, and what was not committed comes again at the next start, as after a kill.

    When the target does not take a message, it ends with exit code 1 and commits nothing more, unless
    abort.on.send.failure=false.
    """
    config = mirror_config(load_properties(properties), source=str(properties))
    # It takes time that --help need not take.
    from pyspark_kafkalog.classic.mirror.mirror import Mirror

    stops: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _frame: _asked(number, stops))
    running = Mirror(config).start()
    if not quiet:
        typer.echo(f"mirroring {', '.join(config.sources)}", err=True)
    try:
        with status_line(quiet=quiet) as show:
            rate = _Rate()
            # A signal between two looks is seen at the next one.
            while stops.empty() and not running.wait(_LOOK_SECONDS):
                show(_status(running, rate))
    finally:
        try:
            running.stop()
        finally:
            if not quiet:
                typer.echo(_summary(running), err=True)


def _asked(number: int, stops: queue.SimpleQueue[int]) -> None:
    stops.put(number)
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, signal.SIG_DFL)


class _Rate:
    """*Not thread-safe.* How many there were each second lately."""

    def __init__(self) -> None:
        self._seen: list[tuple[float, int]] = []

    def of(self, count: int) -> float:
        """``count`` is how many there are in all by now."""
        now = time.monotonic()
        self._seen = [(at, had) for at, had in self._seen if at > now - _RATE_SECONDS]
        self._seen.append((now, count))
        since, had = self._seen[0]
        return (count - had) / (now - since) if now > since else 0.0


def _status(running: Mirror, rate: _Rate) -> str:
    sources = running.progress()
    a_second = rate.of(sum(source.message_count for source in sources))
    return f"{a_second:,.0f} messages/s{_undelivered(running)}; " + "; ".join(map(_of_source, sources))


def _of_source(source: SourceProgress) -> str:
    lag = "lag not known" if source.lag is None else f"lag {source.lag:,}"
    partitions = counted(source.partition_count, "partition")
    return f"{source.name}: {_amount([source])}, {partitions}, {lag}"


def _summary(running: Mirror) -> str:
    return f"read {_amount(running.progress())}{_undelivered(running)}"


def _undelivered(running: Mirror) -> str:
    """What the target did not take: lost only where the mirror goes on all the same."""
    return f", {counted(running.lost_count, 'message')} not delivered" if running.lost_count else ""


def _amount(sources: Sequence[SourceProgress]) -> str:
    messages = sum(source.message_count for source in sources)
    return f"{counted(messages, 'message')}, {size(sum(source.byte_count for source in sources))}"
