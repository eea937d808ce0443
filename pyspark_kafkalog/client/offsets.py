"""Offset look-ups: first and last offsets of partitions, and the first record at or after a time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

import msgspec

from pyspark_kafkalog.client.discovery import Cluster, Leader, by_topic
from pyspark_kafkalog.client.retry import Deadline
from pyspark_kafkalog.errors import (
    ErrorCode,
    InvalidRequest,
    KafkaError,
    UnsupportedVersion,
    error_for,
    reason,
)
from pyspark_kafkalog.protocol.api.log_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from pyspark_kafkalog.protocol.exchange import ApiKey
from pyspark_kafkalog.types import EARLIEST_TIMESTAMP, MAX_TIMESTAMP, IsolationLevel, TopicPartition

_SINGLE_SINCE, _ISOLATION_SINCE, _MAX_TIMESTAMP_VERSION = 1, 2, 7
"""ListOffsets since these versions: one offset, by record times; isolation levels; `MAX_TIMESTAMP`."""


class OffsetAndTimestamp(msgspec.Struct, frozen=True):
    """Result of a look-up; -1 if there is none. ``timestamp`` is in milliseconds."""

    offset: int
    timestamp: int
    leader_epoch: int


_NONE_THAT_LATE = OffsetAndTimestamp(-1, -1, -1)
_YOUNGER = OffsetAndTimestamp(-1, -1, -1)  # in version 0: every segment is newer than the time


def list_offsets(
    cluster: Cluster,
    wanted: Mapping[TopicPartition, int],
    *,
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    by_segment: bool = False,
    deadline: Deadline | None = None,
) -> dict[TopicPartition, OffsetAndTimestamp]:
    """For each partition the first offset at or after its timestamp in milliseconds.

    Timestamps may be `EARLIEST_TIMESTAMP`, `LATEST_TIMESTAMP` (under READ_COMMITTED the last stable offset)
    and `MAX_TIMESTAMP`. Offset -1: no record is that late, or the format has no timestamps (v0). Brokers
    before 0.10.1 raise `UnsupportedVersion`, unless ``by_segment`` accepts the start of the last segment not
    newer than the time, which misses nothing.
    """
    found: dict[TopicPartition, OffsetAndTimestamp] = {}
    times = dict(wanted)
    attempts = cluster.retrying("looking up offsets", deadline)
    while len(found) < len(wanted):
        left = {tp: timestamp for tp, timestamp in times.items() if tp not in found}
        try:
            failure = _ask_leaders(cluster, left, isolation, by_segment, found, attempts.deadline)
        except KafkaError as e:
            failure = e
        if failure is not None:
            for tp in left:
                if tp not in found:
                    cluster.forget(tp.topic)
            attempts.failed(failure)
        for tp in [tp for tp, answer in found.items() if answer is _YOUNGER]:
            del found[tp]
            times[tp] = EARLIEST_TIMESTAMP
    return found


def _ask_leaders(
    cluster: Cluster,
    wanted: Mapping[TopicPartition, int],
    isolation: IsolationLevel,
    by_segment: bool,
    found: dict[TopicPartition, OffsetAndTimestamp],
    deadline: Deadline,
) -> KafkaError | None:
    cluster.metadata(sorted({tp.topic for tp in wanted}), deadline=deadline)
    by_node: dict[int, dict[TopicPartition, Leader]] = defaultdict(dict)
    for tp in wanted:
        leader = cluster.leader(tp, deadline=deadline)
        by_node[leader.node_id][tp] = leader
    sent = []
    for node_id, leaders in by_node.items():
        connection = cluster.connection(node_id, deadline)
        version = connection.version(ApiKey.LIST_OFFSETS)
        _check_known(connection.peer, version, [wanted[tp] for tp in leaders], by_segment)
        level = isolation if version >= _ISOLATION_SINCE else IsolationLevel.READ_UNCOMMITTED
        ticket = connection.send(_request(leaders, wanted, level), deadline=deadline)
        sent.append((connection, ticket, leaders))
    failure: KafkaError | None = None
    for connection, ticket, leaders in sent:
        answer = connection.receive(ticket, deadline=deadline)
        error = _take(answer, ticket.version, leaders, found, connection.peer)
        # A final error has precedence: it ends the whole look-up.
        if error is not None and (failure is None or failure.retriable):
            failure = error
    return failure


def _check_known(peer: str, version: int, times: Iterable[int], by_segment: bool) -> None:
    text = f"{peer}: the broker cannot look up"
    for time in times:
        if time == MAX_TIMESTAMP and version < _MAX_TIMESTAMP_VERSION:
            raise UnsupportedVersion(f"{text} the maximum timestamp (ListOffsets {version})")
        if time >= 0 and version < _SINGLE_SINCE and not by_segment:
            raise UnsupportedVersion(
                f"{text} the first record at or after a time (ListOffsets {version}): before Kafka 0.10.1 it "
                "only knows the times of whole segments, enough for starting offsets but not for ending ones"
            )


def _request(
    leaders: Mapping[TopicPartition, Leader], wanted: Mapping[TopicPartition, int], isolation: IsolationLevel
) -> ListOffsetsRequest:
    topics = by_topic(
        (tp, ListOffsetsPartition(tp.partition, leader.epoch, wanted[tp])) for tp, leader in leaders.items()
    )
    return ListOffsetsRequest(-1, int(isolation), tuple(ListOffsetsTopic(*row) for row in topics.items()))


def _take(
    answer: ListOffsetsResponse,
    version: int,
    asked: Mapping[TopicPartition, Leader],
    found: dict[TopicPartition, OffsetAndTimestamp],
    peer: str,
) -> KafkaError | None:
    failure: KafkaError | None = None
    missing = set(asked)
    for topic in answer.topics:
        for part in topic.partitions:
            tp = TopicPartition(topic.name, part.partition_index)
            if tp not in asked:
                continue
            missing.discard(tp)
            if part.error_code == ErrorCode.NONE and version < _SINGLE_SINCE:
                offsets = part.old_style_offsets
                found[tp] = OffsetAndTimestamp(offsets[0], -1, -1) if offsets else _YOUNGER
            elif part.error_code == ErrorCode.NONE:
                found[tp] = OffsetAndTimestamp(part.offset, part.timestamp, part.leader_epoch)
            elif part.error_code == ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT:
                found[tp] = _NONE_THAT_LATE
            elif failure is None or failure.retriable:
                why = reason(part.error_code, "Describe", topic=tp.topic)
                failure = error_for(part.error_code, f"{peer}: {tp}: {why}")
    if missing:
        names = ", ".join(map(str, sorted(missing)))
        raise InvalidRequest(f"{peer}: the ListOffsets response lacks {names}")
    return failure
