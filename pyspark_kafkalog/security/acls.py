"""Kafka's ACLs: resources, patterns, operations and filters. Pure.

Source: KIP-11, KIP-140, KIP-290; ``org.apache.kafka.common.acl`` and ``resource``.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple, TypeVar

CLUSTER_NAME = "kafka-cluster"
WILDCARD = "*"  # as a literal name every resource of the type; as a host every host
EVERYBODY = "User:*"


class _Named(IntEnum):
    @property
    def word(self) -> str:
        """As in ZooKeeper and Kafka's tools: ``TransactionalId``."""
        return self.name.title().replace("_", "")


class ResourceType(_Named):
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(_Named):
    """MATCH, for filters: literal names, wildcards and prefixes that match a name."""

    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Operation(_Named):
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12


class Permission(_Named):
    ANY = 1
    DENY = 2
    ALLOW = 3


_N = TypeVar("_N", bound=_Named)


def parse_word(kind: type[_N], text: str) -> _N:
    """Parse ``TransactionalId`` or ``transactional-id`` in any case. `ValueError` lists known words."""
    wanted = text.replace("_", "").replace("-", "").lower()
    for each in kind:
        if each.word.lower() == wanted:
            return each
    raise ValueError(f"{text[:100]!r} is not one of {', '.join(each.word for each in kind)}")


class Acl(NamedTuple):
    resource_type: ResourceType
    name: str
    pattern_type: PatternType
    principal: str
    host: str
    operation: Operation
    permission: Permission

    def __str__(self) -> str:
        return (
            f"{self.permission.word} {self.principal} from {self.host}: {self.operation.word} on "
            f"{self.resource_type.word} {self.name!r} ({self.pattern_type.word})"
        )


class AclFilter(NamedTuple):
    """Selects ACLs; None and ANY match all."""

    resource_type: ResourceType = ResourceType.ANY
    name: str | None = None
    pattern_type: PatternType = PatternType.ANY
    principal: str | None = None
    host: str | None = None
    operation: Operation = Operation.ANY
    permission: Permission = Permission.ANY

    def matches(self, acl: Acl) -> bool:
        return (
            self.resource_type in (ResourceType.ANY, acl.resource_type)
            and self._matches_name(acl)
            and self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and self.operation in (Operation.ANY, acl.operation)
            and self.permission in (Permission.ANY, acl.permission)
        )

    def _matches_name(self, acl: Acl) -> bool:
        if self.pattern_type is PatternType.MATCH:
            if self.name is None:
                return True
            if acl.pattern_type is PatternType.PREFIXED:
                return self.name.startswith(acl.name)
            return acl.name in (self.name, WILDCARD)
        return self.pattern_type in (PatternType.ANY, acl.pattern_type) and self.name in (None, acl.name)
