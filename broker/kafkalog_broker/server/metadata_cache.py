"""Cache of topics encoded for Metadata responses."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from kafkalog_broker.cluster.ownership import Ownership
from kafkalog_broker.logs.offset_records import INTERNAL_TOPICS
from kafkalog_broker.logs.topic_store import StoredTopic
from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.api import metadata as api
from pyspark_kafkalog.types import TopicPartition

KEPT_BYTES = 16 << 20
"""A partition takes 20 to 40 bytes per requested version."""

_ENTRY_BYTES = 200
"""Approximate overhead of an entry."""


class _Owners(NamedTuple):
    """Snapshot from which a topic's leaders are computed; ``owners`` None: broker ``me`` has all."""

    me: int
    brokers: frozenset[int]
    owners: tuple[int, ...] | None = None
    pending: frozenset[int] = frozenset()
    offline: frozenset[TopicPartition] = frozenset()
    we_serve: bool = True
    epochs: Mapping[int, int] = MappingProxyType({})

    def owner(self, number: int) -> int:
        if self.owners is None:
            return self.me
        return self.owners[number] if number < len(self.owners) else -1

    def leads(self, owner: int, partition: TopicPartition) -> bool:
        if owner not in self.brokers or partition.partition in self.pending:
            return False
        return owner != self.me or (self.we_serve and partition not in self.offline)


class MetadataCache:
    """*Thread-safe: ``_lock`` guards it.* Without an ``ownership`` this broker leads every partition."""

    def __init__(
        self, node_id: int, ownership: Ownership | None = None, *, max_bytes: int = KEPT_BYTES
    ) -> None:
        self._node_id = node_id
        self._ownership = ownership
        self._max_bytes = max_bytes
        self._size = 0
        self._kept: OrderedDict[tuple[str, int, int], tuple[StoredTopic, _Owners, api.CachedTopic]] = (
            OrderedDict()
        )
        self._lock = threading.Lock()

    def of(
        self, name: str, topic: StoredTopic, version: int, operations: int, brokers: frozenset[int]
    ) -> api.CachedTopic:
        """The encoded ``topic`` in a Metadata version; ``operations`` are the allowed ones, as bits."""
        key = name, version, operations
        owners = self._owners(name, topic, brokers)
        with self._lock:
            found = self._kept.get(key)
            if found is not None and found[0] is topic and found[1] == owners:
                self._kept.move_to_end(key)
                return found[2]
        written = api.written_topic(_described(name, topic, operations, owners), version)
        with self._lock:
            self._forget(key)
            self._kept[key] = topic, owners, written
            self._size += _ENTRY_BYTES + len(written.data)
            while self._size > self._max_bytes and self._kept:
                self._forget(next(iter(self._kept)))
        return written

    def described(
        self, name: str, topic: StoredTopic, operations: int, brokers: frozenset[int]
    ) -> api.MetadataResponseTopic:
        return _described(name, topic, operations, self._owners(name, topic, brokers))

    def _owners(self, name: str, topic: StoredTopic, brokers: frozenset[int]) -> _Owners:
        ownership = self._ownership
        if ownership is None or not ownership.shares(topic):
            return _Owners(self._node_id, brokers, epochs=topic.epochs)
        shared = ownership.topic(name)
        return _Owners(
            self._node_id, brokers, () if shared is None else shared.owners,
            frozenset() if shared is None else shared.pending, ownership.offline, ownership.serves,
            topic.epochs if shared is None else shared.stored.epochs,
        )  # fmt: skip

    def _forget(self, key: tuple[str, int, int]) -> None:
        found = self._kept.pop(key, None)
        if found is not None:
            self._size -= _ENTRY_BYTES + len(found[2].data)


def _described(name: str, topic: StoredTopic, operations: int, owners: _Owners) -> api.MetadataResponseTopic:
    return api.MetadataResponseTopic(
        name=name, topic_id=topic.topic_id, is_internal=name in INTERNAL_TOPICS,
        partitions=tuple(_partitions(name, topic, owners)), topic_authorized_operations=operations,
    )  # fmt: skip


def _partitions(name: str, topic: StoredTopic, owners: _Owners) -> Iterator[api.MetadataResponsePartition]:
    for number in topic.partitions:
        owner, epoch = owners.owner(number), owners.epochs.get(number, 0)
        if owners.leads(owner, TopicPartition(name, number)):
            yield api.MetadataResponsePartition(
                partition_index=number, leader_id=owner, leader_epoch=epoch, replica_nodes=(owner,),
                isr_nodes=(owner,),
            )  # fmt: skip
        else:  # the owner is not in this response, or cannot serve the partition
            yield api.MetadataResponsePartition(
                error_code=ErrorCode.LEADER_NOT_AVAILABLE, partition_index=number, leader_id=-1,
                leader_epoch=epoch, replica_nodes=() if owner < 0 else (owner,),
            )  # fmt: skip
