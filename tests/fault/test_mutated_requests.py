"""Good requests of every API and version, mutated: the broker stays up, keeps its data and serves others.

Half of the mutated record sets get a correct checksum again, so that what stands after it is attacked too.
"""

from __future__ import annotations

import multiprocessing
import random
import statistics
import struct
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from kafkalog_broker.embedded import EmbeddedBroker, start_broker
from kafkalog_broker.server import handlers
from kafkalog_broker.server.dispatch import REGISTRY
from pyspark_kafkalog.errors import KafkaError
from pyspark_kafkalog.formats.compression import Codec
from pyspark_kafkalog.protocol.api.acls import (
    AclCreation,
    CreateAclsRequest,
    DeleteAclsFilter,
    DeleteAclsRequest,
    DescribeAclsRequest,
)
from pyspark_kafkalog.protocol.api.cluster import (
    AlterPartitionReassignmentsRequest,
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
from pyspark_kafkalog.protocol.exchange import ApiKey, encode_request
from tests.support.formats.batch_bytes import resealed
from tests.support.formats.legacy_bytes import entry
from tests.support.network.broker_process import MIB, growing_less_than
from tests.support.protocol.raw_client import RawClient, batch, decode, fetch_request, produce_request

ATTACKED = "attacked-by-mutated-requests"
UNTOUCHED = "untouched-" + "z" * 40
"""A name that few changed bits do not lead to."""

FRAMES_PER_CONNECTION = 20
_EXTREMES = (0, -1, 1, 2**31 - 1, -(2**31), 2**24, 65_535, 255)


def good_requests() -> dict[ApiKey, object]:
    """One request that does something for each API that the broker serves, but Produce."""
    return {
        ApiKey.FETCH: fetch_request({(ATTACKED, 0): 0, (ATTACKED, 1): 1}),
        ApiKey.LIST_OFFSETS: ListOffsetsRequest(
            topics=(
                ListOffsetsTopic(
                    name=ATTACKED,
                    partitions=tuple(
                        ListOffsetsPartition(partition_index=p, timestamp=-1) for p in (0, 1, 7)
                    ),
                ),
            )
        ),
        ApiKey.METADATA: MetadataRequest((MetadataRequestTopic(name=ATTACKED),)),
        ApiKey.OFFSET_COMMIT: OffsetCommitRequest(
            group_id="g",
            topics=(
                OffsetCommitRequestTopic(
                    name=ATTACKED,
                    partitions=(OffsetCommitRequestPartition(partition_index=0, committed_offset=5),),
                ),
            ),
        ),
        ApiKey.OFFSET_FETCH: OffsetFetchRequest(
            group_id="g", topics=(OffsetFetchRequestTopic(name=ATTACKED, partition_indexes=(0, 1)),)
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
            subscribed_topic_names=(ATTACKED,),
            topic_partitions=(),
        ),
        ApiKey.CONSUMER_GROUP_DESCRIBE: ConsumerGroupDescribeRequest(("newer", "g")),
        ApiKey.LEAVE_GROUP: LeaveGroupRequest("g", "m"),
        ApiKey.DELETE_GROUPS: DeleteGroupsRequest(("none",)),
        ApiKey.OFFSET_DELETE: OffsetDeleteRequest(
            "g", (OffsetDeleteRequestTopic(ATTACKED, (OffsetDeleteRequestPartition(0),)),)
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
            topics=(OffsetForLeaderTopic(topic=ATTACKED, partitions=(OffsetForLeaderPartition(0, 0, 0),)),)
        ),
        ApiKey.ADD_PARTITIONS_TO_TXN: AddPartitionsToTxnRequest(
            (), "t", 0, 0, (AddPartitionsToTxnTopic(ATTACKED, (0, 1)),)
        ),
        ApiKey.ADD_OFFSETS_TO_TXN: AddOffsetsToTxnRequest("t", 0, 0, "g"),
        ApiKey.END_TXN: EndTxnRequest("t", 0, 0, True),
        ApiKey.WRITE_TXN_MARKERS: WriteTxnMarkersRequest(
            (WritableTxnMarker(0, 0, True, (WritableTxnMarkerTopic(ATTACKED, (0, 1)),)),)
        ),
        ApiKey.TXN_OFFSET_COMMIT: TxnOffsetCommitRequest(
            "t",
            "g",
            0,
            0,
            topics=(TxnOffsetCommitRequestTopic(ATTACKED, (TxnOffsetCommitRequestPartition(0, 5),)),),
        ),
        ApiKey.DESCRIBE_PRODUCERS: DescribeProducersRequest((TopicRequest(ATTACKED, (0, 1)),)),
        ApiKey.DESCRIBE_TRANSACTIONS: DescribeTransactionsRequest(("t",)),
        ApiKey.LIST_TRANSACTIONS: ListTransactionsRequest(("Empty",), (0,)),
        ApiKey.DESCRIBE_LOG_DIRS: DescribeLogDirsRequest((DescribableLogDirTopic(ATTACKED, (0, 1)),)),
        ApiKey.DESCRIBE_CLIENT_QUOTAS: DescribeClientQuotasRequest((ComponentData("user", 0, "u"),)),
        ApiKey.DESCRIBE_CLUSTER: DescribeClusterRequest(),
        ApiKey.ELECT_LEADERS: ElectLeadersRequest(0, (ElectTopicPartitions(ATTACKED, (0, 1)),)),
        ApiKey.ALTER_PARTITION_REASSIGNMENTS: AlterPartitionReassignmentsRequest(
            topics=(ReassignableTopic(ATTACKED, (ReassignablePartition(0, (0,)),)),)
        ),
        ApiKey.LIST_PARTITION_REASSIGNMENTS: ListPartitionReassignmentsRequest(),
        ApiKey.DESCRIBE_TOPIC_PARTITIONS: DescribeTopicPartitionsRequest(
            (NamedTopic(ATTACKED),), cursor=Cursor(ATTACKED, 0)
        ),
        ApiKey.LIST_CONFIG_RESOURCES: ListConfigResourcesRequest(),
        ApiKey.INIT_PRODUCER_ID: InitProducerIdRequest(transaction_timeout_ms=1000),
        ApiKey.DESCRIBE_ACLS: DescribeAclsRequest(2, ATTACKED, 3, "User:a", "*", 3, 3),
        ApiKey.CREATE_ACLS: CreateAclsRequest((AclCreation(2, ATTACKED, 3, "User:a", "*", 3, 3),)),
        ApiKey.DELETE_ACLS: DeleteAclsRequest((DeleteAclsFilter(2, ATTACKED, 3, "User:b", "*", 3, 3),)),
        ApiKey.DESCRIBE_CONFIGS: DescribeConfigsRequest(
            resources=(DescribeConfigsResource(resource_type=2, resource_name=ATTACKED),)
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
    groups = (OffsetFetchRequestTopics(name=ATTACKED, partition_indexes=(0, 1)),)
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
                    AddPartitionsToTxnTransaction(
                        "t", 0, 0, True, (AddPartitionsToTxnTopic(ATTACKED, (0, 1)),)
                    ),
                )
            ),
        ),
        ApiKey.LIST_CONFIG_RESOURCES: (1, ListConfigResourcesRequest((2, 4))),
        ApiKey.DELETE_TOPICS: (
            6,
            DeleteTopicsRequest(topics=(DeleteTopicState(name="made-by-mutated-requests"),)),
        ),
    }


