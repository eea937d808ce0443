"""Decisions by a set of ACLs, as Kafka's authorizer takes them. Pure.

A matching denial wins; otherwise a permission is needed. An ACL matches the principal or ``User:*``, the
client's host or ``*``, and the resource by name, ``*`` or prefix. Permission to read, write, delete or alter
implies describe, and permission to alter properties implies describing them; denials imply nothing.
Source: ``StandardAuthorizer``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import chain

from kafkalog_broker.security.authentication import Principal
from pyspark_kafkalog.security.acls import (
    EVERYBODY,
    WILDCARD,
    Acl,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)

_ALLOWED_BY = {
    operation: frozenset({operation, Operation.ALL})
    for operation in Operation
} | {
    Operation.DESCRIBE: frozenset(
        {
            Operation.DESCRIBE,
            Operation.ALL,
            Operation.READ,
            Operation.WRITE,
            Operation.DELETE,
            Operation.ALTER,
        }
    ),
    Operation.DESCRIBE_CONFIGS: frozenset(
        {Operation.DESCRIBE_CONFIGS, Operation.ALL, Operation.ALTER_CONFIGS}
    ),
}  # fmt: skip
"""The permitted operations that allow each operation."""

_KEPT_DECISIONS = 10_000
_KEPT_NAME = 249
"""Decisions on longer names than a topic can have are not cached: clients choose them."""


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
