"""Append records to partitions.

API      Versions  Left out
-------  --------  --------
Produce  0-12      nothing

acks 1 and -1 are the same here: there is one copy, and the response is sent after it is written. acks 0 has
no response; an error then closes the connection, as in Kafka, because nothing else can tell the producer.

A transactional batch is appended only while its partition is in the producer's open transaction; from version
12 the broker adds the partition itself. If another broker coordinates the transaction, it is asked first.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import partial
from typing import Any

from kafkalog_broker.log.family import AppendResult, TakesLong
from kafkalog_broker.log.log import Guard, Log
from kafkalog_broker.logs.offset_records import INTERNAL_TOPICS
from kafkalog_broker.network.reply import Part
from kafkalog_broker.server.dispatch import LATER, MANY, CloseConnection, Context, handles
from kafkalog_broker.server.log_access import TimeAllowance
from kafkalog_broker.transactions.states import Refusals
from pyspark_kafkalog.errors import (
    CorruptMessage,
    ErrorCode,
    InvalidRecord,
    InvalidTopic,
    KafkaError,
    RecordsRefused,
    ServerError,
    UnsupportedCompression,
)
from pyspark_kafkalog.formats.batch import (
    ATTRIBUTES_POSITION,
    BATCH_OVERHEAD,
    CODEC_BITS,
    HEADER_SIZE,
    MAGIC,
    TRANSACTIONAL_BIT,
    magic_at,
    read_header,
)
from pyspark_kafkalog.formats.compression import Codec
from pyspark_kafkalog.protocol.api import produce as api
from pyspark_kafkalog.protocol.exchange import ApiKey
from pyspark_kafkalog.security.acls import Operation, ResourceType
from pyspark_kafkalog.types import NO_TIMESTAMP, TopicPartition

_BATCHES_SINCE = 3
_ZSTD_SINCE = 7
_ERROR_MESSAGE_SINCE = 8
_ABORTABLE_SINCE = 11
_ADDING_SINCE = 12
_AS_PRODUCE_ERROR = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.CONCURRENT_TRANSACTIONS: ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_COORDINATOR: ErrorCode.NOT_ENOUGH_REPLICAS,
}
"""Codes for the transaction coordinator's errors, as in Kafka: all producers retry after them."""
_BATCH_START = struct.Struct(">8xi4xb4xh")
"""Length, magic and attributes in a batch's header."""


def produce_single(frame: bytearray, pos: int, ctx: Context) -> Sequence[Part] | None:
    """The usual request: half the Python work, most of the broker's cost (benchmarks/broker.py)."""
    version = ctx.version
    if version < _BATCHES_SINCE:
        return None
    request = api.read_single(frame, pos, version)
    if request is None or request.acks == 0:
        return None
    partition = TopicPartition(request.topic, request.partition)
    try:
        log = _log_of(partition, request.acks, ctx)
        records = check_batch(partition, request.records, version)
        guard = _guard(partition, records, None, ctx)  # refuses if transactional: there is no id here
        result = _counted(log, log.append(records, guard=guard, at_once=True), len(records), ctx)
    except TakesLong:
        return None
    except KafkaError as e:
        refused = _refused(partition, e, ctx)
        topic = api.TopicProduceResponse(name=request.topic, partition_responses=(refused,))
        return ctx.encode(api.ProduceResponse(responses=(topic,)))
    answer = api.write_single(
        request,
        version,
        ctx.header.correlation_id,
        base_offset=result.base_offset,
        log_append_time_ms=result.log_append_time_ms,
        log_start_offset=result.start_offset,
    )
    return (answer,)


def _takes_long(request: api.ProduceRequest, ctx: Context) -> bool:
    """Whether there are many partitions, or messages to check one by one."""
    wanted = [(topic.name, data) for topic in request.topic_data for data in topic.partition_data]
    if len(wanted) > MANY:
        return True
    for topic, data in wanted:
        try:
            log = ctx.services.logs.log(TopicPartition(topic, data.index))
        except KafkaError:
            continue  # `_produce` refuses it
        if data.records is not None and log.takes_long(data.records):
            return True
    return False


