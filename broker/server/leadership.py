"""Who leads a partition: whether it belongs to another broker, where several share one ZooKeeper, and the
leader epoch, which never changes because there are no replicas.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark_kafkalog.errors import ErrorCode, KafkaError, ServerError
from pyspark_kafkalog.types import TopicPartition


class RegisteredElsewhere(KafkaError):
    """A partition of today's wire belongs to another broker, or its owner is not known yet."""

    code = ErrorCode.NOT_LEADER_OR_FOLLOWER


class Ownership:
    """*Thread-safe: what it holds is replaced as a whole.* Who owns the partitions in our logs.

    Brokers do not share topics on today's wire yet: if two served the same partition, each would have half of
    its records. `Registration` updates this from ZooKeeper; whoever serves a partition asks it. Topics
    of 0.7 are exempt: there each broker has its own partitions.
    """

    def __init__(self) -> None:
        self._others: Mapping[TopicPartition, int] | None = None

    def update(self, others: Mapping[TopicPartition, int]) -> None:
        """The partitions in our logs that another broker has registered, and the ids of those brokers."""
        self._others = others

    @property
    def known(self) -> bool:
        """Whether there was an update yet."""
        return self._others is not None

    @property
    def version(self) -> object:
        """A different object after each update: what was derived from an older one is out of date."""
        return self._others

    def is_ours(self, partition: TopicPartition) -> bool:
        """Whether this broker may serve the partition."""
        others = self._others
        return others is not None and partition not in others

    def check(self, partition: TopicPartition) -> None:
        """Refuse a partition that is not ours.

        Raises:
            RegisteredElsewhere: another broker has the partition, or there was no update yet.
        """
        others = self._others
        if others is None:
            raise RegisteredElsewhere(f"{partition}: this broker is not registered in ZooKeeper yet")
        if partition in others:
            raise RegisteredElsewhere(
                f"{partition} is not served here: broker {others[partition]} has registered it in ZooKeeper"
            )


LEADER_EPOCH = 0

_NOT_GIVEN = -1


def check_leader_epoch(partition: TopicPartition, epoch: int) -> None:
    """Refuse a client that knows of another leader than us; -1 is a client that does not say.

    Raises:
        ServerError: UNKNOWN_LEADER_EPOCH above ours, FENCED_LEADER_EPOCH below.
    """
    if epoch in (_NOT_GIVEN, LEADER_EPOCH):
        return
    code = ErrorCode.UNKNOWN_LEADER_EPOCH if epoch > LEADER_EPOCH else ErrorCode.FENCED_LEADER_EPOCH
    raise ServerError(code, f"{partition}: leader epoch {epoch}; the leader's is {LEADER_EPOCH}")
