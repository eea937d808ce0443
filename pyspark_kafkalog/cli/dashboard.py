"""``kafkalog dashboard`` and ``kafkalog top``: what a cluster is doing, as a page and in the terminal."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated

import typer

from pyspark_kafkalog.cli.cluster_status import ClusterSnapshots
from pyspark_kafkalog.cli.connecting import DEFAULT_SERVER, Servers, connected
from pyspark_kafkalog.cli.terminal_output import counted, size
from pyspark_kafkalog.status.snapshot import Snapshot
from pyspark_kafkalog.status.status_server import StatusServer, parse_listener

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
_CLEAR = "\x1b[H\x1b[J"

Ledgers = Annotated[
    str | None, typer.Option("--ledger", help="Directory or URL of ledgers (offsetsPath): their loads too.")
]


def dashboard(
    ledger: Ledgers = None,
    listen: Annotated[str, typer.Option("--listen", help="Where to serve, host:port.")] = "127.0.0.1:9309",
    server: Servers = DEFAULT_SERVER,
) -> None:
    """Serve a page that shows brokers, topics, consumer groups and loads of any cluster, until Ctrl-C.

    The page has no login, so it is served to this machine only unless --listen names another address. The
    same address has Prometheus metrics under /metrics and a health check under /health.
    """
    address = parse_listener(listen, "--listen")
    with connected(server) as cluster:
        snapshots = ClusterSnapshots(cluster, ledger)
        snapshots.take()  # a wrong address is told at once
        status = StatusServer(address, snapshots.take, health=lambda: None, title=f"kafkalog: {server}")
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
    every: Annotated[float, typer.Option("--every", help="Seconds between two looks.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Print it once and end.")] = False,
    server: Servers = DEFAULT_SERVER,
) -> None:
    """Show brokers, topics with rates, consumer groups with lag and loads in the terminal, until Ctrl-C."""
    with connected(server) as cluster:
        snapshots = ClusterSnapshots(cluster, ledger)
        before: Snapshot | None = None
        try:
            while True:
                now = snapshots.take()
                width, height = shutil.get_terminal_size()
                lines = lines_of(now, before, rows=10**6 if once else height - 2)
                if once:
                    typer.echo("\n".join(lines))
                    return
                text = "\n".join(line[:width] for line in lines[: height - 1])
                sys.stdout.write(f"{_CLEAR if sys.stdout.isatty() else ''}{text}\n")
                sys.stdout.flush()
                before = now
                time.sleep(max(every, _LEAST_SECONDS))
        except KeyboardInterrupt:
            pass


def lines_of(now: Snapshot, before: Snapshot | None, *, rows: int) -> list[str]:
    """The screen, in about so many lines: the busiest topics and the groups with the largest lag."""
    partitions = [p for topic in now.topics for p in topic.partitions]
    offline = sum(p.leader < 0 for p in partitions)
    at = datetime.fromtimestamp(now.at_ms / 1000).astimezone().strftime("%H:%M:%S")
    lines = [
        f"{at}  cluster {now.cluster_id}  {counted(len(now.brokers), 'broker')}, "
        f"{counted(len(now.topics), 'topic')}, {counted(len(partitions), 'partition')}"
        + (f", {offline} OFFLINE" if offline else ""),
        *(f"! {problem}" for problem in now.problems),
        "",
    ]
    left = max(rows - len(lines) - 4 - (len(now.loads) + 2 if now.loads else 0), 6)
    rates = _rates(now, before)
    topics = sorted(now.topics, key=lambda topic: (-(rates.get(topic.name) or 0), topic.name))
    lines.append(f"{'TOPIC':40} {'PARTITIONS':>10} {'OFFSETS':>15} {'SIZE':>10} {'PER SECOND':>12}")
    for topic in topics[: left // 2]:
        rate = rates.get(topic.name)
        lines.append(
            f"{topic.name[:40]:40} {len(topic.partitions):10,} {topic.offset_count:15,} "
            f"{size(topic.size_bytes) if topic.size_bytes >= 0 else '-':>10} "
            f"{'-' if rate is None else f'{rate:,.0f}':>12}"
        )
    lines += ["", f"{'GROUP':40} {'STATE':20} {'MEMBERS':>8} {'LAG':>15}"]
    groups = sorted(now.groups, key=lambda group: (-(group.lag or 0), group.name))
    for group in groups[: left - left // 2]:
        lag = "-" if group.lag is None else f"{group.lag:,}"
        lines.append(f"{group.name[:40]:40} {group.state[:20]:20} {group.member_count:8,} {lag:>15}")
    if now.loads:
        lines += ["", f"{'LOAD':40} {'COMMIT':>8} {'AT':24} {'LAG':>15}"]
        for load in now.loads:
            lag = "-" if load.lag is None else f"{load.lag:,}"
            pending = " pending" if load.is_pending else ""
            lines.append(f"{load.name[:40]:40} {load.number:8,} {load.committed_at:24} {lag:>15}{pending}")
    return lines


def _rates(now: Snapshot, before: Snapshot | None) -> Mapping[str, float]:
    """New offsets a second of the topics that were there before."""
    if before is None or now.at_ms <= before.at_ms:
        return {}
    ends = {topic.name: topic.end for topic in before.topics}
    seconds = (now.at_ms - before.at_ms) / 1000
    return {
        topic.name: max(topic.end - ends[topic.name], 0) / seconds
        for topic in now.topics
        if topic.name in ends
    }
