"""Storage of ACLs, and checks of new ones."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from kafkalog_broker.security.security_file import SecurityFile
from pyspark_kafkalog.errors import InvalidConfig
from pyspark_kafkalog.security.acls import (
    CLUSTER_NAME,
    Acl,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    parse_word,
)

_FIELDS = ("resourceType", "name", "patternType", "principal", "host", "operation", "permissionType")

Publish = Callable[[frozenset[Acl]], object]
"""Called with all stored ACLs after each change."""


class AclStore(Protocol):
    """*Thread-safe.* Durable storage of ACLs."""

    def start(self, publish: Publish) -> None:
        """Publish the stored ACLs, and each later change. Raises `KafkaError`: they cannot be read."""
        ...

    def change(self, added: Collection[Acl], removed: Collection[Acl]) -> None:
        """Add and remove ACLs, durably and published on return. Raises `KafkaError`."""
        ...


class FileAcls:
    """*Thread-safe: ``_lock`` is held over a change and its publication.* ACLs in ``security.json``."""

    def __init__(self, file: SecurityFile) -> None:
        self._file = file
        self._lock = threading.Lock()
        self._acls: frozenset[Acl] = frozenset()
        self._publish: Publish = lambda _acls: None

    def start(self, publish: Publish) -> None:
        with self._lock:
            self._publish = publish
            self._acls = acls_in(self._file)
            publish(self._acls)

    def change(self, added: Collection[Acl], removed: Collection[Acl]) -> None:
        with self._lock:
            after = self._acls.union(added).difference(removed)
            if after == self._acls:
                return
            texts = tuple(map(_as_text, sorted(after)))
            self._file.change(lambda kept: kept._replace(acls=texts))
            self._acls = after
            self._publish(after)


def acls_in(file: SecurityFile) -> frozenset[Acl]:
    """The ACLs in the file. Raises `InvalidConfig`: one is malformed."""
    return frozenset(map(_parsed, file.kept.acls))


def check_new(acl: Acl) -> None:
    """Raises `ValueError` for an ACL that makes no sense."""
    if not acl.name:
        raise ValueError("Invalid empty resource name")
    if acl.resource_type is ResourceType.ANY:
        raise ValueError("Invalid resourceType ANY")
    if acl.resource_type is ResourceType.CLUSTER and acl.name != CLUSTER_NAME:
        raise ValueError(f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}")
    if acl.pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
        raise ValueError(f"Invalid patternType {acl.pattern_type.name}")
    if acl.operation is Operation.ANY:
        raise ValueError("Invalid operation ANY")
    if acl.permission is Permission.ANY:
        raise ValueError("Invalid permissionType ANY")
    if ":" not in acl.principal:
        raise ValueError(f"Could not parse principal from `{acl.principal}` (no colon is present)")
    if not acl.host:
        raise ValueError("Invalid empty host")


def _parsed(texts: Mapping[str, str]) -> Acl:
    try:
        kind, name, pattern, principal, host, operation, permission = (texts[field] for field in _FIELDS)
        acl = Acl(
            parse_word(ResourceType, kind),
            name,
            parse_word(PatternType, pattern),
            principal,
            host,
            parse_word(Operation, operation),
            parse_word(Permission, permission),
        )
        check_new(acl)
    except (KeyError, ValueError) as e:
        raise InvalidConfig(f"security.json has an ACL that is none: {dict(texts)!r}: {e}") from e
    return acl


def _as_text(acl: Acl) -> dict[str, str]:
    values = (
        acl.resource_type.word,
        acl.name,
        acl.pattern_type.word,
        acl.principal,
        acl.host,
        acl.operation.word,
        acl.permission.word,
    )
    return dict(zip(_FIELDS, values, strict=True))
