"""Add to transactions, end and describe them.

API                   Versions  Left out
--------------------  --------  --------
AddPartitionsToTxn    0-4       nothing
AddOffsetsToTxn       0-4       nothing
EndTxn                0-5       nothing
TxnOffsetCommit       0-5       nothing
WriteTxnMarkers       1         nothing
DescribeTransactions  0         nothing
ListTransactions      0-1       nothing

* AddPartitionsToTxn: version 4 is for brokers. Before they append to a partition, they ask whether it is in a
  transaction, or have it added.
* EndTxn: the response is sent when all markers are written, so a client reads what it has just committed. If
  a disk refuses a marker, or the broker that owns a partition is away, the decision stands, and the next
  transaction waits for it.
* WriteTxnMarkers: writing a marker twice is harmless; a marker of an epoch before the producer's present one
  is refused.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any
from uuid import UUID

from kafkalog_broker.groups.group import NoSuchGroup
from kafkalog_broker.logs.offset_records import CommittedOffset
from kafkalog_broker.server.dispatch import LATER, MANY, Context, always, handles
from kafkalog_broker.server.handlers.group_offsets import check_offsets, codes_response
from kafkalog_broker.transactions.states import PREPARED, STATE_NAMES, CoordinatorState
from pyspark_kafkalog.errors import ErrorCode, InvalidRequest, KafkaError, ServerError
from pyspark_kafkalog.protocol.api import transactions as api
from pyspark_kafkalog.protocol.exchange import ApiKey
from pyspark_kafkalog.security.acls import CLUSTER_NAME, Operation, ResourceType
from pyspark_kafkalog.types import TopicPartition

_BROKERS_SINCE = 4


def _add_partitions_takes_long(request: api.AddPartitionsToTxnRequest, ctx: Context) -> bool:
    if ctx.version >= _BROKERS_SINCE:
        return True
    return sum(len(topic.partitions) for topic in request.v3_and_below_topics) > MANY


@handles(
    ApiKey.ADD_PARTITIONS_TO_TXN, (0, 4), (Operation.WRITE, ResourceType.TRANSACTIONAL_ID),
    (Operation.WRITE, ResourceType.TOPIC), (Operation.CLUSTER_ACTION, ResourceType.CLUSTER),
    takes_long=_add_partitions_takes_long,
)  # fmt: skip
def add_partitions_to_txn(
    request: api.AddPartitionsToTxnRequest, ctx: Context
) -> api.AddPartitionsToTxnResponse:
    """Add the partitions that a transaction is about to write to; all of them, or none."""
    if ctx.version >= _BROKERS_SINCE:
        return _answer_broker(request.transactions, ctx)
    services, topics = ctx.services, request.v3_and_below_topics
    codes: dict[TopicPartition, ErrorCode] = {}
    transactional_id = request.v3_and_below_transactional_id
    if refusal := ctx.denied(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id):
        codes = defaultdict(partial(ErrorCode, ctx.refused(refusal)))
        return api.AddPartitionsToTxnResponse(results_by_topic_v3_and_below=_partition_results(topics, codes))
    for partition in _partitions_of(topics):
        try:
            ctx.demand(Operation.WRITE, ResourceType.TOPIC, partition.topic)
            services.logs.check_writable(partition)
            codes[partition] = ErrorCode.NONE
        except KafkaError as e:
            codes[partition] = ctx.refused(e)
    if any(codes.values()):
        codes = {each: code or ErrorCode.OPERATION_NOT_ATTEMPTED for each, code in codes.items()}
    else:
        try:
            if not transactional_id:
                raise InvalidRequest("the transactional id is empty")
            producer = request.v3_and_below_producer_id, request.v3_and_below_producer_epoch
            services.transactions.add(transactional_id, *producer, codes)
        except KafkaError as e:
            codes = dict.fromkeys(codes, ctx.refused(e))
    return api.AddPartitionsToTxnResponse(results_by_topic_v3_and_below=_partition_results(topics, codes))


def _answer_broker(
    transactions: Iterable[api.AddPartitionsToTxnTransaction], ctx: Context
) -> api.AddPartitionsToTxnResponse:
    if refusal := ctx.denied(Operation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME):
        return api.AddPartitionsToTxnResponse(error_code=ctx.refused(refusal))
    return api.AddPartitionsToTxnResponse(
        results_by_transaction=tuple(
            api.AddPartitionsToTxnResult(
                each.transactional_id, _partition_results(each.topics, _verified_or_added(each, ctx))
            )
            for each in transactions
        )
    )


def _verified_or_added(
    wanted: api.AddPartitionsToTxnTransaction, ctx: Context
) -> Mapping[TopicPartition, ErrorCode]:
    transactions, partitions = ctx.services.transactions, _partitions_of(wanted.topics)
    producer = wanted.transactional_id, wanted.producer_id, wanted.producer_epoch
    try:
        if wanted.verify_only:
            errors = transactions.check(*producer, partitions)
            return {each: ctx.refused(e) if e is not None else ErrorCode.NONE for each, e in errors.items()}
        transactions.add(*producer, partitions)
    except KafkaError as e:
        return dict.fromkeys(partitions, ctx.refused(e))
    return dict.fromkeys(partitions, ErrorCode.NONE)


def _demand(operation: Operation, transactional_id: str, ctx: Context) -> None:
    if not transactional_id:
        raise InvalidRequest("the transactional id is empty")
    ctx.demand(operation, ResourceType.TRANSACTIONAL_ID, transactional_id)


def _partitions_of(topics: Iterable[api.AddPartitionsToTxnTopic]) -> list[TopicPartition]:
    return [TopicPartition(topic.name, number) for topic in topics for number in topic.partitions]


def _partition_results(
    topics: Iterable[api.AddPartitionsToTxnTopic], codes: Mapping[TopicPartition, ErrorCode]
) -> tuple[api.AddPartitionsToTxnTopicResult, ...]:
    return tuple(
        api.AddPartitionsToTxnTopicResult(
            name=topic.name,
            results_by_partition=tuple(
                api.AddPartitionsToTxnPartitionResult(
                    partition_index=number, partition_error_code=codes[TopicPartition(topic.name, number)]
                )
                for number in topic.partitions
            ),
        )
        for topic in topics
    )


@handles(
    ApiKey.ADD_OFFSETS_TO_TXN, (0, 4), (Operation.WRITE, ResourceType.TRANSACTIONAL_ID),
    (Operation.READ, ResourceType.GROUP), takes_long=lambda _, ctx: not ctx.services.groups.opened,
)  # fmt: skip
def add_offsets_to_txn(request: api.AddOffsetsToTxnRequest, ctx: Context) -> api.AddOffsetsToTxnResponse:
    """Have the offsets of a group change with a transaction."""
    services = ctx.services
    try:
        _demand(Operation.WRITE, request.transactional_id, ctx)
        ctx.demand(Operation.READ, ResourceType.GROUP, request.group_id)
        if not services.groups.opened:
            services.groups.open()  # it asks ZooKeeper
        services.transactions.add(
            request.transactional_id,
            request.producer_id,
            request.producer_epoch,
            [services.groups.partition_of(request.group_id)],
        )
    except KafkaError as e:
        return api.AddOffsetsToTxnResponse(error_code=ctx.refused(e))
    return api.AddOffsetsToTxnResponse()


_OWN_EPOCHS_SINCE = 5


@handles(ApiKey.END_TXN, (0, 5), (Operation.WRITE, ResourceType.TRANSACTIONAL_ID))
def end_txn(request: api.EndTxnRequest, ctx: Context) -> Any:
    """Commit or abort a transaction."""
    services = ctx.services
    try:
        _demand(Operation.WRITE, request.transactional_id, ctx)
        ending = services.transactions.end(
            request.transactional_id,
            request.producer_id,
            request.producer_epoch,
            commit=request.committed,
            own_epochs=ctx.version >= _OWN_EPOCHS_SINCE,
        )
    except KafkaError as e:
        return api.EndTxnResponse(error_code=ctx.refused(e))

    def answer() -> api.EndTxnResponse:
        return api.EndTxnResponse(producer_id=ending.producer[0], producer_epoch=ending.producer[1])

    if ending.takes_long:
        services.transaction_work.after(0.0, partial(ending.run, ctx.later(answer)))
        return LATER
    ending.run()
    return answer()


_OFFSETS_ABORTABLE_SINCE = 4
_OFFSETS_ADD_GROUP_SINCE = 5


@handles(
    ApiKey.TXN_OFFSET_COMMIT,
    (0, 5),
    (Operation.WRITE, ResourceType.TRANSACTIONAL_ID),
    (Operation.READ, ResourceType.GROUP),
    (Operation.READ, ResourceType.TOPIC),
    takes_long=lambda request, ctx: (
        not ctx.services.groups.opened or sum(len(topic.partitions) for topic in request.topics) > MANY
    ),
)
def txn_offset_commit(request: api.TxnOffsetCommitRequest, ctx: Context) -> Any:
    """Store what a group has read, if the transaction is committed."""
    services = ctx.services
    now = services.clock.time_ms()
    try:
        ctx.demand(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id)
        ctx.demand(Operation.READ, ResourceType.GROUP, request.group_id)
    except KafkaError as e:
        return _offsets_response(request, defaultdict(partial(ErrorCode, ctx.refused(e))))

    def value(commit: api.TxnOffsetCommitRequestPartition, topic_id: UUID) -> CommittedOffset:
        metadata = commit.committed_metadata or ""
        return CommittedOffset(
            commit.committed_offset, commit.committed_leader_epoch, metadata, now, topic_id=topic_id
        )

    accepted, codes = check_offsets(request, value, ctx)
    producer = request.producer_id, request.producer_epoch
    finish = partial(_finish_offsets, request, accepted, codes, ctx)
    if not request.group_id or not services.transactions.is_elsewhere(request.transactional_id):
        return finish(None)
    if not services.groups.opened:
        services.groups.open()  # it asks ZooKeeper
    offsets = services.groups.partition_of(request.group_id)
    if not services.transactions.to_verify(*producer, [offsets]):
        return finish(None)
    services.transactions.verify(
        request.transactional_id,
        *producer,
        [offsets],
        lambda refusals: ctx.later(partial(finish, refusals.get(offsets)))(),
        abortable=ctx.version >= _OFFSETS_ABORTABLE_SINCE,
        adding=ctx.version >= _OFFSETS_ADD_GROUP_SINCE,
    )
    return LATER


def _finish_offsets(
    request: api.TxnOffsetCommitRequest,
    accepted: dict[TopicPartition, CommittedOffset],
    codes: dict[TopicPartition, ErrorCode],
    ctx: Context,
    refusal: KafkaError | None,
) -> api.TxnOffsetCommitResponse:
    services = ctx.services
    try:
        if refusal is not None:
            raise refusal
        if not request.transactional_id:
            raise InvalidRequest("the transactional id is empty")
        if not request.group_id:
            raise ServerError(ErrorCode.INVALID_GROUP_ID, "the group's name is empty")
        with services.transactions.writing(
            request.transactional_id,
            request.producer_id,
            request.producer_epoch,
            services.groups.partition_of(request.group_id),
            abortable=ctx.version >= _OFFSETS_ABORTABLE_SINCE,
            adding=ctx.version >= _OFFSETS_ADD_GROUP_SINCE,
        ):
            services.groups.offsets.commit(
                request.group_id,
                accepted,
                member_id=request.member_id,
                instance_id=request.group_instance_id,
                generation=request.generation_id,
                producer=(request.producer_id, request.producer_epoch),
            )
    except KafkaError as e:
        code = ErrorCode.ILLEGAL_GENERATION if isinstance(e, NoSuchGroup) else ctx.refused(e)
        if code is ErrorCode.CONCURRENT_TRANSACTIONS:  # not retried by clients, unlike the next
            code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        codes.update(dict.fromkeys(accepted, code))
    return _offsets_response(request, codes)


_offsets_response = partial(
    codes_response,
    response=api.TxnOffsetCommitResponse,
    topic_type=api.TxnOffsetCommitResponseTopic,
    partition_type=api.TxnOffsetCommitResponsePartition,
)


@handles(
    ApiKey.WRITE_TXN_MARKERS, (1, 1), (Operation.ALTER, ResourceType.CLUSTER),
    (Operation.CLUSTER_ACTION, ResourceType.CLUSTER), takes_long=always,
)  # fmt: skip
def write_txn_markers(request: api.WriteTxnMarkersRequest, ctx: Context) -> api.WriteTxnMarkersResponse:
    """End a transaction in partitions of this broker, for another broker or an administrator."""
    results = []
    for marker in request.markers:
        topics = tuple(
            api.WritableTxnMarkerTopicResult(
                topic.name,
                tuple(_write_marker(marker, topic.name, number, ctx) for number in topic.partition_indexes),
            )
            for topic in marker.topics
        )
        results.append(api.WritableTxnMarkerResult(marker.producer_id, topics))
    return api.WriteTxnMarkersResponse(tuple(results))


def _write_marker(
    marker: api.WritableTxnMarker, topic: str, number: int, ctx: Context
) -> api.WritableTxnMarkerPartitionResult:
    partition, code = TopicPartition(topic, number), ErrorCode.NONE
    try:
        if not ctx.allows(Operation.ALTER, ResourceType.CLUSTER, CLUSTER_NAME):
            ctx.demand(Operation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME)
        ctx.services.logs.log(partition)
        ctx.services.transactions.markers.write_here(
            partition, marker.producer_id, marker.producer_epoch, marker.transaction_result
        )
    except KafkaError as e:
        code = ctx.refused(e)
    return api.WritableTxnMarkerPartitionResult(number, code)


@handles(
    ApiKey.DESCRIBE_TRANSACTIONS, (0, 0), (Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID),
    (Operation.DESCRIBE, ResourceType.TOPIC), takes_long=always,
)  # fmt: skip
def describe_transactions(
    request: api.DescribeTransactionsRequest, ctx: Context
) -> api.DescribeTransactionsResponse:
    """Describe transactional ids with their state, producer and partitions."""
    ids = dict.fromkeys(request.transactional_ids)
    return api.DescribeTransactionsResponse(
        transaction_states=tuple(_describe_transaction(each, ctx) for each in ids)
    )


def _describe_transaction(transactional_id: str, ctx: Context) -> api.TransactionState:
    try:
        _demand(Operation.DESCRIBE, transactional_id, ctx)
        known = ctx.services.transactions.find(transactional_id)
    except KafkaError as e:
        return api.TransactionState(error_code=ctx.refused(e), transactional_id=transactional_id)
    topics: dict[str, list[int]] = {}
    for topic, number, *_ in known.partitions:
        topics.setdefault(topic, []).append(number)
    return api.TransactionState(
        transactional_id=transactional_id,
        transaction_state=STATE_NAMES[known.state],
        transaction_timeout_ms=known.timeout_ms,
        transaction_start_time_ms=known.started_ms,
        producer_id=known.producer_id,
        producer_epoch=known.epoch,
        topics=tuple(
            api.TopicData(topic=topic, partitions=tuple(sorted(numbers)))
            for topic, numbers in sorted(topics.items())
            if ctx.allows(Operation.DESCRIBE, ResourceType.TOPIC, topic)
        ),
    )


_OPEN_STATES = (CoordinatorState.ONGOING, *PREPARED)


@handles(
    ApiKey.LIST_TRANSACTIONS, (0, 1), (Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID), takes_long=always
)
def list_transactions(request: api.ListTransactionsRequest, ctx: Context) -> api.ListTransactionsResponse:
    """List all transactional ids, or those in some states, of some producers, open for long."""
    now_ms = ctx.services.clock.time_ms()
    wanted, producers = set(request.state_filters), set(request.producer_id_filters)
    try:
        ctx.check_size()
        known = ctx.services.transactions.all()
    except KafkaError as e:
        return api.ListTransactionsResponse(error_code=ctx.refused(e))
    return api.ListTransactionsResponse(
        unknown_state_filters=tuple(
            name for name in request.state_filters if name not in STATE_NAMES.values()
        ),
        transaction_states=tuple(
            api.ListedTransaction(
                transactional_id=each.transactional_id,
                producer_id=each.producer_id,
                transaction_state=STATE_NAMES[each.state],
            )
            for each in known
            if ctx.allows(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, each.transactional_id)
            and (not wanted or STATE_NAMES[each.state] in wanted)
            and (not producers or each.producer_id in producers)
            and (
                request.duration_filter < 0
                or (each.state in _OPEN_STATES and now_ms - each.started_ms > request.duration_filter)
            )
        ),
    )
