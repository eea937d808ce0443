"""ListGroups 0-5: the groups that have stored offsets. None has members, so all are in state "Empty"."""

from __future__ import annotations

from broker.server.dispatch import Context, handles
from pyspark_kafkalog.errors import KafkaError
from pyspark_kafkalog.protocol.api.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse
from pyspark_kafkalog.protocol.exchange import ApiKey

EMPTY = "Empty"
"""The state of a group that has offsets and no members."""

CLASSIC = "classic"
"""The type of a group that no member of the newer protocol has joined."""


@handles(ApiKey.LIST_GROUPS, versions=(0, 5))
def list_groups(request: ListGroupsRequest, ctx: Context) -> ListGroupsResponse:
    """Answered from memory, in order; COORDINATOR_LOAD_IN_PROGRESS until all have been read."""
    if not (_asked_for(EMPTY, request.states_filter) and _asked_for(CLASSIC, request.types_filter)):
        return ListGroupsResponse()
    try:
        names = ctx.services.offsets.groups()
    except KafkaError as e:
        return ListGroupsResponse(error_code=ctx.refused(e))
    return ListGroupsResponse(groups=tuple(ListedGroup(name, "", EMPTY, CLASSIC) for name in names))


def _asked_for(word: str, words: tuple[str, ...]) -> bool:
    """As Kafka compares: without regard to case, and unknown words are no error."""
    return not words or word.lower() in {other.lower() for other in words}
