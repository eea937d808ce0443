"""`start_cluster`: several brokers for tests and notebooks, with clients of other people's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from itertools import chain

import psutil
import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

import broker
from broker.embedded import EmbeddedCluster
from pyspark_kafkalog.errors import ErrorCode, InvalidConfig
from pyspark_kafkalog.protocol.api.find_coordinator import FindCoordinatorRequest
from pyspark_kafkalog.protocol.api.metadata import MetadataRequest, MetadataRequestTopic
from pyspark_kafkalog.protocol.api.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from pyspark_kafkalog.protocol.api.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
from tests.support.protocol.raw_client import RawClient
from tests.support.two_brokers import await_all
from tests.support.until import until
from tests.support.zookeeper import PATIENT


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with broker.start_cluster(3, PATIENT) as running:
        await_all(running)
        yield running


@pytest.mark.long("several brokers and their ZooKeeper")
def test_records_with_keys_are_all_read_from_any_broker(cluster: EmbeddedCluster) -> None:
    one, two, three = (each.bootstrap_servers for each in cluster.brokers.values())
    assert cluster.bootstrap_servers == f"{one},{two},{three}"
    admin = AdminClient({"bootstrap.servers": two})
    for made in admin.create_topics([NewTopic("keys", 5, 1), NewTopic("single", 1, 1)]).values():
        made.result(120)
    producer = Producer({"bootstrap.servers": three})
    for n in range(500):
        producer.produce("keys", key=b"k%d" % (n % 50), value=b"%d" % n)
        producer.produce("single", value=b"%d" % n)
    assert producer.flush(120) == 0
    assert read(one, "keys", 500) == read(two, "keys", 500) == {b"%d" % n for n in range(500)}
    assert read(three, "single", 500) == {b"%d" % n for n in range(500)}
    admin.create_partitions([NewPartitions("single", 3)])["single"].result(120)
    other_admin = AdminClient({"bootstrap.servers": one})
    assert sorted(other_admin.list_topics("single", 60).brokers) == [1, 2, 3]
    until(lambda: len(other_admin.list_topics("single", 60).topics["single"].partitions) == 3)


def read(servers: str, topic: str, count: int) -> set[bytes]:
    """So many values of a topic, from the beginning."""
    consumer = Consumer(
        {"bootstrap.servers": servers, "group.id": f"{topic}-{servers}", "auto.offset.reset": "earliest"}
    )
    try:
        consumer.subscribe([topic])
        found: set[bytes] = set()
        while len(found) < count:
            message = consumer.poll(60)
            assert message is not None, f"{len(found)} of {count}"
            assert message.error() is None, message.error()
            found.add(message.value())
        return found
    finally:
        consumer.close()


@pytest.mark.long("several brokers and their ZooKeeper")
def test_members_of_a_group_share_its_partitions_whichever_brokers_they_ask(cluster: EmbeddedCluster) -> None:
    one, two, three = (each.bootstrap_servers for each in cluster.brokers.values())
    admin = AdminClient({"bootstrap.servers": one})
    admin.create_topics([NewTopic("shared", 6, 1)])["shared"].result(120)
    own = {"group.id": "g", "auto.offset.reset": "earliest", "session.timeout.ms": 45_000}
    for protocol in ("classic", "consumer"):
        kind = {"group.protocol": protocol} if protocol == "consumer" else {}
        given = {k: v for k, v in own.items() if protocol == "classic" or k != "session.timeout.ms"}
        given["group.id"] = protocol
        members = [Consumer({"bootstrap.servers": at, **given, **kind}) for at in (one, two, three)]
        try:
            for member in members:
                member.subscribe(["shared"])

            def shared(members: list[Consumer] = members) -> bool:
                for member in members:
                    member.poll(0.05)
                parts = [[each.partition for each in member.assignment()] for member in members]
                return [len(each) for each in parts] == [2, 2, 2] and {*chain(*parts)} == {*range(6)}

            until(shared)
        finally:
            for member in members:
                member.close()


def test_groups_are_spread_over_the_brokers_and_keep_their_offsets(cluster: EmbeddedCluster) -> None:
    with ExitStack() as stack:
        clients = {n: stack.enter_context(RawClient(each.port)) for n, each in cluster.brokers.items()}
        clients[1].create_topic("offsets", partitions=1)
        wanted = MetadataRequest(
            topics=(MetadataRequestTopic(name="offsets"),), allow_auto_topic_creation=False
        )
        until(lambda: not any(each.ask(wanted).topics[0].error_code for each in clients.values()))
        request = FindCoordinatorRequest(key_type=0, coordinator_keys=tuple(f"g-{n}" for n in range(20)))

        def owners() -> dict[str, int]:
            """The coordinator of each group, once all brokers say the same."""
            one, *others = (
                {each.key: each.node_id for each in client.ask(request).coordinators}
                for client in clients.values()
            )
            return one if others == [one, one] and -1 not in one.values() else {}

        found = until(owners)
        assert set(found.values()) == {1, 2, 3}
        loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        for group, owner in found.items():
            until(lambda group=group, owner=owner: commit(clients[owner], group, 7) != loading)
            codes = {number: commit(client, group, 7) for number, client in clients.items()}
            wrong = dict.fromkeys(set(clients) - {owner}, ErrorCode.NOT_COORDINATOR)
            assert codes == {owner: ErrorCode.NONE, **wrong}
    cluster.brokers[2].restart()
    with RawClient(cluster.brokers[2].port) as client:
        group = next(group for group, owner in found.items() if owner == 2)
        assert until(lambda: committed(client, group)) == 7


def commit(client: RawClient, group: str, offset: int) -> ErrorCode:
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    topics = (OffsetCommitRequestTopic(name="offsets", partitions=(partition,)),)
    answer = client.ask(OffsetCommitRequest(group_id=group, topics=topics), 7)
    return ErrorCode(answer.topics[0].partitions[0].error_code)


def committed(client: RawClient, group: str) -> int | None:
    """The group's offset; None while the broker has yet to read it."""
    topics = (OffsetFetchRequestTopic(name="offsets", partition_indexes=(0,)),)
    (partition,) = client.ask(OffsetFetchRequest(group_id=group, topics=topics), 5).topics[0].partitions
    if partition.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
        return None
    assert partition.error_code == ErrorCode.NONE
    return int(partition.committed_offset)


def test_what_only_one_broker_can_have_is_refused_and_nothing_runs() -> None:
    before = {each.pid for each in psutil.Process().children()}
    with pytest.raises(InvalidConfig, match=r"start_cluster: node\.id is each broker's own"):
        broker.start_cluster(**{"node.id": 5})
    with pytest.raises(InvalidConfig, match="at least 1 broker, not 0"):
        broker.start_cluster(0)
    with pytest.raises(InvalidConfig, match=r"no property num\.partition"):
        broker.start_cluster(2, **{"num.partition": 5})
    assert {each.pid for each in psutil.Process().children()} == before