def good_frames(rng: random.Random) -> Iterator[bytearray]:
    """Frames of every API in every version that is served, without end; every third is a Produce."""
    requests, newer = good_requests(), newer_requests()
    assert handlers.__all__  # they fill the registry
    assert {*requests, ApiKey.PRODUCE} == set(REGISTRY)
    kinds = [(key, version) for key in requests for version in _served(key)]
    while True:
        rng.shuffle(kinds)
        for number, (key, version) in enumerate(kinds):
            if number % 2 == 0:
                yield produced(rng)
            yield good_frame(requests, newer, key, version)


def good_frame(
    requests: dict[ApiKey, object], newer: dict[ApiKey, tuple[int, object]], key: ApiKey, version: int
) -> bytearray:
    since, request = newer.get(key, (version + 1, None))
    return framed(requests[key] if version < since else request, version)


def produced(rng: random.Random) -> bytearray:
    """A Produce of a record set which may be mutated inside, half of the time under a checksum that fits."""
    version = rng.choice(_served(ApiKey.PRODUCE))
    if version >= 3:
        records = bytearray(
            batch(
                *[b"value %d" % i * rng.randrange(9) for i in range(rng.randrange(1, 9))],
                codec=rng.choice(list(Codec)),
            )
        )
        if rng.random() < 0.7:
            mutate(records, rng, first=21)
            if rng.random() < 0.5:
                records = bytearray(resealed(records))
    else:
        records = bytearray(entry(0, rng.randrange(2), b"value") * rng.randrange(1, 9))
        if rng.random() < 0.7:
            mutate(records, rng, first=0)
    return framed(
        produce_request({(ATTACKED, rng.randrange(2)): bytes(records)}, acks=rng.choice((1, -1, 0))), version
    )


