"""ListGroups 0-5: all groups, with their states (4) and types (5). Left out: nothing."""

from __future__ import annotations

from kafkalog_broker.server.dispatch import Context, handles
from pyspark_kafkalog.errors import KafkaError
from pyspark_kafkalog.protocol.api.groups import ListedGroup, ListGroupsRequest, ListGroupsResponse
from pyspark_kafkalog.protocol.exchange import ApiKey
from pyspark_kafkalog.security.acls import CLUSTER_NAME, Operation, ResourceType
from pyspark_kafkalog.steps import Steps


@handles(
    ApiKey.LIST_GROUPS,
    versions=(0, 5),
    needs=((Operation.DESCRIBE, ResourceType.CLUSTER), (Operation.DESCRIBE, ResourceType.GROUP)),
)
def list_groups(request: ListGroupsRequest, ctx: Context) -> Steps[ListGroupsResponse]:
    """Answered from memory, in order; COORDINATOR_LOAD_IN_PROGRESS until all have been read."""
    states = {word.lower() for word in request.states_filter}
    kinds = {word.lower() for word in request.types_filter}  # unknown words are no error: they match nothing
    try:
        groups = ctx.services.groups.groups()
    except KafkaError as e:
        return ListGroupsResponse(error_code=ctx.refused(e))
    yield None
    everything = ctx.allows(Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME)
    return ListGroupsResponse(
        groups=tuple(
            ListedGroup(each.group, each.protocol_type, each.state, each.kind)
            for each in groups
            if (not states or each.state.lower() in states)
            and (not kinds or each.kind in kinds)
            and (everything or ctx.allows(Operation.DESCRIBE, ResourceType.GROUP, each.group))
        )
    )
