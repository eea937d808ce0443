"""ListGroups 0-4: the groups that have stored offsets. None has members, so all are in state "Empty"."""

from __future__ import annotations

from broker.server.dispatch import Context, handles
from pyspark_kafkalog.errors import KafkaError
from pyspark_kafkalog.protocol.api.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse
from pyspark_kafkalog.protocol.exchange import ApiKey

EMPTY = "Empty"
"""The state of a group that has offsets and no members."""


@handles(ApiKey.LIST_GROUPS, versions=(0, 4))
def list_groups(request: ListGroupsRequest, ctx: Context) -> ListGroupsResponse:
    """Answered from memory, in order; COORDINATOR_LOAD_IN_PROGRESS until all have been read."""
    # Kafka compares states without regard to case, and knows none that would be an error.
    if request.states_filter and EMPTY.lower() not in {state.lower() for state in request.states_filter}:
        return ListGroupsResponse()
    try:
        names = ctx.services.offsets.groups()
    except KafkaError as e:
        return ListGroupsResponse(error_code=ctx.refused(e))
    return ListGroupsResponse(groups=tuple(ListedGroup(name, "", EMPTY) for name in names))
