"""The znodes of SCRAM users and ACLs, as Apache Kafka before 4 reads and writes them. Pure.

Below the prefix of `JsonLayout`, all persistent:

* ``/config/users/<user>``, the name as in a URL: JSON with version 1 and config, in which a mechanism's name
  has ``salt=...,stored_key=...,server_key=...,iterations=4096``; quotas stand there too
* ``/config/changes/config_change_<n>``, in sequence: JSON with version 2 and entity_path, ``users/<user>``
* ``/kafka-acl/<type>/<name>``: JSON with version 1 and acls, each with principal, permissionType, operation,
  host
* ``/kafka-acl-changes/acl_changes_<n>``, in sequence: ``<TYPE>:<name>``
* ``/kafka-acl-extended/prefixed/<type>/<name>``: the same as above of resources whose names begin so
* ``/kafka-acl-extended-changes/acl_changes_<n>``, in sequence: JSON with version 1, resourceType, name,
  patternType

A ``<type>`` is Topic, Group, Cluster, TransactionalId, DelegationToken or User. Source: kafka 3.9
``zk/ZkData.scala``, ``common/ZkNodeChangeNotificationListener.scala``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from pyspark_kafkalog.config.zookeeper import znode_name
from pyspark_kafkalog.errors import InvalidConfig
from pyspark_kafkalog.security.acls import (
    Acl,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    parse_word,
)
from pyspark_kafkalog.zookeeper.paths import JsonLayout, MalformedNode, json_bytes, json_object, text_of

CHANGES_KEPT_MS = 15 * 60 * 1000
"""A broker that was away for longer reads everything again, so older nodes in sequence may be removed."""

_RESOURCES = tuple(each for each in ResourceType if each is not ResourceType.ANY)


class Resource(NamedTuple):
    """What one znode's ACLs are about."""

    resource_type: ResourceType
    name: str
    pattern_type: PatternType

    def __str__(self) -> str:
        return f"{self.resource_type.word} {self.name!r} ({self.pattern_type.word})"


def resource_of(acl: Acl) -> Resource:
    return Resource(acl.resource_type, acl.name, acl.pattern_type)


class SecurityNodes:
    """Paths below a layout's prefix."""

    def __init__(self, layout: JsonLayout) -> None:
        root = layout.prefix
        self.users = f"{root}/config/users"
        self.user_changes = f"{root}/config/changes"
        self.new_user_change = f"{self.user_changes}/config_change_"
        self._acls = {
            PatternType.LITERAL: f"{root}/kafka-acl",
            PatternType.PREFIXED: f"{root}/kafka-acl-extended/prefixed",
        }
        self.acl_changes = {
            PatternType.LITERAL: f"{root}/kafka-acl-changes",
            PatternType.PREFIXED: f"{root}/kafka-acl-extended-changes",
        }

    def user(self, name: str) -> str:
        """Raises `InvalidConfig`: no znode can have that name."""
        return f"{self.users}/{_checked(_quoted(name))}"

    def user_name(self, child: str) -> str:
        """The user whose znode this child of `users` is."""
        return unquote(child)

    def acl_parents(self) -> dict[str, tuple[ResourceType, PatternType]]:
        """The znodes whose children are resources."""
        return {
            f"{path}/{kind.word}": (kind, pattern)
            for pattern, path in self._acls.items()
            for kind in _RESOURCES
        }

    def acls(self, resource: Resource) -> str:
        """Raises `InvalidConfig`: no znode can have the resource's name, which Kafka does not encode."""
        path = self._acls[resource.pattern_type]
        return f"{path}/{resource.resource_type.word}/{_checked(resource.name)}"

    def new_acl_change(self, resource: Resource) -> str:
        return f"{self.acl_changes[resource.pattern_type]}/acl_changes_"

    def parents(self) -> list[str]:
        """Znodes that exist wherever Kafka has been."""
        return [self.users, self.user_changes, *self.acl_changes.values(), *self.acl_parents()]


def read_user(data: bytes) -> dict[str, Any]:
    """A user's properties: credentials by mechanism, and others that are not ours. Holds secrets."""
    try:
        config = json_object(text_of(data, "a user"), "a user").get("config")
    except MalformedNode:
        config = None
    if not isinstance(config, dict):
        raise MalformedNode("a user", b"***")
    return config


def write_user(config: Mapping[str, Any]) -> bytes:
    return json_bytes({"version": 1, "config": config})


def read_user_change(data: bytes) -> str | None:
    """The user whose properties have changed; None if they are somebody else's."""
    fields = json_object(text_of(data, "a change"), "a change")
    if fields.get("version") == 1:
        return unquote(str(fields.get("entity_name"))) if fields.get("entity_type") == "users" else None
    kind, _, name = str(fields.get("entity_path")).partition("/")
    return unquote(name) if kind == "users" and name and "/" not in name else None


def write_user_change(name: str) -> bytes:
    return json_bytes({"version": 2, "entity_path": f"users/{_quoted(name)}"})


def read_acls(resource: Resource, data: bytes) -> frozenset[Acl]:
    """The ACLs of a resource. Raises `MalformedNode`: one of them is none."""
    what = f"the ACLs of {resource}"
    entries = json_object(text_of(data, what), what).get("acls")
    try:
        if not isinstance(entries, list):
            raise ValueError
        return frozenset(
            Acl(
                *resource,
                _text(entry, "principal"),
                _text(entry, "host"),
                parse_word(Operation, _text(entry, "operation")),
                parse_word(Permission, _text(entry, "permissionType")),
            )
            for entry in entries
        )
    except ValueError:
        raise MalformedNode(what, data) from None


def write_acls(acls: Iterable[Acl]) -> bytes:
    """The value for ACLs of one resource."""
    entries = [
        {
            "principal": acl.principal,
            "permissionType": acl.permission.word,
            "operation": acl.operation.word,
            "host": acl.host,
        }
        for acl in sorted(acls)
    ]
    return json_bytes({"version": 1, "acls": entries})


def read_acl_change(pattern_type: PatternType, data: bytes) -> Resource:
    """The resource whose ACLs have changed, from a znode of that pattern's changes."""
    text = text_of(data, "a change of ACLs")
    try:
        if pattern_type is PatternType.LITERAL:
            kind, _, name = text.partition(":")
            return Resource(parse_word(ResourceType, kind), name, pattern_type)
        fields = json_object(text, "a change of ACLs")
        found = Resource(
            parse_word(ResourceType, _text(fields, "resourceType")),
            _text(fields, "name"),
            parse_word(PatternType, _text(fields, "patternType")),
        )
        if found.pattern_type is not pattern_type:
            raise ValueError
        return found
    except ValueError:
        raise MalformedNode("a change of ACLs", data) from None


def write_acl_change(resource: Resource) -> bytes:
    if resource.pattern_type is PatternType.LITERAL:
        return f"{resource.resource_type.name}:{resource.name}".encode()
    return json_bytes(
        {
            "version": 1,
            "resourceType": resource.resource_type.name,
            "name": resource.name,
            "patternType": resource.pattern_type.name,
        }
    )


def _text(fields: Any, name: str) -> str:
    value = fields.get(name) if isinstance(fields, dict) else None
    if not isinstance(value, str):
        raise ValueError(name)
    return value


def _quoted(name: str) -> str:
    """As Kafka's ``Sanitizer``."""
    return quote(name, safe="").replace("~", "%7E")


def _checked(name: str) -> str:
    if not znode_name.test(name):
        raise InvalidConfig(f"{name[:100]!r} cannot be the name of a znode, so ZooKeeper cannot keep it")
    return name
