"""What a response or a timeout means for a batch: delivered, retried, split, or failed."""

from __future__ import annotations

import logging

import msgspec

from pyspark_kafkalog.client.retry import RetryPolicy
from pyspark_kafkalog.config.producer_config import ProducerConfig
from pyspark_kafkalog.errors import (
    ErrorCode,
    InvalidRequest,
    KafkaError,
    MessageTooLarge,
    RecordsRefused,
    RequestTimedOut,
    UnsupportedVersion,
    error_for,
    reason,
)
from pyspark_kafkalog.producer.accumulator import Accumulator
from pyspark_kafkalog.producer.producer_batch import ProducerBatch
from pyspark_kafkalog.producer.routing import ProducerMetadata
from pyspark_kafkalog.protocol.api.produce import PartitionProduceResponse

logger = logging.getLogger(__name__)

_TOO_LARGE = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})
_SEQUENCE_ERRORS = frozenset({
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID,
    ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_PRODUCER_ID_MAPPING,
})  # fmt: skip
"""The broker refused the sequence numbers and stored nothing."""

_MOVED = frozenset({
    ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_TOPIC_ID,
})  # fmt: skip


class OutcomeHandler(msgspec.Struct, frozen=True):
    """*Not thread-safe: the sender's thread only.* Holds no batches."""

    accumulator: Accumulator
    directory: ProducerMetadata
    policy: RetryPolicy
    config: ProducerConfig

    def answered(
        self, batch: ProducerBatch, result: PartitionProduceResponse | None, peer: str, now: float
    ) -> None:
        if batch.settled:
            return  # it expired before the response came
        if result is None:
            text = f"{peer}: the produce response lacks {batch.tp}"
            self.failed(batch, InvalidRequest(text), now)
            return
        code = result.error_code
        if code == ErrorCode.NONE:
            self.accumulator.trouble = None
            self.accumulator.settle(batch, result.base_offset, result.log_append_time_ms)
        elif code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
            # An earlier attempt stored it, too long ago for the broker to know the offset.
            self.accumulator.settle(batch)
        elif code in _SEQUENCE_ERRORS and batch.base_sequence >= 0:
            if self.config.transactional_id is None:
                self._renumber(batch, code, now)
            else:
                self._refused(batch, result, peer, now)
        elif code in _TOO_LARGE and batch.count > 1:
            logger.warning(
                "%s: a batch of %d records is too large for %s; sent as two", batch.tp, batch.count, peer
            )
            self.accumulator.split(batch, now)
        else:
            if code in _MOVED:
                self.directory.stale = True
            self.failed(batch, self._error(batch, result, peer), now)

    def failed(self, batch: ProducerBatch, error: KafkaError, now: float) -> None:
        if batch.settled:
            return
        batch.last_failure = self.accumulator.trouble = error
        wait = self.policy.again(error, batch.attempts)
        if wait is not None:
            self.accumulator.repeat(batch, now + wait)
            return
        self.accumulator.settle(batch, error=error)

    def expired(self, batch: ProducerBatch) -> None:
        reason = batch.last_failure or self.accumulator.trouble
        if reason is None:
            leader = self.directory.leader(batch.tp)
            why = "the partition has no leader" if leader is None else "no response has come"
        else:
            why = str(reason)
        text = (
            f"{batch.tp}: {batch.count} record(s) not delivered within delivery.timeout.ms="
            f"{self.config.delivery_timeout_ms}: {why}"
        )
        if batch.sent:
            text += "; they may have been stored anyway"
        self.accumulator.settle(batch, error=RequestTimedOut(text))

    def no_identity(self, error: KafkaError) -> None:
        """No producer id is available, so nothing can be sent."""
        if isinstance(error, UnsupportedVersion):
            error = UnsupportedVersion(
                f"{error}; idempotent producers need Kafka 0.11 or later. For older brokers set "
                "enable.idempotence=false and the message.format of their time: v1 in 0.10, v0 in 0.8 and 0.9"
            )
        for batch in self.accumulator.unsettled():
            self.accumulator.settle(batch, error=error)

    def _renumber(self, batch: ProducerBatch, code: ErrorCode, now: float) -> None:
        """Retry a batch whose sequence numbers were refused; restart numbering if they can never be right."""
        batch.last_failure = error_for(code, f"{batch.tp}: {code.name} at sequence {batch.base_sequence}")
        again = now + self.policy.backoff(batch.attempts)
        forgotten = code != ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        if self.accumulator.repeat_refused(batch, again, new_id=forgotten):
            logger.warning("%s; continuing with new sequence numbers", batch.last_failure)

    def _refused(self, batch: ProducerBatch, result: PartitionProduceResponse, peer: str, now: float) -> None:
        """As `_renumber` in a transaction: numbers stay, so an error without an earlier failure ends it."""
        error = self._error(batch, result, peer)
        earlier = not self.accumulator.is_first(batch)
        if result.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and earlier:
            batch.last_failure = error
            self.accumulator.repeat(batch, now + self.policy.backoff(batch.attempts))
        else:
            self.accumulator.settle(batch, error=error)

    def _error(self, batch: ProducerBatch, result: PartitionProduceResponse, peer: str) -> KafkaError:
        detail = reason(result.error_code, "Write", topic=batch.tp.topic, said=result.error_message)
        text = f"{peer}: {batch.tp}: {detail}"
        if result.error_code in _TOO_LARGE:
            return MessageTooLarge(
                f"{text}: a single record of about {batch.size} bytes is above the topic's max.message.bytes"
            )
        error = error_for(result.error_code, text)
        if isinstance(error, RecordsRefused):
            error.records = {
                entry.batch_index: f"{peer}: {batch.tp}: {entry.batch_index_error_message or detail}"
                for entry in result.record_errors
            }
        return error
