"""Which broker looks after a group or a transactional id, and the connection to it."""

from __future__ import annotations

from typing import Any

from pyspark_kafkalog.client.connection import Connection
from pyspark_kafkalog.client.discovery import Cluster
from pyspark_kafkalog.client.retry import Deadline
from pyspark_kafkalog.errors import ErrorCode, InvalidRequest, error_for
from pyspark_kafkalog.protocol.api.find_coordinator import CoordinatorType, FindCoordinatorRequest
from pyspark_kafkalog.protocol.exchange import ApiKey

_KEYS_VERSION = 4
"""From this version on FindCoordinator looks up lists of keys."""

_CALLED = {CoordinatorType.GROUP: "group", CoordinatorType.TRANSACTION: "transactional id"}


def coordinator(cluster: Cluster, kind: CoordinatorType, key: str, deadline: Deadline) -> Connection:
    """A connection to the broker that looks after ``key``, looked up once; the caller repeats.

    Raises:
        ServerError: COORDINATOR_NOT_AVAILABLE and its like.
        ConnectionLost: no broker, or not this one, can be reached.
    """
    asked = cluster.any_connection(deadline)
    if asked.served(ApiKey.FIND_COORDINATOR) is None and asked.served(ApiKey.OFFSET_COMMIT) is not None:
        return asked  # 0.8.1 keeps offsets in ZooKeeper, and any broker gets there
    node_id = find_coordinator(cluster, kind, key, deadline)
    return cluster.connection(node_id, deadline)


def find_coordinator(cluster: Cluster, kind: CoordinatorType, key: str, deadline: Deadline) -> int:
    """The node that looks after ``key``; ``cluster`` knows its address then. Raises as `coordinator`."""
    asked = cluster.any_connection(deadline)
    batched = asked.version(ApiKey.FIND_COORDINATOR) >= _KEYS_VERSION
    request = (
        FindCoordinatorRequest(key_type=kind, coordinator_keys=(key,))
        if batched
        else FindCoordinatorRequest(key, kind)
    )
    answer = asked.request(request, deadline=deadline)
    found: Any = next((c for c in answer.coordinators if c.key == key), None) if batched else answer
    what = f"{_CALLED[kind]} {key!r}"
    if found is None:
        raise InvalidRequest(f"{asked.peer}: the answer to FindCoordinator leaves out {what}")
    if found.error_code != ErrorCode.NONE:
        why = found.error_message or found.error_code.name
        raise error_for(found.error_code, f"{asked.peer}: no coordinator for {what}: {why}")
    if found.node_id not in cluster.metadata([], deadline=deadline).brokers:
        cluster.metadata([], refresh=True, deadline=deadline)
    return int(found.node_id)
