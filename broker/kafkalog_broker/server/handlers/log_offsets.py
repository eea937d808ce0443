"""Look up offsets of logs, and delete the records before an offset.

API                   Versions  Left out
--------------------  --------  ------------------------------------
ListOffsets           0-7       nothing
OffsetForLeaderEpoch  2-4       requests of replicas: there are none
DeleteRecords         0-2       nothing

* ListOffsets: timestamp -1 is the latest offset (with read_committed: the last stable one), -2 the earliest,
  -3 the record with the greatest timestamp (version 7 and later); any other is the first record at or after
  that time in milliseconds. Version 0 goes by when segments were last changed, and returns several offsets.
* DeleteRecords: a segment is deleted once all of it is below the new start; records below the start in the
  first segment that remains can no longer be read.
"""

from __future__ import annotations

from kafkalog_broker.log.retention import offsets_before
from kafkalog_broker.logs.offset_records import INTERNAL_TOPICS
from kafkalog_broker.server.dispatch import MANY, Context, always, handles
from kafkalog_broker.server.log_access import Allowance, ReadableLog, TimeAllowance
from pyspark_kafkalog.errors import (
    ErrorCode,
    InvalidRequest,
    InvalidTopic,
    KafkaError,
    OffsetOutOfRange,
    ServerError,
    UnsupportedVersion,
)
from pyspark_kafkalog.protocol.api import log_offsets as api
from pyspark_kafkalog.protocol.exchange import ApiKey
from pyspark_kafkalog.security.acls import CLUSTER_NAME, Operation, ResourceType
from pyspark_kafkalog.types import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    MAX_TIMESTAMP,
    IsolationLevel,
    TopicPartition,
)

_ONE_OFFSET_SINCE = 1
_MAX_TIMESTAMP_SINCE = 7
_NO_EPOCH = -1
_NO_OFFSET = (-1, -1)


def _list_offsets_takes_long(request: api.ListOffsetsRequest, _ctx: Context) -> bool:
    """Lookups by time may have to decompress a batch."""
    wanted = [partition for topic in request.topics for partition in topic.partitions]
    return len(wanted) > MANY or any(
        each.timestamp >= 0 or each.timestamp == MAX_TIMESTAMP for each in wanted
    )


@handles(
    ApiKey.LIST_OFFSETS, (0, 7), (Operation.DESCRIBE, ResourceType.TOPIC), takes_long=_list_offsets_takes_long
)
def list_offsets(request: api.ListOffsetsRequest, ctx: Context) -> api.ListOffsetsResponse:
    """Return where a partition begins, ends, or stood at a time."""
    committed = request.isolation_level == IsolationLevel.READ_COMMITTED
    time = TimeAllowance(ctx.services.clock)
    topics = []
    for topic in request.topics:
        partitions = tuple(
            _one_offset(TopicPartition(topic.name, want.partition_index), want, committed, ctx, time)
            if ctx.version >= _ONE_OFFSET_SINCE
            else _several_offsets(TopicPartition(topic.name, want.partition_index), want, ctx)
            for want in topic.partitions
        )
        topics.append(api.ListOffsetsTopicResponse(name=topic.name, partitions=partitions))
    return api.ListOffsetsResponse(topics=tuple(topics))


def _one_offset(
    partition: TopicPartition,
    want: api.ListOffsetsPartition,
    committed: bool,
    ctx: Context,
    time: TimeAllowance,
) -> api.ListOffsetsPartitionResponse:
    try:
        time.check()
        ctx.demand(Operation.DESCRIBE, ResourceType.TOPIC, partition.topic)
        log = ctx.services.logs.readable(partition, Allowance(), want.current_leader_epoch)
        timestamp, offset = _find_offset(partition, log, want.timestamp, committed, ctx)
    except KafkaError as e:
        return api.ListOffsetsPartitionResponse(
            partition_index=partition.partition, error_code=ctx.refused(e)
        )
    return api.ListOffsetsPartitionResponse(
        partition_index=partition.partition,
        timestamp=timestamp,
        offset=offset,
        leader_epoch=log.leader_epoch if offset >= 0 else -1,
    )


def _several_offsets(
    partition: TopicPartition, want: api.ListOffsetsPartition, ctx: Context
) -> api.ListOffsetsPartitionResponse:
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
    return api.ListOffsetsPartitionResponse(
        partition_index=partition.partition, error_code=code, old_style_offsets=found
    )


