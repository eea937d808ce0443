"""What a broker answers for a partition of groups or transactions, by what it knows of the cluster."""

from __future__ import annotations

from uuid import uuid4

import pytest

from kafkalog_broker.cluster.ownership import ClusterTopic, ClusterView, CoordinatorPartitions, Ownership
from kafkalog_broker.logs.topic_store import StoredTopic
from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.types import TopicPartition

NAME = "__consumer_offsets"
OURS, OTHERS, NOT_MADE, OFFLINE, UNKNOWN = range(5)


@pytest.fixture
def ownership() -> Ownership:
    """Of broker 1, which is registered."""
    made = Ownership(1)
    topic = ClusterTopic(StoredTopic(uuid4(), (0, 1, 2, 3), {}), (1, 2, 1, 1), frozenset({NOT_MADE}), 0, 0)
    made.see(ClusterView(1, "registry", {NAME: topic}))
    made.set_offline([TopicPartition(NAME, OFFLINE)])
    made.serve()
    return made


def code(ownership: Ownership, number: int) -> ErrorCode | None:
    refusal = CoordinatorPartitions(ownership, NAME).refusal(number)
    return None if refusal is None else refusal.code


@pytest.mark.parametrize(
    ("number", "answer"),
    [
        (OURS, None),
        (OTHERS, ErrorCode.NOT_COORDINATOR),
        (NOT_MADE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        (OFFLINE, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (UNKNOWN, ErrorCode.NOT_COORDINATOR),
    ],
)
def test_the_owner_keeps_what_it_has_made_and_still_has(
    ownership: Ownership, number: int, answer: ErrorCode | None
) -> None:
    assert code(ownership, number) is answer


def test_before_it_is_registered_a_broker_keeps_nothing_yet(ownership: Ownership) -> None:
    starting = Ownership(1)
    assert CoordinatorPartitions(starting, NAME).count() is None
    assert ownership.view is not None
    starting.see(ownership.view)
    assert CoordinatorPartitions(starting, NAME).count() == 4
    assert code(starting, OURS) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


def test_a_broker_whose_id_another_has_sends_its_clients_away(ownership: Ownership) -> None:
    ownership.refuse("broker 1 is at another address")
    assert code(ownership, OURS) is ErrorCode.NOT_COORDINATOR
    ownership.serve()
    assert code(ownership, OURS) is None


def test_a_cluster_may_have_no_such_topic(ownership: Ownership) -> None:
    assert CoordinatorPartitions(ownership, "__transaction_state").count() == 0
