"""What a transactional producer may do next, and what a failure means for it. No I/O, no locks.

    init_transactions   UNINITIALIZED → INITIALIZING → READY
    begin_transaction   READY → OPEN
    commit_transaction  OPEN or PREPARED → COMMITTING → READY
    abort_transaction   OPEN, PREPARED or FAILED → ABORTING → READY
    prepare_transaction OPEN → PREPARING → PREPARED

A failure leads to FAILED, from which only `abort_transaction` leads on, or to FATAL, from which nothing does.
COMMITTING, ABORTING and PREPARING may be begun again: their calls can run out of time.
Source: KIP-98, 360, 447, 890 and Kafka's TransactionManager, whose distinctions these are.
"""

from __future__ import annotations

from enum import Enum

from pyspark_kafkalog.errors import (
    ErrorCode,
    InvalidTxnState,
    KafkaError,
    TransactionAbortable,
    error_for,
)
from pyspark_kafkalog.types import TopicPartition


class State(Enum):
    """Where a transactional producer is; the value says it to users."""

    UNINITIALIZED = "init_transactions() has not been called"
    INITIALIZING = "init_transactions() has not returned"
    READY = "no transaction has begun"
    OPEN = "a transaction is open"
    PREPARING = "prepare_transaction() has not returned; it can be called again"
    PREPARED = "the transaction is prepared: it can be committed or aborted"
    COMMITTING = "commit_transaction() has not returned; it can be called again"
    ABORTING = "abort_transaction() has not returned; it can be called again"
    FAILED = "the transaction has failed"
    FATAL = "the producer has failed"


class Step(Enum):
    """What failed."""

    INIT = "init_transactions"
    ADD_PARTITIONS = "adding partitions"
    ADD_OFFSETS = "adding a group"
    COMMIT_OFFSETS = "committing offsets"
    PRODUCE = "sending"
    END = "ending"


class Consequence(Enum):
    """What a failure leads to."""

    AGAIN = "nothing is decided: the same can be tried again"
    ABORT = "the transaction can only be aborted"
    CLOSE = "the producer can only be closed"


_BEFORE = {
    State.INITIALIZING: {State.UNINITIALIZED},
    State.OPEN: {State.READY},
    State.PREPARING: {State.OPEN, State.PREPARING},
    State.COMMITTING: {State.OPEN, State.PREPARED, State.COMMITTING},
    State.ABORTING: {State.OPEN, State.PREPARING, State.PREPARED, State.FAILED, State.ABORTING},
}
"""What a call leads to, and the states in which it may be made."""

_ALWAYS_FATAL = frozenset(
    {
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.UNSUPPORTED_VERSION,
    }
)
_FORGOTTEN = frozenset({ErrorCode.UNKNOWN_PRODUCER_ID, ErrorCode.INVALID_PRODUCER_ID_MAPPING})
"""The broker does not know the producer id any more: it goes on under another epoch."""

_FATAL_FOR_PARTITIONS = frozenset({ErrorCode.INVALID_TXN_STATE, ErrorCode.INVALID_PRODUCER_EPOCH})
_ABORTABLE = {
    Step.ADD_OFFSETS: _FORGOTTEN | {ErrorCode.GROUP_AUTHORIZATION_FAILED, ErrorCode.TRANSACTION_ABORTABLE},
    Step.COMMIT_OFFSETS: frozenset(
        {
            ErrorCode.GROUP_AUTHORIZATION_FAILED,
            ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            ErrorCode.FENCED_INSTANCE_ID,
            ErrorCode.UNKNOWN_MEMBER_ID,
            ErrorCode.ILLEGAL_GENERATION,
            ErrorCode.OFFSET_METADATA_TOO_LARGE,
            ErrorCode.TRANSACTION_ABORTABLE,
        }
    ),
    Step.END: _FORGOTTEN | {ErrorCode.TRANSACTION_ABORTABLE},
}
"""Where everything else is fatal."""


def consequence(step: Step, error: KafkaError) -> Consequence:
    """What ``error`` means that was not, or could not be, mended by repeating the request."""
    code = error.code
    if code in _ALWAYS_FATAL:
        return Consequence.CLOSE
    if step is Step.PRODUCE:
        return Consequence.ABORT
    if error.retriable:
        # Offsets that may or may not be in the transaction must not be committed by mistake.
        return Consequence.ABORT if step in (Step.ADD_OFFSETS, Step.COMMIT_OFFSETS) else Consequence.AGAIN
    if step is Step.INIT:
        return Consequence.CLOSE
    if step is Step.ADD_PARTITIONS:
        return Consequence.CLOSE if code in _FATAL_FOR_PARTITIONS else Consequence.ABORT
    return Consequence.ABORT if code in _ABORTABLE[step] else Consequence.CLOSE


