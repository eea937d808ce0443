"""TxnOffsetCommit 0-5: store what a group has read, if the transaction is committed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from functools import partial
from typing import Any

from kafkalog_broker.group.group import NoSuchGroup
from kafkalog_broker.group.group_offsets import encode_offsets
from kafkalog_broker.offsets.offset_records import CommittedOffset
from kafkalog_broker.server.dispatch import LATER, Context, handles
from kafkalog_broker.server.handlers.offset_commit import A_STEP, check_offsets
from pyspark_kafkalog.errors import ErrorCode, InvalidRequest, KafkaError, ServerError
from pyspark_kafkalog.protocol.api.transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from pyspark_kafkalog.protocol.exchange import ApiKey
from pyspark_kafkalog.security.acls import Operation, ResourceType
from pyspark_kafkalog.steps import Steps
from pyspark_kafkalog.types import TopicPartition

_ABORTABLE_SINCE = 4
_ADDING_SINCE = 5


@handles(
    ApiKey.TXN_OFFSET_COMMIT,
    versions=(0, 5),
    needs=(
        (Operation.WRITE, ResourceType.TRANSACTIONAL_ID),
        (Operation.READ, ResourceType.GROUP),
        (Operation.READ, ResourceType.TOPIC),
    ),
)
def txn_offset_commit(request: TxnOffsetCommitRequest, ctx: Context) -> Steps[Any]:
    """Store the offsets of all partitions that exist; the others get error 3. Where another broker
    coordinates the transaction, that one is asked first.
    """
    services = ctx.services
    now = services.clock.time_ms()
    try:
        ctx.demand(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id)
        ctx.demand(Operation.READ, ResourceType.GROUP, request.group_id)
    except KafkaError as e:
        return _response(request, defaultdict(partial(ErrorCode, ctx.refused(e))))

    def value(commit: TxnOffsetCommitRequestPartition) -> CommittedOffset:
        metadata = commit.committed_metadata or ""
        return CommittedOffset(commit.committed_offset, commit.committed_leader_epoch, metadata, now)

    accepted, codes = yield from check_offsets(request, value, ctx)
    producer = request.producer_id, request.producer_epoch
    encoded = None
    if len(accepted) > A_STEP:
        encoded = yield from encode_offsets(request.group_id, accepted, now, producer)
    finish = partial(_finished, request, accepted, encoded, codes, ctx)
    if not request.group_id or not services.transactions.is_elsewhere(request.transactional_id):
        return finish(None)
    if not services.groups.opened:
        yield services.groups.open  # it asks ZooKeeper
    offsets = services.groups.partition_of(request.group_id)
    if not services.transactions.to_verify(*producer, [offsets]):
        return finish(None)
    services.transactions.verify(
        request.transactional_id,
        *producer,
        [offsets],
        lambda refusals: ctx.later(partial(finish, refusals.get(offsets)))(),
        abortable=ctx.version >= _ABORTABLE_SINCE,
        adding=ctx.version >= _ADDING_SINCE,
    )
    return LATER


def _finished(
    request: TxnOffsetCommitRequest,
    accepted: dict[TopicPartition, CommittedOffset],
    encoded: bytearray | None,
    codes: dict[TopicPartition, ErrorCode],
    ctx: Context,
    refusal: KafkaError | None,
) -> TxnOffsetCommitResponse:
    """The answer, once the offsets are stored; ``refusal`` is another coordinator's."""
    try:
        if refusal is not None:
            raise refusal
        _store(request, accepted, encoded, ctx)
    except KafkaError as e:
        code = ErrorCode.ILLEGAL_GENERATION if isinstance(e, NoSuchGroup) else ctx.refused(e)
        if code is ErrorCode.CONCURRENT_TRANSACTIONS:  # clients ask again after this one
            code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        codes.update(dict.fromkeys(accepted, code))
    return _response(request, codes)


def _response(
    request: TxnOffsetCommitRequest, codes: Mapping[TopicPartition, ErrorCode]
) -> TxnOffsetCommitResponse:
    return TxnOffsetCommitResponse(
        topics=tuple(
            TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=tuple(
                    TxnOffsetCommitResponsePartition(
                        partition_index=commit.partition_index,
                        error_code=codes[TopicPartition(topic.name, commit.partition_index)],
                    )
                    for commit in topic.partitions
                ),
            )
            for topic in request.topics
        )
    )


def _store(
    request: TxnOffsetCommitRequest,
    offsets: dict[TopicPartition, CommittedOffset],
    encoded: bytearray | None,
    ctx: Context,
) -> None:
    services = ctx.services
    if not request.transactional_id:
        raise InvalidRequest("the transactional id is empty")
    if not request.group_id:
        raise ServerError(ErrorCode.INVALID_GROUP_ID, "the group's name is empty")
    with services.transactions.writing(
        request.transactional_id,
        request.producer_id,
        request.producer_epoch,
        services.groups.partition_of(request.group_id),
        abortable=ctx.version >= _ABORTABLE_SINCE,
        adding=ctx.version >= _ADDING_SINCE,
    ):
        services.groups.offsets.commit(
            request.group_id,
            offsets,
            member_id=request.member_id,
            instance_id=request.group_instance_id,
            generation=request.generation_id,
            producer=(request.producer_id, request.producer_epoch),
            encoded=encoded,
        )
