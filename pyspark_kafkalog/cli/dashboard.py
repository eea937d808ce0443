"""``kafkalog dashboard`` and ``top``: state of a cluster and of loads, as a page and in the terminal."""

from __future__ import annotations

import logging
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pyspark_kafkalog.cli.arguments import DEFAULT_SERVER, ClusterCommands, Servers, connected, examples
from pyspark_kafkalog.cli.terminal_output import counted, printable, size
from pyspark_kafkalog.client.discovery import Cluster, ClusterMetadata, TopicMetadata
from pyspark_kafkalog.client.groups import committed_offsets, describe_group, list_groups
from pyspark_kafkalog.client.offsets import list_offsets
from pyspark_kafkalog.client.retry import Deadline
from pyspark_kafkalog.clock import SYSTEM_CLOCK
from pyspark_kafkalog.errors import ErrorCode, InvalidConfig, KafkaError
from pyspark_kafkalog.protocol.api.cluster import DescribeLogDirsRequest
from pyspark_kafkalog.status.page_data import busiest, furthest_behind, problems_of
from pyspark_kafkalog.status.snapshot import (
    BrokerStatus,
    GroupStatus,
    LoadStatus,
    PartitionStatus,
    Rates,
    Snapshot,
    TopicStatus,
    by_partition,
    lag_of,
    rates_between,
)
from pyspark_kafkalog.types import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    PROTOCOL_08,
    TopicPartition,
    encode_id,
)

if TYPE_CHECKING:
    from pyspark_kafkalog.ledger.ledger import Ledger
    from pyspark_kafkalog.ledger.plan import Position


_LEAST_SECONDS = 0.5
_NUMBERS_WIDTH = 52  # width of the columns after a table's first
_CLEAR = "\x1b[H\x1b[J"

Ledgers = Annotated[
    str | None, typer.Option(help="Also show the loads with ledgers in this directory or URL.")
]

watching = ClusterCommands()


@watching.command(epilog=examples("top -b localhost:9092", "top -b localhost:9092 --once"))
def top(
    ledger: Ledgers = None,
    every: Annotated[float, typer.Option(help="Seconds between updates.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Print once and exit.")] = False,
    server: Servers = DEFAULT_SERVER,
) -> None:
    """Show brokers, topics with rates, consumer groups with lag and loads in the terminal, until Ctrl-C.

    If the cluster stops answering, the screen shows since when, and top keeps trying.
    """
    with connected(server) as cluster, suppress(KeyboardInterrupt):
        snapshots = ClusterSnapshots(cluster, ledger)
        now = snapshots.take()
        if once:
            typer.echo("\n".join(lines_of(now, Rates(), rows=10**6)))
            return
        _keep_showing(snapshots, now, max(every, _LEAST_SECONDS))