class TransactionState:
    """*Not thread-safe: its manager's lock guards it.* Each method is what a user or a broker did."""

    def __init__(self) -> None:
        self.state = State.UNINITIALIZED
        self.cause: KafkaError | None = None
        """Why it is FAILED or FATAL."""
        self.partitions: frozenset[TopicPartition] = frozenset()
        """What the coordinator has in the open transaction; replaced as a whole."""
        self.groups: frozenset[str] = frozenset()
        self.renewing = False
        """Whether the producer needs another epoch before its next transaction."""

    @property
    def empty(self) -> bool:
        """Whether the coordinator knows of nothing that would have to be ended."""
        return not (self.partitions or self.groups)

    def call(self, doing: str, to: State) -> None:
        """The user calls ``doing``, which leads to the state ``to``.

        Raises:
            TransactionAbortable: the transaction has failed, and this is not its abortion.
            InvalidTxnState: the call does not fit the state.
            KafkaError: the producer has failed; of the class of what it failed with.
        """
        self._check_sound(doing, aborting=to is State.ABORTING)
        if self.state not in _BEFORE[to]:
            raise InvalidTxnState(f"{doing} is not possible: {self.state.value}")
        self.state = to

    def check_open(self, doing: str) -> None:
        """The user adds to the transaction. Raises as `call`."""
        self._check_sound(doing)
        if self.state is not State.OPEN:
            raise InvalidTxnState(f"{doing} is not possible: {self.state.value}")

    def refusal(self, doing: str) -> KafkaError | None:
        """Why nothing can be added to a transaction now."""
        try:
            self.check_open(doing)
        except KafkaError as e:
            return e
        return None

    def initialized(self) -> None:
        """The coordinator gave the producer its epoch: `init_transactions` is done."""
        self.state = State.READY

    def prepared(self) -> None:
        """Everything is stored. Raises as `call` if something failed meanwhile."""
        self._check_sound("prepare_transaction()")
        self.state = State.PREPARED

    def adds(self) -> bool:
        """Whether partitions may be added: while records may be on their way to be sent."""
        return self.state in (State.OPEN, State.COMMITTING, State.PREPARING)

    def added(self, partitions: frozenset[TopicPartition]) -> None:
        """The coordinator has these partitions in the transaction as well."""
        self.partitions |= partitions

    def added_group(self, group: str) -> None:
        """The coordinator has offsets of ``group`` in the transaction as well."""
        self.groups |= {group}

    def ended(self) -> None:
        """The coordinator has ended the transaction; another epoch may still be needed."""
        self.partitions, self.groups = frozenset(), frozenset()

    def done(self) -> None:
        """The call that ended the transaction is done."""
        self.state, self.cause, self.renewing = State.READY, None, False

    def failed(self, step: Step, error: KafkaError, *, numbered: bool = False) -> Consequence:
        """Something failed for good. ``numbered``: a batch whose sequence numbers are used up with it."""
        found = consequence(step, error)
        if self.state is State.FATAL:
            return Consequence.CLOSE
        if found is Consequence.CLOSE:
            self.state, self.cause = State.FATAL, error
            return found
        self.renewing |= numbered or error.code in _FORGOTTEN
        if error.code == ErrorCode.INVALID_PRODUCER_ID_MAPPING:
            self.ended()  # there is nothing that the coordinator could end
        if found is Consequence.AGAIN:
            if self.state is State.INITIALIZING:
                self.state = State.UNINITIALIZED
        elif self.state is not State.ABORTING:
            self.state = State.FAILED
            self.cause = self.cause or error
        return found

    def _check_sound(self, doing: str, *, aborting: bool = False) -> None:
        cause = self.cause
        if self.state is State.FATAL and cause is not None:
            raise error_for(
                cause.code, f"{doing}: the producer can do nothing more and is to be closed: {cause}"
            ) from cause
        if self.state is State.FAILED and not aborting:
            raise TransactionAbortable(
                f"{doing} is not possible: {self.state.value} and can only be aborted: {cause}"
            ) from cause
