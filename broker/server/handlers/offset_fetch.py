"""OffsetFetch 1-8: what groups have stored; from version 8 for several groups at once.

A null list of topics (2+) asks for everything. Nothing stored is offset -1 and no error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from broker.group.offsets import CommittedOffset
from broker.server.context import Context
from broker.server.registry import handles
from pyspark_kafkalog.errors import ErrorCode, KafkaError
from pyspark_kafkalog.protocol.api.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from pyspark_kafkalog.protocol.exchange import ApiKey
from pyspark_kafkalog.types import TopicPartition

_GROUP_ERROR_SINCE = 2
_BATCHED_SINCE = 8
_NOTHING = CommittedOffset(-1)

_Wanted = Iterable[tuple[str, Iterable[int]]]


class _Found(NamedTuple):
    """One group's answer, before it takes the form of a version."""

    error: ErrorCode
    topics: list[tuple[str, list[tuple[int, CommittedOffset]]]]


@handles(ApiKey.OFFSET_FETCH, versions=(1, 8))
def offset_fetch(request: OffsetFetchRequest, ctx: Context) -> OffsetFetchResponse:
    """Answered from memory; COORDINATOR_LOAD_IN_PROGRESS while the group is still being read."""
    if ctx.version >= _BATCHED_SINCE:
        groups = []
        for group in request.groups:
            wanted = None if group.topics is None else [(t.name, t.partition_indexes) for t in group.topics]
            groups.append(_group(group.group_id, _look_up(group.group_id, wanted, ctx)))
        return OffsetFetchResponse(groups=tuple(groups))
    wanted = None if request.topics is None else [(t.name, t.partition_indexes) for t in request.topics]
    found = _look_up(request.group_id, wanted, ctx)
    in_partitions = found.error if ctx.version < _GROUP_ERROR_SINCE else ErrorCode.NONE
    return OffsetFetchResponse(
        error_code=found.error if ctx.version >= _GROUP_ERROR_SINCE else ErrorCode.NONE,
        topics=tuple(
            OffsetFetchResponseTopic(
                name=name,
                partitions=tuple(
                    OffsetFetchResponsePartition(
                        partition_index=partition,
                        committed_offset=stored.offset,
                        committed_leader_epoch=stored.leader_epoch,
                        metadata=stored.metadata,
                        error_code=in_partitions,
                    )
                    for partition, stored in partitions
                ),
            )
            for name, partitions in found.topics
        ),
    )


def _group(group_id: str, found: _Found) -> OffsetFetchResponseGroup:
    return OffsetFetchResponseGroup(
        group_id=group_id,
        error_code=found.error,
        topics=tuple(
            OffsetFetchResponseTopics(
                name=name,
                partitions=tuple(
                    OffsetFetchResponsePartitions(
                        partition_index=partition,
                        committed_offset=stored.offset,
                        committed_leader_epoch=stored.leader_epoch,
                        metadata=stored.metadata,
                    )
                    for partition, stored in partitions
                ),
            )
            for name, partitions in found.topics
        ),
    )


def _look_up(group_id: str, wanted: _Wanted | None, ctx: Context) -> _Found:
    error, stored = ErrorCode.NONE, {}
    try:
        stored = dict(ctx.services.offsets.fetch(group_id))
    except KafkaError as e:
        error = ctx.refused(e)
    if wanted is None:
        wanted = _everything(stored)
    return _Found(
        error,
        [
            (name, [(p, stored.get(TopicPartition(name, p), _NOTHING)) for p in partitions])
            for name, partitions in wanted
        ],
    )


def _everything(stored: Mapping[TopicPartition, CommittedOffset]) -> _Wanted:
    topics: dict[str, list[int]] = {}
    for where in sorted(stored):
        topics.setdefault(where.topic, []).append(where.partition)
    return topics.items()
