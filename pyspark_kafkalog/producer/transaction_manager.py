"""A transactional producer: its states, and the requests to the transaction coordinator.

    init_transactions   UNINITIALIZED → INITIALIZING → READY
    begin_transaction   READY → OPEN
    commit_transaction  OPEN or PREPARED → COMMITTING → READY
    abort_transaction   OPEN, PREPARED or FAILED → ABORTING → READY
    prepare_transaction OPEN → PREPARING → PREPARED

A failure leads to FAILED, which only `abort_transaction` leaves, or to FATAL, which is final. COMMITTING,
ABORTING and PREPARING can be entered again, because their calls can time out.
Source: KIP-98, 360, 447, 890 and Kafka's TransactionManager.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum

from pyspark_kafkalog.client import transactions
from pyspark_kafkalog.client.discovery import Cluster
from pyspark_kafkalog.client.groups import GroupMetadata, committable
from pyspark_kafkalog.client.retry import Deadline
from pyspark_kafkalog.clock import SYSTEM_CLOCK, Clock
from pyspark_kafkalog.config.producer_config import ProducerConfig
from pyspark_kafkalog.errors import (
    ErrorCode,
    InvalidRequest,
    InvalidTxnState,
    KafkaError,
    RequestTimedOut,
    TransactionAbortable,
    TransactionAborted,
    error_for,
)
from pyspark_kafkalog.producer.accumulator import Accumulator
from pyspark_kafkalog.producer.producer_batch import ProducerBatch
from pyspark_kafkalog.types import TopicPartition

logger = logging.getLogger(__name__)

_ALWAYS_FATAL = frozenset({
    ErrorCode.PRODUCER_FENCED, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ErrorCode.UNSUPPORTED_VERSION,
})  # fmt: skip
_FORGOTTEN = frozenset({ErrorCode.UNKNOWN_PRODUCER_ID, ErrorCode.INVALID_PRODUCER_ID_MAPPING})
"""The broker no longer knows the producer id; continue with another epoch."""

_FATAL_FOR_PARTITIONS = frozenset({ErrorCode.INVALID_TXN_STATE, ErrorCode.INVALID_PRODUCER_EPOCH})
Flush = Callable[[Deadline], None]
"""Returns when the buffer is settled. Raises `TimeoutError` after the deadline."""

_SEND = "send()"


class ProducerPhase(Enum):
    """State of a transactional producer; the values are shown to users."""

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


class FailedCall(Enum):
    INIT = "init_transactions"
    ADD_PARTITIONS = "adding partitions"
    ADD_OFFSETS = "adding a group"
    COMMIT_OFFSETS = "committing offsets"
    PRODUCE = "sending"
    END = "ending"


class Consequence(Enum):
    AGAIN = "nothing is decided: the call can be repeated"
    ABORT = "the transaction can only be aborted"
    CLOSE = "the producer can only be closed"


_BEFORE = {
    ProducerPhase.INITIALIZING: {ProducerPhase.UNINITIALIZED},
    ProducerPhase.OPEN: {ProducerPhase.READY},
    ProducerPhase.PREPARING: {ProducerPhase.OPEN, ProducerPhase.PREPARING},
    ProducerPhase.COMMITTING: {ProducerPhase.OPEN, ProducerPhase.PREPARED, ProducerPhase.COMMITTING},
    ProducerPhase.ABORTING: {
        ProducerPhase.OPEN, ProducerPhase.PREPARING, ProducerPhase.PREPARED, ProducerPhase.FAILED,
        ProducerPhase.ABORTING,
    },
}  # fmt: skip
"""States from which a call may enter a state."""


_ABORTABLE = {
    FailedCall.ADD_OFFSETS: _FORGOTTEN
    | {ErrorCode.GROUP_AUTHORIZATION_FAILED, ErrorCode.TRANSACTION_ABORTABLE},
    FailedCall.COMMIT_OFFSETS: frozenset({
        ErrorCode.GROUP_AUTHORIZATION_FAILED, ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.FENCED_INSTANCE_ID, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.OFFSET_METADATA_TOO_LARGE, ErrorCode.TRANSACTION_ABORTABLE,
    }),
    FailedCall.END: _FORGOTTEN | {ErrorCode.TRANSACTION_ABORTABLE},
}  # fmt: skip
"""Codes that abort the transaction; in these steps all others are fatal."""


def consequence(step: FailedCall, error: KafkaError) -> Consequence:
    """What ``error`` means after its retries."""
    code = error.code
    if code in _ALWAYS_FATAL:
        return Consequence.CLOSE
    if step is FailedCall.PRODUCE:
        return Consequence.ABORT
    if error.retriable:
        # Offsets that may be in the transaction must not be committed by mistake.
        in_doubt = step in (FailedCall.ADD_OFFSETS, FailedCall.COMMIT_OFFSETS)
        return Consequence.ABORT if in_doubt else Consequence.AGAIN
    if step is FailedCall.INIT:
        return Consequence.CLOSE
    if step is FailedCall.ADD_PARTITIONS:
        return Consequence.CLOSE if code in _FATAL_FOR_PARTITIONS else Consequence.ABORT
    return Consequence.ABORT if code in _ABORTABLE[step] else Consequence.CLOSE


@dataclass(slots=True)
class TransactionState:
    """*Guarded by its manager's lock.* Each method is an event from the user or a broker."""

    state: ProducerPhase = ProducerPhase.UNINITIALIZED
    cause: KafkaError | None = None  # why the state is FAILED or FATAL
    partitions: frozenset[TopicPartition] = frozenset()  # in the open transaction; replaced as a whole
    groups: frozenset[str] = frozenset()
    renewing: bool = False  # whether the next transaction needs another epoch

    @property
    def empty(self) -> bool:
        """Whether the coordinator has nothing to end."""
        return not (self.partitions or self.groups)

    def call(self, doing: str, to: ProducerPhase) -> None:
        self._check_sound(doing, aborting=to is ProducerPhase.ABORTING)
        if self.state not in _BEFORE[to]:
            raise InvalidTxnState(f"{doing} is not possible: {self.state.value}")
        self.state = to

    def check_open(self, doing: str) -> None:
        self._check_sound(doing)
        if self.state is not ProducerPhase.OPEN:
            raise InvalidTxnState(f"{doing} is not possible: {self.state.value}")

    def refusal(self, doing: str) -> KafkaError | None:
        try:
            self.check_open(doing)
        except KafkaError as e:
            return e
        return None

    def initialized(self) -> None:
        self.state = ProducerPhase.READY

    def prepared(self) -> None:
        """Everything is stored. Raises if something failed meanwhile."""
        self._check_sound("prepare_transaction()")
        self.state = ProducerPhase.PREPARED

    def adds(self) -> bool:
        """Whether partitions may be added: while records may still be sent."""
        return self.state in (ProducerPhase.OPEN, ProducerPhase.COMMITTING, ProducerPhase.PREPARING)

    def ended(self) -> None:
        """The coordinator has ended the transaction; another epoch may still be needed."""
        self.partitions, self.groups = frozenset(), frozenset()

    def done(self) -> None:
        self.state, self.cause, self.renewing = ProducerPhase.READY, None, False

    def failed(self, step: FailedCall, error: KafkaError, *, numbered: bool = False) -> Consequence:
        """A final failure. ``numbered``: of a batch whose sequence numbers are used up."""
        found = consequence(step, error)
        if self.state is ProducerPhase.FATAL:
            return Consequence.CLOSE
        if found is Consequence.CLOSE:
            self.state, self.cause = ProducerPhase.FATAL, error
            return found
        self.renewing |= numbered or error.code in _FORGOTTEN
        if error.code == ErrorCode.INVALID_PRODUCER_ID_MAPPING:
            self.ended()  # the coordinator has nothing to end
        if found is Consequence.AGAIN:
            if self.state is ProducerPhase.INITIALIZING:
                self.state = ProducerPhase.UNINITIALIZED
        elif self.state is not ProducerPhase.ABORTING:
            self.state = ProducerPhase.FAILED
            self.cause = self.cause or error
        return found

    def _check_sound(self, doing: str, *, aborting: bool = False) -> None:
        cause = self.cause
        if self.state is ProducerPhase.FATAL and cause is not None:
            text = f"{doing}: the producer has failed and must be closed: {cause}"
            raise error_for(cause.code, text) from cause
        if self.state is ProducerPhase.FAILED and not aborting:
            raise TransactionAbortable(
                f"{doing} is not possible: {self.state.value} and can only be aborted: {cause}"
            ) from cause


