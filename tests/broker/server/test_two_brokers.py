"""Two brokers under one ZooKeeper are one cluster on today's wire: each partition has one owner, for good."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kafkalog_broker.embedded import start_broker
from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.api.cluster import DescribeClusterRequest
from pyspark_kafkalog.protocol.api.configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from pyspark_kafkalog.protocol.api.metadata import (
    FindCoordinatorRequest,
    MetadataRequest,
    MetadataRequestTopic,
)
from pyspark_kafkalog.protocol.api.topics import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    DeleteTopicsRequest,
)
from tests.support.protocol.raw_client import RawClient, batch
from tests.support.protocol.raw_transactions import RawTransactions
from tests.support.stopping import stop_process
from tests.support.two_brokers import Two, all_led, leaders, write_everywhere
from tests.support.until import until
from tests.support.zookeeper import PATIENT


@pytest.mark.long("several brokers and their ZooKeeper")
def test_every_broker_names_all_brokers_and_the_smallest_id_as_the_controller(two: Two) -> None:
    for number in (1, 2):
        until(lambda n=number: len(two.clients[n].ask(MetadataRequest(topics=())).brokers) == 2)
        told = two.clients[number].ask(MetadataRequest(topics=()))
        ports = {broker.node_id: broker.port for broker in told.brokers}
        assert ports == {n: two.brokers[n].port_of("PLAINTEXT") for n in (1, 2)}
        described = two.clients[number].ask(DescribeClusterRequest())
        assert {b.broker_id: b.port for b in described.brokers} == ports
        assert told.controller_id == described.controller_id == 1
        assert told.cluster_id == described.cluster_id
    two.stop(1)
    until(lambda: [b.node_id for b in two.clients[2].ask(MetadataRequest(topics=())).brokers] == [2])


def test_a_topic_is_made_widened_changed_and_deleted_at_any_broker(two: Two, tmp_path: Path) -> None:
    one, other = two.clients[1], two.clients[2]
    two.create("t", 1, 2)
    widened = other.ask(
        CreatePartitionsRequest(topics=(CreatePartitionsTopic(name="t", count=4),), timeout_ms=5000)
    )
    assert widened.results[0].error_code == ErrorCode.NONE
    until(lambda: leaders(two.describe(1, "t")) == leaders(two.describe(2, "t")) == [1, 2, 1, 2])
    assert write_everywhere(two, "t", b"x", 4) == {1: [0, 2], 2: [1, 3]}
    named = {"resource_type": 2, "resource_name": "t"}
    altered = other.ask(
        AlterConfigsRequest(
            resources=(AlterConfigsResource(configs=(AlterableConfig("retention.ms", "777"),), **named),)
        )
    )
    assert altered.responses[0].error_code == ErrorCode.NONE
    for number in (1, 2):
        record = tmp_path / str(number) / ".topics" / "t.topic"
        until(lambda record=record: "config.retention.ms=777" in record.read_text())
        resources = (DescribeConfigsResource(configuration_keys=("retention.ms",), **named),)

        def shown(number: int = number, resources: Any = resources) -> str:
            (told,) = two.clients[number].ask(DescribeConfigsRequest(resources=resources)).results
            (entry,) = told.configs
            return str(entry.value)

        until(lambda shown=shown: shown() == "777")
    deleted = other.ask(DeleteTopicsRequest(topic_names=("t",), timeout_ms=5000), 5)
    assert deleted.responses[0].error_code == ErrorCode.NONE
    for number in (1, 2):
        record = tmp_path / str(number) / ".topics" / "t.topic"  # it goes after the directories
        until(lambda record=record: not record.exists())
        assert not list((tmp_path / str(number)).glob("t_*"))
    two.create("t", 1, 2)
    assert one.offset_at("t", -1).offset == 0


@pytest.mark.long("several brokers and their ZooKeeper")
def test_partitions_of_a_broker_that_is_away_are_unavailable_and_come_back_with_their_records(
    two: Two, tmp_path: Path
) -> None:
    two.create("t", 1, 2)
    write_everywhere(two, "t", b"before", 2)
    two.stop(2)
    until(lambda: leaders(two.describe(1, "t")) == [1, -1])
    away = two.describe(1, "t").partitions[1]
    assert (away.error_code, away.replica_nodes) == (ErrorCode.LEADER_NOT_AVAILABLE, (2,))
    assert two.clients[1].produce("t", batch(b"x"), 1).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    # Nobody takes the name meanwhile; what is deleted while its owner is away goes when it returns.
    assert two.clients[1].create_topic("t").error_code == ErrorCode.TOPIC_ALREADY_EXISTS
    assert two.clients[1].create_topic("short", partitions=1).error_code == ErrorCode.NONE
    two.start(2)
    until(lambda: leaders(two.describe(1, "t")) == [1, 2])
    assert [r.value for r in two.clients[2].read("t", partition=1)] == [b"before"]
    two.stop(2)
    until(lambda: leaders(two.describe(1, "t")) == [1, -1])
    two.clients[1].ask(DeleteTopicsRequest(topic_names=("t",), timeout_ms=5000), 5)
    assert list((tmp_path / "2").glob("t_1"))
    assert two.clients[1].create_topic("t", partitions=2).error_code == ErrorCode.NONE
    two.start(2)
    until(lambda: not list((tmp_path / "2").glob("t_1")))
    assert not (tmp_path / "2" / ".aside").exists()
    assert [r.value for r in two.clients[1].read("t", partition=1)] == []


@pytest.mark.long("several brokers and their ZooKeeper")
def test_a_broker_that_waits_until_it_may_register_knows_the_clusters_topics_already(two: Two) -> None:
    """A producer that is told that its topic does not exist gives up the records it holds; and a deletion
    would remove this broker's part alone.
    """
    two.create("t", 1, 2)
    assert two.clients[2].produce("t", batch(b"before"), 1).error_code == ErrorCode.NONE
    port = two.brokers[2].port_of("PLAINTEXT")
    two.brokers[2].kill()
    # The node of the one that was killed is there until its session ends.
    starting = threading.Thread(target=two.brokers[2].start)
    starting.start()
    with connected(port) as early:
        (told,) = early.ask(MetadataRequest(topics=(MetadataRequestTopic(name="t"),))).topics
        refused = early.produce("t", batch(b"x"), 1).error_code
        unknown = early.create_topic("new").error_code
        (kept,) = early.ask(DeleteTopicsRequest(topic_names=("t",), timeout_ms=5000), 5).responses
    two.miss(2)
    starting.join()
    assert (told.error_code, leaders(told)) == (ErrorCode.NONE, [1, -1])
    assert (refused, unknown) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.LEADER_NOT_AVAILABLE)
    assert kept.error_code == ErrorCode.LEADER_NOT_AVAILABLE
    with connected(port) as late:
        assert late.produce("t", batch(b"after"), 1).error_code == ErrorCode.NONE
        assert [r.value for r in late.read("t", partition=1)] == [b"before", b"after"]


def connected(port: int) -> RawClient:
    """A client of the broker at this port, once it listens."""

    def attempt() -> RawClient | None:
        try:
            return RawClient(port)
        except ConnectionRefusedError:
            return None

    client = until(attempt)
    assert client is not None
    return client


@pytest.mark.long("several brokers and their ZooKeeper")
def test_an_owner_that_comes_with_an_empty_directory_does_not_pass_for_having_lost_nothing(
    two: Two, tmp_path: Path
) -> None:
    two.create("t", 1, 2)
    two.stop(2)
    (tmp_path / "2").rename(tmp_path / "kept")
    client = two.start(2)
    assert client.produce("t", batch(b"x"), 1).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert leaders(two.describe(1, "t"))[0] == leaders(two.describe(2, "t"))[0] == 1
    assert leaders(two.describe(2, "t"))[1] == -1
    two.stop(2)
    shutil.rmtree(tmp_path / "2")
    (tmp_path / "kept").rename(tmp_path / "2")
    assert two.start(2).produce("t", batch(b"x"), 1).error_code == ErrorCode.NONE


@pytest.mark.long("several brokers and their ZooKeeper")
def test_what_two_brokers_brought_under_one_name_is_the_firsts_and_the_others_is_set_aside(
    zookeeper_connect: str, tmp_path: Path
) -> None:
    for number in (1, 2):
        with (
            start_broker(data_dir=tmp_path / str(number), **{"node.id": number}) as alone,
            RawClient(alone.port) as client,
        ):
            client.create_topic("both", partitions=number)
            client.produce("both", batch(b"of %d" % number))
        meta = tmp_path / str(number) / "meta.properties"
        meta.write_text(re.sub("cluster.id=.*", "cluster.id=one-of-both", meta.read_text()))
    with Two(zookeeper_connect, tmp_path) as two:
        assert leaders(two.describe(2, "both")) == [1]
        assert [r.value for r in two.clients[1].read("both")] == [b"of 1"]
        (aside,) = (tmp_path / "2" / ".aside").iterdir()
        assert sorted(path.name for path in aside.iterdir()) == ["both.topic", "both_0", "both_1"]
        assert b"of 2" in (aside / "both_0" / "00000000000.kafka").read_bytes()


@pytest.mark.long("several brokers and their ZooKeeper")
def test_transactions_of_a_broker_that_comes_to_a_cluster_are_ended_and_coordinated_by_key(
    zookeeper_connect: str, tmp_path: Path
) -> None:
    for number in (1, 2):
        with (
            start_broker(data_dir=tmp_path / str(number), **{"node.id": number}) as alone,
            RawClient(alone.port) as client,
        ):
            client.create_topic(f"of-{number}")
            txn = RawTransactions(client, "id").begun(f"of-{number}", 0)
            assert txn.send(f"of-{number}", b"open") == ErrorCode.NONE
        meta = tmp_path / str(number) / "meta.properties"
        meta.write_text(re.sub("cluster.id=.*", "cluster.id=one-of-both", meta.read_text()))
    with Two(zookeeper_connect, tmp_path) as two:
        until(lambda: leaders(two.describe(2, "of-1")) == [1] and leaders(two.describe(1, "of-2")) == [2])
        assert two.clients[2].offset_at("of-2", -1, isolation_level=1).offset == 2, "a record and its abort"
        (aside,) = (tmp_path / "2" / ".aside").iterdir()
        assert "__transaction_state.topic" in {path.name for path in aside.iterdir()}
        # Broker 1 brought what the cluster goes on with: there the id is as it was.
        asked = FindCoordinatorRequest(key_type=1, coordinator_keys=("id",))
        until(lambda: {each.ask(asked).coordinators[0].node_id for each in two.clients.values()} == {1})
        new = RawTransactions(two.clients[1], "id")
        loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert until(lambda: [c for c in [new.initialize()] if c != loading]) == [
            ErrorCode.CONCURRENT_TRANSACTIONS
        ]
        until(lambda: new.initialize() == ErrorCode.NONE)
        assert new.add("of-2", 0) == new.add("of-1", 0) == ErrorCode.NONE
        at_two = RawTransactions(two.clients[2], "id")
        at_two.producer = new.producer
        assert at_two.send("of-2", b"new") == new.send("of-1", b"new") == ErrorCode.NONE
        assert new.end() == ErrorCode.NONE
        until(lambda: two.clients[2].offset_at("of-2", -1, isolation_level=1).offset == 4)


@pytest.mark.long("several brokers and their ZooKeeper")
def test_a_broker_whose_id_was_taken_while_it_was_cut_off_serves_nothing_until_it_is_its_own_again(
    two: Two, tmp_path: Path, zookeeper_connect: str
) -> None:
    client = two.clients[1]
    two.create("t", 1, 2)
    assert client.produce("t", batch(b"before")).error_code == ErrorCode.NONE
    stop_process(two.brokers[1].pid)
    two.miss(1)
    until(lambda: leaders(two.describe(2, "t")) == [-1, 2])
    own = {"node.id": 1, "zookeeper.connect": zookeeper_connect, **PATIENT}
    with start_broker(own, data_dir=tmp_path / "rival") as rival, RawClient(rival.port) as of_rival:
        os.kill(two.brokers[1].pid, signal.SIGCONT)
        until(lambda: client.produce("t", batch(b"x")).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER)
        names = itertools.count()
        until(
            lambda: client.create_topic(f"new-{next(names)}").error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        )
        assert of_rival.produce("t", batch(b"x")).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    until(lambda: client.produce("t", batch(b"after")).error_code == ErrorCode.NONE)
    assert {b"before", b"after"} <= {r.value for r in client.read("t")}


@pytest.mark.long("several brokers and their ZooKeeper")
def test_a_topic_that_clients_of_both_brokers_ask_for_at_once_is_made_once(two: Two) -> None:
    """Metadata makes topics; Produce does not, as in Kafka."""
    clients = [RawClient(two.brokers[number].port_of("PLAINTEXT")) for number in (1, 2) * 4]
    try:
        for round_ in range(5):
            topic, ready = f"asked-{round_}", threading.Barrier(len(clients))
            unknown = {c.produce(topic, batch(b"x")).error_code for c in clients}
            assert unknown == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}

            def work(client: RawClient, topic: str = topic, ready: threading.Barrier = ready) -> None:
                request = MetadataRequest(topics=(MetadataRequestTopic(name=topic),))
                ready.wait(120)
                (told,) = client.ask(request).topics
                assert told.error_code in (ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE)

            with ThreadPoolExecutor(len(clients)) as threads:
                list(threads.map(work, clients))
            owners = until(partial(all_led, two, 1, topic))
            assert until(partial(all_led, two, 2, topic)) == owners
            ids = {two.describe(number, topic).topic_id for number in (1, 2)}
            assert len(ids) == 1
            taken = write_everywhere(two, topic, b"y", len(owners))
            assert [n for n in (1, 2) for _ in taken[n]] == sorted(owners)
    finally:
        for client in clients:
            client.close()
