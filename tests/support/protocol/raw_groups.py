"""Groups by raw requests: who coordinates one, the offset that it has stored, the end of a member."""

from __future__ import annotations

from contextlib import closing

from pyspark_kafkalog.client.discovery import Cluster
from pyspark_kafkalog.config.client_config import ClientConfig, GroupConsumerConfig
from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.api.consumer_groups import ConsumerGroupHeartbeatRequest
from pyspark_kafkalog.protocol.api.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
)
from pyspark_kafkalog.protocol.api.groups import LeaveGroupRequest, MemberIdentity
from pyspark_kafkalog.protocol.api.metadata import FindCoordinatorRequest
from tests.support.protocol.raw_client import RawClient
from tests.support.until import until

_BEFORE_BATCHES = 7
_NAMES = tuple(f"group-{number}" for number in range(40))


def group_at(client: RawClient, broker: int) -> str:
    """The name of a group that this broker coordinates."""
    request = FindCoordinatorRequest(key_type=0, coordinator_keys=_NAMES)

    def look() -> str | None:
        found = client.ask(request).coordinators
        return next((each.key for each in found if each.node_id == broker), None)

    name = until(look)
    assert name is not None
    return name


def commit(client: RawClient, group: str, topic: str, offset: int, partition: int = 0) -> ErrorCode:
    """Store an offset; the partition's code."""
    part = OffsetCommitRequestPartition(partition_index=partition, committed_offset=offset)
    wanted = OffsetCommitRequestTopic(name=topic, partitions=(part,))
    answer = client.ask(OffsetCommitRequest(group_id=group, topics=(wanted,)), _BEFORE_BATCHES)
    return ErrorCode(answer.topics[0].partitions[0].error_code)


def committed(client: RawClient, group: str, topic: str, partition: int = 0) -> int | None:
    """The offset that is stored, -1 if none is; None where the coordinator does not say."""
    wanted = OffsetFetchRequestTopic(name=topic, partition_indexes=(partition,))
    answer = client.ask(OffsetFetchRequest(group_id=group, topics=(wanted,)), _BEFORE_BATCHES)
    offset: int = answer.topics[0].partitions[0].committed_offset
    return None if answer.error_code else offset


def remove_member(config: GroupConsumerConfig, member_id: str) -> None:
    """What the end of its session does to a member of the group of ``config``, at a cluster of one broker."""
    group = config.group_id
    assert group is not None
    client = ClientConfig(bootstrap_servers=config.bootstrap_servers)
    with closing(Cluster(client)) as cluster:
        connection = cluster.any_connection()
        if config.group_protocol == "classic":
            left = connection.request(LeaveGroupRequest(group, members=(MemberIdentity(member_id),)))
            codes = [left.error_code, *(member.error_code for member in left.members)]
        else:
            codes = [connection.request(ConsumerGroupHeartbeatRequest(group, member_id, -1)).error_code]
    assert set(codes) == {ErrorCode.NONE}
