"""Store, fetch and delete committed offsets of groups.

API           Versions  Left out
------------  --------  --------
OffsetCommit  0-9       nothing
OffsetFetch   0-9       nothing
OffsetDelete  0         nothing

Version 0 of OffsetCommit and OffsetFetch uses ZooKeeper if this broker has one, otherwise the same place as
the other versions. A partition without an offset has offset -1 and no error, in version 0 error 3. A
partition that does not exist gets error 3.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache, partial
from itertools import groupby
from operator import attrgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from uuid import UUID

from kafkalog_broker.groups.group import NoSuchGroup
from kafkalog_broker.logs.offset_records import NO_EXPIRY, CommittedOffset
from kafkalog_broker.server.dispatch import LATER, MANY, Context, always, handles
from pyspark_kafkalog.config.definition import LONG_MAX
from pyspark_kafkalog.errors import ErrorCode, KafkaError, ServerError
from pyspark_kafkalog.protocol.api import group_offsets as api
from pyspark_kafkalog.protocol.api.transactions import TxnOffsetCommitRequest
from pyspark_kafkalog.protocol.exchange import ApiKey
from pyspark_kafkalog.security.acls import Operation, ResourceType
from pyspark_kafkalog.types import TopicPartition

if TYPE_CHECKING:
    from kafkalog_broker.server.registration import ZooKeeperOffsets

_R = TypeVar("_R")


_NO_GROUP_SINCE = 9
"""Before, a member of an unknown group gets ILLEGAL_GENERATION."""


@handles(
    ApiKey.OFFSET_COMMIT, (0, 9), (Operation.READ, ResourceType.GROUP), (Operation.READ, ResourceType.TOPIC),
    takes_long=lambda request, _: sum(len(topic.partitions) for topic in request.topics) > MANY,
)  # fmt: skip
def offset_commit(request: api.OffsetCommitRequest, ctx: Context) -> Any:
    """Store what a group has read: its members may, or anybody while it has none."""
    now = ctx.services.clock.time_ms()
    retention_ms = request.retention_time_ms
    # Clients send 2**63 - 1 for "forever"; the sum must fit its field.
    expires = min(now + retention_ms, LONG_MAX) if retention_ms >= 0 else NO_EXPIRY
    if refusal := ctx.denied(Operation.READ, ResourceType.GROUP, request.group_id):
        return _commit_response(request, defaultdict(partial(ErrorCode, ctx.refused(refusal))))

    def value(commit: api.OffsetCommitRequestPartition, topic_id: UUID) -> CommittedOffset:
        return CommittedOffset(
            commit.committed_offset,
            commit.committed_leader_epoch,
            commit.committed_metadata or "",
            commit.commit_timestamp if commit.commit_timestamp >= 0 else now,
            expires,
            topic_id,
        )

    accepted, codes = check_offsets(request, value, ctx)
    zookeeper = ctx.services.zookeeper_offsets
    if ctx.version == 0 and zookeeper is not None:
        zookeeper.in_turn(ctx.later(lambda: _commit_to_zookeeper(request, accepted, codes, zookeeper, ctx)))
        return LATER
    try:
        ctx.services.groups.offsets.commit(
            request.group_id,
            accepted,
            member_id=request.member_id,
            instance_id=request.group_instance_id,
            generation=request.generation_id_or_member_epoch,
            version=ctx.version,
        )
    except KafkaError as e:
        code = ctx.refused(e)
        if isinstance(e, NoSuchGroup) and ctx.version < _NO_GROUP_SINCE:
            code = ErrorCode.ILLEGAL_GENERATION
        codes.update(dict.fromkeys(accepted, code))
    return _commit_response(request, codes)


def _commit_to_zookeeper(
    request: api.OffsetCommitRequest,
    accepted: Mapping[TopicPartition, CommittedOffset],
    codes: dict[TopicPartition, ErrorCode],
    zookeeper: ZooKeeperOffsets,
    ctx: Context,
) -> api.OffsetCommitResponse:
    """ZooKeeper stores no metadata. Stops trying once it does not answer."""
    lost = ErrorCode.NONE
    for partition, value in accepted.items():
        codes[partition] = lost
        if not lost:
            try:
                zookeeper.write(request.group_id, partition, value.offset)
            except KafkaError as e:
                codes[partition] = ctx.refused(e)
                lost = e.code if e.code is ErrorCode.REQUEST_TIMED_OUT else lost
    return _commit_response(request, codes)


def codes_response(
    request: api.OffsetCommitRequest | TxnOffsetCommitRequest | api.OffsetDeleteRequest,
    codes: Mapping[TopicPartition, ErrorCode],
    response: Callable[..., _R],
    topic_type: Any,
    partition_type: Any,
) -> _R:
    topics = []
    for topic in request.topics:
        partitions = [TopicPartition(topic.name, each.partition_index) for each in topic.partitions]
        results = tuple(
            partition_type(partition_index=each.partition, error_code=codes[each]) for each in partitions
        )
        topics.append(topic_type(name=topic.name, partitions=results))
    return response(topics=tuple(topics))


_commit_response = partial(
    codes_response,
    response=api.OffsetCommitResponse,
    topic_type=api.OffsetCommitResponseTopic,
    partition_type=api.OffsetCommitResponsePartition,
)


def check_offsets(
    request: api.OffsetCommitRequest | TxnOffsetCommitRequest,
    value: Callable[[Any, UUID], CommittedOffset],
    ctx: Context,
) -> tuple[dict[TopicPartition, CommittedOffset], dict[TopicPartition, ErrorCode]]:
    """The offsets to store, each the ``value`` of a commit and its topic, and the codes of all partitions."""
    accepted: dict[TopicPartition, CommittedOffset] = {}
    codes: dict[TopicPartition, ErrorCode] = {}
    limit = ctx.services.config.offset_metadata_max_bytes
    for topic in request.topics:
        for commit in topic.partitions:
            partition = TopicPartition(topic.name, commit.partition_index)
            try:
                ctx.demand(Operation.READ, ResourceType.TOPIC, topic.name)
                ctx.services.logs.check_exists(partition)
                offset = value(commit, ctx.services.topics.get(topic.name).topic_id)
                if len(offset.metadata.encode()) > limit:
                    why = f"{partition}: offset.metadata.max.bytes is {limit}"
                    raise ServerError(ErrorCode.OFFSET_METADATA_TOO_LARGE, why)
            except KafkaError as e:
                codes[partition] = ctx.refused(e)
            else:
                accepted[partition], codes[partition] = offset, ErrorCode.NONE
    return accepted, codes


_GROUP_ERROR_SINCE = 2
_SEVERAL_GROUPS_SINCE = 8
_NO_OFFSET = CommittedOffset(-1)

_Wanted = Collection[tuple[str, Sequence[int]]]
_Fetch = Callable[..., Mapping[TopicPartition, CommittedOffset]]


class _Found(NamedTuple):
    error: ErrorCode
    wanted: _Wanted
    stored: Mapping[TopicPartition, CommittedOffset]
    unstable: Collection[TopicPartition] = ()
    """Offsets of open transactions, for which the client wants to wait."""
    denied: Mapping[str, ErrorCode] = MappingProxyType({})
    """Codes of topics that the client may not see."""


def _offset_fetch_takes_long(request: api.OffsetFetchRequest, ctx: Context) -> bool:
    if ctx.services.ownership is not None:  # it asks ZooKeeper
        return True
    topics: list[Sequence[Any] | None] = [request.topics]
    if ctx.version >= _SEVERAL_GROUPS_SINCE:
        topics = [group.topics for group in request.groups]
    return len(topics) > MANY or any(
        each is None or sum(len(topic.partition_indexes) for topic in each) > MANY for each in topics
    )


@handles(
    ApiKey.OFFSET_FETCH, (0, 9), (Operation.DESCRIBE, ResourceType.GROUP),
    (Operation.DESCRIBE, ResourceType.TOPIC), takes_long=_offset_fetch_takes_long,
)  # fmt: skip
def offset_fetch(request: api.OffsetFetchRequest, ctx: Context) -> Any:
    """Return the offsets that groups have stored; from version 8 of several groups at once."""
    if ctx.version == 0:
        return _fetch_version_0(request, ctx)
    if ctx.version >= _SEVERAL_GROUPS_SINCE:
        groups, fetch, done = [], cache(ctx.services.groups.offsets.fetch), set[str]()
        for group in request.groups:
            if group.topics is None:
                if group.group_id in done:  # all that it has is answered once
                    continue
                done.add(group.group_id)
            wanted = None if group.topics is None else [(t.name, t.partition_indexes) for t in group.topics]
            member = group.member_id, group.member_epoch
            found = _look_up(group.group_id, wanted, request.require_stable, ctx, fetch, member)
            topics = _topics(found, api.OffsetFetchResponseTopics, api.OffsetFetchResponsePartitions)
            groups.append(
                api.OffsetFetchResponseGroup(group_id=group.group_id, error_code=found.error, topics=topics)
            )
        return api.OffsetFetchResponse(groups=tuple(groups))
    wanted = None if request.topics is None else [(t.name, t.partition_indexes) for t in request.topics]
    found = _look_up(request.group_id, wanted, request.require_stable, ctx, ctx.services.groups.offsets.fetch)
    in_partitions = found.error if ctx.version < _GROUP_ERROR_SINCE else ErrorCode.NONE
    topics = _topics(found, api.OffsetFetchResponseTopic, api.OffsetFetchResponsePartition, in_partitions)
    return api.OffsetFetchResponse(
        error_code=found.error if ctx.version >= _GROUP_ERROR_SINCE else ErrorCode.NONE, topics=topics
    )


def _fetch_version_0(request: api.OffsetFetchRequest, ctx: Context) -> Any:
    """Version 0: from ZooKeeper, in its thread, or from where the other versions are."""
    group, zookeeper = request.group_id, ctx.services.zookeeper_offsets
    if zookeeper is not None:
        zookeeper.in_turn(
            ctx.later(lambda: _fetch_each(request, ctx, lambda partition: zookeeper.read(group, partition)))
        )
        return LATER
    stored = cache(lambda: ctx.services.groups.offsets.fetch(group))  # once, as it returns all of the group's
    return _fetch_each(request, ctx, lambda partition: stored().get(partition))


def _fetch_each(
    request: api.OffsetFetchRequest, ctx: Context, find: Callable[[TopicPartition], CommittedOffset | None]
) -> api.OffsetFetchResponse:
    """Look up one offset after the other. Stops trying once ZooKeeper does not answer."""
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
            stored = found or _NO_OFFSET
            partitions.append(
                api.OffsetFetchResponsePartition(
                    partition_index=index,
                    committed_offset=stored.offset,
                    metadata=stored.metadata,
                    error_code=code,
                )
            )
        topics.append(api.OffsetFetchResponseTopic(name=topic.name, partitions=tuple(partitions)))
    return api.OffsetFetchResponse(topics=tuple(topics))


def _topics(
    found: _Found, topic_type: Any, partition_type: Any, code: ErrorCode = ErrorCode.NONE
) -> tuple[Any, ...]:
    topics = []
    for name, indexes in found.wanted:
        partitions = []
        for index in indexes:
            where, error = TopicPartition(name, index), found.denied.get(name, code)
            stored = _NO_OFFSET if name in found.denied else found.stored.get(where, _NO_OFFSET)
            if where in found.unstable and name not in found.denied:
                stored, error = _NO_OFFSET, ErrorCode.UNSTABLE_OFFSET_COMMIT
            partitions.append(
                partition_type(
                    partition_index=index,
                    committed_offset=stored.offset,
                    committed_leader_epoch=stored.leader_epoch,
                    metadata=stored.metadata,
                    error_code=error,
                )
            )
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
    error = ErrorCode.NONE
    stored: Mapping[TopicPartition, CommittedOffset] = {}
    denied: dict[str, ErrorCode] = {}
    unstable: Collection[TopicPartition] = ()
    try:
        ctx.demand(Operation.DESCRIBE, ResourceType.GROUP, group_id)
        stored = fetch(group_id, *member)
    except KafkaError as e:
        error = ctx.refused(e)
        hidden = e.code is ErrorCode.GROUP_AUTHORIZATION_FAILED and ctx.version >= _GROUP_ERROR_SINCE
        if ctx.version >= _SEVERAL_GROUPS_SINCE or hidden:
            wanted = ()
    if wanted is None:
        seen = sorted(p for p in stored if ctx.allows(Operation.DESCRIBE, ResourceType.TOPIC, p.topic))
        by_topic = groupby(seen, key=attrgetter("topic"))
        wanted = [(name, [each.partition for each in partitions]) for name, partitions in by_topic]
    if error:
        return _Found(error, wanted, stored)
    for name, _ in wanted:
        if refusal := ctx.denied(Operation.DESCRIBE, ResourceType.TOPIC, name):
            denied[name] = ctx.refused(refusal)
    if require_stable:
        named = [TopicPartition(name, p) for name, partitions in wanted for p in partitions]
        unstable = ctx.services.groups.offsets.unstable(group_id, named)
    return _Found(error, wanted, stored, unstable, denied)


@handles(
    ApiKey.OFFSET_DELETE, (0, 0), (Operation.DELETE, ResourceType.GROUP),
    (Operation.READ, ResourceType.TOPIC), takes_long=always,
)  # fmt: skip
def offset_delete(request: api.OffsetDeleteRequest, ctx: Context) -> api.OffsetDeleteResponse:
    """Delete a group's offsets, except of topics that a member reads."""
    codes: dict[TopicPartition, ErrorCode] = {}
    present: list[TopicPartition] = []
    if refusal := ctx.denied(Operation.DELETE, ResourceType.GROUP, request.group_id):
        return api.OffsetDeleteResponse(error_code=ctx.refused(refusal))
    for topic in request.topics:
        for wanted in topic.partitions:
            partition = TopicPartition(topic.name, wanted.partition_index)
            try:
                ctx.demand(Operation.READ, ResourceType.TOPIC, topic.name)
                ctx.services.logs.check_exists(partition)
                present.append(partition)
            except KafkaError as e:
                codes[partition] = ctx.refused(e)
    try:
        if not request.group_id:
            raise ServerError(ErrorCode.INVALID_GROUP_ID, "offsets are deleted of a group with a name")
        codes.update(ctx.services.groups.offsets.delete(request.group_id, present))
    except KafkaError as e:
        return api.OffsetDeleteResponse(error_code=ctx.refused(e))
    done = partial(api.OffsetDeleteResponse, error_code=ErrorCode.NONE)
    return codes_response(
        request, codes, done, api.OffsetDeleteResponseTopic, api.OffsetDeleteResponsePartition
    )
