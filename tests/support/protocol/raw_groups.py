"""Groups by raw requests: who coordinates one, and the offset that it has stored of a partition."""

from __future__ import annotations

from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.api.find_coordinator import FindCoordinatorRequest
from pyspark_kafkalog.protocol.api.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from pyspark_kafkalog.protocol.api.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
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
