"""Which partitions of today's wire another broker has, where several brokers meet at one ZooKeeper."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark_kafkalog.errors import ErrorCode, KafkaError
from pyspark_kafkalog.types import TopicPartition


class RegisteredElsewhere(KafkaError):
    """A partition of today's wire belongs to another broker, or it is not known yet to whom."""

    code = ErrorCode.NOT_LEADER_OR_FOLLOWER


class Ownership:
    """*Thread-safe: what it holds is replaced as a whole.* What ZooKeeper said last of our partitions.

    Brokers do not share topics on today's wire yet: there a partition has one number in the whole cluster,
    and of two brokers that both served it each would have half of its records. `Registration` tells, and
    whoever serves a partition asks. Topics of 0.7 are no matter of this: there each broker has its own.
    """

    def __init__(self) -> None:
        self._others: Mapping[TopicPartition, int] | None = None

    def tell(self, others: Mapping[TopicPartition, int]) -> None:
        """The partitions in our logs that another broker has registered, and the ids of those brokers."""
        self._others = others

    @property
    def known(self) -> bool:
        """Whether anything was told yet."""
        return self._others is not None

    @property
    def told(self) -> object:
        """What was told last: another object each time, so that what was made of it can be thrown away."""
        return self._others

    def is_ours(self, partition: TopicPartition) -> bool:
        """Whether this broker may serve the partition."""
        others = self._others
        return others is not None and partition not in others

    def check(self, partition: TopicPartition) -> None:
        """Refuse what is not ours.

        Raises:
            RegisteredElsewhere: another broker has the partition, or nothing was told yet.
        """
        others = self._others
        if others is None:
            raise RegisteredElsewhere(f"{partition}: this broker is not registered in ZooKeeper yet")
        if partition in others:
            raise RegisteredElsewhere(
                f"{partition} is not served here: broker {others[partition]} has registered it in ZooKeeper"
            )
