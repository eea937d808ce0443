"""A producer's transactions: their state, and the requests that they take."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from pyspark_kafkalog.client.discovery import Cluster
from pyspark_kafkalog.client.retry import Deadline
from pyspark_kafkalog.client.transactions import (
    Offsets,
    PreparedTransaction,
    ProducerEpoch,
    TransactionCoordinator,
    committable,
)
from pyspark_kafkalog.clock import SYSTEM_CLOCK, Clock
from pyspark_kafkalog.config.producer import ProducerConfig
from pyspark_kafkalog.errors import (
    InvalidRequest,
    KafkaError,
    RequestTimedOut,
    TransactionAbortable,
    TransactionAborted,
)
from pyspark_kafkalog.producer.accumulator import Accumulator
from pyspark_kafkalog.producer.batch import ProducerBatch
from pyspark_kafkalog.producer.partition_queue import ProducerIdentity
from pyspark_kafkalog.producer.transaction_state import Consequence, State, Step, TransactionState
from pyspark_kafkalog.types import TopicPartition

logger = logging.getLogger(__name__)

Flush = Callable[[Deadline], None]
"""Returns when all that is in the buffer is settled; TimeoutError after the deadline."""

_SEND = "send()"


class TransactionManager:
    """*Thread-safe.* Owns the state, guarded by one lock, and its `Cluster`, guarded by another that is held
    over requests: so a transaction is not ended while a partition is being added to it.

    Calls are the application's, but for `trouble`, `partitions`, `add_partitions` and `disconnect`, which
    are the sender's. The accumulator's lock may be held when the state's is taken, never the other way round.
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
        self._coordinator = TransactionCoordinator(self._cluster, transactional_id)
        self._producer = ProducerEpoch(-1, -1)
        self._closed = False
        accumulator.for_transactions(self._batch_failed)
        self._tell()

    @property
    def partitions(self) -> frozenset[TopicPartition]:
        """What may be sent to: the partitions that the coordinator has in the transaction."""
        return self._state.partitions

    @property
    def trouble(self) -> tuple[Consequence, KafkaError] | None:
        """Whether the transaction or the producer has failed, and why."""
        with self._guard:
            cause = self._state.cause
            if cause is None:
                return None
            return Consequence.CLOSE if self._state.state is State.FATAL else Consequence.ABORT, cause

    def init(self, timeout: float | None) -> None:
        """See `Producer.init_transactions`."""
        deadline = self._deadline(timeout)
        self._call("init_transactions()", State.INITIALIZING)
        with self._doing("init_transactions()", Step.INIT, deadline):
            self._take_over(None, deadline)
        with self._guard:
            self._state.initialized()
        self._tell()

    def begin(self) -> None:
        """See `Producer.begin_transaction`."""
        self._call("begin_transaction()", State.OPEN)

    def commit(self, timeout: float | None) -> None:
        """See `Producer.commit_transaction`."""
        deadline = self._deadline(timeout)
        self._call("commit_transaction()", State.COMMITTING)
        self._settle_all("commit_transaction()", deadline)
        with self._guard:
            self._state.call("commit_transaction()", State.COMMITTING)  # unless something failed meanwhile
        self._end("commit_transaction()", commit=True, deadline=deadline)

    def abort(self, timeout: float | None) -> None:
        """See `Producer.abort_transaction`."""
        deadline = self._deadline(timeout)
        self._call("abort_transaction()", State.ABORTING)
        why = TransactionAborted(f"transactional id {self._id!r}: the transaction was aborted")
        self._accumulator.discard(why, numbered=False)
        self._settle_all("abort_transaction()", deadline)
        self._end("abort_transaction()", commit=False, deadline=deadline)

    def prepare(self, timeout: float | None) -> PreparedTransaction:
        """See `Producer.prepare_transaction`."""
        deadline = self._deadline(timeout)
        self._call("prepare_transaction()", State.PREPARING)
        self._settle_all("prepare_transaction()", deadline)
        with self._guard:
            self._state.prepared()
            prepared = PreparedTransaction(self._id, *self._producer, self._state.empty)
        self._tell()
        return prepared

    def send_offsets(self, offsets: Offsets, group: str) -> None:
        """See `Producer.send_offsets_to_transaction`."""
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
            with self._doing(doing, Step.ADD_OFFSETS, deadline, adding=True):
                self._coordinator.add_offsets(self._producer, group, deadline)
                with self._guard:
                    self._state.added_group(group)
        with self._doing(doing, Step.COMMIT_OFFSETS, deadline, adding=True):
            self._coordinator.commit_offsets(self._producer, group, offsets, deadline)

    def add_partitions(self, wanted: Iterable[TopicPartition]) -> None:
        """Have the coordinator take partitions into the transaction, if there is one that takes them still.

        Raises:
            RequestTimedOut: it could not be reached; whoever wants it asks again.
            KafkaError: the transaction or the producer has failed; `trouble` says so too.
        """
        deadline = Deadline.after(self._config.request_timeout_ms / 1000, self._clock)
        with self._doing("adding partitions", Step.ADD_PARTITIONS, deadline):
            with self._guard:
                if not self._state.adds():
                    return
                missing = frozenset(wanted) - self._state.partitions
            if missing:
                self._coordinator.add_partitions(self._producer, sorted(missing), deadline)
            with self._guard:
                self._state.added(missing)

    def close(self, deadline: Deadline) -> None:
        """Abort what is neither committed nor prepared. Raises nothing."""
        with self._guard:
            state = self._state.state
        if state in (State.OPEN, State.PREPARING, State.FAILED, State.ABORTING):
            logger.info("transactional id %r: closing aborts the open transaction", self._id)
            try:
                self.abort(min(deadline.left, self._config.max_block_ms / 1000))
            except KafkaError as e:
                logger.warning("transactional id %r: not aborted while closing: %s", self._id, e)

    def disconnect(self) -> None:
        """Close the connections, at once or when the present request ends. Does not wait."""
        self._closed = True
        if self._requests.acquire(blocking=False):
            self._cluster.close()
            self._requests.release()

    def _call(self, doing: str, to: State) -> None:
        with self._guard:
            self._state.call(doing, to)
        self._tell()

    def _tell(self) -> None:
        """Have the accumulator take records or not, as the state is now."""
        with self._guard:
            refusal = self._state.refusal(_SEND)
        self._accumulator.refuse(refusal)

    def _batch_failed(self, batch: ProducerBatch, error: KafkaError) -> KafkaError | None:
        """Why no more records are taken. The accumulator calls it, under its lock."""
        with self._guard:
            self._state.failed(Step.PRODUCE, error, numbered=batch.base_sequence >= 0)
            return self._state.refusal(_SEND)

    def _settle_all(self, doing: str, deadline: Deadline) -> None:
        try:
            self._flush(deadline)
        except TimeoutError as e:
            raise RequestTimedOut(f"{doing}: {e}; it can be called again") from e

    def _end(self, doing: str, *, commit: bool, deadline: Deadline) -> None:
        with self._doing(doing, Step.END, deadline):
            if not self._state.empty:
                self._coordinator.end(self._producer, commit=commit, deadline=deadline)
                with self._guard:
                    self._state.ended()
        if self._state.renewing:
            with self._doing(doing, Step.INIT, deadline):
                self._take_over(self._producer, deadline)
        with self._guard:
            self._state.done()
        self._tell()

    def _take_over(self, keep: ProducerEpoch | None, deadline: Deadline) -> None:
        self._producer = self._coordinator.init_producer(
            self._config.transaction_timeout_ms, deadline, keep=keep
        )
        self._accumulator.identity = ProducerIdentity(*self._producer)

    @contextmanager
    def _doing(self, doing: str, step: Step, deadline: Deadline, *, adding: bool = False) -> Iterator[None]:
        """A request, alone; its failure changes the state, and is raised as what it means.

        ``adding`` is for what needs a transaction that is still open once its turn has come.

        Raises:
            RequestTimedOut: out of time, nothing is decided.
            TransactionAbortable: the transaction has failed.
            KafkaError: the producer has failed.
        """
        if not self._requests.acquire(timeout=deadline.left):
            raise RequestTimedOut(f"{doing}: another request is not answered yet; it can be called again")
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
            self._tell()
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