@watching.command(
    epilog=examples(
        "dashboard -b localhost:9092",
        "dashboard -b kafka:9092 --ledger s3://lake/_offsets --listen 127.0.0.1:9400",
    )
)
def dashboard(
    ledger: Ledgers = None,
    listen: Annotated[str, typer.Option(help="Address to serve on, host:port.")] = "127.0.0.1:9309",
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
        snapshots.take()  # so that a wrong address is an error at once
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


def _keep_showing(snapshots: ClusterSnapshots, now: Snapshot, seconds: float) -> None:
    rates, failure = Rates(), ""
    with _client_errors_only():
        while True:
            width, height = shutil.get_terminal_size()
            lines = lines_of(now, rates, rows=height - 2, columns=width, failure=failure)
            text = "\n".join(_cut(line, width) for line in lines[: height - 1])
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
    client = logging.getLogger("pyspark_kafkalog.client")
    before = client.level
    client.setLevel(logging.ERROR)
    try:
        yield
    finally:
        client.setLevel(before)


def lines_of(now: Snapshot, rates: Rates, *, rows: int, columns: int = 100, failure: str = "") -> list[str]:
    """The screen in about ``rows`` lines; ``failure`` is why there is no newer snapshot. Fits 80 columns."""
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
    return f"{_cut(printable(name), width):{width}}"


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"


def _lag(lag: int | None) -> str:
    return "-" if lag is None else f"{lag:,}"


_ASK_SECONDS = 10.0  # time limit for each part of a snapshot

Ends = Mapping[TopicPartition, int]
Known = Mapping[TopicPartition, PartitionStatus]


class ClusterSnapshots:
    """*Not thread-safe.* Snapshots of a cluster and of ledgers; failed parts become problems."""

    def __init__(self, cluster: Cluster, place: str | None = None) -> None:
        """Raises `KafkaError` if ``place`` cannot hold ledgers."""
        self._cluster = cluster
        self._loads = LedgerLoads(place) if place is not None else None
        self._problems: list[str] = []

    def take(self) -> Snapshot:
        """Raises `KafkaError` if no broker responds."""
        self._problems = []
        cluster = self._cluster
        metadata = cluster.metadata(None, refresh=True, deadline=self._deadline())
        led = [
            TopicPartition(topic.name, number)
            for topic in metadata.topics.values()
            for number, partition in topic.partitions.items()
            if partition.leader >= 0
        ]
        starts, ends = self._listed(led, EARLIEST_TIMESTAMP), self._listed(led, LATEST_TIMESTAMP)
        at_ms = SYSTEM_CLOCK.time_ms()
        topics = tuple(_topics(metadata, starts, ends, self._sizes(metadata.brokers)))
        known = by_partition(topics)
        groups = tuple(self._groups(known))
        loads = () if self._loads is None else tuple(self._loads.take(metadata, known, self._problems))
        return Snapshot(
            at_ms=at_ms,
            cluster_id=metadata.cluster_id or "",
            brokers=tuple(_brokers(metadata)),
            topics=topics,
            groups=groups,
            loads=loads,
            problems=tuple(self._problems),
        )

    def _deadline(self) -> Deadline:
        return Deadline.after(_ASK_SECONDS, SYSTEM_CLOCK)

    def _listed(self, partitions: Iterable[TopicPartition], timestamp: int) -> dict[TopicPartition, int]:
        times = dict.fromkeys(partitions, timestamp)
        try:
            offsets = list_offsets(self._cluster, times, deadline=self._deadline())
        except KafkaError as e:
            self._problems.append(f"offsets: {e}")
            return {}
        return {tp: one.offset for tp, one in offsets.items()}

    def _sizes(self, brokers: Iterable[int]) -> dict[TopicPartition, int]:
        sizes: dict[TopicPartition, int] = {}
        for node_id in brokers:
            try:
                deadline = self._deadline()
                connection = self._cluster.connection(node_id, deadline)
                answer = connection.request(DescribeLogDirsRequest(), deadline=deadline)
            except KafkaError as e:
                self._problems.append(f"sizes at broker {node_id}: {e}")
                continue
            for directory in answer.results:
                if directory.error_code != ErrorCode.NONE:
                    self._problems.append(
                        f"broker {node_id}, {directory.log_dir}: {directory.error_code.name}"
                    )
                for topic in directory.topics:
                    for one in topic.partitions:
                        tp = TopicPartition(topic.name, one.partition_index)
                        sizes[tp] = max(sizes.get(tp, 0), one.partition_size)
        return sizes

    def _groups(self, known: Known) -> Iterable[GroupStatus]:
        try:
            listed = list_groups(self._cluster, deadline=self._deadline())
        except KafkaError as e:
            self._problems.append(f"consumer groups: {e}")
            return
        for one in listed:
            try:
                described = describe_group(self._cluster, one.group, deadline=self._deadline())
                committed = committed_offsets(self._cluster, one.group, deadline=self._deadline())
            except KafkaError as e:
                self._problems.append(f"consumer group {one.group}: {e}")
                continue
            positions = {tp: stored.offset for tp, stored in committed.items()}
            topics = tuple(sorted({tp.topic for tp in positions}))
            yield GroupStatus(
                one.group, described.state, len(described.members), lag_of(positions, known), topics
            )


def _brokers(metadata: ClusterMetadata) -> Iterable[BrokerStatus]:
    led: Counter[int] = Counter()
    away: Counter[int] = Counter()
    for topic in metadata.topics.values():
        for partition in topic.partitions.values():
            led[partition.leader] += 1
            away.update(node_id for node_id in partition.replicas if node_id not in metadata.brokers)
    for node_id, (host, port, *_) in sorted(metadata.brokers.items()):
        yield BrokerStatus(node_id, host, port, led[node_id])
    for node_id, count in sorted(away.items()):
        yield BrokerStatus(node_id, "", -1, count, is_live=False)


def _topics(
    metadata: ClusterMetadata, starts: Ends, ends: Ends, sizes: Mapping[TopicPartition, int]
) -> Iterable[TopicStatus]:
    for name, topic in sorted(metadata.topics.items()):
        partitions = []
        for number, partition in sorted(topic.partitions.items()):
            tp, leader = TopicPartition(name, number), max(partition.leader, -1)
            offsets = starts.get(tp, -1), ends.get(tp, -1)
            partitions.append(PartitionStatus(number, leader, *offsets, sizes.get(tp, -1)))
        yield TopicStatus(name, tuple(partitions))


class LedgerLoads:
    def __init__(self, place: str) -> None:
        from pyspark_kafkalog.ledger.stores.local_store import LocalStore
        from pyspark_kafkalog.ledger.stores.locations import open_store

        store = open_store(place)
        if isinstance(store, LocalStore) and not Path(store.location).is_dir():
            raise InvalidConfig(f"--ledger={place}: there is no such directory")
        store.names("")
        self._place = place

    def take(self, metadata: ClusterMetadata, known: Known, problems: list[str]) -> Iterable[LoadStatus]:
        from pyspark_kafkalog.ledger.ledger import Ledger

        try:
            names = Ledger.at(self._place, "any").known_beside()
        except KafkaError as e:
            problems.append(f"loads: {e}")
            return
        if not names:
            problems.append(f"loads: there is no ledger at {self._place}")
        for name in names:
            try:
                load = self._load(Ledger.at(self._place, name), metadata, known)
            except KafkaError as e:
                problems.append(f"load {name}: {e}")
                continue
            if load is not None:
                yield load

    def _load(self, ledger: Ledger, metadata: ClusterMetadata, known: Known) -> LoadStatus | None:
        from pyspark_kafkalog.ledger.commit import NOT_COUNTED

        begun, head = ledger.begun(), ledger.head()
        if begun is None or head is None:
            return None
        is_of_this = begun.protocol == PROTOCOL_08 and begun.cluster_id in ("", metadata.cluster_id)
        ours = is_of_this and all(_is_same_topic(position, metadata) for position in head.positions)
        positions = {TopicPartition(p.topic, p.partition): p.next for p in head.positions}
        return LoadStatus(
            ledger.name,
            head.number,
            head.created,
            None if head.records == NOT_COUNTED else head.records,
            ledger.pending() is not None,
            lag_of(positions, known) if ours else None,
        )


def _is_same_topic(position: Position, metadata: ClusterMetadata) -> bool:
    topic = metadata.topics.get(position.topic)
    return topic is not None and ("" in (position.topic_id, _id(topic)) or position.topic_id == _id(topic))


def _id(topic: TopicMetadata) -> str:
    return encode_id(topic.topic_id) if topic.topic_id.int else ""
