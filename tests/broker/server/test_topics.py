"""Metadata, CreateTopics, DeleteTopics, CreatePartitions."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import pytest

from kafkalog_broker.embedded import EmbeddedBroker, start_broker
from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.api.metadata import (
    FindCoordinatorRequest,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)
from pyspark_kafkalog.protocol.api.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from pyspark_kafkalog.protocol.exchange import ApiKey
from tests.support.protocol.raw_client import RawClient, batch, versions

NO_ID = UUID(int=0)


def describe(
    client: RawClient, *names: str, create: bool = False, version: int = 12
) -> list[MetadataResponseTopic]:
    topics = tuple(MetadataRequestTopic(name=name) for name in names)
    if version < 4:
        return list(client.ask(MetadataRequest(topics=topics), version).topics)
    request = MetadataRequest(topics=topics, allow_auto_topic_creation=create)
    return list(client.ask(request, version).topics)


def create(
    client: RawClient, *topics: CreatableTopic, version: int = 7, validate: bool = False
) -> list[CreatableTopicResult]:
    request = CreateTopicsRequest(topics=topics, timeout_ms=5000, validate_only=validate)
    return list(client.ask(request, version).topics)


class TestMetadata:
    @pytest.mark.parametrize("version", versions(ApiKey.METADATA))
    def test_a_topic_by_name_in_every_version(
        self, running_broker: EmbeddedBroker, client: RawClient, topic: str, version: int
    ) -> None:
        request = MetadataRequest(topics=(MetadataRequestTopic(name=topic),))
        response: MetadataResponse = client.ask(request, version)
        (broker,) = response.brokers
        assert (broker.node_id, broker.host, broker.port) == (0, "127.0.0.1", running_broker.port)
        (found,) = response.topics
        assert (found.name, found.error_code, found.is_internal) == (topic, ErrorCode.NONE, False)
        assert [p.partition_index for p in found.partitions] == [0, 1]
        for partition in found.partitions:
            assert (partition.leader_id, partition.replica_nodes, partition.isr_nodes) == (0, (0,), (0,))
            assert partition.leader_epoch == (0 if version >= 7 else -1)
        if version >= 1:
            assert response.controller_id == 0
        if version >= 2:
            assert response.cluster_id is not None
            assert len(response.cluster_id) == 22
        assert (found.topic_id != NO_ID) == (version >= 10)

    def test_null_is_all_topics_and_empty_is_none_but_in_version_0(
        self, client: RawClient, topic: str
    ) -> None:
        assert topic in {t.name for t in client.ask(MetadataRequest(topics=None), 1).topics}
        assert client.ask(MetadataRequest(topics=()), 1).topics == ()
        assert topic in {t.name for t in client.ask(MetadataRequest(topics=()), 0).topics}

    def test_a_topic_by_id_from_version_12_on_and_an_unknown_one_does_not_fail_the_others(
        self, client: RawClient, topic: str
    ) -> None:
        (by_name,) = describe(client, topic)
        unknown = uuid4()
        wanted = [MetadataRequestTopic(topic_id=each, name=None) for each in (unknown, by_name.topic_id)]
        bad, good = client.ask(MetadataRequest(topics=tuple(wanted)), 12).topics
        assert (bad.error_code, bad.topic_id, bad.name) == (ErrorCode.UNKNOWN_TOPIC_ID, unknown, None)
        assert good == by_name
        (refused,) = client.ask(MetadataRequest(topics=(wanted[1],)), 10).topics
        assert refused.error_code == ErrorCode.INVALID_REQUEST

    def test_an_unknown_topic_is_made_only_if_the_client_allows_it(
        self, client: RawClient, topic_name: str
    ) -> None:
        (found,) = describe(client, topic_name, create=False)
        assert found.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        (made,) = describe(client, topic_name, create=True)
        assert (made.error_code, len(made.partitions)) == (ErrorCode.NONE, 1)
        assert describe(client, topic_name, create=False) == [made]
        (always,) = describe(client, f"{topic_name}-3", version=3)
        assert (always.error_code, len(always.partitions)) == (ErrorCode.NONE, 1)

    def test_a_bad_name_is_not_made_and_does_not_fail_the_others(self, client: RawClient, topic: str) -> None:
        bad, good = describe(client, "no/such", topic, create=True)
        assert bad.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        assert good.error_code == ErrorCode.NONE

    def test_authorized_operations_are_given_when_asked_for(self, client: RawClient, topic: str) -> None:
        request = MetadataRequest(
            topics=(MetadataRequestTopic(name=topic),),
            include_cluster_authorized_operations=True,
            include_topic_authorized_operations=True,
        )
        response = client.ask(request, 10)
        assert response.cluster_authorized_operations == 0b1111110100000
        assert response.topics[0].topic_authorized_operations == 0b110111111000
        silent = client.ask(MetadataRequest(topics=(MetadataRequestTopic(name=topic),)), 10)
        assert silent.cluster_authorized_operations == -(2**31)
        assert silent.topics[0].topic_authorized_operations == -(2**31)

    def test_without_auto_creation_nobody_can_make_a_topic_this_way(self) -> None:
        with start_broker({"auto.create.topics.enable": False}) as broker, RawClient(broker.port) as client:
            (found,) = describe(client, "t", create=True)
            assert found.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


class TestCreateTopics:
    @pytest.mark.parametrize("version", versions(ApiKey.CREATE_TOPICS))
    def test_a_topic_is_made_in_every_version(self, client: RawClient, topic_name: str, version: int) -> None:
        (result,) = create(client, CreatableTopic(topic_name, 3, 1), version=version)
        assert (result.error_code, result.error_message, result.name) == (ErrorCode.NONE, None, topic_name)
        if version >= 5:
            assert (result.num_partitions, result.replication_factor) == (3, 1)
            configs = {c.name: c for c in result.configs or ()}
            assert configs["segment.bytes"].value == str(1 << 30)
            assert configs["segment.bytes"].config_source == 5
        (found,) = describe(client, topic_name)
        assert len(found.partitions) == 3
        if version >= 7:
            assert result.topic_id == found.topic_id

    def test_validate_only_makes_nothing(self, client: RawClient, topic_name: str) -> None:
        (result,) = create(client, CreatableTopic(topic_name, 2, 1), validate=True)
        assert (result.error_code, result.num_partitions, result.topic_id) == (ErrorCode.NONE, 2, NO_ID)
        assert describe(client, topic_name)[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def test_one_bad_topic_does_not_fail_the_others(
        self, client: RawClient, topic: str, topic_name: str
    ) -> None:
        results = create(client, CreatableTopic(topic, 1, 1), CreatableTopic(topic_name + "-2", 1, 1))
        assert [r.error_code for r in results] == [ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.NONE]
        assert results[0].error_message == f"topic {topic!r} already exists"

    @pytest.mark.parametrize(
        ("fields", "code", "message"),
        [
            ({"num_partitions": 0}, ErrorCode.INVALID_PARTITIONS, "at least 1"),
            ({"num_partitions": 2**31 - 1}, ErrorCode.POLICY_VIOLATION, "10000"),
            ({"replication_factor": 2}, ErrorCode.INVALID_REPLICATION_FACTOR, "1 broker"),
            ({"replication_factor": 0}, ErrorCode.INVALID_REPLICATION_FACTOR, "1 broker"),
            ({"configs": (CreatableTopicConfig("segment.byte", "1"),)}, ErrorCode.INVALID_CONFIG, "bytes"),
            ({"configs": (CreatableTopicConfig("segment.bytes", "x"),)}, ErrorCode.INVALID_CONFIG, "x"),
            ({"configs": (CreatableTopicConfig("x", None),)}, ErrorCode.INVALID_CONFIG, "no value"),
            ({"configs": (CreatableTopicConfig("x", "1"),) * 2}, ErrorCode.INVALID_CONFIG, "twice"),
            ({"name": "a/b"}, ErrorCode.INVALID_TOPIC_EXCEPTION, "a/b"),
            ({"name": "__consumer_offsets"}, ErrorCode.INVALID_TOPIC_EXCEPTION, "internal"),
        ],
    )
    def test_what_cannot_be_made_is_refused_with_a_message(
        self, client: RawClient, topic_name: str, fields: dict[str, object], code: ErrorCode, message: str
    ) -> None:
        base: dict[str, object] = {"name": topic_name, "num_partitions": 1, "replication_factor": 1}
        for validate in (False, True):
            (result,) = create(client, CreatableTopic(**(base | fields)), validate=validate)  # type: ignore[arg-type]
            assert result.error_code == code
            assert message in (result.error_message or "")

    def test_a_name_twice_in_one_request_is_refused(self, client: RawClient, topic_name: str) -> None:
        (result,) = create(client, CreatableTopic(topic_name, 1, 1), CreatableTopic(topic_name, 1, 1))
        assert result.error_code == ErrorCode.INVALID_REQUEST
        assert describe(client, topic_name)[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def test_names_that_collide_in_metrics_are_refused(self, client: RawClient) -> None:
        assert client.create_topic("col.li_de").error_code == ErrorCode.NONE
        result = client.create_topic("col_li.de")
        assert result.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        assert "col.li_de" in (result.error_message or "")

    def test_minus_one_means_the_defaults_or_as_many_as_are_assigned_to_this_broker(
        self, client: RawClient, topic_name: str
    ) -> None:
        assigned = tuple(CreatableReplicaAssignment(p, (0,)) for p in (1, 0, 2))
        results = create(
            client,
            CreatableTopic(topic_name, -1, -1),
            CreatableTopic(f"{topic_name}-2", -1, -1, assignments=assigned),
        )
        assert [(r.error_code, r.num_partitions, r.replication_factor) for r in results] == [
            (ErrorCode.NONE, 1, 1), (ErrorCode.NONE, 3, 1),
        ]  # fmt: skip

    @pytest.mark.parametrize(
        ("assignments", "count", "code"),
        [
            ([(0, (1,))], -1, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
            ([(0, (0, 0))], -1, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
            ([(1, (0,))], -1, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
            ([(0, (0,)), (0, (0,))], -1, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
            ([(0, (0,))], 1, ErrorCode.INVALID_REQUEST),
        ],
    )
    def test_any_other_assignment_is_refused(
        self, client: RawClient, topic_name: str, assignments: list[Any], count: int, code: ErrorCode
    ) -> None:
        wanted = CreatableTopic(
            topic_name, count, -1, assignments=tuple(CreatableReplicaAssignment(*a) for a in assignments)
        )
        assert create(client, wanted)[0].error_code == code


class TestDeleteTopics:
    @pytest.mark.parametrize("version", versions(ApiKey.DELETE_TOPICS))
    def test_a_topic_is_deleted_by_name_in_every_version(
        self, client: RawClient, topic: str, version: int
    ) -> None:
        if version >= 6:
            request = DeleteTopicsRequest(topics=(DeleteTopicState(name=topic),))
        else:
            request = DeleteTopicsRequest(topic_names=(topic,))
        (result,) = client.ask(request, version).responses
        assert (result.name, result.error_code) == (topic, ErrorCode.NONE)
        assert describe(client, topic)[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def test_a_topic_is_deleted_by_id(self, client: RawClient, topic: str) -> None:
        topic_id = describe(client, topic)[0].topic_id
        request = DeleteTopicsRequest(topics=(DeleteTopicState(topic_id=topic_id),))
        (result,) = client.ask(request, 6).responses
        assert (result.name, result.topic_id, result.error_code) == (topic, topic_id, ErrorCode.NONE)
        (again,) = client.ask(request, 6).responses
        assert (again.name, again.topic_id, again.error_code) == (None, topic_id, ErrorCode.UNKNOWN_TOPIC_ID)

    def test_name_and_id_together_or_an_unknown_topic_do_not_fail_the_others(
        self, client: RawClient, topic: str, topic_name: str
    ) -> None:
        client.create_topic(f"{topic_name}-both")
        both = DeleteTopicState(f"{topic_name}-both", client.topic_id(f"{topic_name}-both"))
        wanted = (both, DeleteTopicState(name="never-made"), DeleteTopicState(name=topic))
        twice, unknown, good = client.ask(DeleteTopicsRequest(topics=wanted)).responses
        assert twice.error_code == ErrorCode.INVALID_REQUEST
        assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert "never-made" in unknown.error_message
        assert good.error_code == ErrorCode.NONE
        assert describe(client, f"{topic_name}-both")[0].error_code == ErrorCode.NONE

    def test_a_topic_made_again_is_empty_and_has_another_id(self, client: RawClient, topic: str) -> None:
        before = describe(client, topic)[0].topic_id
        client.produce(topic, batch(b"old"))
        client.ask(DeleteTopicsRequest(topics=(DeleteTopicState(name=topic),)))
        assert client.create_topic(topic).error_code == ErrorCode.NONE
        assert describe(client, topic)[0].topic_id not in (before, NO_ID)
        assert client.read(topic) == []
        assert client.produce(topic, batch(b"new")).base_offset == 0

    def test_the_internal_topic_cannot_be_deleted(self, client: RawClient) -> None:
        client.ask(FindCoordinatorRequest(key="makes-the-topic"), 0)
        (result,) = client.ask(
            DeleteTopicsRequest(topics=(DeleteTopicState(name="__consumer_offsets"),))
        ).responses
        assert result.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION

    def test_nothing_is_deleted_where_that_is_disabled(self) -> None:
        with start_broker({"delete.topic.enable": False}) as broker, RawClient(broker.port) as client:
            client.create_topic("kept")
            for version, code in ((2, ErrorCode.INVALID_REQUEST), (3, ErrorCode.TOPIC_DELETION_DISABLED)):
                (result,) = client.ask(DeleteTopicsRequest(topic_names=("kept",)), version).responses
                assert result.error_code == code
            assert describe(client, "kept")[0].error_code == ErrorCode.NONE


class TestCreatePartitions:
    def widen(
        self, client: RawClient, name: str, count: int, version: int = 3, **fields: object
    ) -> tuple[ErrorCode, str]:
        assignments = fields.pop("assignments", None)
        topic = CreatePartitionsTopic(name, count, assignments)  # type: ignore[arg-type]
        request = CreatePartitionsRequest(topics=(topic,), timeout_ms=5000, **fields)  # type: ignore[arg-type]
        (result,) = client.ask(request, version).results
        assert result.name == name
        return result.error_code, result.error_message or ""

    @pytest.mark.parametrize("version", versions(ApiKey.CREATE_PARTITIONS))
    def test_a_topic_is_widened_in_every_version_and_keeps_its_data(
        self, client: RawClient, topic: str, version: int
    ) -> None:
        client.produce(topic, batch(b"kept"), 1)
        assert self.widen(client, topic, 4, version) == (ErrorCode.NONE, "")
        assert len(describe(client, topic)[0].partitions) == 4
        assert client.produce(topic, batch(b"x"), 3).error_code == ErrorCode.NONE
        assert [r.value for r in client.read(topic, partition=1)] == [b"kept"]

    def test_validate_only_widens_nothing(self, client: RawClient, topic: str) -> None:
        assert self.widen(client, topic, 4, validate_only=True) == (ErrorCode.NONE, "")
        assert len(describe(client, topic)[0].partitions) == 2

    def test_an_unknown_topic_and_a_count_that_does_not_grow_or_is_too_large_are_refused(
        self, client: RawClient, topic: str
    ) -> None:
        for count in (2, -1):
            code, message = self.widen(client, topic, count)
            assert code == ErrorCode.INVALID_PARTITIONS
            assert "has 2 partitions" in message
        assert self.widen(client, "never-made", 4)[0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert self.widen(client, topic, 2**31 - 1)[0] == ErrorCode.POLICY_VIOLATION

    def test_the_added_ones_can_be_assigned_to_this_broker_only(self, client: RawClient, topic: str) -> None:
        here, elsewhere = CreatePartitionsAssignment((0,)), CreatePartitionsAssignment((1,))
        bad = ErrorCode.INVALID_REPLICA_ASSIGNMENT
        assert self.widen(client, topic, 4, assignments=(here, elsewhere))[0] == bad
        assert self.widen(client, topic, 4, assignments=(here,))[0] == bad
        assert self.widen(client, topic, 4, assignments=(here, here))[0] == ErrorCode.NONE