@handles(
    ApiKey.PRODUCE, (0, 12), (Operation.WRITE, ResourceType.TOPIC),
    (Operation.WRITE, ResourceType.TRANSACTIONAL_ID), short_cut=produce_single, takes_long=_takes_long,
)  # fmt: skip
def produce(request: api.ProduceRequest, ctx: Context) -> Any:
    """Append each partition's records: message sets of v0 and v1 in versions 0 to 2, one record batch v2 from
    version 3 on.
    """
    asked = _to_verify(request, ctx)
    if asked is None:
        return _produce(request, ctx, {})

    def answered(refusals: Refusals) -> None:
        ctx.finish_in_worker(partial(_produce, request, ctx, refusals))

    ctx.services.transactions.verify(
        *asked, answered, abortable=ctx.version >= _ABORTABLE_SINCE, adding=ctx.version >= _ADDING_SINCE
    )
    return LATER


def _to_verify(
    request: api.ProduceRequest, ctx: Context
) -> tuple[str, int, int, list[TopicPartition]] | None:
    transactional_id, services = request.transactional_id, ctx.services
    if transactional_id is None or not services.transactions.is_elsewhere(transactional_id):
        return None
    if not ctx.allows(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id):
        return None
    producer, partitions = None, []
    for topic in request.topic_data:
        for data in topic.partition_data:
            partition = TopicPartition(topic.name, data.index)
            try:
                log = _log_of(partition, request.acks, ctx)
                batch = check_batch(log.topic_partition, data.records, ctx.version)
            except KafkaError:
                continue  # `_produce` refuses it
            if batch[ATTRIBUTES_POSITION + 1] & TRANSACTIONAL_BIT:
                header = read_header(batch)
                producer = producer or (header.producer_id, header.producer_epoch)
                partitions.append(partition)
    if producer is None:
        return None
    unknown = services.transactions.to_verify(*producer, partitions)
    return (transactional_id, *producer, unknown) if unknown else None


def _produce(request: api.ProduceRequest, ctx: Context, refusals: Refusals) -> api.ProduceResponse | None:
    responses, failed = [], False
    time = TimeAllowance(ctx.services.clock)
    for topic in request.topic_data:
        partitions = []
        for data in topic.partition_data:
            partition = TopicPartition(topic.name, data.index)
            try:
                time.check()
                if partition in refusals:
                    raise refusals[partition]
                result = _append(partition, data.records, request, ctx)
            except KafkaError as e:
                partitions.append(_refused(partition, e, ctx))
                failed = True
            else:
                partitions.append(
                    api.PartitionProduceResponse(
                        index=data.index,
                        base_offset=result.base_offset,
                        log_append_time_ms=result.log_append_time_ms,
                        log_start_offset=result.start_offset,
                    )
                )
        responses.append(api.TopicProduceResponse(name=topic.name, partition_responses=tuple(partitions)))
    if request.acks != 0:
        return api.ProduceResponse(responses=tuple(responses))
    if failed:
        raise CloseConnection("a produce request with acks 0 failed; closing says so")
    return None


def _append(
    partition: TopicPartition, records: memoryview | None, request: api.ProduceRequest, ctx: Context
) -> AppendResult:
    if request.transactional_id is not None:
        ctx.demand(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id)
    log = _log_of(partition, request.acks, ctx)
    guard = None
    if ctx.version >= _BATCHES_SINCE:
        whole = check_batch(partition, records, ctx.version)
        guard = _guard(partition, whole, request.transactional_id, ctx)
    elif records is None or not len(records):
        return AppendResult(-1, -1, NO_TIMESTAMP, log.start_offset, 0)  # old clients may send no records
    else:
        whole = check_set(partition, records, ctx.version)
    result = log.append(whole, guard=guard)
    return _counted(log, result, len(whole), ctx)


