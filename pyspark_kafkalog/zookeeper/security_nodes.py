"""Znodes of SCRAM users and ACLs, as in Apache Kafka before 4. Pure.

Below the prefix of `JsonLayout`, all persistent:

* ``/config/users/<user>``, URL-encoded: JSON with version 1 and config, which maps a mechanism to
  ``salt=...,stored_key=...,server_key=...,iterations=4096``, and may hold quotas
* ``/config/changes/config_change_<n>``, sequential: JSON with version 2 and entity_path, ``users/<user>``
* ``/kafka-acl/<type>/<name>``: JSON with version 1 and acls, each with principal, permissionType, operation,
  host
* ``/kafka-acl-changes/acl_changes_<n>``, sequential: ``<TYPE>:<name>``
* ``/kafka-acl-extended/prefixed/<type>/<name>``: ACLs of resources whose names begin with ``<name>``
* ``/kafka-acl-extended-changes/acl_changes_<n>``, sequential: JSON with version 1, resourceType, name,
  patternType

A ``<type>`` is Topic, Group, Cluster, TransactionalId, DelegationToken or User. Source: kafka 3.9
``zk/ZkData.scala``, ``common/ZkNodeChangeNotificationListener.scala``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from pyspark_kafkalog.config.zookeeper_config import znode_name
from pyspark_kafkalog.errors import InvalidConfig
from pyspark_kafkalog.security.acls import Acl, Operation, PatternType, Permission, ResourceType, parse_word
from pyspark_kafkalog.zookeeper.paths import JsonLayout, MalformedNode, json_bytes, json_object, text_of

CHANGES_KEPT_MS = 15 * 60 * 1000
"""Older change nodes may be removed: a broker that was away for longer reads everything again."""

_RESOURCES = tuple(each for each in ResourceType if each is not ResourceType.ANY)


class Resource(NamedTuple):
    resource_type: ResourceType
    name: str
    pattern_type: PatternType

    def __str__(self) -> str:
        return f"{self.resource_type.word} {self.name!r} ({self.pattern_type.word})"


def resource_of(acl: Acl) -> Resource:
    return Resource(acl.resource_type, acl.name, acl.pattern_type)


class SecurityNodes:
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
        """Raises `InvalidConfig` if the name cannot be a znode's."""
        return f"{self.users}/{_checked(_quoted(name))}"

    def user_name(self, child: str) -> str:
        return unquote(child)

    def acl_parents(self) -> dict[str, tuple[ResourceType, PatternType]]:
        return {
            f"{path}/{kind.word}": (kind, pattern)
            for pattern, path in self._acls.items()
            for kind in _RESOURCES
        }

    def acls(self, resource: Resource) -> str:
        """Raises `InvalidConfig` if the name cannot be a znode's; Kafka does not encode it."""
        path = self._acls[resource.pattern_type]
        return f"{path}/{resource.resource_type.word}/{_checked(resource.name)}"

    def new_acl_change(self, resource: Resource) -> str:
        return f"{self.acl_changes[resource.pattern_type]}/acl_changes_"

    def parents(self) -> list[str]:
        """Znodes that Kafka itself always creates."""
        return [self.users, self.user_changes, *self.acl_changes.values(), *self.acl_parents()]


def read_user(data: bytes) -> dict[str, Any]:
    """Holds secrets."""
    try:
        config = json_object(data, "a user").get("config")
    except MalformedNode:
        config = None
    if not isinstance(config, dict):
        raise MalformedNode("a user", b"***")
    return config


def write_user(config: Mapping[str, Any]) -> bytes:
    return json_bytes({"version": 1, "config": config})


def read_user_change(data: bytes) -> str | None:
    """None if the change is about another kind of entity."""
    fields = json_object(data, "a change")
    if fields.get("version") == 1:
        return unquote(str(fields.get("entity_name"))) if fields.get("entity_type") == "users" else None
    kind, _, name = str(fields.get("entity_path")).partition("/")
    return unquote(name) if kind == "users" and name and "/" not in name else None


def write_user_change(name: str) -> bytes:
    return json_bytes({"version": 2, "entity_path": f"users/{_quoted(name)}"})


def read_acls(resource: Resource, data: bytes) -> frozenset[Acl]:
    what = f"the ACLs of {resource}"
    entries = json_object(data, what).get("acls")
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
    text = text_of(data, "a change of ACLs")
    try:
        if pattern_type is PatternType.LITERAL:
            kind, _, name = text.partition(":")
            return Resource(parse_word(ResourceType, kind), name, pattern_type)
        fields = json_object(text, "a change of ACLs")
        if parse_word(PatternType, _text(fields, "patternType")) is not pattern_type:
            raise ValueError
        kind = _text(fields, "resourceType")
        return Resource(parse_word(ResourceType, kind), _text(fields, "name"), pattern_type)
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
    """Encode as Kafka's ``Sanitizer`` does."""
    return quote(name, safe="").replace("~", "%7E")


def _checked(name: str) -> str:
    if not znode_name.test(name):
        raise InvalidConfig(f"{name[:100]!r} cannot be the name of a znode, so ZooKeeper cannot keep it")
    return name
