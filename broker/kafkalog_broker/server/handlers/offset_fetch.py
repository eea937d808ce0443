"""OffsetFetch 0-9: what groups have stored; from version 8 for several groups at once.

A null list of topics (2+) asks for everything. Nothing stored is offset -1 and no error; in version 0, which
asks ZooKeeper where this broker has one, it is error 3.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import Any, NamedTuple, cast

from kafkalog_broker.offsets.offset_records import CommittedOffset
from kafkalog_broker.server.dispatch import LATER, Context, handles
from pyspark_kafkalog.errors import ErrorCode, KafkaError
from pyspark_kafkalog.protocol.api.group_offsets import (
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from pyspark_kafkalog.protocol.exchange import ApiKey
from pyspark_kafkalog.security.acls import Operation, ResourceType
from pyspark_kafkalog.steps import Steps
from pyspark_kafkalog.types import TopicPartition

_GROUP_ERROR_SINCE = 2
_BATCHED_SINCE = 8
_NOTHING = CommittedOffset(-1)

_A_STEP = 100
"""So many partitions are answered between two turns of others."""

_Wanted = Collection[tuple[str, Sequence[int]]]
_Fetch = Callable[..., Mapping[TopicPartition, CommittedOffset]]


class _Found(NamedTuple):
    """One group's answer, before it takes the form of a version."""

    error: ErrorCode
    wanted: _Wanted
    stored: Mapping[TopicPartition, CommittedOffset]
    unstable: Collection[TopicPartition] = ()
    """Offsets of open transactions, which the client wants to wait for."""
    denied: Mapping[str, ErrorCode] = MappingProxyType({})
    """Topics that the client may not see."""


@handles(
    ApiKey.OFFSET_FETCH,
    versions=(0, 9),
    needs=((Operation.DESCRIBE, ResourceType.GROUP), (Operation.DESCRIBE, ResourceType.TOPIC)),
)
def offset_fetch(request: OffsetFetchRequest, ctx: Context) -> Steps[Any]:
    """Answered from memory; COORDINATOR_LOAD_IN_PROGRESS while the group is still being read."""
    if ctx.version == 0:
        return _oldest(request, ctx)
    if ctx.version >= _BATCHED_SINCE:
        groups, fetch, done = [], cache(ctx.services.groups.offsets.fetch), set[str]()
        for number, group in enumerate(request.groups, 1):
            if not number % _A_STEP:
                yield None
            if group.topics is None:
                if group.group_id in done:  # all that it has is answered once
                    continue
                done.add(group.group_id)
            wanted = None if group.topics is None else [(t.name, t.partition_indexes) for t in group.topics]
            member = group.member_id, group.member_epoch
            found = _look_up(group.group_id, wanted, request.require_stable, ctx, fetch, member)
            topics = yield from _topics(found, OffsetFetchResponseTopics, OffsetFetchResponsePartitions)
            groups.append(
                OffsetFetchResponseGroup(group_id=group.group_id, error_code=found.error, topics=topics)
            )
        return OffsetFetchResponse(groups=tuple(groups))
    wanted = None if request.topics is None else [(t.name, t.partition_indexes) for t in request.topics]
    found = _look_up(request.group_id, wanted, request.require_stable, ctx, ctx.services.groups.offsets.fetch)
    in_partitions = found.error if ctx.version < _GROUP_ERROR_SINCE else ErrorCode.NONE
    topics = yield from _topics(found, OffsetFetchResponseTopic, OffsetFetchResponsePartition, in_partitions)
    return OffsetFetchResponse(
        error_code=found.error if ctx.version >= _GROUP_ERROR_SINCE else ErrorCode.NONE, topics=topics
    )


def _oldest(request: OffsetFetchRequest, ctx: Context) -> Any:
    """Version 0: from ZooKeeper, later, or from where the others are."""
    group, zookeeper = request.group_id, ctx.services.zookeeper_offsets
    if zookeeper is not None:
        zookeeper.in_turn(
            ctx.later(lambda: _each(request, ctx, lambda partition: zookeeper.read(group, partition)))
        )
        return LATER
    stored = cache(lambda: ctx.services.groups.offsets.fetch(group))  # once: it is all that the group has
    return _each(request, ctx, lambda partition: stored().get(partition))


