"""ListOffsets 0, Metadata 0, OffsetCommit 0-1, OffsetFetch 0, FindCoordinator 0, CreateTopics 0-1."""

from __future__ import annotations

import itertools
import select
import time
from collections.abc import Iterator

import pytest

from kafkalog_broker.embedded import EmbeddedBroker, start_broker
from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.api.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
)
from pyspark_kafkalog.protocol.api.log_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from pyspark_kafkalog.protocol.api.metadata import FindCoordinatorRequest
from pyspark_kafkalog.zookeeper.paths import JsonLayout
from pyspark_kafkalog.zookeeper.registries import read_group_offset, write_group_offset
from pyspark_kafkalog.zookeeper.server import ZooKeeperServer
from pyspark_kafkalog.zookeeper.session import ZooKeeperSession
from tests.support.protocol.raw_client import RawClient, batch
from tests.support.until import until
from tests.support.zookeeper import PATIENT, impatient_broker, patient_session

LATEST, EARLIEST = -1, -2
_groups = itertools.count()


def list_offsets(
    client: RawClient, topic: str, timestamp: int, count: int, partition: int = 0
) -> ListOffsetsPartitionResponse:
    want = ListOffsetsPartition(partition_index=partition, timestamp=timestamp, max_num_offsets=count)
    request = ListOffsetsRequest(topics=(ListOffsetsTopic(topic, (want,)),))
    return client.ask(request, 0).topics[0].partitions[0]


def found(client: RawClient, topic: str, timestamp: int, count: int = 99) -> tuple[int, ...]:
    answer = list_offsets(client, topic, timestamp, count)
    assert answer.error_code == ErrorCode.NONE
    return answer.old_style_offsets


def commit(
    client: RawClient, group: str, offsets: dict[tuple[str, int], int], version: int = 0, **fields: int
) -> list[ErrorCode]:
    topics = tuple(
        OffsetCommitRequestTopic(t, (OffsetCommitRequestPartition(p, offset, **fields),))
        for (t, p), offset in offsets.items()
    )
    response = client.ask(OffsetCommitRequest(group_id=group, topics=topics), version)
    return [p.error_code for t in response.topics for p in t.partitions]


def fetch(
    client: RawClient, group: str, *partitions: tuple[str, int], version: int = 0
) -> list[tuple[int, ErrorCode]]:
    topics = tuple(OffsetFetchRequestTopic(t, (p,)) for t, p in partitions)
    response = client.ask(OffsetFetchRequest(group_id=group, topics=topics), version)
    return [(p.committed_offset, p.error_code) for t in response.topics for p in t.partitions]


