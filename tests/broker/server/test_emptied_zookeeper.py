"""A ZooKeeper that was emptied, or has an old state again, costs a cluster none of its data."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from kafkalog_broker.embedded import BrokerNotStarted
from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.zookeeper.server import ZooKeeperServer
from tests.support.protocol.raw_client import batch
from tests.support.protocol.raw_groups import commit, committed, group_at
from tests.support.two_brokers import SOON_MISSED, Two, empty, leaders, write_everywhere
from tests.support.until import until
from tests.support.zookeeper import patient_session

pytestmark = pytest.mark.long("ZooKeeper, stopped and started")


def test_owners_register_again_the_topics_that_zookeeper_lost_and_others_wait(
    own_zookeeper: ZooKeeperServer, tmp_path: Path
) -> None:
    with Two(own_zookeeper.connect, tmp_path) as two:
        two.create("t", 1, 2, 1)
        two.create("of-1", 1)
        taken = write_everywhere(two, "t", b"x", 3)
        two.stop(1)
        two.stop(2)
        with patient_session(own_zookeeper.connect) as session:
            empty(session, "/kafka/brokers/topics")
            empty(session, "/kafka/config/topics")
        client = two.start(2)
        assert leaders(two.describe(2, "t")) == [-1, 2, -1]
        # Only broker 1 knows which other names are taken.
        assert client.create_topic("of-1").error_code == ErrorCode.REQUEST_TIMED_OUT
        assert two.describe(2, "of-1").error_code == ErrorCode.LEADER_NOT_AVAILABLE
        two.start(1)
        until(lambda: leaders(two.describe(2, "t")) == [1, 2, 1])
        until(lambda: leaders(two.describe(2, "of-1")) == [1])
        assert write_everywhere(two, "t", b"y", 3) == taken
        assert [r.value for r in two.clients[1].read("t", partition=2)] == [b"x", b"y"]
        two.create("new", 2)


def test_a_cluster_that_runs_brings_all_it_has_to_a_zookeeper_that_lost_its_data(
    own_zookeeper: ZooKeeperServer, tmp_path: Path
) -> None:
    with Two(own_zookeeper.connect, tmp_path, SOON_MISSED) as two:
        two.create("t", 1, 2)
        taken = write_everywhere(two, "t", b"x", 2)
        groups = {number: group_at(two.clients[number], number) for number in (1, 2)}
        for number, group in groups.items():
            until(lambda n=number, g=group: commit(two.clients[n], g, "t", 1) == ErrorCode.NONE)
        own_zookeeper.kill()
        shutil.rmtree(own_zookeeper.data_dir)
        own_zookeeper.start()
        two.brokers[2].restart()
        two.clients[2].close()
        two.connect(2)
        # Broker 1 is not restarted: its session was refused until it must have ended.
        until(lambda: leaders(two.describe(2, "t")) == leaders(two.describe(1, "t")) == [1, 2])
        assert write_everywhere(two, "t", b"y", 2) == taken
        until(lambda: two.clients[1].create_topic("new", partitions=2).error_code == ErrorCode.NONE)
        for number, group in groups.items():
            until(lambda n=number, g=group: committed(two.clients[n], g, "t") == 1)
        assert two.aside(1) == two.aside(2) == []


def test_an_old_state_of_zookeeper_is_refused_until_it_is_removed(
    own_zookeeper: ZooKeeperServer, tmp_path: Path
) -> None:
    kept = tmp_path / "kept"
    with Two(own_zookeeper.connect, tmp_path, SOON_MISSED) as two:
        two.create("t", 1, 2)
        own_zookeeper.stop()
        shutil.copytree(own_zookeeper.data_dir, kept)
        own_zookeeper.start()
        until(lambda: two.clients[1].create_topic("late", partitions=2).error_code == ErrorCode.NONE)
        until(lambda: leaders(two.describe(2, "late")) == [1, 2])
        until(lambda: _noted_version(tmp_path / "1") >= 4)
        own_zookeeper.kill()
        shutil.rmtree(own_zookeeper.data_dir)
        shutil.copytree(kept, own_zookeeper.data_dir)
        own_zookeeper.start()
        log = two.brokers[2].log_file
        until(lambda: "an old state of ZooKeeper has come back" in log.read_text())
        stored = two.clients[2].produce("late", batch(b"x"), 1).error_code == ErrorCode.NONE
        # One that did not run for a while, or whose session ended between the two states, has to look first
        # what it owns, which it cannot now.
        reasons = "this process was stopped for a while", "broker id 2 is in use by"
        assert stored or any(reason in log.read_text() for reason in reasons)
        assert two.clients[2].create_topic("new").error_code == ErrorCode.REQUEST_TIMED_OUT
        two.stop(1)
        with patient_session(own_zookeeper.connect) as session:
            # The old state may have broker 1's node too, of a session that has ended since: it expires.
            until(lambda: session.read("/kafka/brokers/ids/1") is None)
        with pytest.raises(BrokerNotStarted, match="an old state of ZooKeeper has come back"):
            two.start(1)
        with patient_session(own_zookeeper.connect) as session:
            empty(session, "/kafka/brokers/topics")
        two.start(1)
        until(lambda: leaders(two.describe(2, "late")) == leaders(two.describe(1, "t")) == [1, 2])
        assert two.aside(1) == two.aside(2) == []
        assert [r.value for r in two.clients[2].read("late", partition=1)] == [b"x"] * stored


def _noted_version(directory: Path) -> int:
    lines = (directory / "meta.properties").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("registry.version=")).partition("=")[2])