def _each(
    request: OffsetFetchRequest, ctx: Context, find: Callable[[TopicPartition], CommittedOffset | None]
) -> OffsetFetchResponse:
    """One offset after the other. Once ZooKeeper does not answer, nothing further is tried."""
    topics, lost = [], ErrorCode.NONE
    for topic in request.topics or ():
        partitions = []
        for index in topic.partition_indexes:
            partition, found, code = TopicPartition(topic.name, index), None, lost
            if not lost:
                try:
                    ctx.demand(Operation.DESCRIBE, ResourceType.GROUP, request.group_id)
                    ctx.demand(Operation.DESCRIBE, ResourceType.TOPIC, topic.name)
                    ctx.services.logs.check_exists(partition)
                    found = find(partition)
                except KafkaError as e:
                    code = ctx.refused(e)
                    lost = code if code is ErrorCode.REQUEST_TIMED_OUT else lost
                else:
                    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if found is None else code
            stored = found or _NOTHING
            partitions.append(
                OffsetFetchResponsePartition(
                    partition_index=index,
                    committed_offset=stored.offset,
                    metadata=stored.metadata,
                    error_code=code,
                )
            )
        topics.append(OffsetFetchResponseTopic(name=topic.name, partitions=tuple(partitions)))
    return OffsetFetchResponse(topics=tuple(topics))


def _topics(
    found: _Found, topic_type: Any, partition_type: Any, code: ErrorCode = ErrorCode.NONE
) -> Steps[tuple[Any, ...]]:
    """The topics in the types of a version; ``code`` goes into each partition."""
    topics, done = [], 0
    for name, indexes in found.wanted:
        partitions = []
        for index in indexes:
            where, error = TopicPartition(name, index), found.denied.get(name, code)
            stored = _NOTHING if name in found.denied else found.stored.get(where, _NOTHING)
            if where in found.unstable and name not in found.denied:
                stored, error = _NOTHING, ErrorCode.UNSTABLE_OFFSET_COMMIT
            partitions.append(
                partition_type(
                    partition_index=index,
                    committed_offset=stored.offset,
                    committed_leader_epoch=stored.leader_epoch,
                    metadata=stored.metadata,
                    error_code=error,
                )
            )
            done += 1
            if not done % _A_STEP:
                yield None
        topics.append(topic_type(name=name, partitions=tuple(partitions)))
    return tuple(topics)


def _look_up(
    group_id: str,
    wanted: _Wanted | None,
    require_stable: bool,
    ctx: Context,
    fetch: _Fetch,
    member: tuple[str | None, int] = (None, -1),
) -> _Found:
    error, stored = ErrorCode.NONE, cast("Mapping[TopicPartition, CommittedOffset]", {})
    try:
        ctx.demand(Operation.DESCRIBE, ResourceType.GROUP, group_id)
        stored = fetch(group_id, *member)
    except KafkaError as e:
        error = ctx.refused(e)
        denied = e.code is ErrorCode.GROUP_AUTHORIZATION_FAILED and ctx.version >= _GROUP_ERROR_SINCE
        if ctx.version >= _BATCHED_SINCE or denied:
            wanted = ()
    if wanted is None:
        wanted = _everything({at: each for at, each in stored.items() if _may_see(at.topic, ctx)})
    hidden = {} if error else _denied(wanted, ctx)
    unstable: Collection[TopicPartition] = ()
    if require_stable and not error:
        named = [TopicPartition(name, p) for name, partitions in wanted for p in partitions]
        unstable = ctx.services.groups.offsets.unstable(group_id, named)
    return _Found(error, wanted, stored, unstable, hidden)


def _may_see(topic: str, ctx: Context) -> bool:
    return ctx.allows(Operation.DESCRIBE, ResourceType.TOPIC, topic)


def _denied(wanted: _Wanted, ctx: Context) -> dict[str, ErrorCode]:
    codes = {}
    for name, _ in wanted:
        try:
            ctx.demand(Operation.DESCRIBE, ResourceType.TOPIC, name)
        except KafkaError as e:
            codes[name] = ctx.refused(e)
    return codes


def _everything(stored: Mapping[TopicPartition, CommittedOffset]) -> _Wanted:
    topics: dict[str, list[int]] = {}
    for where in sorted(stored):
        topics.setdefault(where.topic, []).append(where.partition)
    return list(topics.items())
