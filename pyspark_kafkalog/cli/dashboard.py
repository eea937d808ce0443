"""``kafkalog dashboard`` and ``kafkalog top``: what a cluster is doing, as a page and in the terminal."""

from __future__ import annotations

import logging
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Annotated

import typer

from pyspark_kafkalog.cli.cluster_status import ClusterSnapshots
from pyspark_kafkalog.cli.connecting import DEFAULT_SERVER, Servers, connected
from pyspark_kafkalog.cli.terminal_output import counted, printable, size
from pyspark_kafkalog.errors import KafkaError
from pyspark_kafkalog.status.page_data import busiest, furthest_behind, problems_of
from pyspark_kafkalog.status.snapshot import Rates, Snapshot, rates_between

DASHBOARD_EPILOG = """\
Examples:

kafkalog dashboard -b localhost:9092

kafkalog dashboard -b kafka:9092 --ledger s3://lake/_offsets --listen 127.0.0.1:9400
"""
TOP_EPILOG = """\
Examples:

kafkalog top -b localhost:9092

kafkalog top -b localhost:9092 --once
"""

_LEAST_SECONDS = 0.5
_NUMBERS_WIDTH = 52
"""Of the columns after the first of a table."""

_CLEAR = "\x1b[H\x1b[J"

Ledgers = Annotated[
    str | None,
    typer.Option("--ledger", help="Also show the loads with ledgers in this directory or URL (offsetsPath)."),
]


def dashboard(
    ledger: Ledgers = None,
    listen: Annotated[
        str, typer.Option("--listen", help="Address to serve on, host:port.")
    ] = "127.0.0.1:9309",
    server: Servers = DEFAULT_SERVER,
) -> None:
    """Serve a page with the cluster's brokers, topics, consumer groups and loads, until Ctrl-C.

    The page has no login, so by default only this machine can open it. The same address serves Prometheus
    metrics at /metrics and a health check at /health.
    """
    from pyspark_kafkalog.status.status_server import StatusServer, parse_listener

    address = parse_listener(listen, "--listen")
    with connected(server) as cluster:
        snapshots = ClusterSnapshots(cluster, ledger)
        snapshots.take()  # a wrong address is an error at once
        title = f"kafkalog: {', '.join(server.split(','))}"
        status = StatusServer(address, snapshots.take, health=lambda: None, title=title)
        if not status.is_loopback:
            typer.echo(f"{listen} has no login: whoever reaches it sees the page", err=True)
        status.start()
        typer.echo(f"{status.url} (Ctrl-C ends it)", err=True)
        try:
            while True:
                time.sleep(3600)
        except KeyboardInterrupt:
            pass
        finally:
            status.stop()


def top(
    ledger: Ledgers = None,
    every: Annotated[float, typer.Option("--every", help="Seconds between updates.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Print once and exit.")] = False,
    server: Servers = DEFAULT_SERVER,
) -> None:
    """Show brokers, topics with rates, consumer groups with lag and loads in the terminal, until Ctrl-C.

    If the cluster stops answering, the screen shows since when, and top keeps trying.
    """
    with connected(server) as cluster:
        snapshots = ClusterSnapshots(cluster, ledger)
        try:
            now = snapshots.take()
            if once:
                typer.echo("\n".join(lines_of(now, Rates(), rows=10**6)))
                return
            _keep_showing(snapshots, now, max(every, _LEAST_SECONDS))
        except KeyboardInterrupt:
            pass


def _keep_showing(snapshots: ClusterSnapshots, now: Snapshot, seconds: float) -> None:
    rates, failure = Rates(), ""
    with _client_errors_only():
        while True:
            width, height = shutil.get_terminal_size()
            lines = lines_of(now, rates, rows=height - 2, columns=width, failure=failure)
            text = "\n".join(line[:width] for line in lines[: height - 1])
            sys.stdout.write(f"{_CLEAR if sys.stdout.isatty() else ''}{text}\n")
            sys.stdout.flush()
            time.sleep(seconds)
            try:
                taken = snapshots.take()
            except KafkaError as e:
                failure = str(e)
                continue
            now, rates, failure = taken, rates_between(now, taken), ""


@contextmanager
def _client_errors_only() -> Iterator[None]:
    """Leave out the client's warnings for as long as this is open: the screen says what they warn of."""
    client = logging.getLogger("pyspark_kafkalog.client")
    before = client.level
    client.setLevel(logging.ERROR)
    try:
        yield
    finally:
        client.setLevel(before)


def lines_of(now: Snapshot, rates: Rates, *, rows: int, columns: int = 100, failure: str = "") -> list[str]:
    """The screen, in about so many lines: the busiest topics and the groups with the largest lag.

    ``failure`` is why there is no newer snapshot. No line has a control character. The tables fit into 80
    columns or more.
    """
    at = datetime.fromtimestamp(now.at_ms / 1000).astimezone().strftime("%H:%M:%S")
    width = min(max(columns - _NUMBERS_WIDTH, 16), 40)
    lines = [
        *([f"NO ANSWER since {at}, trying again: {failure}"] if failure else []),
        f"{at}  cluster {now.cluster_id}  {_figures(now)}",
        *(f"! {problem}" for problem in problems_of(now)),
        "",
    ]
    left = max(rows - len(lines) - 4 - (len(now.loads) + 2 if now.loads else 0), 6)
    lines.append(f"{'TOPIC':{width}} {'PARTITIONS':>10} {'OFFSETS':>15} {'SIZE':>10} {'PER SECOND':>12}")
    for topic in busiest(now.topics, rates.topics)[: left // 2]:
        rate = rates.topics.get(topic.name)
        lines.append(
            f"{_name(topic.name, width)} {len(topic.partitions):10,} {topic.offset_count:15,} "
            f"{size(topic.size_bytes) if topic.size_bytes >= 0 else '-':>10} "
            f"{'-' if rate is None else f'{rate:,.0f}':>12}"
        )
    lines += ["", f"{'GROUP':{width}} {'STATE':20} {'MEMBERS':>8} {'LAG':>15}"]
    for group in furthest_behind(now.groups)[: left - left // 2]:
        lines.append(
            f"{_name(group.name, width)} {group.state[:20]:20} {group.member_count:8,} {_lag(group.lag):>15}"
        )
    if now.loads:
        lines += ["", f"{'LOAD':{width}} {'COMMIT':>8} {'AT':20} {'LAG':>12}"]
        for load in now.loads:
            pending = " pending" if load.is_pending else ""
            seconds = load.committed_at.partition(".")[0]
            lines.append(
                f"{_name(load.name, width)} {load.number:8,} {seconds:20} {_lag(load.lag):>12}{pending}"
            )
    return [printable(line) for line in lines]


def _figures(now: Snapshot) -> str:
    live = [broker for broker in now.brokers if broker.is_live]
    away = [str(broker.id) for broker in now.brokers if not broker.is_live]
    partitions = sum(len(topic.partitions) for topic in now.topics)
    offline = sum(topic.offline_count for topic in now.topics)
    return ", ".join(
        [
            counted(len(live), "broker"),
            *([f"{', '.join(away)} AWAY"] if away else []),
            counted(len(now.topics), "topic"),
            counted(partitions, "partition"),
            *([f"{offline} OFFLINE"] if offline else []),
        ]
    )


def _name(name: str, width: int) -> str:
    return f"{printable(name)[:width]:{width}}"


def _lag(lag: int | None) -> str:
    return "-" if lag is None else f"{lag:,}"
