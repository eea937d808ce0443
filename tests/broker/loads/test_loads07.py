"""Loads of Kafka 0.7's topics: what is planned and read of two brokers, and where else it is told."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pyspark_kafkalog.datasource.batch.load_planning import begin
from pyspark_kafkalog.datasource.batch.load_reader import LoadInputPartition, LoadReader
from pyspark_kafkalog.datasource.options.option_definitions import BatchOptions
from pyspark_kafkalog.datasource.options.read_options import parse_batch_options
from pyspark_kafkalog.datasource.reading.kafka import open_cluster
from pyspark_kafkalog.errors import (
    ForeignCluster,
    InvalidConfig,
    LoadError,
    TopicRecreated,
)
from pyspark_kafkalog.ledger.commit import Commit
from pyspark_kafkalog.ledger.ledger import Ledger
from pyspark_kafkalog.ledger.plan import Plan
from pyspark_kafkalog.zookeeper.paths import BrokerNode, V07Layout
from pyspark_kafkalog.zookeeper.registries import agree_on_cluster
from pyspark_kafkalog.zookeeper.session import ZooKeeperSession
from tests.support.client.broker07 import Broker07
from tests.support.command_line import kafkalog, table
from tests.support.datasource.source07 import COLUMNS, QUICK
from tests.support.protocol.wire07 import entry, zipped

ONE, TWO = entry(b"one"), entry(b"two")
SIZE = len(ONE)
PACKED = zipped(entry(b"p1"), entry(b"p2"), entry(b"p3"))


class Cluster:
    """Brokers 3 and 14 with a partition of ``t`` each: two messages at 3, one and a packed set at 14."""

    def __init__(self, first: Broker07, second: Broker07) -> None:
        self.brokers = {3: first, 14: second}
        first.append("t", 0, ONE + TWO)
        second.append("t", 0, ONE + PACKED)

    @property
    def list(self) -> str:
        return ",".join(f"{id}:{broker.address}" for id, broker in self.brokers.items())

    def register(self, session: ZooKeeperSession) -> None:
        """Write what brokers of 0.7 write into ZooKeeper."""
        layout = V07Layout()
        for id, broker in self.brokers.items():
            host, port = broker.address.split(":")
            session.create(
                layout.broker(id), layout.write_broker(BrokerNode(id, host, int(port))), ephemeral=True
            )
            for path, data in layout.topic_nodes("t", id, 1).items():
                session.create(path, data, ephemeral=True)


class Loads:
    """Loads of one name, as a driver and its tasks make them. *Not thread-safe.*"""

    def __init__(self, directory: Path, **always: str) -> None:
        self.ledger = Ledger.at(directory, "load")
        where = {"loadName": "load", "offsetsPath": str(directory), "subscribe": "t", "protocol": "0.7"}
        self._always = {**where, **QUICK, "fetchOffset.numRetries": "0", **always}

    def options(self, **given: str) -> BatchOptions:
        return parse_batch_options({**self._always, **given})

    def begin(self, **given: str) -> Plan | None:
        options = self.options(**given)
        lookup = open_cluster(options)
        try:
            return begin(options, lookup, self.ledger, run="run")
        finally:
            lookup.close()

    def reader(self, **given: str) -> LoadReader:
        options = self.options(**given)
        assert options.load is not None
        return pickle.loads(pickle.dumps(LoadReader(options, COLUMNS, options.load)))  # type: ignore[no-any-return]

    def stage(self, **given: str) -> list[Any]:
        """The rows of one action of mode stage, which commits at its end."""
        source = self.reader(commitOffsets="stage", **given)
        return [row for task in source.partitions() for row in rows(source, task)]


def rows(source: LoadReader, task: Any) -> list[tuple[bytes, int, int, int]]:
    """Value, broker, offset and place in the entry of each row."""
    return [
        (row["value"], row["broker"], row["offset"], row["innerIndex"])
        for batch in source.read(task)
        for row in batch.to_pylist()
    ]


def ranges(plan: Plan | None) -> list[tuple[str, int, int]]:
    return [] if plan is None else [(str(r.key), r.start, r.end) for r in plan.ranges]


def committed(loads: Loads, plan: Plan | None) -> Commit:
    assert plan is not None
    return loads.ledger.commit(plan, mode="job", run="run", receipts=False)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Broker07(partitions=1) as first, Broker07(partitions=1) as second:
        yield Cluster(first, second)


@pytest.fixture
def loads(cluster: Cluster, tmp_path: Path) -> Loads:
    return Loads(tmp_path / "offsets", **{"broker.list": cluster.list})


@pytest.fixture
def session(zookeeper_connect: str, cluster: Cluster) -> Iterator[ZooKeeperSession]:
    """At a chroot where the brokers are registered."""
    with ZooKeeperSession(zookeeper_connect) as session:
        cluster.register(session)
        yield session


ALL = [(b"one", 3, 0, 0), (b"two", 3, SIZE, 0), (b"one", 14, 0, 0)] + [
    (value, 14, SIZE, place) for place, value in enumerate([b"p1", b"p2", b"p3"])
]


# ---- stage by stage


def test_a_stage_reads_each_brokers_partition_and_the_next_one_continues_there(
    loads: Loads, cluster: Cluster, tmp_path: Path
) -> None:
    assert loads.stage() == ALL
    head = loads.ledger.head()
    assert head is not None
    assert [(str(p.key), p.next, p.topic_id) for p in head.positions] == [
        ("t-3-0", 2 * SIZE, ""),
        ("t-14-0", SIZE + len(PACKED), ""),
    ]
    assert (head.mode, head.records, head.bytes) == ("stage", 6, 15)
    left = {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("receipts/*/*/*/*")}
    end = SIZE + len(PACKED)
    assert left == {
        f"offsets/load/receipts/00000001/t/3-0/0-{2 * SIZE}.json",
        f"offsets/load/receipts/00000001/t/14-0/0-{end}.json",
    }
    packed = {str(r.key): r for r in loads.ledger.receipts(loads.ledger.plan(1))}["t-14-0"]
    assert (packed.records, packed.first_offset, packed.last_offset, packed.next) == (4, 0, SIZE, end)
    assert (packed.first_timestamp_ms, packed.lost, packed.broker) == (None, (), 14)
    assert loads.stage() == []
    cluster.brokers[14].append("t", 0, TWO)
    assert loads.stage() == [(b"two", 14, SIZE + len(PACKED), 0)]
    assert loads.ledger.verify() == []


def test_a_replay_reads_the_same_rows_though_the_logs_have_grown(loads: Loads, cluster: Cluster) -> None:
    source = loads.reader(commitOffsets="stage")
    tasks = source.partitions()
    assert rows(source, tasks[0]) == ALL[:2]  # and dies
    for broker in cluster.brokers.values():
        broker.append("t", 0, TWO)
    assert loads.stage() == ALL
    assert sorted(row[1] for row in loads.stage()) == [3, 14]
    assert [c.records for c in loads.ledger.history()] == [6, 2]


def test_tasks_carry_where_their_broker_is_now_and_ask_nobody(
    loads: Loads, cluster: Cluster, session: ZooKeeperSession, zookeeper_connect: str, tmp_path: Path
) -> None:
    by_zookeeper = Loads(tmp_path / "other", **{"zookeeper.connect": zookeeper_connect})
    tasks: Any = by_zookeeper.reader(commitOffsets="stage").partitions()
    assert [type(task) for task in tasks] == [LoadInputPartition] * 2
    assert [(t.broker, t.address) for t in tasks] == [
        (id, broker.address) for id, broker in cluster.brokers.items()
    ]
    source = by_zookeeper.reader(commitOffsets="stage", **{"zookeeper.connect": "127.0.0.1:1"})
    assert [row for task in tasks for row in rows(source, task)] == ALL
    assert by_zookeeper.ledger.head_number() == 1


# ---- planning


@pytest.mark.parametrize("option", ["startingOffsets", "endingOffsets"])
def test_a_load_neither_begins_nor_ends_inside_an_entry(loads: Loads, option: str) -> None:
    with pytest.raises(InvalidConfig, match=r"t-14-0: no message begins at offset"):
        loads.begin(**{option: f'{{"t":{{"3-0":0,"14-0":{SIZE + 3}}}}}'})
    assert loads.ledger.pending() is None


def test_a_log_that_ends_before_the_position_is_a_recreated_topic(loads: Loads, cluster: Cluster) -> None:
    committed(loads, loads.begin())
    del cluster.brokers[14].logs["t", 0][SIZE:]
    with pytest.raises(TopicRecreated, match=rf"t-14-0: position \d+ is beyond the end of the log, {SIZE}"):
        loads.begin()
    assert ranges(loads.begin(onTopicRecreated="earliest")) == [("t-14-0", 0, SIZE)]


def test_a_log_in_which_no_message_begins_at_the_position_is_a_recreated_topic(
    loads: Loads, cluster: Cluster
) -> None:
    committed(loads, loads.begin())
    cluster.brokers[14].logs["t", 0][:] = entry(b"x" * 300)
    with pytest.raises(TopicRecreated, match=r"loaded before.*t-14-0: no message begins"):
        loads.begin()
    assert loads.begin(onTopicRecreated="skip") is None
    assert ranges(loads.begin(onTopicRecreated="earliest")) == [("t-14-0", 0, len(entry(b"x" * 300)))]


def test_a_broker_that_left_keeps_its_position_until_it_is_back(
    cluster: Cluster, session: ZooKeeperSession, zookeeper_connect: str, tmp_path: Path
) -> None:
    loads = Loads(tmp_path / "offsets", **{"zookeeper.connect": zookeeper_connect})
    committed(loads, loads.begin())
    session.delete("/brokers/topics/t/14")
    cluster.brokers[3].append("t", 0, ONE)
    cluster.brokers[14].append("t", 0, ONE)
    plan = loads.begin()
    assert ranges(plan) == [("t-3-0", 2 * SIZE, 3 * SIZE)]
    committed(loads, plan)
    session.create("/brokers/topics/t/14", b"1", ephemeral=True)
    end = SIZE + len(PACKED)
    assert ranges(loads.begin()) == [("t-14-0", end, end + SIZE)]
    session.delete("/brokers/topics/t/14")
    with pytest.raises(LoadError, match=r"t-14-0.*If a broker is away, start it and load again; else plan 3"):
        loads.begin()


def test_the_cluster_is_known_by_its_znode_where_it_has_one(
    session: ZooKeeperSession, zookeeper_connect: str, tmp_path: Path
) -> None:
    nameless = Loads(tmp_path / "nameless", **{"zookeeper.connect": zookeeper_connect})
    plan = nameless.begin()
    assert plan is not None
    assert plan.cluster_id == ""
    agree_on_cluster(session, V07Layout(), None, "a-cluster")
    loads = Loads(tmp_path / "offsets", **{"zookeeper.connect": zookeeper_connect})
    plan = loads.begin()
    assert plan is not None
    assert plan.cluster_id == "a-cluster"
    session.write("/cluster/id", b"another")
    with pytest.raises(
        ForeignCluster, match=r"of cluster a-cluster, but the brokers are of another: check zookeeper"
    ):
        loads.begin()


# ---- text files and znodes


def test_the_mappers_files_begin_a_new_load_where_they_say(
    loads: Loads, cluster: Cluster, tmp_path: Path
) -> None:
    loads.stage()
    mirror = tmp_path / "offsets" / "load" / "offsets"
    addresses = {id: broker.address for id, broker in cluster.brokers.items()}
    end = SIZE + len(PACKED)
    assert {file.name: file.read_text() for file in mirror.iterdir()} == {
        "part-3-t-0": f"tcp://{addresses[3]}\tt\t0\t{2 * SIZE}\n",
        "part-14-t-0": f"tcp://{addresses[14]}\tt\t0\t{end}\n",
    }
    (mirror / "part-14-t-0").write_text(f"tcp://{addresses[14]}\tt\t0\t{SIZE}\n")
    other = Loads(tmp_path / "other", **{"broker.list": cluster.list})
    assert other.stage(startingOffsets=f"file:{mirror}") == ALL[3:]


def test_the_groups_znodes_follow_the_commit_and_a_load_may_begin_there(
    session: ZooKeeperSession, zookeeper_connect: str, tmp_path: Path
) -> None:
    where = {"zookeeper.connect": zookeeper_connect, "kafka.group.id": "loaders"}
    loads = Loads(tmp_path / "offsets", **where)
    loads.stage()
    layout, end = V07Layout(), SIZE + len(PACKED)
    stored = {name: session.read(layout.offset("loaders", "t", name)) for name in ("3-0", "14-0")}
    assert {name: node and node.data for name, node in stored.items()} == {
        "3-0": b"%d" % (2 * SIZE),
        "14-0": b"%d" % end,
    }
    session.write("/consumers/loaders/offsets/t/14-0", b"%d" % SIZE)
    other = Loads(tmp_path / "other", **where)
    assert ranges(other.begin(startingOffsets="group")) == [("t-14-0", SIZE, end)]


# ---- the command line


def test_the_commands_know_ledgers_of_07(loads: Loads, cluster: Cluster, tmp_path: Path) -> None:
    where = ("--option", "protocol=0.7", "--option", f"broker.list={cluster.list}")
    begin = kafkalog(
        "load", "load", "--offsets", str(tmp_path / "offsets"), "--topic", "t", "--dry-run", *where
    )
    end = SIZE + len(PACKED)
    assert table(begin.stdout) == [
        ["t", "3-0", "0", str(2 * SIZE), str(2 * SIZE), "first", "load"],
        ["t", "14-0", "0", str(end), str(end), "first", "load"],
    ]
    assert f"load: load 1 would read {2 * SIZE + end} bytes in 2 tasks" in begin.stdout
    loads.stage()
    cluster.brokers[14].append("t", 0, TWO)
    ledger = ("load", "--offsets", str(tmp_path / "offsets"))
    lag = kafkalog("lag", "--load", *ledger, *where)
    assert table(lag.stdout) == [
        ["t", "3-0", "0", str(2 * SIZE), str(2 * SIZE), "0"],
        ["t", "14-0", "0", str(end + SIZE), str(end), str(SIZE)],
        ["total", str(SIZE)],
    ]
    assert lag.stderr == "protocol=0.7: offsets, lag and load_lag are bytes\n"
    unsaid = kafkalog("lag", "--load", *ledger)
    assert unsaid.returncode == 2
    assert "load 'load' reads Kafka 0.7: add --option protocol=0.7" in unsaid.stderr
    (commit,) = [json.loads(line) for line in kafkalog("history", *ledger, "--json").stdout.splitlines()]
    assert [(p["broker"], p["partition"], p["next"]) for p in commit["positions"]] == [
        (3, 0, 2 * SIZE),
        (14, 0, end),
    ]
    assert kafkalog("verify", *ledger).stdout.startswith("sound: 1 commit in effect with 6 records")
    rewound = kafkalog("rewind", *ledger, "--to", "start", "--yes")
    assert f"  t-14-0\t[0, {end})\t{end} bytes" in rewound.stdout
    assert loads.stage() == [*ALL, (b"two", 14, end, 0)]


def test_the_lag_of_a_group_of_07_is_looked_up_in_zookeeper(
    session: ZooKeeperSession, zookeeper_connect: str
) -> None:
    session.write("/consumers/g/offsets/t/3-0", b"%d" % SIZE)
    where = ("--option", "protocol=0.7", "--option", f"zookeeper.connect={zookeeper_connect}")
    shown = kafkalog("lag", "t", "--group", "g", *where)
    end = SIZE + len(PACKED)
    assert table(shown.stdout) == [
        ["t", "3-0", "0", str(2 * SIZE), str(SIZE), str(SIZE)],
        ["t", "14-0", "0", str(end), "-", str(end)],
        ["total", str(end + SIZE)],
    ]
    unknown = kafkalog("lag", "t", "--group", "nobody", *where)
    assert unknown.returncode == 1
    assert f"consumer group 'nobody' does not exist in ZooKeeper at {zookeeper_connect}" in unknown.stderr
    assert "name the topics" in kafkalog("lag", "--group", "g", *where).stderr
    assert "needs --option protocol=0.7" in kafkalog("lag", "--group", "g", "--option", "a=b").stderr
