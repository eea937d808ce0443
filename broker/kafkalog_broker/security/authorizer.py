"""Authorization: decisions by ACLs, super users, and a log of denials.

A matching denial wins; otherwise a permission is needed. An ACL matches the principal or ``User:*``, the
client's host or ``*``, and the resource by name, ``*`` or prefix. Permission to read, write, delete or alter
implies describe, and permission to alter properties implies describing them; denials imply nothing. Source:
``StandardAuthorizer``.
"""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain

from kafkalog_broker.metrics import Metrics
from kafkalog_broker.security.authentication import Principal, Session
from kafkalog_broker.security.file_stores import AclStore
from pyspark_kafkalog.errors import ErrorCode, KafkaError, ServerError
from pyspark_kafkalog.protocol.exchange import ApiKey
from pyspark_kafkalog.security.acls import (
    EVERYBODY,
    WILDCARD,
    Acl,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)

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

_IMPLYING = {
    Operation.DESCRIBE: {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER},
    Operation.DESCRIBE_CONFIGS: {Operation.ALTER_CONFIGS},
}
_ALLOWED_BY = {each: frozenset({each, Operation.ALL, *_IMPLYING.get(each, ())}) for each in Operation}
"""The permitted operations that allow each operation."""

_KEPT_DECISIONS = 10_000
_KEPT_NAME = 249
"""Decisions on longer names than a topic can have are not cached: clients choose them."""

_audit_log = logging.getLogger("kafkalog_broker.authorizer")


def denial(resource_type: ResourceType) -> KafkaError:
    return ServerError(*_DENIALS.get(resource_type, _CLUSTER_DENIAL))


class Authorizer:
    """*Thread-safe: ``_lock`` is held over a change; decisions use the last rules, which never change.*"""

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
        """Raises `ServerError`: too many, or ZooKeeper is away; `StorageError`: nothing has changed."""
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
        self, allowed: bool, session: Session, access: tuple[Operation, ResourceType, str], request: int | str
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


class AclRules:
    """*Thread-safe: its ACLs never change, and each cached decision is put in whole.*"""

    def __init__(self, acls: Iterable[Acl], *, allow_without_acl: bool = False) -> None:
        """``allow_without_acl`` allows everything on resources that no ACL matches."""
        self.acls = frozenset(acls)
        self._allow_without_acl = allow_without_acl
        self._literal: dict[tuple[ResourceType, str], list[Acl]] = defaultdict(list)
        self._prefixed: dict[tuple[ResourceType, str], list[Acl]] = defaultdict(list)
        for acl in self.acls:
            is_prefix = acl.pattern_type is PatternType.PREFIXED
            (self._prefixed if is_prefix else self._literal)[acl.resource_type, acl.name].append(acl)
        self._lengths = sorted({len(name) for _, name in self._prefixed})
        self._decisions: dict[tuple[Principal, str, Operation, ResourceType, str], bool] = {}

    def allow(
        self, principal: Principal, host: str, operation: Operation, resource_type: ResourceType, name: str
    ) -> bool:
        key = principal, host, operation, resource_type, name
        decision = self._decisions.get(key)
        if decision is None:
            if len(name) > _KEPT_NAME:
                return self._decide(str(principal), *key[1:])
            if len(self._decisions) >= _KEPT_DECISIONS:
                self._decisions.clear()
            decision = self._decisions[key] = self._decide(str(principal), *key[1:])
        return decision

    def allow_any(
        self, principal: Principal, host: str, operation: Operation, resource_type: ResourceType
    ) -> bool:
        """Whether there can be a resource of the type with which the principal may do this."""
        if self._allow_without_acl and not self._literal.get((resource_type, WILDCARD)):
            return True  # with a resource that no ACL matches
        acls = [
            acl
            for acl in self.acls
            if acl.resource_type is resource_type
            and acl.principal in (str(principal), EVERYBODY)
            and acl.host in (host, WILDCARD)
            and acl.operation in (operation, Operation.ALL)
        ]
        denied = {(acl.pattern_type, acl.name) for acl in acls if acl.permission is Permission.DENY}
        return (PatternType.LITERAL, WILDCARD) not in denied and any(
            acl.permission is Permission.ALLOW and not _is_denied(acl, denied) for acl in acls
        )

    def _decide(
        self, principal: str, host: str, operation: Operation, resource_type: ResourceType, name: str
    ) -> bool:
        allowed = False
        touched = False
        for acl in self._touching(resource_type, name):
            touched = True
            if acl.principal not in (principal, EVERYBODY) or acl.host not in (host, WILDCARD):
                continue
            if acl.permission is Permission.DENY:
                if acl.operation in (operation, Operation.ALL):
                    return False
            elif acl.operation in _ALLOWED_BY[operation]:
                allowed = True
        return allowed or (self._allow_without_acl and not touched)

    def _touching(self, resource_type: ResourceType, name: str) -> Iterator[Acl]:
        names = dict.fromkeys((name, WILDCARD))
        return chain(
            *(self._literal.get((resource_type, each), ()) for each in names),
            *(
                self._prefixed.get((resource_type, name[:length]), ())
                for length in self._lengths
                if length <= len(name)
            ),
        )


def _is_denied(allowing: Acl, denied: set[tuple[PatternType, str]]) -> bool:
    name = allowing.name
    if allowing.pattern_type is PatternType.LITERAL:
        if name == WILDCARD:
            return False
        if (PatternType.LITERAL, name) in denied:
            return True
    return any((PatternType.PREFIXED, name[:length]) in denied for length in range(1, len(name) + 1))
