"""DeleteTopics 0-6: by name, from version 6 also by id. Offsets that groups stored for a topic go with it."""

from __future__ import annotations

from functools import partial
from uuid import UUID

from kafkalog_broker.server.dispatch import Context, handles
from pyspark_kafkalog.errors import ErrorCode, InvalidRequest, KafkaError, ServerError
from pyspark_kafkalog.protocol.api.topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from pyspark_kafkalog.protocol.exchange import ApiKey
from pyspark_kafkalog.security.acls import CLUSTER_NAME, Operation, ResourceType
from pyspark_kafkalog.steps import Steps

_BY_ID_SINCE = 6
_DISABLED_SINCE = 3
_NO_ID = UUID(int=0)


@handles(
    ApiKey.DELETE_TOPICS,
    versions=(0, 6),
    needs=(
        (Operation.DELETE, ResourceType.CLUSTER),
        (Operation.DELETE, ResourceType.TOPIC),
        (Operation.DESCRIBE, ResourceType.TOPIC),
    ),
)
def delete_topics(request: DeleteTopicsRequest, ctx: Context) -> Steps[DeleteTopicsResponse]:
    """A result for each topic, in the order of the request."""
    if ctx.version >= _BY_ID_SINCE:
        wanted = request.topics
    else:
        wanted = tuple(DeleteTopicState(name=name) for name in request.topic_names)
    responses = []
    for topic in wanted:
        responses.append((yield from _delete(topic, ctx)))
        yield None
    return DeleteTopicsResponse(responses=tuple(responses))


def _delete(wanted: DeleteTopicState, ctx: Context) -> Steps[DeletableTopicResult]:
    services = ctx.services
    name, topic_id = wanted.name, wanted.topic_id
    answered = name
    try:
        if not services.config.delete_topic_enable:
            old = ctx.version < _DISABLED_SINCE
            code = ErrorCode.INVALID_REQUEST if old else ErrorCode.TOPIC_DELETION_DISABLED
            raise ServerError(code, "delete.topic.enable is false")
        everything = ctx.allows(Operation.DELETE, ResourceType.CLUSTER, CLUSTER_NAME)
        if name is not None and topic_id != _NO_ID:
            raise InvalidRequest("a topic is deleted by its name or by its id, not by both")
        if name is None:
            name = services.topics.name_of(topic_id)
            # The name of a topic that it knows by its id only is for those who may see it.
            answered = name if ctx.allows(Operation.DESCRIBE, ResourceType.TOPIC, name) else None
        if not everything:
            ctx.demand(Operation.DELETE, ResourceType.TOPIC, name)
        topic_id = services.topics.get(name).topic_id
        yield from services.topics.deleting(name, partial(_goes_too, name, ctx))
    except KafkaError as e:
        return DeletableTopicResult(
            name=answered, topic_id=wanted.topic_id, error_code=ctx.refused(e), error_message=str(e)
        )
    return DeletableTopicResult(name=name, topic_id=topic_id, error_code=ErrorCode.NONE)


def _goes_too(name: str, ctx: Context) -> Steps[None]:
    ctx.services.fetches.changed(name)
    yield from ctx.services.groups.offsets.forgetting_topic(name)
