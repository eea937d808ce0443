"""FindCoordinator 0-4: the owner of the partition of ``__consumer_offsets`` that keeps the group, or of that
of ``__transaction_state`` that keeps the transactional id. Left out: share groups.
"""

from __future__ import annotations

from kafkalog_broker.cluster.ownership import RegisteredElsewhere
from kafkalog_broker.server.dispatch import Context, handles
from kafkalog_broker.server.handlers.metadata import live_brokers
from pyspark_kafkalog.errors import (
    CoordinatorLoading,
    ErrorCode,
    InvalidRequest,
    KafkaError,
    ServerError,
    StorageError,
)
from pyspark_kafkalog.protocol.api.metadata import (
    Coordinator,
    CoordinatorType,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from pyspark_kafkalog.protocol.exchange import ApiKey
from pyspark_kafkalog.security.acls import Operation, ResourceType
from pyspark_kafkalog.steps import Steps

_BATCHED_SINCE = 4
_A_STEP = 100
"""So many coordinators are found between two turns of others."""


@handles(
    ApiKey.FIND_COORDINATOR,
    versions=(0, 4),
    needs=((Operation.DESCRIBE, ResourceType.GROUP), (Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID)),
)
def find_coordinator(request: FindCoordinatorRequest, ctx: Context) -> Steps[FindCoordinatorResponse]:
    """One coordinator before version 4, one for each key from then on."""
    if ctx.version >= _BATCHED_SINCE:
        found = []
        for key in request.coordinator_keys:
            found.append((yield from _find(key, request.key_type, ctx)))
            if not len(found) % _A_STEP:
                yield None
        return FindCoordinatorResponse(coordinators=tuple(found))
    one = yield from _find(request.key, request.key_type, ctx)
    return FindCoordinatorResponse(
        error_code=one.error_code,
        error_message=one.error_message,
        node_id=one.node_id,
        host=one.host,
        port=one.port,
    )


def _find(key: str, key_type: int, ctx: Context) -> Steps[Coordinator]:
    services = ctx.services
    number, brokers = services.config.node_id, live_brokers(ctx)
    try:
        if key_type not in (CoordinatorType.GROUP, CoordinatorType.TRANSACTION):
            raise InvalidRequest(
                f"key type {key_type}: this broker coordinates groups (0) and transactions (1) only"
            )
        kind = ResourceType.GROUP if key_type == CoordinatorType.GROUP else ResourceType.TRANSACTIONAL_ID
        ctx.demand(Operation.DESCRIBE, kind, key)
        keeper = services.groups if key_type == CoordinatorType.GROUP else services.transactions
        if services.brought_offsets is not None and key_type == CoordinatorType.GROUP:
            services.brought_offsets.check_tried(key)
        try:
            if not keeper.opened:
                yield keeper.open  # in a cluster it asks ZooKeeper
            partition = keeper.partition_of(key)
            if services.ownership is not None:
                number = services.ownership.owner_of(partition)
                if number == services.config.node_id:
                    services.ownership.check(partition)
        except (StorageError, CoordinatorLoading, RegisteredElsewhere) as e:
            # Clients ask again after this code; a storage error they take for final.
            raise ServerError(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(e)) from e
        if number not in brokers:
            raise ServerError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE, f"broker {number}, who coordinates {key!r}, is away"
            )
    except KafkaError as e:
        return Coordinator(
            key=key, node_id=-1, host="", port=-1, error_code=ctx.refused(e), error_message=str(e)
        )
    host, port = brokers[number]
    return Coordinator(key=key, node_id=number, host=host, port=port)
