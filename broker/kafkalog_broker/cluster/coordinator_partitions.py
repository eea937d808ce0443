"""The partitions of ``__consumer_offsets`` or ``__transaction_state`` that this broker owns."""

from __future__ import annotations

from kafkalog_broker.cluster.ownership import Ownership, RegisteredElsewhere
from pyspark_kafkalog.errors import CoordinatorLoading, ErrorCode, KafkaError, ServerError, StorageError
from pyspark_kafkalog.types import TopicPartition


class CoordinatorPartitions:
    """*Thread-safe: it has no state.* The `Placement` of one topic in a cluster: a partition's owner
    coordinates the groups, or transactional ids, of its keys.
    """

    def __init__(self, ownership: Ownership, topic: str) -> None:
        self._ownership = ownership
        self._topic = topic

    def count(self) -> int | None:
        if self._ownership.view is None:
            return None
        topic = self._ownership.topic(self._topic)
        return 0 if topic is None else len(topic.owners)

    def refusal(self, number: int) -> KafkaError | None:
        """See `Placement.refusal`. NOT_COORDINATOR for all partitions if another broker has our id."""
        ownership, partition = self._ownership, TopicPartition(self._topic, number)
        if ownership.is_ours(partition):
            return None
        try:
            ownership.check_known()
        except RegisteredElsewhere as e:
            return ServerError(ErrorCode.NOT_COORDINATOR, str(e))
        except KafkaError as e:
            return CoordinatorLoading(str(e))
        topic = ownership.topic(self._topic)
        is_ours = topic is not None and number in topic.owned_by(ownership.node_id)
        try:
            ownership.check(partition)
        except StorageError as e:
            return ServerError(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(e))
        except KafkaError as e:
            return CoordinatorLoading(str(e)) if is_ours else ServerError(ErrorCode.NOT_COORDINATOR, str(e))
        return None
