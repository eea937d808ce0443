"""A request of every API that is served, in every version, with few elements."""

from __future__ import annotations

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
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    IncrementalAlterableConfig,
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
    OffsetFetchRequestTopic,
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
    SyncGroupRequestAssignment,
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
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
    UserName,
)
from pyspark_kafkalog.protocol.api.metadata import (
    ApiVersionsRequest,
    Cursor,
    DescribeTopicPartitionsRequest,
    FindCoordinatorRequest,
    MetadataRequest,
    MetadataRequestTopic,
    NamedTopic,
)
from pyspark_kafkalog.protocol.api.producers import (
    DescribeProducersRequest,
    InitProducerIdRequest,
    TopicRequest,
)
from pyspark_kafkalog.protocol.api.topics import (
    CreatableTopic,
    CreatableTopicConfig,
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
from pyspark_kafkalog.protocol.exchange import ApiKey
from tests.support.protocol.raw_client import fetch_request

TOPIC = "attacked-by-mutated-requests"


def good_requests() -> dict[ApiKey, object]:
    """One request that does something for each API that the broker serves, but Produce."""
    return {
        ApiKey.FETCH: fetch_request({(TOPIC, 0): 0, (TOPIC, 1): 1}),
        ApiKey.LIST_OFFSETS: ListOffsetsRequest(
            topics=(
                ListOffsetsTopic(
                    name=TOPIC,
                    partitions=tuple(
                        ListOffsetsPartition(partition_index=p, timestamp=-1) for p in (0, 1, 7)
                    ),
                ),
            )
        ),
        ApiKey.METADATA: MetadataRequest((MetadataRequestTopic(name=TOPIC),)),
        ApiKey.OFFSET_COMMIT: OffsetCommitRequest(
            group_id="g",
            topics=(
                OffsetCommitRequestTopic(
                    name=TOPIC,
                    partitions=(OffsetCommitRequestPartition(partition_index=0, committed_offset=5),),
                ),
            ),
        ),
        ApiKey.OFFSET_FETCH: OffsetFetchRequest(
            group_id="g", topics=(OffsetFetchRequestTopic(name=TOPIC, partition_indexes=(0, 1)),)
        ),
        ApiKey.FIND_COORDINATOR: FindCoordinatorRequest(key="g"),
        ApiKey.DESCRIBE_GROUPS: DescribeGroupsRequest(groups=("g", "none")),
        ApiKey.LIST_GROUPS: ListGroupsRequest(),
        # Of a member that the group does not have: nobody is to wait for what mutated members do.
        ApiKey.JOIN_GROUP: JoinGroupRequest(
            group_id="g",
            session_timeout_ms=6000,
            rebalance_timeout_ms=100,
            member_id="m",
            protocol_type="consumer",
            protocols=(JoinGroupRequestProtocol("range", b"\0\0\0\0\0\0"),),
        ),
        ApiKey.SYNC_GROUP: SyncGroupRequest(
            group_id="g",
            generation_id=1,
            member_id="m",
            protocol_type="consumer",
            protocol_name="range",
            assignments=(SyncGroupRequestAssignment("m", b"assigned"),),
        ),
        ApiKey.HEARTBEAT: HeartbeatRequest("g", 1, "m"),
        ApiKey.CONSUMER_GROUP_HEARTBEAT: ConsumerGroupHeartbeatRequest(
            "newer",
            "m",
            0,
            rebalance_timeout_ms=1000,
            subscribed_topic_names=(TOPIC,),
            topic_partitions=(),
        ),
        ApiKey.CONSUMER_GROUP_DESCRIBE: ConsumerGroupDescribeRequest(("newer", "g")),
        ApiKey.LEAVE_GROUP: LeaveGroupRequest("g", "m"),
        ApiKey.DELETE_GROUPS: DeleteGroupsRequest(("none",)),
        ApiKey.OFFSET_DELETE: OffsetDeleteRequest(
            "g", (OffsetDeleteRequestTopic(TOPIC, (OffsetDeleteRequestPartition(0),)),)
        ),
        ApiKey.API_VERSIONS: ApiVersionsRequest(client_software_name="n", client_software_version="1"),
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: DescribeUserScramCredentialsRequest((UserName("u"),)),
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS: AlterUserScramCredentialsRequest(
            (ScramCredentialDeletion("u", 1),), (ScramCredentialUpsertion("u", 2, 4096, b"salt", b"x" * 64),)
        ),
        ApiKey.SASL_HANDSHAKE: SaslHandshakeRequest("PLAIN"),
        ApiKey.SASL_AUTHENTICATE: SaslAuthenticateRequest(b"\0alice\0secret"),
        ApiKey.CREATE_TOPICS: CreateTopicsRequest(
            topics=(
                CreatableTopic(
                    name="made-by-mutated-requests",
                    num_partitions=2,
                    replication_factor=1,
                    configs=(CreatableTopicConfig(name="retention.ms", value="1000"),),
                ),
            )
        ),
        ApiKey.DELETE_TOPICS: DeleteTopicsRequest(topic_names=("made-by-mutated-requests",)),
        ApiKey.DELETE_RECORDS: DeleteRecordsRequest(
            topics=(
                DeleteRecordsTopic(
                    name="made-by-mutated-requests", partitions=(DeleteRecordsPartition(0, -1),)
                ),
            )
        ),
        ApiKey.OFFSET_FOR_LEADER_EPOCH: OffsetForLeaderEpochRequest(
            topics=(OffsetForLeaderTopic(topic=TOPIC, partitions=(OffsetForLeaderPartition(0, 0, 0),)),)
        ),
        ApiKey.ADD_PARTITIONS_TO_TXN: AddPartitionsToTxnRequest(
            (), "t", 0, 0, (AddPartitionsToTxnTopic(TOPIC, (0, 1)),)
        ),
        ApiKey.ADD_OFFSETS_TO_TXN: AddOffsetsToTxnRequest("t", 0, 0, "g"),
        ApiKey.END_TXN: EndTxnRequest("t", 0, 0, True),
        ApiKey.WRITE_TXN_MARKERS: WriteTxnMarkersRequest(
            (WritableTxnMarker(0, 0, True, (WritableTxnMarkerTopic(TOPIC, (0, 1)),)),)
        ),
        ApiKey.TXN_OFFSET_COMMIT: TxnOffsetCommitRequest(
            "t",
            "g",
            0,
            0,
            topics=(TxnOffsetCommitRequestTopic(TOPIC, (TxnOffsetCommitRequestPartition(0, 5),)),),
        ),
        ApiKey.DESCRIBE_PRODUCERS: DescribeProducersRequest((TopicRequest(TOPIC, (0, 1)),)),
        ApiKey.DESCRIBE_TRANSACTIONS: DescribeTransactionsRequest(("t",)),
        ApiKey.LIST_TRANSACTIONS: ListTransactionsRequest(("Empty",), (0,)),
        ApiKey.DESCRIBE_LOG_DIRS: DescribeLogDirsRequest((DescribableLogDirTopic(TOPIC, (0, 1)),)),
        ApiKey.ALTER_REPLICA_LOG_DIRS: AlterReplicaLogDirsRequest(
            (AlterReplicaLogDir("/nowhere", (AlterReplicaLogDirTopic(TOPIC, (0, 1)),)),)
        ),
        ApiKey.DESCRIBE_CLIENT_QUOTAS: DescribeClientQuotasRequest((ComponentData("user", 0, "u"),)),
        ApiKey.DESCRIBE_CLUSTER: DescribeClusterRequest(),
        ApiKey.ELECT_LEADERS: ElectLeadersRequest(0, (ElectTopicPartitions(TOPIC, (0, 1)),)),
        ApiKey.ALTER_PARTITION_REASSIGNMENTS: AlterPartitionReassignmentsRequest(
            topics=(ReassignableTopic(TOPIC, (ReassignablePartition(0, (0,)),)),)
        ),
        ApiKey.LIST_PARTITION_REASSIGNMENTS: ListPartitionReassignmentsRequest(),
        ApiKey.DESCRIBE_TOPIC_PARTITIONS: DescribeTopicPartitionsRequest(
            (NamedTopic(TOPIC),), cursor=Cursor(TOPIC, 0)
        ),
        ApiKey.LIST_CONFIG_RESOURCES: ListConfigResourcesRequest(),
        ApiKey.INIT_PRODUCER_ID: InitProducerIdRequest(transaction_timeout_ms=1000),
        ApiKey.DESCRIBE_ACLS: DescribeAclsRequest(2, TOPIC, 3, "User:a", "*", 3, 3),
        ApiKey.CREATE_ACLS: CreateAclsRequest((AclCreation(2, TOPIC, 3, "User:a", "*", 3, 3),)),
        ApiKey.DELETE_ACLS: DeleteAclsRequest((DeleteAclsFilter(2, TOPIC, 3, "User:b", "*", 3, 3),)),
        ApiKey.DESCRIBE_CONFIGS: DescribeConfigsRequest(
            resources=(DescribeConfigsResource(resource_type=2, resource_name=TOPIC),)
        ),
        ApiKey.ALTER_CONFIGS: AlterConfigsRequest(
            resources=(
                AlterConfigsResource(2, "made-by-mutated-requests", (AlterableConfig("retention.ms", "9"),)),
            )
        ),
        ApiKey.INCREMENTAL_ALTER_CONFIGS: IncrementalAlterConfigsRequest(
            resources=(
                IncrementalAlterConfigsResource(
                    2,
                    "made-by-mutated-requests",
                    (IncrementalAlterableConfig("cleanup.policy", 2, "compact"),),
                ),
            )
        ),
        ApiKey.CREATE_PARTITIONS: CreatePartitionsRequest(
            topics=(CreatePartitionsTopic(name="made-by-mutated-requests", count=3),)
        ),
    }


def newer_requests() -> dict[ApiKey, tuple[int, object]]:
    """Where a version changed a request's shape: that version, and the request since then."""
    groups = (OffsetFetchRequestTopics(name=TOPIC, partition_indexes=(0, 1)),)
    return {
        ApiKey.LEAVE_GROUP: (3, LeaveGroupRequest("g", members=(MemberIdentity("m"),))),
        ApiKey.OFFSET_FETCH: (
            8,
            OffsetFetchRequest(groups=(OffsetFetchRequestGroup(group_id="g", topics=groups),)),
        ),
        ApiKey.FIND_COORDINATOR: (4, FindCoordinatorRequest(coordinator_keys=("g",))),
        ApiKey.ADD_PARTITIONS_TO_TXN: (
            4,
            AddPartitionsToTxnRequest(
                transactions=(
                    AddPartitionsToTxnTransaction("t", 0, 0, True, (AddPartitionsToTxnTopic(TOPIC, (0, 1)),)),
                )
            ),
        ),
        ApiKey.LIST_CONFIG_RESOURCES: (1, ListConfigResourcesRequest((2, 4))),
        ApiKey.DELETE_TOPICS: (
            6,
            DeleteTopicsRequest(topics=(DeleteTopicState(name="made-by-mutated-requests"),)),
        ),
    }


def good_request(key: ApiKey, version: int) -> object:
    since, newer = newer_requests().get(key, (version + 1, None))
    return good_requests()[key] if version < since else newer
