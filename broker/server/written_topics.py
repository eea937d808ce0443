"""What Metadata says of each topic, in bytes: written when it is first asked for, kept until it changes."""

from __future__ import annotations

import threading
from collections import OrderedDict

from broker.log.generations import SINCE_08
from broker.log.manager import StoredTopic
from broker.server.epochs import LEADER_EPOCH
from broker.server.ownership import Ownership
from broker.server.topics import INTERNAL_TOPICS
from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.api.metadata import (
    MetadataResponsePartition,
    MetadataResponseTopic,
    WrittenTopic,
    written_topic,
)
from pyspark_kafkalog.types import TopicPartition

KEPT_BYTES = 16 << 20
"""A partition takes 20 to 40 bytes in each version that is asked for."""

_ENTRY_BYTES = 200
"""What it costs to keep one at all, about."""


class WrittenTopics:
    """*Thread-safe: ``_lock`` guards it.* Topics as this broker describes them: it leads every partition but
    those of today's wire that another broker has registered.
    """

    def __init__(
        self, node_id: int, ownership: Ownership | None = None, *, max_bytes: int = KEPT_BYTES
    ) -> None:
        self._node_id = node_id
        self._ownership = ownership
        self._max_bytes = max_bytes
        self._size = 0
        self._kept: OrderedDict[tuple[str, int, int], tuple[StoredTopic, object, WrittenTopic]] = (
            OrderedDict()
        )
        self._lock = threading.Lock()

    def of(self, name: str, topic: StoredTopic, version: int, operations: int) -> WrittenTopic:
        """``topic``, called ``name``, in a version of Metadata; ``operations`` are those that are allowed."""
        key = name, version, operations
        owners = None if self._ownership is None else self._ownership.version  # before it is asked
        with self._lock:
            found = self._kept.get(key)
            if found is not None and found[0] is topic and found[1] is owners:
                self._kept.move_to_end(key)
                return found[2]
        written = written_topic(self._described(name, topic, operations), version)
        with self._lock:
            self._forget(key)
            self._kept[key] = topic, owners, written
            self._size += _ENTRY_BYTES + len(written.data)
            while self._size > self._max_bytes and self._kept:
                self._forget(next(iter(self._kept)))
        return written

    def _forget(self, key: tuple[str, int, int]) -> None:
        found = self._kept.pop(key, None)
        if found is not None:
            self._size -= _ENTRY_BYTES + len(found[2].data)

    def _described(self, name: str, topic: StoredTopic, operations: int) -> MetadataResponseTopic:
        ownership = self._ownership
        if topic.generation != SINCE_08.generation or name in INTERNAL_TOPICS:
            ownership = None
        return MetadataResponseTopic(
            error_code=ErrorCode.NONE,
            name=name,
            topic_id=topic.topic_id,
            is_internal=name in INTERNAL_TOPICS,
            partitions=tuple(
                MetadataResponsePartition(
                    partition_index=partition,
                    leader_id=self._node_id,
                    leader_epoch=LEADER_EPOCH,
                    replica_nodes=(self._node_id,),
                    isr_nodes=(self._node_id,),
                )
                if ownership is None or ownership.is_ours(TopicPartition(name, partition))
                # Who has it is not among the brokers of this answer.
                else MetadataResponsePartition(
                    error_code=ErrorCode.LEADER_NOT_AVAILABLE, partition_index=partition, leader_id=-1
                )
                for partition in topic.partitions
            ),
            topic_authorized_operations=operations,
        )
