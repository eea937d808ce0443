"""Authorization: the stored ACLs, super users, and a log of denials."""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterable, Sequence
from itertools import chain

from kafkalog_broker.metrics import Metrics
from kafkalog_broker.security.acl_rules import AclRules
from kafkalog_broker.security.authentication import Principal, Session
from kafkalog_broker.security.file_stores import AclStore
from pyspark_kafkalog.errors import ErrorCode, KafkaError, ServerError
from pyspark_kafkalog.protocol.exchange import ApiKey
from pyspark_kafkalog.security.acls import Acl, AclFilter, Operation, ResourceType

MAX_ACLS = 20_000
"""Limit of stored ACLs, as each change writes all of them to ``security.json``."""

_DENIALS = {
    ResourceType.TOPIC: (ErrorCode.TOPIC_AUTHORIZATION_FAILED, "Topic authorization failed."),
    ResourceType.GROUP: (ErrorCode.GROUP_AUTHORIZATION_FAILED, "Group authorization failed."),
    ResourceType.TRANSACTIONAL_ID: (
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        "Transactional Id authorization failed.",
    ),
}
_CLUSTER_DENIAL = (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "Cluster authorization failed.")

_audit_log = logging.getLogger("kafkalog_broker.authorizer")


def denial(resource_type: ResourceType) -> KafkaError:
    """The error for a denied operation on a resource of this type."""
    return ServerError(*_DENIALS.get(resource_type, _CLUSTER_DENIAL))


class Authorizer:
    """*Thread-safe: ``_lock`` is held over a change; decisions use the last rules, an immutable object.* A
    change is durable and in effect when the call returns.
    """

    def __init__(
        self,
        kept: AclStore,
        metrics: Metrics,
        *,
        super_users: Iterable[Principal] = (),
        allow_without_acl: bool = False,
    ) -> None:
        self._kept = kept
        self._metrics = metrics
        self._super_users = frozenset(super_users)
        self._allow_without_acl = allow_without_acl
        self._lock = threading.Lock()
        self._rules = AclRules((), allow_without_acl=allow_without_acl)

    @property
    def acls(self) -> frozenset[Acl]:
        return self._rules.acls

    def load(self) -> None:
        """Use the stored ACLs, and follow their changes. Raises `KafkaError`: they cannot be read."""

        def take_over(acls: frozenset[Acl]) -> None:
            self._rules = AclRules(acls, allow_without_acl=self._allow_without_acl)

        self._kept.start(take_over)

    def allows(
        self,
        session: Session,
        operation: Operation,
        resource_type: ResourceType,
        name: str,
        request: int | str,
        *,
        audited: bool = True,
    ) -> bool:
        """Whether this client may do that; logs a denial of ``request`` (API or name) if ``audited``."""
        principal = session.principal
        allowed = principal in self._super_users or self._rules.allow(
            principal, session.host, operation, resource_type, name
        )
        if audited and (not allowed or _audit_log.isEnabledFor(logging.DEBUG)):
            self._audit(allowed, session, (operation, resource_type, name), request)
        return allowed

    def allows_any(self, session: Session, operation: Operation, resource_type: ResourceType) -> bool:
        """Whether it may do that with any resource of the type, even one that does not exist yet."""
        principal = session.principal
        return principal in self._super_users or self._rules.allow_any(
            principal, session.host, operation, resource_type
        )

    def operations(self, session: Session, known: int, resource_type: ResourceType, name: str) -> int:
        """The subset of the ``known`` operations that this client may do; both are bit sets."""
        return sum(
            1 << operation
            for operation in Operation
            if known >> operation & 1
            and self.allows(session, operation, resource_type, name, "", audited=False)
        )

    def add(self, acls: Collection[Acl]) -> None:
        """Raises `ServerError`: more than `MAX_ACLS`, or ZooKeeper does not answer; `StorageError`: nothing
        has changed.
        """
        with self._lock:
            before = self._rules.acls
            if len(before.union(acls)) > max(MAX_ACLS, len(before)):
                raise ServerError(ErrorCode.POLICY_VIOLATION, f"this broker keeps at most {MAX_ACLS} ACLs")
            self._kept.change(acls, ())

    def remove(self, filters: Sequence[AclFilter]) -> list[list[Acl]]:
        """Remove the matching ACLs; returns them for each filter. Raises as `add`."""
        with self._lock:
            found = [sorted(filter(each.matches, self._rules.acls)) for each in filters]
            self._kept.change((), frozenset(chain(*found)))
            return found

    def _audit(
        self,
        allowed: bool,
        session: Session,
        access: tuple[Operation, ResourceType, str],
        request: int | str,
    ) -> None:
        operation, resource_type, name = access
        if not allowed:
            self._metrics.authorization_denials(resource_type.word, operation.word).inc()
        api = request if isinstance(request, str) else ApiKey(request).name.title().replace("_", "")
        _audit_log.log(
            logging.DEBUG if allowed else logging.INFO,
            "Principal = %s is %s operation = %s from host = %s on resource = %s:LITERAL:%s for request = %s",
            _one_line(str(session.principal)), "Allowed" if allowed else "Denied", operation.name,
            session.host, resource_type.word, _one_line(name), api,
        )  # fmt: skip


def _one_line(text: str) -> str:
    """Escape names, which clients choose, so that none can forge a log entry."""
    return text if text.isprintable() else repr(text)