def _find_offset(
    partition: TopicPartition, log: ReadableLog, timestamp: int, committed: bool, ctx: Context
) -> tuple[int, int]:
    end = log.last_stable_offset if committed else log.readable_end
    if timestamp == LATEST_TIMESTAMP:
        return -1, end
    if timestamp == EARLIEST_TIMESTAMP:
        return -1, log.start_offset
    if timestamp == MAX_TIMESTAMP:
        if ctx.version < _MAX_TIMESTAMP_SINCE:
            raise UnsupportedVersion(f"timestamp {timestamp} needs ListOffsets {_MAX_TIMESTAMP_SINCE}")
        found = log.max_timestamp()
    elif timestamp < 0:
        raise InvalidRequest(f"{partition}: timestamp {timestamp} is neither a time nor a name for an offset")
    else:
        found = log.offset_for_timestamp(timestamp)
    # Records that read_committed cannot see yet do not count.
    return found if found is not None and found[1] < end else _NO_OFFSET


@handles(
    ApiKey.OFFSET_FOR_LEADER_EPOCH, (2, 4), (Operation.CLUSTER_ACTION, ResourceType.CLUSTER),
    (Operation.DESCRIBE, ResourceType.TOPIC),
    takes_long=lambda request, _: sum(len(topic.partitions) for topic in request.topics) > MANY,
)  # fmt: skip
def offset_for_leader_epoch(
    request: api.OffsetForLeaderEpochRequest, ctx: Context
) -> api.OffsetForLeaderEpochResponse:
    """Return where a leader's epoch ends: the current one where the log does. A new owner's log is empty, so
    earlier epochs end where it begins.
    """
    topics = []
    for topic in request.topics:
        ends = tuple(_end_of_epoch(topic.topic, want, ctx) for want in topic.partitions)
        topics.append(api.OffsetForLeaderTopicResult(topic=topic.topic, partitions=ends))
    return api.OffsetForLeaderEpochResponse(topics=tuple(topics))


def _end_of_epoch(topic: str, want: api.OffsetForLeaderPartition, ctx: Context) -> api.EpochEndOffset:
    partition = TopicPartition(topic, want.partition)
    try:
        if not ctx.allows(Operation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME):
            ctx.demand(Operation.DESCRIBE, ResourceType.TOPIC, topic)
        log = ctx.services.logs.readable(partition, Allowance(), want.current_leader_epoch)
    except KafkaError as e:
        return api.EpochEndOffset(partition=want.partition, error_code=ctx.refused(e))
    if want.leader_epoch == _NO_EPOCH or want.leader_epoch > log.leader_epoch:
        return api.EpochEndOffset(partition=want.partition)
    end = log.readable_end if want.leader_epoch == log.leader_epoch else log.start_offset
    return api.EpochEndOffset(partition=want.partition, leader_epoch=want.leader_epoch, end_offset=end)


_END_OF_LOG = -1


@handles(ApiKey.DELETE_RECORDS, (0, 2), (Operation.DELETE, ResourceType.TOPIC), takes_long=always)
def delete_records(request: api.DeleteRecordsRequest, ctx: Context) -> api.DeleteRecordsResponse:
    """Have logs begin at an offset, durably; -1 is the end of the log."""
    time = TimeAllowance(ctx.services.clock)
    topics = []
    for topic in request.topics:
        partitions = tuple(_delete_records(topic.name, want, ctx, time) for want in topic.partitions)
        topics.append(api.DeleteRecordsTopicResult(name=topic.name, partitions=partitions))
    return api.DeleteRecordsResponse(topics=tuple(topics))


def _delete_records(
    topic: str, want: api.DeleteRecordsPartition, ctx: Context, time: TimeAllowance
) -> api.DeleteRecordsPartitionResult:
    partition, logs = TopicPartition(topic, want.partition_index), ctx.services.logs
    try:
        time.check()
        ctx.demand(Operation.DELETE, ResourceType.TOPIC, topic)
        log = logs.log(partition)
        if topic in INTERNAL_TOPICS:
            raise InvalidTopic(f"topic {topic!r} is internal: its records are not to be deleted")
        if "delete" not in log.config.cleanup_policy:
            raise ServerError(
                ErrorCode.POLICY_VIOLATION,
                f"{partition}: records can be deleted only where delete is in cleanup.policy, which is"
                f" {','.join(log.config.cleanup_policy) or 'empty'}",
            )
        offset = log.readable_end if want.offset == _END_OF_LOG else want.offset
        if offset < 0:
            raise OffsetOutOfRange(str(partition), offset, log.start_offset, log.readable_end)
        start_offset: int = logs.delete_records(partition, offset)  # waits for the disk
    except KafkaError as e:
        return api.DeleteRecordsPartitionResult(
            partition_index=want.partition_index, low_watermark=-1, error_code=ctx.refused(e)
        )
    return api.DeleteRecordsPartitionResult(partition_index=want.partition_index, low_watermark=start_offset)