def _log_of(partition: TopicPartition, acks: int, ctx: Context) -> Log:
    if ctx.services.authorizer is not None:  # saves a call for the usual request
        ctx.demand(Operation.WRITE, ResourceType.TOPIC, partition.topic)
    if acks not in (-1, 0, 1):
        raise ServerError(ErrorCode.INVALID_REQUIRED_ACKS, f"acks {acks}; can be -1, 0, 1")
    if partition.topic in INTERNAL_TOPICS:
        raise InvalidTopic(f"topic {partition.topic!r} is internal: clients cannot write to it")
    return ctx.services.logs.log(partition)


def _guard(
    partition: TopicPartition, batch: memoryview, transactional_id: str | None, ctx: Context
) -> Guard | None:
    """Held while a transactional batch is appended; None for other batches."""
    if not batch[ATTRIBUTES_POSITION + 1] & TRANSACTIONAL_BIT:
        return None
    header = read_header(batch)
    if header.is_control:
        return None  # the log refuses it
    if transactional_id is None:
        raise ServerError(
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            f"{partition}: a transactional batch in a request without a transactional id",
        )
    return ctx.services.transactions.writing(
        transactional_id,
        header.producer_id,
        header.producer_epoch,
        partition,
        abortable=ctx.version >= _ABORTABLE_SINCE,
        adding=ctx.version >= _ADDING_SINCE,
    )


def _counted(log: Log, result: AppendResult, size: int, ctx: Context) -> AppendResult:
    if not result.duplicate:
        services = ctx.services
        metrics = services.metrics
        metrics.appended_messages.inc(result.record_count)
        metrics.appended_bytes.inc(size)
        if result.converted_count:
            metrics.converted_messages.inc(result.converted_count)
            metrics.converted_bytes.inc(result.converted_bytes)
        if log.topic_partition in services.fetches.watchers:
            services.fetches.appended(log.topic_partition, size, stable=result.stable)
    return result


def _refused(partition: TopicPartition, error: KafkaError, ctx: Context) -> api.PartitionProduceResponse:
    code = ctx.refused(error)
    return api.PartitionProduceResponse(
        index=partition.partition,
        error_code=_AS_PRODUCE_ERROR.get(code, code),
        base_offset=-1,
        record_errors=_record_errors(error) if ctx.version >= _ERROR_MESSAGE_SINCE else (),
        error_message=str(error) if ctx.version >= _ERROR_MESSAGE_SINCE else None,
    )


def _record_errors(error: KafkaError) -> tuple[api.BatchIndexAndErrorMessage, ...]:
    """Which records of a batch to blame, as in KIP-467: producers fail the others with a general error."""
    if not isinstance(error, RecordsRefused):
        return ()
    return tuple(
        api.BatchIndexAndErrorMessage(batch_index=index, batch_index_error_message=text)
        for index, text in error.records.items()
    )


def check_set(partition: TopicPartition, records: memoryview, version: int) -> memoryview:
    """Check that versions 0 to 2 get no batch v2. The log checks the set itself."""
    if magic_at(records, 0) == MAGIC:
        raise InvalidRecord(f"{partition}: Produce {version} takes message sets only, not record batches v2")
    return records


def check_batch(partition: TopicPartition, records: memoryview | None, version: int) -> memoryview:
    """Check for one whole batch, in a codec that the version may carry. The log checks the batch itself."""
    if records is None or len(records) == 0:
        raise InvalidRecord(f"{partition}: the request has no record batch")
    if len(records) < HEADER_SIZE:
        raise CorruptMessage(f"{partition}: {len(records)} bytes cannot be a record batch")
    length, magic, attributes = _BATCH_START.unpack_from(records)
    if magic != 2:
        raise InvalidRecord(f"{partition}: Produce {version} takes record batches v2 only, not magic {magic}")
    size = BATCH_OVERHEAD + length
    if HEADER_SIZE <= size < len(records):
        raise InvalidRecord(f"{partition}: Produce {version} takes exactly one record batch for a partition")
    if version < _ZSTD_SINCE and attributes & CODEC_BITS == Codec.ZSTD:
        raise UnsupportedCompression(f"{partition}: zstd needs Produce {_ZSTD_SINCE} or later, not {version}")
    return records
