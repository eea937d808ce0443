"""A request of every API that asks for a topic, a group or a transactional id: what an authorizer guards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pyspark_kafkalog.protocol.api.acls import (
    AclCreation,
    CreateAclsRequest,
    DeleteAclsFilter,
    DeleteAclsRequest,
    DescribeAclsRequest,
)
from pyspark_kafkalog.protocol.api.cluster import (
    AlterPartitionReassignmentsRequest,
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
    ComponentData,
    DescribableLogDirTopic,
    DescribeClientQuotasRequest,
    DescribeClusterRequest,
    DescribeLogDirsRequest,
    ElectLeadersRequest,
    ElectTopicPartitions,
    ListPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from pyspark_kafkalog.protocol.api.configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    ListConfigResourcesRequest,
)
from pyspark_kafkalog.protocol.api.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
)
from pyspark_kafkalog.protocol.api.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from pyspark_kafkalog.protocol.api.groups import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    LeaveGroupRequest,
    ListGroupsRequest,
    MemberIdentity,
    SyncGroupRequest,
)
from pyspark_kafkalog.protocol.api.log_offsets import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from pyspark_kafkalog.protocol.api.logins import (
    AlterUserScramCredentialsRequest,
    DescribeUserScramCredentialsRequest,
    ScramCredentialDeletion,
)
from pyspark_kafkalog.protocol.api.metadata import (
    DescribeTopicPartitionsRequest,
    FindCoordinatorRequest,
    MetadataRequest,
    MetadataRequestTopic,
    NamedTopic,
)
from pyspark_kafkalog.protocol.api.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from pyspark_kafkalog.protocol.api.producers import (
    DescribeProducersRequest,
    InitProducerIdRequest,
    TopicRequest,
)
from pyspark_kafkalog.protocol.api.topics import (
    CreatableTopic,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from pyspark_kafkalog.protocol.api.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
    DescribeTransactionsRequest,
    EndTxnRequest,
    ListTransactionsRequest,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from tests.support.protocol.raw_client import batch, fetch_request

TOPIC, BROKER = 2, 4


def guarded_requests(topic: str, group: str, txn: str, node: int = 1) -> Iterator[tuple[str, int, Any]]:
    """A name, the version, and the request: all that an authorizer is asked about, and what is left out.

    Of producers, members and epochs that the broker does not know: nothing changes even where all is allowed.
    """
    yield from _of_topics(topic, node)
    yield from _of_groups(topic, group)
    yield from _of_transactions(topic, group, txn)
    yield "describe cluster", 1, DescribeClusterRequest(include_cluster_authorized_operations=True)
    yield "describe log dirs", 4, DescribeLogDirsRequest((DescribableLogDirTopic(topic, (0,)),))
    to_nowhere = AlterReplicaLogDir("/nowhere", (AlterReplicaLogDirTopic(topic, (0,)),))
    yield "alter log dirs", 2, AlterReplicaLogDirsRequest((to_nowhere,))
    yield "describe quotas", 1, DescribeClientQuotasRequest((ComponentData("user", 0, "u"),))
    yield "elect leaders", 2, ElectLeadersRequest(0, (ElectTopicPartitions(topic, (0,)),))
    moved = ReassignableTopic(topic, (ReassignablePartition(0, (0,)),))
    yield "reassign", 0, AlterPartitionReassignmentsRequest(topics=(moved,))
    yield "list reassignments", 0, ListPartitionReassignmentsRequest()
    yield "describe partitions", 0, DescribeTopicPartitionsRequest((NamedTopic(topic),))
    yield "list config resources", 0, ListConfigResourcesRequest()
    yield "describe acls", 3, DescribeAclsRequest(2, "none", 3, "User:none", "*", 3, 3)
    yield "create acls", 3, CreateAclsRequest((AclCreation(2, "", 3, "User:none", "*", 3, 3),))
    yield "delete acls", 3, DeleteAclsRequest((DeleteAclsFilter(2, "none", 3, "User:none", "*", 3, 3),))
    yield "describe users", 0, DescribeUserScramCredentialsRequest(())
    yield "alter users", 0, AlterUserScramCredentialsRequest((ScramCredentialDeletion("none", 1),), ())


def _of_topics(topic: str, node: int) -> Iterator[tuple[str, int, Any]]:
    data = (PartitionProduceData(0, batch(b"v")), PartitionProduceData(9, batch(b"v")))
    yield "produce", 9, ProduceRequest(acks=1, timeout_ms=9000, topic_data=(TopicProduceData(topic, data),))
    yield (
        "produce to one",
        9,
        ProduceRequest(acks=1, timeout_ms=9000, topic_data=(TopicProduceData(topic, data[:1]),)),
    )
    yield "fetch", 12, fetch_request({(topic, 0): 0})
    partitions = tuple(ListOffsetsPartition(partition_index=each, timestamp=-1) for each in (0, 9))
    yield "list offsets", 7, ListOffsetsRequest(topics=(ListOffsetsTopic(topic, partitions),))
    yield "list segments", 0, ListOffsetsRequest(topics=(ListOffsetsTopic(topic, partitions),))
    epoch = OffsetForLeaderTopic(topic, (OffsetForLeaderPartition(0, 0, 0),))
    yield "epoch ends", 4, OffsetForLeaderEpochRequest(topics=(epoch,))
    for version in (4, 12):
        asked = MetadataRequest(
            (MetadataRequestTopic(name=topic),),
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=version == 12,
        )
        yield f"metadata {version}", version, asked
    yield "metadata of all", 12, MetadataRequest(None)
    yield (
        "metadata with the cluster's operations",
        9,
        MetadataRequest((), include_cluster_authorized_operations=True),
    )
    yield "create topics", 7, CreateTopicsRequest((CreatableTopic(topic, 1, 1),), validate_only=True)
    yield (
        "create new topics",
        7,
        CreateTopicsRequest((CreatableTopic(f"{topic}-new", 1, 1),), validate_only=True),
    )
    yield (
        "delete no topics",
        6,
        DeleteTopicsRequest(topics=(DeleteTopicState(name=f"{topic}-none"),), timeout_ms=9000),
    )
    yield (
        "delete records",
        2,
        DeleteRecordsRequest((DeleteRecordsTopic(topic, (DeleteRecordsPartition(0, 0),)),)),
    )
    yield "create partitions", 3, CreatePartitionsRequest((CreatePartitionsTopic(topic, 1),))
    resources = ((TOPIC, topic), (BROKER, str(node)))
    yield (
        "describe configs",
        4,
        DescribeConfigsRequest(
            tuple(DescribeConfigsResource(kind, name, ("no.such",)) for kind, name in resources)
        ),
    )
    yield (
        "alter configs",
        2,
        AlterConfigsRequest(
            tuple(AlterConfigsResource(kind, name, ()) for kind, name in resources), validate_only=True
        ),
    )
    yield (
        "alter single configs",
        1,
        IncrementalAlterConfigsRequest(
            tuple(IncrementalAlterConfigsResource(kind, name, ()) for kind, name in resources),
            validate_only=True,
        ),
    )
    yield "describe producers", 0, DescribeProducersRequest((TopicRequest(topic, (9,)),))


def _of_groups(topic: str, group: str) -> Iterator[tuple[str, int, Any]]:
    offset = OffsetCommitRequestTopic(topic, (OffsetCommitRequestPartition(0, 1),))
    for version in (1, 8):
        yield f"commit {version}", version, OffsetCommitRequest(group, topics=(offset,))
    named = OffsetFetchRequestGroup(group, topics=(OffsetFetchRequestTopics(topic, (0,)),))
    everything = OffsetFetchRequestGroup(group, topics=None)
    yield "fetch offsets", 8, OffsetFetchRequest(groups=(named,))
    yield "fetch all offsets", 8, OffsetFetchRequest(groups=(everything,))
    for version in (1, 7):
        old = OffsetFetchRequest(group, topics=tuple(named.topics or ()))
        yield f"fetch offsets {version}", version, old
    yield "find group", 3, FindCoordinatorRequest(group)
    yield "find groups", 4, FindCoordinatorRequest(coordinator_keys=(group,))
    protocol = (JoinGroupRequestProtocol("range", b"\0\0\0\0\0\0"),)
    yield "join", 7, JoinGroupRequest(group, 6000, 100, "none", None, "consumer", protocol)
    yield "sync", 5, SyncGroupRequest(group, 1, "none", None, "consumer", "range")
    yield "heartbeat", 4, HeartbeatRequest(group, 1, "none")
    yield "leave", 2, LeaveGroupRequest(group, "none")
    yield "leave by members", 4, LeaveGroupRequest(group, members=(MemberIdentity("none"),))
    yield "describe groups", 5, DescribeGroupsRequest((group,), include_authorized_operations=True)
    yield "list groups", 4, ListGroupsRequest()
    yield "delete groups", 2, DeleteGroupsRequest((f"{group}-none",))
    forgotten = OffsetDeleteRequestTopic(topic, (OffsetDeleteRequestPartition(9),))
    yield "delete offsets", 0, OffsetDeleteRequest(group, (forgotten,))


def newer_group_requests(topic: str, group: str) -> Iterator[tuple[str, int, Any]]:
    """Of the newer protocol, which Kafka 3.9 has switched off."""
    yield (
        "beat",
        0,
        ConsumerGroupHeartbeatRequest(
            group, "none", 0, rebalance_timeout_ms=1000, subscribed_topic_names=(topic,), topic_partitions=()
        ),
    )
    yield "describe newer groups", 0, ConsumerGroupDescribeRequest((group,))


def _of_transactions(topic: str, group: str, txn: str) -> Iterator[tuple[str, int, Any]]:
    yield "idempotent", 4, InitProducerIdRequest(None, 1000)
    yield "transactional", 4, InitProducerIdRequest(txn, 1000)
    yield "find transactions", 4, FindCoordinatorRequest(key_type=1, coordinator_keys=(txn,))
    both = (AddPartitionsToTxnTopic(topic, (0,)),)
    yield "add partitions", 3, AddPartitionsToTxnRequest((), txn, 777, 0, both)
    transaction = AddPartitionsToTxnTransaction(txn, 777, 0, True, both)
    yield "verify partitions", 4, AddPartitionsToTxnRequest(transactions=(transaction,))
    yield "add offsets", 3, AddOffsetsToTxnRequest(txn, 777, 0, group)
    yield "end", 3, EndTxnRequest(txn, 777, 0, True)
    marker = WritableTxnMarker(777, 0, False, (WritableTxnMarkerTopic(topic, (0,)),))
    yield "write markers", 1, WriteTxnMarkersRequest((marker,))
    offset = TxnOffsetCommitRequestTopic(topic, (TxnOffsetCommitRequestPartition(0, 1),))
    yield "commit in transaction", 3, TxnOffsetCommitRequest(txn, group, 777, 0, topics=(offset,))
    whole = batch(b"v", producer_id=777, epoch=0, sequence=0, transactional=True)
    data = TopicProduceData(topic, (PartitionProduceData(0, whole),))
    yield "produce in transaction", 9, ProduceRequest(txn, -1, 9000, (data,))
    yield "describe transactions", 0, DescribeTransactionsRequest((txn, f"{txn}-other"))
    yield "list transactions", 0, ListTransactionsRequest()


def every_request(topic: str, group: str, txn: str, node: int = 1) -> Mapping[str, tuple[int, Any]]:
    """All of them, by name."""
    both = (*guarded_requests(topic, group, txn, node), *newer_group_requests(topic, group))
    return {name: (version, request) for name, version, request in both}