class TransactionManager:
    """*Thread-safe.* The state has one lock. Another is held during requests, so that a transaction does not
    end while a partition is being added. The state's lock may be taken while holding the accumulator's, not
    the other way round. The sender calls `trouble`, `partitions`, `add_partitions` and `disconnect`.
    """

    def __init__(
        self, transactional_id: str, config: ProducerConfig, accumulator: Accumulator, *,
        flush: Flush, clock: Clock = SYSTEM_CLOCK,
    ) -> None:  # fmt: skip
        self._config, self._accumulator, self._flush, self._clock = config, accumulator, flush, clock
        self._id = transactional_id
        self._guard = threading.Lock()
        self._state = TransactionState()
        self._requests = threading.Lock()
        self._cluster = Cluster(config, clock=clock)
        self._coordinator = transactions.TransactionCoordinator(self._cluster, transactional_id)
        self._producer = transactions.ProducerEpoch(-1, -1)
        self._closed = False
        accumulator.for_transactions(self._batch_failed)
        self._update_accumulator()

    @property
    def partitions(self) -> frozenset[TopicPartition]:
        """Partitions in the transaction; records may be sent to them."""
        return self._state.partitions

    @property
    def trouble(self) -> tuple[Consequence, KafkaError] | None:
        """Why the transaction or the producer has failed, and what follows; None if it has not."""
        with self._guard:
            cause = self._state.cause
            if cause is None:
                return None
            fatal = self._state.state is ProducerPhase.FATAL
            return Consequence.CLOSE if fatal else Consequence.ABORT, cause

    def init(self, timeout: float | None) -> None:
        deadline = self._deadline(timeout)
        self._call("init_transactions()", ProducerPhase.INITIALIZING)
        with self._requesting("init_transactions()", FailedCall.INIT, deadline):
            self._take_over(None, deadline)
        with self._guard:
            self._state.initialized()
        self._update_accumulator()

    def begin(self) -> None:
        self._call("begin_transaction()", ProducerPhase.OPEN)

    def commit(self, timeout: float | None) -> None:
        deadline = self._deadline(timeout)
        self._call("commit_transaction()", ProducerPhase.COMMITTING)
        self._settle_all("commit_transaction()", deadline)
        with self._guard:
            # Raises if something failed meanwhile.
            self._state.call("commit_transaction()", ProducerPhase.COMMITTING)
        self._end("commit_transaction()", commit=True, deadline=deadline)

    def abort(self, timeout: float | None) -> None:
        deadline = self._deadline(timeout)
        self._call("abort_transaction()", ProducerPhase.ABORTING)
        why = TransactionAborted(f"transactional id {self._id!r}: the transaction was aborted")
        self._accumulator.discard(why, numbered=False)
        self._settle_all("abort_transaction()", deadline)
        self._end("abort_transaction()", commit=False, deadline=deadline)

    def prepare(self, timeout: float | None) -> transactions.PreparedTransaction:
        deadline = self._deadline(timeout)
        self._call("prepare_transaction()", ProducerPhase.PREPARING)
        self._settle_all("prepare_transaction()", deadline)
        with self._guard:
            self._state.prepared()
            prepared = transactions.PreparedTransaction(self._id, *self._producer, self._state.empty)
        self._update_accumulator()
        return prepared

    def send_offsets(self, offsets: transactions.Offsets, committer: GroupMetadata) -> None:
        group = committer.group
        doing = "send_offsets_to_transaction()"
        if wrong := [tp for tp, given in offsets.items() if committable(given).offset < 0]:
            raise InvalidRequest(f"{wrong[0]}: an offset below 0 cannot be committed for group {group!r}")
        deadline = self._deadline(None)
        with self._guard:
            self._state.check_open(doing)
            known = group in self._state.groups
        if not offsets:
            return
        if not known:
            with self._requesting(doing, FailedCall.ADD_OFFSETS, deadline, adding=True):
                self._coordinator.add_offsets(self._producer, group, deadline)
                with self._guard:
                    self._state.groups |= {group}
        with self._requesting(doing, FailedCall.COMMIT_OFFSETS, deadline, adding=True):
            self._coordinator.commit_offsets(self._producer, committer, offsets, deadline)

    def add_partitions(self, wanted: Iterable[TopicPartition]) -> None:
        """Add partitions if the transaction accepts them. After `RequestTimedOut` the sender tries again."""
        deadline = Deadline.after(self._config.request_timeout_ms / 1000, self._clock)
        with self._requesting("adding partitions", FailedCall.ADD_PARTITIONS, deadline):
            with self._guard:
                if not self._state.adds():
                    return
                missing = frozenset(wanted) - self._state.partitions
            if missing:
                self._coordinator.add_partitions(self._producer, sorted(missing), deadline)
            with self._guard:
                self._state.partitions |= missing

    def close(self, deadline: Deadline) -> None:
        """Abort a transaction that is neither committed nor prepared. Raises nothing."""
        with self._guard:
            state = self._state.state
        if state in (
            ProducerPhase.OPEN,
            ProducerPhase.PREPARING,
            ProducerPhase.FAILED,
            ProducerPhase.ABORTING,
        ):
            logger.info("transactional id %r: closing aborts the open transaction", self._id)
            try:
                self.abort(min(deadline.left, self._config.max_block_ms / 1000))
            except KafkaError as e:
                logger.warning("transactional id %r: not aborted while closing: %s", self._id, e)

    def disconnect(self) -> None:
        """Close the connections, at once or after the current request. Does not wait."""
        self._closed = True
        if self._requests.acquire(blocking=False):
            self._cluster.close()
            self._requests.release()

    def _call(self, doing: str, to: ProducerPhase) -> None:
        with self._guard:
            self._state.call(doing, to)
        self._update_accumulator()

    def _update_accumulator(self) -> None:
        with self._guard:
            refusal = self._state.refusal(_SEND)
        self._accumulator.refuse(refusal)

    def _batch_failed(self, batch: ProducerBatch, error: KafkaError) -> KafkaError | None:
        """Called by the accumulator under its lock; returns why no more records are accepted."""
        with self._guard:
            self._state.failed(FailedCall.PRODUCE, error, numbered=batch.base_sequence >= 0)
            return self._state.refusal(_SEND)

    def _settle_all(self, doing: str, deadline: Deadline) -> None:
        try:
            self._flush(deadline)
        except TimeoutError as e:
            raise RequestTimedOut(f"{doing}: {e}; it can be called again") from e

    def _end(self, doing: str, *, commit: bool, deadline: Deadline) -> None:
        with self._requesting(doing, FailedCall.END, deadline):
            if not self._state.empty:
                self._coordinator.end(self._producer, commit=commit, deadline=deadline)
                with self._guard:
                    self._state.ended()
        if self._state.renewing:
            with self._requesting(doing, FailedCall.INIT, deadline):
                self._take_over(self._producer, deadline)
        with self._guard:
            self._state.done()
        self._update_accumulator()

    def _take_over(self, keep: transactions.ProducerEpoch | None, deadline: Deadline) -> None:
        self._producer = self._coordinator.init_producer(
            self._config.transaction_timeout_ms, deadline, keep=keep
        )
        self._accumulator.identity = self._producer

    @contextmanager
    def _requesting(
        self, doing: str, step: FailedCall, deadline: Deadline, *, adding: bool = False
    ) -> Iterator[None]:
        """Run one request; raise its failure as its consequence. ``adding`` needs an open transaction."""
        if not self._requests.acquire(timeout=deadline.left):
            raise RequestTimedOut(f"{doing}: another request is still running; it can be called again")
        with self._guard:
            refusal = self._state.refusal(doing) if adding else None
        if refusal is not None:
            self._requests.release()
            raise refusal
        try:
            yield
        except KafkaError as e:
            with self._guard:
                found = self._state.failed(step, e)
            self._update_accumulator()
            if found is Consequence.AGAIN:
                raise RequestTimedOut(f"{doing}: {e}; it can be called again") from e
            if found is Consequence.ABORT:
                raise TransactionAbortable(f"{doing}: the transaction can only be aborted: {e}") from e
            raise
        finally:
            if self._closed:
                self._cluster.close()
            self._requests.release()

    def _deadline(self, timeout: float | None) -> Deadline:
        return Deadline.after(self._config.max_block_ms / 1000 if timeout is None else timeout, self._clock)
