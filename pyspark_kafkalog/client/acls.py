"""List, add and remove ACLs of a cluster. Without an authorizer: `ServerError` (SECURITY_DISABLED).

Functions take a `Cluster`, or ``bootstrap.servers`` for a single call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from pyspark_kafkalog.client.connection import Connection
from pyspark_kafkalog.client.discovery import Cluster, Where, cluster_at
from pyspark_kafkalog.client.retry import Deadline
from pyspark_kafkalog.errors import ErrorCode, InvalidRequest, error_for
from pyspark_kafkalog.protocol.api.acls import (
    AclCreation,
    CreateAclsRequest,
    DeleteAclsFilter,
    DeleteAclsRequest,
    DescribeAclsRequest,
)
from pyspark_kafkalog.protocol.exchange import ApiKey
from pyspark_kafkalog.security.acls import (
    Acl,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)

_PATTERNS_SINCE = 1
"""Before this version (Kafka 2.0) ACLs and filters have literal names only."""


def list_acls(
    where: Where, wanted: AclFilter | None = None, *, deadline: Deadline | None = None
) -> list[Acl]:
    """ACLs that match the filter, or all, sorted by resource."""
    with cluster_at(where) as cluster:
        request = DescribeAclsRequest(*(wanted or AclFilter()))
        answer = _ask(cluster, "listing ACLs", lambda _: request, deadline)
        _check("listing ACLs", [answer])
        return sorted(
            _acl(each.resource_type, each.resource_name, each.pattern_type, acl)
            for each in answer.resources
            for acl in each.acls
        )


def add_acls(where: Where, acls: Sequence[Acl], *, deadline: Deadline | None = None) -> None:
    """Add ACLs; existing ones stay. Raises `KafkaError` if one is refused; others may have been added."""
    with cluster_at(where) as cluster:
        request = CreateAclsRequest(tuple(AclCreation(*acl) for acl in acls))

        def checked(connection: Connection) -> CreateAclsRequest:
            _check_patterns(connection, any(acl.pattern_type is not PatternType.LITERAL for acl in acls))
            return request

        answer = _ask(cluster, "adding ACLs", checked, deadline)
        _check("adding ACLs", answer.results)


def remove_acls(where: Where, filters: Sequence[AclFilter], *, deadline: Deadline | None = None) -> list[Acl]:
    """Remove the ACLs that match any filter, and return them."""
    with cluster_at(where) as cluster:
        request = DeleteAclsRequest(tuple(DeleteAclsFilter(*each) for each in filters))
        answer = _ask(cluster, "removing ACLs", lambda _: request, deadline)
        _check("removing ACLs", answer.filter_results)
        found = [acl for each in answer.filter_results for acl in each.matching_acls]
        _check("removing ACLs", found)
        return sorted(
            {_acl(each.resource_type, each.resource_name, each.pattern_type, each) for each in found}
        )


def _ask(
    cluster: Cluster, doing: str, request: Callable[[Connection], Any], deadline: Deadline | None
) -> Any:
    def ask(limit: Deadline) -> Any:
        connection = cluster.any_connection(limit)
        return connection.request(request(connection), deadline=limit)

    return cluster.retrying(doing, deadline).run(ask)


def _check_patterns(connection: Connection, needed: bool) -> None:
    if needed and connection.version(ApiKey.CREATE_ACLS) < _PATTERNS_SINCE:
        raise InvalidRequest(f"{connection.peer}: prefixes need Kafka 2.0 or later")


def _acl(kind: int, name: str, pattern: int, entry: Any) -> Acl:
    return Acl(
        ResourceType(kind),
        name,
        PatternType(pattern),
        entry.principal,
        entry.host,
        Operation(entry.operation),
        Permission(entry.permission_type),
    )


def _check(doing: str, results: Iterable[Any]) -> None:
    """Raise the first failure, with the text of all."""
    failed = [each for each in results if each.error_code != ErrorCode.NONE]
    if failed:
        texts = dict.fromkeys(each.error_message or each.error_code.name for each in failed)
        raise error_for(failed[0].error_code, f"{doing}: {'; '.join(texts)}")
