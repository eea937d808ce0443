"""All errors that the project raises on purpose, with their codes in the protocol. `ErrorCode` is Kafka's
table (protocol guide, "Error Codes"); only ``client/retry.py`` decides whether to retry.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from enum import IntEnum
from functools import wraps
from typing import ParamSpec, TypeVar

log = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")


class ErrorCode(IntEnum):
    """Kafka's error codes that we send or must understand."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    INVALID_FETCH_SIZE = 4
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    BROKER_NOT_AVAILABLE = 8
    REPLICA_NOT_AVAILABLE = 9
    MESSAGE_TOO_LARGE = 10
    STALE_CONTROLLER_EPOCH = 11
    OFFSET_METADATA_TOO_LARGE = 12
    NETWORK_EXCEPTION = 13
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    RECORD_LIST_TOO_LARGE = 18
    NOT_ENOUGH_REPLICAS = 19
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    INVALID_COMMIT_OFFSET_SIZE = 28
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    NOT_CONTROLLER = 41
    INVALID_REQUEST = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTION_COORDINATOR_FENCED = 52
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    SECURITY_DISABLED = 54
    OPERATION_NOT_ATTEMPTED = 55
    KAFKA_STORAGE_ERROR = 56
    LOG_DIR_NOT_FOUND = 57
    SASL_AUTHENTICATION_FAILED = 58
    UNKNOWN_PRODUCER_ID = 59
    REASSIGNMENT_IN_PROGRESS = 60
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FETCH_SESSION_ID_NOT_FOUND = 70
    INVALID_FETCH_SESSION_EPOCH = 71
    LISTENER_NOT_FOUND = 72
    TOPIC_DELETION_DISABLED = 73
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    UNSUPPORTED_COMPRESSION_TYPE = 76
    STALE_BROKER_EPOCH = 77
    OFFSET_NOT_AVAILABLE = 78
    MEMBER_ID_REQUIRED = 79
    PREFERRED_LEADER_NOT_AVAILABLE = 80
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83
    ELECTION_NOT_NEEDED = 84
    NO_REASSIGNMENT_IN_PROGRESS = 85
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87
    UNSTABLE_OFFSET_COMMIT = 88
    THROTTLING_QUOTA_EXCEEDED = 89
    PRODUCER_FENCED = 90
    RESOURCE_NOT_FOUND = 91
    DUPLICATE_RESOURCE = 92
    UNACCEPTABLE_CREDENTIAL = 93
    UNKNOWN_TOPIC_ID = 100
    INCONSISTENT_TOPIC_ID = 103
    TRANSACTIONAL_ID_NOT_FOUND = 105
    FETCH_SESSION_TOPIC_ID_ERROR = 106
    FENCED_MEMBER_EPOCH = 110
    UNRELEASED_INSTANCE_ID = 111
    UNSUPPORTED_ASSIGNOR = 112
    STALE_MEMBER_EPOCH = 113
    MISMATCHED_ENDPOINT_TYPE = 114
    TRANSACTION_ABORTABLE = 120
    INVALID_REGULAR_EXPRESSION = 128

    @property
    def retriable(self) -> bool:
        """Whether the same request may succeed later, perhaps at another broker."""
        return self in _RETRIABLE

    @classmethod
    def of(cls, number: int) -> ErrorCode:
        """The code with this number; `UNKNOWN_SERVER_ERROR` if we do not know it."""
        try:
            return cls(number)
        except ValueError:
            return cls.UNKNOWN_SERVER_ERROR


_RETRIABLE = frozenset(
    {
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
        ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
        ErrorCode.ELECTION_NOT_NEEDED,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.CONCURRENT_TRANSACTIONS,
    }
)


class KafkaError(Exception):
    """Root of all errors of this project; ``code`` is sent in responses."""

    code: ErrorCode = ErrorCode.UNKNOWN_SERVER_ERROR

    @property
    def retriable(self) -> bool:
        return self.code.retriable


class ServerError(KafkaError):
    """A broker's error code that has no class here."""

    def __init__(self, code: ErrorCode | int, message: str = "") -> None:
        self.code = ErrorCode.of(code)
        name = self.code.name if self.code == code else f"error code {int(code)}"
        if name not in message:
            message = f"{name}: {message}" if message else name
        super().__init__(message)


class CorruptMessage(KafkaError):
    """Bytes that cannot be a message: bad CRC, impossible length, unknown magic, bad count."""

    code = ErrorCode.CORRUPT_MESSAGE


class RecordsRefused(KafkaError):
    """``records``: what is wrong with single records, by their index in the batch. If empty, all are refused
    alike.
    """

    def __init__(self, message: str, records: Mapping[int, str] | None = None) -> None:
        super().__init__(message)
        self.records = records or {}


class InvalidRecord(RecordsRefused):
    """A record or batch that the format or the topic does not allow."""

    code = ErrorCode.INVALID_RECORD


