"""The znodes that the brokers of a cluster share: topics, producer ids, SCRAM users, ACLs. Pure.

Below the prefix of `JsonLayout`, all persistent:

* ``/brokers/topics``: JSON with version 1; registry, a random id that changes if ZooKeeper is replaced or
  emptied; members (see `RegistryNode`); changes, the last ones: version of this node after it, topic, tag
* ``/brokers/topics/<topic>``: JSON with version 3, topic_id, partitions (the brokers of each, the owner
  first), adding_replicas and removing_replicas, both empty. Ours: pending, partitions that their owners have
  not created yet; starts and leader_epochs, first offsets and leader epochs other than 0. Without partitions
  the topic does not exist, and brokers_07 lists the brokers with a Kafka 0.7 topic of this name
* ``/config/topics/<topic>``: JSON with version 1 and config
* ``/admin/delete_topics/<id>``, ours: JSON with version 1, name, and the brokers that have yet to remove it
* ``/latest_producer_id_block``: JSON with version 1, broker, block_start and block_end as text, inclusive:
  the last block of producer ids that a broker took
* ``/config/users/<user>``, URL-encoded: JSON with version 1 and config, which maps a mechanism to
  ``salt=...,stored_key=...,server_key=...,iterations=4096``, and may hold quotas
* ``/config/unknown_users_secret``, ours: JSON with version 1 and secret, in hexadecimal digits, from which
  the salts that unknown users get derive
* ``/config/changes/config_change_<n>``, sequential: JSON with version 2 and entity_path, ``users/<user>``
* ``/kafka-acl/<type>/<name>``: JSON with version 1 and acls, each with principal, permissionType, operation,
  host
* ``/kafka-acl-changes/acl_changes_<n>``, sequential: ``<TYPE>:<name>``
* ``/kafka-acl-extended/prefixed/<type>/<name>``: ACLs of resources whose names begin with ``<name>``
* ``/kafka-acl-extended-changes/acl_changes_<n>``, sequential: JSON with version 1, resourceType, name,
  patternType

A ``<type>`` is Topic, Group, Cluster, TransactionalId, DelegationToken or User. Users and ACLs are as in
Kafka before 4. Sources: kafka 3.9 ``zk/ZkData.scala``, ``common/ZkNodeChangeNotificationListener.scala``.
docs/operations.md says what our brokers do with them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, unquote
from uuid import UUID

import msgspec

from pyspark_kafkalog.config.zookeeper_config import znode_name
from pyspark_kafkalog.errors import InvalidConfig
from pyspark_kafkalog.security.acls import Acl, Operation, PatternType, Permission, ResourceType, parse_word
from pyspark_kafkalog.types import decode_id, encode_id
from pyspark_kafkalog.zookeeper.paths import (
    MAX_PARTITIONS,
    NUMBER,
    JsonLayout,
    MalformedNode,
    checked_name,
    is_count,
    json_bytes,
    json_object,
    text_of,
)

CHANGES_KEPT = 100  # a broker that missed more changes than these reads every topic again

NOBODY = -1  # owner of a partition that no broker has claimed since ZooKeeper was emptied


class TopicNode(msgspec.Struct, frozen=True):
    """A topic. ``pending`` partitions are not created yet; ``starts`` has first offsets other than 0,
    ``epochs`` leader epochs other than 0: how many owners a partition had before.
    """

    topic_id: UUID
    owners: tuple[int, ...]
    pending: frozenset[int] = frozenset()
    starts: Mapping[int, int] = msgspec.field(default_factory=dict)
    epochs: Mapping[int, int] = msgspec.field(default_factory=dict)


class DeletedTopic(NamedTuple):
    topic_id: UUID
    name: str
    brokers: frozenset[int]


class RegistryChange(NamedTuple):
    """A change of a topic, or of the members (""); known by its ``tag`` if the response was lost."""

    version: int
    topic: str
    tag: str


class RegistryNode(msgspec.Struct, frozen=True):
    """Value of the root, which every change replaces; ``changes`` are the last ones, oldest first.

    ``members`` are its brokers. False marks a broker that has not yet registered the partitions it had before
    this registry existed; until it does, others cannot know which names are taken.
    """

    registry: str
    changes: tuple[RegistryChange, ...] = ()
    members: Mapping[int, bool] = msgspec.field(default_factory=dict)

    def after(self, change: RegistryChange, members: Mapping[int, bool] | None = None) -> RegistryNode:
        kept = (*self.changes, change)[-CHANGES_KEPT:]
        return RegistryNode(self.registry, kept, self.members if members is None else members)

    def since(self, before: int, now: int) -> set[str] | None:
        """Topics changed after version ``before``, up to ``now``; None if they are no longer kept."""
        changes = [change for change in self.changes if change.version > before]
        if len(changes) < now - before:
            return None
        return {change.topic for change in changes if change.topic}

    def has(self, tag: str) -> bool:
        return any(change.tag == tag for change in self.changes)


class ClusterNodes:
    def __init__(self, layout: JsonLayout) -> None:
        self.topics = layout.topics
        self.configs = f"{layout.prefix}/config/topics"
        self.deleted = f"{layout.prefix}/admin/delete_topics"
        self.id_block = f"{layout.prefix}/latest_producer_id_block"

    def topic(self, name: str) -> str:
        return f"{self.topics}/{checked_name(name)}"

    def config(self, name: str) -> str:
        return f"{self.configs}/{checked_name(name)}"

    def deletion(self, topic_id: UUID) -> str:
        # Base64 ids may begin with a dash but never contain a slash, so any is a valid znode name.
        return f"{self.deleted}/{encode_id(topic_id)}"


def write_topic(topic: TopicNode) -> bytes:
    numbered = {"starts": topic.starts, "leader_epochs": topic.epochs}
    return json_bytes(
        {
            "version": 3,
            "topic_id": encode_id(topic.topic_id),
            "partitions": {str(n): [owner] if owner >= 0 else [] for n, owner in enumerate(topic.owners)},
            "adding_replicas": {},
            "removing_replicas": {},
            "pending": sorted(topic.pending),
            **{name: {str(n): value for n, value in row.items()} for name, row in numbered.items() if row},
        }
    )


def read_topic(name: str, data: bytes) -> TopicNode | None:
    """None if the node holds no topic (any more)."""
    what = f"topic {name!r}"
    if not data:
        return None  # a parent of the partitions that some broker registered
    fields = json_object(data, what)
    partitions, pending = fields.get("partitions"), fields.get("pending", [])
    starts, epochs = fields.get("starts", {}), fields.get("leader_epochs", {})
    if not isinstance(pending, list) or not all(
        isinstance(each, dict) for each in (partitions, starts, epochs)
    ):
        raise MalformedNode(what, data)
    if not partitions:
        return None
    owners: dict[int, int] = {}
    for number, brokers in partitions.items():
        if not NUMBER.fullmatch(number) or not isinstance(brokers, list) or not all(map(is_count, brokers)):
            raise MalformedNode(what, data)
        owners[int(number)] = brokers[0] if brokers else NOBODY
    counts = (*pending, *starts.values(), *epochs.values())
    if max(owners) >= MAX_PARTITIONS or not all(map(is_count, counts)):
        raise MalformedNode(what, data)
    try:
        topic_id = decode_id(str(fields.get("topic_id")))
        first, epochs = ({int(n): value for n, value in row.items()} for row in (starts, epochs))
    except ValueError:
        raise MalformedNode(what, data) from None
    every = tuple(owners.get(n, NOBODY) for n in range(max(owners) + 1))
    return TopicNode(topic_id, every, frozenset(pending), first, epochs)


def write_name_07(brokers: Collection[int]) -> bytes:
    """Without brokers the name is free."""
    fields = {"version": 3, "partitions": {}, "adding_replicas": {}, "removing_replicas": {}}
    return json_bytes(fields | ({"brokers_07": sorted(brokers)} if brokers else {}))


def read_name_07(name: str, data: bytes) -> frozenset[int]:
    """The brokers with a Kafka 0.7 topic of this name, if `read_topic` returned None."""
    if not data:
        return frozenset()
    what = f"topic {name!r}"
    brokers = json_object(data, what).get("brokers_07", [])
    if not isinstance(brokers, list) or not all(map(is_count, brokers)):
        raise MalformedNode(what, data)
    return frozenset(brokers)


def write_config(config: Mapping[str, str]) -> bytes:
    return json_bytes({"version": 1, "config": dict(config)})


def read_config(name: str, data: bytes) -> dict[str, str]:
    what = f"the properties of topic {name!r}"
    config: Any = json_object(data, what).get("config")
    if not isinstance(config, dict) or not all(isinstance(value, str) for value in config.values()):
        raise MalformedNode(what, data)
    return config


def write_deleted(topic: DeletedTopic) -> bytes:
    return json_bytes({"version": 1, "name": topic.name, "brokers": sorted(topic.brokers)})


def read_deleted(child: str, data: bytes) -> DeletedTopic:
    what = f"the deleted topic {child}"
    fields = json_object(data, what)
    name, brokers = fields.get("name"), fields.get("brokers")
    if not isinstance(name, str) or not isinstance(brokers, list) or not all(map(is_count, brokers)):
        raise MalformedNode(what, data)
    try:
        return DeletedTopic(decode_id(child), name, frozenset(brokers))
    except ValueError:
        raise MalformedNode(what, data) from None


def write_id_block(broker: int, first: int, count: int) -> bytes:
    return json_bytes(
        {"version": 1, "broker": broker, "block_start": str(first), "block_end": str(first + count - 1)}
    )


def read_id_block(data: bytes) -> int:
    what = "a block of producer ids"
    end = str(json_object(data, what).get("block_end"))
    if not NUMBER.fullmatch(end):
        raise MalformedNode(what, data)
    return int(end) + 1


def write_registry(node: RegistryNode) -> bytes:
    members = {str(broker): arrived for broker, arrived in sorted(node.members.items())}
    return json_bytes({"version": 1, "registry": node.registry, "members": members, "changes": node.changes})


def read_registry(data: bytes) -> RegistryNode | None:
    """None if the node is only a parent of other znodes."""
    if not data:
        return None
    what = "the registry of topics"
    fields = json_object(data, what)
    registry, members, changes = (fields.get(name) for name in ("registry", "members", "changes"))
    if (
        not (isinstance(registry, str) and isinstance(members, dict) and isinstance(changes, list))
        or not all(isinstance(each, list) and len(each) == 3 and is_count(each[0]) for each in changes)
        or not all(NUMBER.fullmatch(broker) for broker in members)
    ):
        raise MalformedNode(what, data)
    kept = tuple(RegistryChange(int(version), str(name), str(tag)) for version, name, tag in changes)
    return RegistryNode(registry, kept, {int(broker): here is True for broker, here in members.items()})


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
        self.secret = f"{root}/config/unknown_users_secret"
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


def read_secret(data: bytes) -> bytes:
    try:
        secret = bytes.fromhex(str(json_object(data, "the secret for unknown users").get("secret")))
    except (MalformedNode, ValueError):
        secret = b""
    if not secret:
        raise MalformedNode("the secret for unknown users", b"***")
    return secret


def write_secret(secret: bytes) -> bytes:
    return json_bytes({"version": 1, "secret": secret.hex()})


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
    fields = ((a.principal, a.permission.word, a.operation.word, a.host) for a in sorted(acls))
    names = ("principal", "permissionType", "operation", "host")
    return json_bytes({"version": 1, "acls": [dict(zip(names, row, strict=True)) for row in fields]})


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
    kind, name, pattern = resource.resource_type.name, resource.name, resource.pattern_type.name
    return json_bytes({"version": 1, "resourceType": kind, "name": name, "patternType": pattern})


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
