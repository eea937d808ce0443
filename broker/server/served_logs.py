"""The logs that one protocol can serve: those of one family, whose format is the protocol's own."""

from __future__ import annotations

from broker.log.family import LogFamily
from broker.log.log import Log
from broker.log.manager import LogManager
from pyspark_kafkalog.errors import ErrorCode, ServerError
from pyspark_kafkalog.types import TopicPartition


class ServedLogs:
    """*Thread-safe: it changes nothing.* The log manager's logs, as a listener's handlers may see them.

    What is appended and fetched goes as it is, so a topic of the other family is refused, in every handler.
    """

    def __init__(self, logs: LogManager, family: LogFamily) -> None:
        self._logs = logs
        self.family = family

    def log(self, partition: TopicPartition) -> Log:
        """The log of a partition.

        Raises:
            UnknownTopicOrPartition, StorageError: as `LogManager.log`.
            ServerError: UNSUPPORTED_FOR_MESSAGE_FORMAT for a topic of another family.
        """
        log = self._logs.log(partition)
        if log.family is not self.family:
            raise ServerError(
                ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
                f"topic {partition.topic!r} holds messages of generation {log.family.generation};"
                f" this listener speaks the protocol of {self.family.generation}",
            )
        return log

    def check_exists(self, partition: TopicPartition) -> None:
        """Refuse a partition that is not there, or whose disk is not; any family will do. Raises as `log`."""
        self._logs.log(partition)