class UnsupportedCompression(KafkaError):
    """A codec that this format, version or installation does not support."""

    code = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


class MessageTooLarge(KafkaError):
    """A message, batch or decompressed block is above its limit."""

    code = ErrorCode.MESSAGE_TOO_LARGE


class FrameTooLarge(KafkaError):
    """A size prefix is negative or above the limit; the connection must be closed."""

    code = ErrorCode.INVALID_REQUEST

    def __init__(self, message: str, size: int = 0) -> None:
        super().__init__(message)
        self.size = size


class InvalidRequest(KafkaError):
    """A request or response that does not follow its schema."""

    code = ErrorCode.INVALID_REQUEST


class UnsupportedVersion(KafkaError):
    """An API, or a version of one, that the other side does not support."""

    code = ErrorCode.UNSUPPORTED_VERSION


class OffsetOutOfRange(KafkaError):
    code = ErrorCode.OFFSET_OUT_OF_RANGE

    def __init__(self, log: str, offset: int, start: int, end: int) -> None:
        super().__init__(f"{log}: offset {offset} is outside [{start}, {end}]")
        self.log, self.offset, self.start, self.end = log, offset, start, end


class UnknownTopicOrPartition(KafkaError):
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


class UnknownTopicId(KafkaError):
    """No topic has this id: it was deleted, perhaps created again."""

    code = ErrorCode.UNKNOWN_TOPIC_ID


class TopicAlreadyExists(KafkaError):
    code = ErrorCode.TOPIC_ALREADY_EXISTS


class InvalidTopic(KafkaError):
    """A topic name that Kafka does not allow."""

    code = ErrorCode.INVALID_TOPIC_EXCEPTION


class InvalidPartitions(KafkaError):
    code = ErrorCode.INVALID_PARTITIONS


class InvalidConfig(KafkaError):
    code = ErrorCode.INVALID_CONFIG


class InvalidTimestamp(RecordsRefused):
    """A record's timestamp is outside what the topic allows."""

    code = ErrorCode.INVALID_TIMESTAMP


class OutOfOrderSequence(KafkaError):
    """An idempotent producer's batch does not follow its last one."""

    code = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


class InvalidProducerEpoch(KafkaError):
    """A newer instance of this producer has taken over."""

    code = ErrorCode.INVALID_PRODUCER_EPOCH


class ProducerFenced(KafkaError):
    """A newer producer uses the transactional id, or the transaction took too long and was aborted."""

    code = ErrorCode.PRODUCER_FENCED


class InvalidTxnState(KafkaError):
    """The request is not allowed in the transaction's state."""

    code = ErrorCode.INVALID_TXN_STATE


class InvalidProducerIdMapping(KafkaError):
    """The coordinator has another producer id for the transactional id, or no longer knows it."""

    code = ErrorCode.INVALID_PRODUCER_ID_MAPPING


class ConcurrentTransactions(KafkaError):
    """The coordinator is still completing the previous transaction; try again."""

    code = ErrorCode.CONCURRENT_TRANSACTIONS


class TransactionAbortable(KafkaError):
    """The transaction can no longer be committed; after an abort the producer can continue."""

    code = ErrorCode.TRANSACTION_ABORTABLE


class TransactionAborted(KafkaError):
    """The record was not sent because its transaction was aborted before."""

    code = ErrorCode.OPERATION_NOT_ATTEMPTED


class CoordinatorLoading(KafkaError):
    """The coordinator is still reading the group's offsets from the log; try again."""

    code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


class CommitFailed(ServerError):
    """The member has left its group or this generation; nothing was committed."""


class NoOffset(KafkaError):
    """The group has no offset for a partition, and ``auto.offset.reset`` is none."""

    code = ErrorCode.OFFSET_OUT_OF_RANGE


class StorageError(KafkaError):
    """The disk failed or is full; what was acknowledged before is kept."""

    code = ErrorCode.KAFKA_STORAGE_ERROR


class ConnectionLost(KafkaError):
    """A connection could not be made, broke, or gave no answer in time."""

    code = ErrorCode.NETWORK_EXCEPTION


class ConnectionClosed(ConnectionLost):
    """The peer closed the connection; some brokers refuse a request this way."""


class CannotConnect(ConnectionLost):
    """No connection to an address. ``silent``: the attempt timed out without being refused."""

    def __init__(self, peer: str, reason: str, *, silent: bool) -> None:
        super().__init__(f"cannot connect to {peer}: {reason}")
        self.peer, self.reason, self.silent = peer, reason, silent


class UnknownHost(CannotConnect):
    """The host name cannot be resolved."""

    def __init__(self, peer: str, reason: str) -> None:
        super().__init__(peer, f"the host name cannot be resolved: {reason}", silent=False)


