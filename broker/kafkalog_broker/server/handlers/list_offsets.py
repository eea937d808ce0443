"""ListOffsets 0-7: where a partition begins, ends, or stood at a time.

Timestamps -1 latest (with read_committed: the last stable offset), -2 earliest, -3 the record with the
greatest timestamp (7+), else the first record at or after that time in milliseconds. Version 0
goes by when segments were last changed, and answers with several offsets.
"""

from __future__ import annotations

from kafkalog_broker.log.retention import offsets_before
from kafkalog_broker.server.dispatch import Context, handles
from kafkalog_broker.server.served_logs import LEADER_EPOCH, Allowance, TimeAllowance, check_leader_epoch
from pyspark_kafkalog.errors import ErrorCode, InvalidRequest, KafkaError, UnsupportedVersion
from pyspark_kafkalog.protocol.api.log_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from pyspark_kafkalog.protocol.exchange import ApiKey
from pyspark_kafkalog.security.acls import Operation, ResourceType
from pyspark_kafkalog.steps import Steps
from pyspark_kafkalog.types import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    MAX_TIMESTAMP,
    IsolationLevel,
    TopicPartition,
)

_ONE_OFFSET_SINCE = 1
_MAX_TIMESTAMP_SINCE = 7
_NONE = (-1, -1)
"""Timestamp and offset where no record qualifies."""


@handles(ApiKey.LIST_OFFSETS, versions=(0, 7), needs=((Operation.DESCRIBE, ResourceType.TOPIC),))
def list_offsets(request: ListOffsetsRequest, ctx: Context) -> Steps[ListOffsetsResponse]:
    """One (timestamp, offset) for each partition; an error in one leaves the others as they are."""
    topics = []
    time = TimeAllowance(ctx.services.clock)
    for topic in request.topics:
        partitions = []
        for want in topic.partitions:
            partition = TopicPartition(topic.name, want.partition_index)
            if ctx.version >= _ONE_OFFSET_SINCE:
                partitions.append((yield from _answer(partition, want, request, ctx, time)))
            else:
                partitions.append(_answer_several(partition, want, ctx))
            yield None
        topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=tuple(partitions)))
    return ListOffsetsResponse(topics=tuple(topics))


def _answer(
    partition: TopicPartition,
    want: ListOffsetsPartition,
    request: ListOffsetsRequest,
    ctx: Context,
    time: TimeAllowance,
) -> Steps[ListOffsetsPartitionResponse]:
    try:
        time.check()
        ctx.demand(Operation.DESCRIBE, ResourceType.TOPIC, partition.topic)
        check_leader_epoch(partition, want.current_leader_epoch)
        committed = request.isolation_level == IsolationLevel.READ_COMMITTED
        timestamp, offset = yield from _look_up(partition, want.timestamp, committed, ctx)
    except KafkaError as e:
        return ListOffsetsPartitionResponse(partition_index=partition.partition, error_code=ctx.refused(e))
    return ListOffsetsPartitionResponse(
        partition_index=partition.partition,
        error_code=ErrorCode.NONE,
        timestamp=timestamp,
        offset=offset,
        leader_epoch=LEADER_EPOCH if offset >= 0 else -1,
    )


def _answer_several(
    partition: TopicPartition, want: ListOffsetsPartition, ctx: Context
) -> ListOffsetsPartitionResponse:
    found: tuple[int, ...] = ()
    code = ErrorCode.NONE
    try:
        ctx.demand(Operation.DESCRIBE, ResourceType.TOPIC, partition.topic)
        if want.max_num_offsets < 0:
            raise InvalidRequest(f"{partition}: {want.max_num_offsets} offsets are asked for")
        log = ctx.services.logs.readable(partition, Allowance())
        now_ms = ctx.services.clock.time_ms()
        found = offsets_before(log.facts(), log.readable_end, now_ms, want.timestamp, want.max_num_offsets)
    except KafkaError as e:
        code = ctx.refused(e)
    return ListOffsetsPartitionResponse(
        partition_index=partition.partition, error_code=code, old_style_offsets=found
    )


def _look_up(
    partition: TopicPartition, timestamp: int, committed: bool, ctx: Context
) -> Steps[tuple[int, int]]:
    log = ctx.services.logs.readable(partition, Allowance())
    end = log.last_stable_offset if committed else log.readable_end
    if timestamp == LATEST_TIMESTAMP:
        return -1, end
    if timestamp == EARLIEST_TIMESTAMP:
        return -1, log.start_offset
    if timestamp == MAX_TIMESTAMP:
        if ctx.version < _MAX_TIMESTAMP_SINCE:
            raise UnsupportedVersion(f"timestamp {timestamp} needs ListOffsets {_MAX_TIMESTAMP_SINCE}")
        found = yield from log.max_timestamp_in_steps()
    elif timestamp < 0:
        raise InvalidRequest(f"{partition}: timestamp {timestamp} is neither a time nor a name for an offset")
    else:
        found = yield from log.offset_for_timestamp_in_steps(timestamp)
    # A record that read_committed cannot see yet counts as none.
    return found if found is not None and found[1] < end else _NONE