class TestListOffsets:
    @pytest.fixture
    def segments(self, client: RawClient, topic_name: str) -> str:
        """Offsets 0-5, a segment each, produced some time after 1970, the time in the records."""
        client.create_topic(topic_name, configs={"segment.bytes": "60"})
        for n in range(6):
            client.produce(topic_name, batch(b"x", timestamp=n))
        return topic_name

    def test_starts_of_segments_come_from_the_end_downwards(self, client: RawClient, segments: str) -> None:
        assert found(client, segments, LATEST) == (6, 5, 4, 3, 2, 1, 0)
        assert found(client, segments, LATEST, 2) == (6, 5)
        assert found(client, segments, LATEST, 0) == ()
        assert found(client, segments, EARLIEST, 5) == (0,)

    def test_a_time_is_that_of_a_segments_last_change_and_not_that_of_its_records(
        self, client: RawClient, segments: str
    ) -> None:
        assert found(client, segments, 1_000_000) == ()
        assert found(client, segments, time.time_ns() // 1_000_000 + 60_000) == (6, 5, 4, 3, 2, 1, 0)
        assert found(client, segments, -3) == ()

    def test_of_an_empty_partition_0_is_both_ends(self, client: RawClient, topic: str) -> None:
        assert (found(client, topic, LATEST), found(client, topic, EARLIEST)) == ((0,), (0,))

    def test_wrong_partitions_and_counts_are_refused(self, client: RawClient, topic: str) -> None:
        answers = [list_offsets(client, topic, LATEST, 1, 9), list_offsets(client, topic, LATEST, -1)]
        assert [(a.error_code, a.old_style_offsets) for a in answers] == [
            (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ()),
            (ErrorCode.INVALID_REQUEST, ()),
        ]


class TestWithoutZooKeeper:
    def test_version_0_stores_where_the_others_do(self, client: RawClient, topic: str) -> None:
        group = f"old-{topic}"
        assert commit(client, group, {(topic, 0): 5, (topic, 1): 7, (topic, 9): 1}) == [0, 0, 3]
        assert fetch(client, group, (topic, 0), (topic, 1), version=1) == [(5, 0), (7, 0)]
        assert fetch(client, group, (topic, 0), (topic, 1), (topic, 9)) == [(5, 0), (7, 0), (-1, 3)]

    def test_nothing_stored_is_error_3_in_version_0(self, client: RawClient, topic: str) -> None:
        assert fetch(client, f"none-{topic}", (topic, 0)) == [(-1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]

    def test_version_1_may_name_the_time_of_a_commit(self) -> None:
        with (
            start_broker({"offsets.retention.check.interval.ms": 50}) as broker,
            RawClient(broker.port) as client,
        ):
            client.create_topic("t", 2)
            commit(client, "g", {("t", 0): 1}, 1, commit_timestamp=1000)
            commit(client, "g", {("t", 1): 2}, 1)
            until(lambda: fetch(client, "g", ("t", 0), version=1) == [(-1, 0)])
            assert fetch(client, "g", ("t", 0), ("t", 1), version=1) == [(-1, 0), (2, 0)]


@pytest.fixture(scope="module")
def with_zookeeper(zookeeper_server: str) -> Iterator[EmbeddedBroker]:
    with start_broker({"zookeeper.connect": zookeeper_server, **PATIENT}) as broker:
        with RawClient(broker.port) as client:
            client.create_topic("t", 3)
        yield broker


@pytest.fixture(scope="module")
def zookeeper_server(zookeeper: ZooKeeperServer) -> str:
    return f"{zookeeper.connect}/old-offsets"


@pytest.fixture(scope="module")
def session(zookeeper_server: str) -> Iterator[ZooKeeperSession]:
    with patient_session(zookeeper_server) as session:
        yield session


class TestZooKeeper:
    @pytest.fixture
    def client(self, with_zookeeper: EmbeddedBroker) -> Iterator[RawClient]:
        with RawClient(with_zookeeper.port) as client:
            yield client

    @pytest.fixture
    def group(self) -> str:
        return f"group-{next(_groups)}"

    def test_version_0_stores_where_consumers_of_its_time_look(
        self, client: RawClient, session: ZooKeeperSession, group: str
    ) -> None:
        assert commit(client, group, {("t", 0): 5, ("t", 1): 7}) == [0, 0]
        assert [read_group_offset(session, JsonLayout(), group, "t", p) for p in "012"] == [5, 7, None]
        write_group_offset(session, JsonLayout(), group, "t", "2", 9)
        assert fetch(client, group, ("t", 0), ("t", 1), ("t", 2)) == [(5, 0), (7, 0), (9, 0)]

    def test_offsets_of_version_0_are_apart_from_later_ones(self, client: RawClient, group: str) -> None:
        commit(client, group, {("t", 0): 5})
        assert client.ask(FindCoordinatorRequest(key=group), 0).error_code == ErrorCode.NONE
        assert commit(client, group, {("t", 0): 50, ("t", 1): 60}, 1) == [0, 0]
        assert fetch(client, group, ("t", 0), ("t", 1)) == [(5, 0), (-1, 3)]
        assert fetch(client, group, ("t", 0), ("t", 1), version=1) == [(50, 0), (60, 0)]

    def test_places_that_are_not_there_and_offsets_that_cannot_be_are_refused_alone(
        self, client: RawClient, group: str
    ) -> None:
        assert commit(client, group, {("no", 0): 1, ("t", 9): 1, ("t", 0): -1, ("t", 1): 2}) == [3, 3, 42, 0]
        assert fetch(client, group, ("no", 0), ("t", 9), ("t", 0), ("t", 1)) == [
            (-1, 3), (-1, 3), (-1, 3), (2, 0),
        ]  # fmt: skip

    def test_a_group_name_that_cannot_be_a_znode_is_refused(self, client: RawClient) -> None:
        assert commit(client, "a/b", {("t", 0): 1}) == [ErrorCode.INVALID_GROUP_ID]
        assert fetch(client, "a/b", ("t", 0)) == [(-1, ErrorCode.INVALID_GROUP_ID)]

    def test_a_node_without_a_number_is_an_error_and_no_beginning(
        self, client: RawClient, session: ZooKeeperSession, group: str
    ) -> None:
        session.write(JsonLayout().offset(group, "t", "0"), b"rubbish")
        ((offset, code),) = fetch(client, group, ("t", 0))
        assert (offset, code != ErrorCode.NONE, code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) == (
            -1, True, True,
        )  # fmt: skip

    def test_answers_keep_the_order_of_pipelined_requests(self, client: RawClient, group: str) -> None:
        topics = (OffsetCommitRequestTopic("t", (OffsetCommitRequestPartition(0, 3),)),)
        wanted = (OffsetFetchRequestTopic("t", (0,)),)
        client.send(OffsetCommitRequest(group_id=group, topics=topics), 0)
        client.send(OffsetFetchRequest(group_id=group, topics=wanted), 0)
        client.send(FindCoordinatorRequest(key=group), 0)
        assert client.receive().topics[0].partitions[0].error_code == ErrorCode.NONE
        assert client.receive().topics[0].partitions[0].committed_offset == 3
        assert client.receive().error_code == ErrorCode.NONE


@pytest.mark.long("ZooKeeper, stopped and started")
def test_while_zookeeper_is_away_old_offsets_are_refused_and_others_are_served(
    own_zookeeper: ZooKeeperServer,
) -> None:
    own = {"zookeeper.connect": own_zookeeper.connect, "zk.connectiontimeout.ms": 2000}
    with impatient_broker(own) as broker, RawClient(broker.port) as old, RawClient(broker.port) as other:
        until(lambda: old.create_topic("t", 2).error_code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS))
        until(lambda: commit(old, "g", {("t", 0): 1}) == [0])
        own_zookeeper.stop()
        topics = tuple(OffsetCommitRequestTopic("t", (OffsetCommitRequestPartition(p, 2),)) for p in (0, 1))

        def others_are_served_meanwhile() -> bool:
            old.send(OffsetCommitRequest(group_id="g", topics=topics), 0)
            assert other.produce("t", batch(b"x")).error_code == ErrorCode.NONE
            meanwhile = not select.select([old.socket], [], [], 0)[0]
            answered = [p.error_code for t in old.receive().topics for p in t.partitions]
            assert answered == [ErrorCode.REQUEST_TIMED_OUT] * 2
            return meanwhile

        until(others_are_served_meanwhile)  # again, if the machine stood still between the two
        broker.kill()  # a stop would wait for ZooKeeper