def _served(key: ApiKey) -> range:
    low, high = REGISTRY[key].versions
    return range(low, high + 1)


def framed(request: object, version: int) -> bytearray:
    parts = encode_request(request, version=version, correlation_id=1, client_id="c")
    return bytearray(b"".join(bytes(part) for part in parts))


def mutate(data: bytearray, rng: random.Random, first: int) -> None:
    """Change ``data`` from byte ``first`` on, in one to three of the ways that bytes go wrong."""
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(first, len(data)) if len(data) > first else first
        match rng.randrange(5):
            case 0:
                for _ in range(rng.randrange(1, 9)):
                    if len(data) > first:
                        data[rng.randrange(first, len(data))] ^= 1 << rng.randrange(8)
            case 1:
                data[at : at + 4] = struct.pack(">i", rng.choice(_EXTREMES))
            case 2:
                data[at:at] = rng.randbytes(rng.randrange(1, 30))
            case 3:
                del data[at : at + rng.randrange(1, 30)]
            case 4:
                data[at:at] = data[rng.randrange(first, len(data) + 1) :][:60]


def attack(port: int, seed: int, count: int) -> None:
    """Send ``count`` mutated frames, some in a row on each connection; run in a process of its own."""
    rng = random.Random(seed)
    frames = good_frames(rng)
    while count > 0:
        with RawClient(port) as client:
            client.socket.settimeout(0.05)
            with suppress(OSError):
                for _ in range(FRAMES_PER_CONNECTION):
                    data = next(frames)
                    if rng.random() < 0.8:
                        mutate(data, rng, first=4)
                    if rng.random() < 0.98:
                        data[:4] = struct.pack(">i", len(data) - 4)
                    client.send_bytes(bytes(data))
                    count -= 1
                client.socket.shutdown(1)
                while client.socket.recv(1 << 16):
                    pass


def attacked(seed: int, count: int) -> list[float]:
    """Attack a broker; the latencies in seconds of a good client's produce and fetch meanwhile.

    At the end the broker has the good client's records, and no others in their place, also after a restart.
    """
    latencies: list[float] = []
    with start_broker({"auto.create.topics.enable": False}) as broker:
        with RawClient(broker.port) as client:
            assert client.create_topic(UNTOUCHED).error_code == 0
            assert client.create_topic(ATTACKED, 2).error_code == 0
        attacker = multiprocessing.get_context("spawn").Process(
            target=attack, args=(broker.port, seed, count)
        )
        with growing_less_than(broker.pid, 256 * MIB):
            attacker.start()
            with RawClient(broker.port) as client:
                while attacker.is_alive():
                    began = time.monotonic()
                    assert client.produce(UNTOUCHED, batch(b"%d" % len(latencies))).error_code == 0
                    assert client.fetch(UNTOUCHED, len(latencies)).error_code == 0
                    latencies.append((time.monotonic() - began) / 2)
                    time.sleep(0.005)
            attacker.join()
        assert attacker.exitcode == 0
        check_kept(broker, len(latencies))
        broker.kill()
        broker.start()
        check_kept(broker, len(latencies))
    return latencies


def check_kept(broker: EmbeddedBroker, count: int) -> None:
    """Every record of the good client is there; what was attacked can be read, or fails its checks."""
    with RawClient(broker.port) as client:
        assert [r.value for r in client.read(UNTOUCHED)] == [b"%d" % i for i in range(count)]
        for partition in (0, 1):
            data = client.fetch(ATTACKED, 0, partition, max_bytes=1 << 24)
            assert data.error_code == 0
            with suppress(KafkaError):
                decode(data)


def test_every_api_has_a_good_request_in_every_version_to_mutate() -> None:
    requests, newer = good_requests(), newer_requests()
    for key in requests:
        for version in _served(key):
            assert good_frame(requests, newer, key, version)[4:8] == struct.pack(">hh", key, version)


@pytest.mark.long("thousands of hostile requests")
def test_mutated_requests_do_no_harm() -> None:
    assert attacked(seed=1, count=3_000)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 104))
def test_many_mutated_requests_do_no_harm_and_delay_nobody(
    seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    latencies = attacked(seed, count=60_000)
    median, worst = statistics.median(latencies) * 1000, max(latencies) * 1000
    with capsys.disabled():
        print(f"seed {seed}: others waited {median:.1f} ms (median), {worst:.0f} ms (worst)")  # noqa: T201
    assert median < 5
    assert worst < 250
