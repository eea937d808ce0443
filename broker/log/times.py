"""Whether a topic's records can be looked for by their times. Pure."""

from __future__ import annotations

from broker.config import LogConfig
from pyspark_kafkalog.errors import ErrorCode, ServerError
from pyspark_kafkalog.types import TopicPartition


def check_timed(partition: TopicPartition, config: LogConfig) -> None:
    """Refuse it where the format that the topic was given has no times. Where v0 only came, none is found.

    Source: Kafka 3.9 ``UnifiedLog.fetchOffsetByTimestamp``.

    Raises:
        ServerError: UNSUPPORTED_FOR_MESSAGE_FORMAT.
    """
    if config.magic == 0:
        raise ServerError(
            ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
            f"{partition}: messages have no time with message.format.version={config.message_format_version}",
        )