class EndpointUnreachable(CannotConnect):
    """No connection to the endpoint that grants tokens for a login; the broker has answered."""


class BrokersUnreachable(ConnectionLost):
    """No broker can be reached. ``final``: the time is up, do not retry."""

    def __init__(self, message: str, *, final: bool) -> None:
        super().__init__(message)
        self.final = final

    @property
    def retriable(self) -> bool:
        return not self.final


class AuthenticationFailed(KafkaError):
    """A login or TLS handshake was refused or cannot work. The message has no secrets. Not retried."""

    code = ErrorCode.SASL_AUTHENTICATION_FAILED


class UnsupportedSaslMechanism(AuthenticationFailed):
    """The listener does not offer this mechanism."""

    code = ErrorCode.UNSUPPORTED_SASL_MECHANISM


class IllegalSaslState(AuthenticationFailed):
    """A login is not possible here: the listener has no SASL, or a login is in progress."""

    code = ErrorCode.ILLEGAL_SASL_STATE


class RequestTimedOut(KafkaError):
    """No answer, or no delivery, within the time allowed."""

    code = ErrorCode.REQUEST_TIMED_OUT


_BY_CODE: dict[ErrorCode, type[KafkaError]] = {
    cls.code: cls
    for cls in (
        CorruptMessage, InvalidRecord, UnsupportedCompression, MessageTooLarge, InvalidRequest,
        UnsupportedVersion, UnknownTopicOrPartition, UnknownTopicId, TopicAlreadyExists, InvalidTopic,
        InvalidPartitions, InvalidConfig, InvalidTimestamp, OutOfOrderSequence, InvalidProducerEpoch,
        ProducerFenced, InvalidTxnState, InvalidProducerIdMapping, ConcurrentTransactions,
        TransactionAbortable, CoordinatorLoading, StorageError, ConnectionLost, RequestTimedOut,
        AuthenticationFailed, UnsupportedSaslMechanism, IllegalSaslState,
    )
}  # fmt: skip
"""Classes created from a message alone; the others need facts that only the raiser has."""


def error_for(code: ErrorCode | int, message: str) -> KafkaError:
    """The exception for an error code in a broker's response."""
    cls = _BY_CODE.get(ErrorCode.of(code))
    return cls(message) if cls is not None else ServerError(code, message)


def reason(
    code: ErrorCode, operation: str, *, topic: str = "", group: str = "", transactional_id: str = "",
    said: str | None = None,
) -> str:  # fmt: skip
    """Why a broker refused: the missing right; else what it ``said``, or the code's name."""
    resource = {
        ErrorCode.TOPIC_AUTHORIZATION_FAILED: topic and f"topic {topic}",
        ErrorCode.GROUP_AUTHORIZATION_FAILED: group and f"group {group}",
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "the cluster",
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: transactional_id
        and f"transactional id {transactional_id}",
    }.get(code)
    if resource:
        return f"this needs {operation} on {resource}"
    return (said or code.name).removeprefix(f"{code.name}: ")  # some brokers repeat it


class LoadError(KafkaError):
    """A load, or its ledger, cannot continue; earlier commits stay as they are."""


class LoadBusy(LoadError):
    """Another driver holds the lock of this load."""


class LostRace(LoadError):
    """Another driver created the same record first; its record is in effect."""


class DamagedRecord(LoadError):
    """A record of the ledger is missing, torn, edited, or contradicts the others."""


class NewerFormat(LoadError):
    """A record in the format of a newer release."""


class ForeignCluster(LoadError):
    """The ledger belongs to another cluster."""


class TopicRecreated(LoadError):
    """A topic was deleted and created again: its id changed, or its log ends before the position."""


class OffsetsAgedOut(LoadError):
    """Retention deleted offsets that were never loaded."""


class ReceiptMismatch(LoadError):
    """Two attempts at the same offsets saw different records, or a receipt is for another plan."""


class IncompleteLoad(LoadError):
    """Not every range of the plan was read to its end."""


class TooManyDead(LoadError):
    """More dead letters than ``max_dead`` allows."""


class DatabaseFailed(LoadError):
    """A database refused a statement, or could not be reached."""


class UnstorableValue(LoadError):
    """A value cannot be converted to the type of its column in the database."""


class UnsafeStore(LoadError):
    """This store cannot hold a ledger: it has no exclusive create, or an unreliable one."""


def briefly(method: Callable[P, R]) -> Callable[P, R]:
    """Wrap a method called by another library: raise a `KafkaError` from here, without its cause. Spark and
    Arrow print the whole traceback of a data source's error, which would bury a message about a wrong option;
    it is logged at debug level.
    """

    @wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(*args, **kwargs)
        except KafkaError as e:
            log.debug("%s failed", method.__qualname__, exc_info=True)
            error = e.with_traceback(None)
        error.__context__ = None
        raise error from None

    return call
