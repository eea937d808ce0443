"""List and describe transactions, and abort one whose producer is gone. Needs Apache Kafka 3.0.

Functions take a `Cluster`, or ``bootstrap.servers`` for a single call.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_kafkalog.client.connection import Connection
from pyspark_kafkalog.client.discovery import Cluster, Where, cluster_at
from pyspark_kafkalog.client.groups import coordinator
from pyspark_kafkalog.client.retry import Deadline
from pyspark_kafkalog.client.transactions import TransactionCoordinator
from pyspark_kafkalog.errors import ErrorCode, InvalidRequest, InvalidTxnState, error_for
from pyspark_kafkalog.protocol.api.metadata import CoordinatorType
from pyspark_kafkalog.protocol.api.transactions import DescribeTransactionsRequest, ListTransactionsRequest
from pyspark_kafkalog.types import TopicPartition

ONGOING = "Ongoing"


@dataclass(frozen=True, slots=True)
class TransactionListing:
    """A transactional id; ``state`` is Empty, Ongoing, Prepare... or Complete... (Commit or Abort)."""

    transactional_id: str
    state: str
    producer_id: int


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """A transactional id at its coordinator; ``started_ms`` is None without an open transaction."""

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    started_ms: int | None
    partitions: tuple[TopicPartition, ...]


def list_transactions(
    where: Where, *, ongoing: bool = False, deadline: Deadline | None = None
) -> list[TransactionListing]:
    """Transactional ids of all brokers by name, or only those with an open transaction."""
    with cluster_at(where) as cluster:
        attempts = cluster.retrying("listing transactions", deadline)
        return attempts.run(lambda limit: _listed(cluster, ongoing, limit))


def describe_transaction(
    where: Where, transactional_id: str, *, deadline: Deadline | None = None
) -> TransactionDescription:
    """State, producer and partitions. Raises `ServerError` (TRANSACTIONAL_ID_NOT_FOUND)."""
    with cluster_at(where) as cluster:

        def ask(limit: Deadline) -> TransactionDescription:
            connection = coordinator(cluster, CoordinatorType.TRANSACTION, transactional_id, limit)
            return _described(connection, transactional_id, limit)

        doing = f"describing transactional id {transactional_id!r}"
        return cluster.retrying(doing, deadline).run(ask)


def abort_transaction(
    where: Where, transactional_id: str, *, deadline: Deadline | None = None
) -> TransactionDescription:
    """Abort the id's open transaction and return its description.

    Fences the producer. Returns when the markers are written, so readers of committed records can continue.
    Raises `InvalidTxnState` if no transaction is open, `ServerError` (TRANSACTIONAL_ID_NOT_FOUND).
    """
    with cluster_at(where) as cluster:
        found = describe_transaction(cluster, transactional_id, deadline=deadline)
        if found.state != ONGOING:
            raise InvalidTxnState(
                f"transactional id {transactional_id!r} has no open transaction: its state is {found.state}"
            )
        limit = deadline or Deadline.after(cluster.config.request_timeout_ms / 1000, cluster.clock)
        TransactionCoordinator(cluster, transactional_id).init_producer(found.timeout_ms, limit)
        return found


def _listed(cluster: Cluster, ongoing: bool, deadline: Deadline) -> list[TransactionListing]:
    """Ask each broker for the ids that it coordinates."""
    found: dict[str, TransactionListing] = {}
    request = ListTransactionsRequest(state_filters=(ONGOING,) if ongoing else ())
    for node_id in sorted(cluster.metadata([], refresh=True, deadline=deadline).brokers):
        connection = cluster.connection(node_id, deadline)
        answer = connection.request(request, deadline=deadline)
        if answer.error_code != ErrorCode.NONE:
            text = f"{connection.peer}: listing transactions: {answer.error_code.name}"
            raise error_for(answer.error_code, text)
        for one in answer.transaction_states:
            found[one.transactional_id] = TransactionListing(
                one.transactional_id, one.transaction_state, one.producer_id
            )
    return [found[name] for name in sorted(found)]


def _described(connection: Connection, transactional_id: str, deadline: Deadline) -> TransactionDescription:
    answer = connection.request(DescribeTransactionsRequest((transactional_id,)), deadline=deadline)
    found = next((t for t in answer.transaction_states if t.transactional_id == transactional_id), None)
    if found is None:
        raise InvalidRequest(
            f"{connection.peer}: the DescribeTransactions response lacks {transactional_id!r}"
        )
    if found.error_code != ErrorCode.NONE:
        unknown = found.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        why = "there is no such id" if unknown else found.error_code.name
        raise error_for(found.error_code, f"{connection.peer}: transactional id {transactional_id!r}: {why}")
    partitions = [TopicPartition(row.topic, number) for row in found.topics for number in row.partitions]
    return TransactionDescription(
        transactional_id,
        found.transaction_state,
        found.producer_id,
        found.producer_epoch,
        found.transaction_timeout_ms,
        found.transaction_start_time_ms if found.transaction_state == ONGOING else None,
        tuple(sorted(partitions)),
    )
