"""Our transactional producer at the bundled broker: the same tests that run at Apache Kafka."""

from __future__ import annotations

import pytest

from pyspark_kafkalog import NewTopic, create_topics
from tests.peers.test_transactions import (
    test_a_zombie_is_fenced_by_the_next_producer_of_its_id,
    test_offsets_change_with_the_transaction,
    test_the_manuals_examples_do_what_they_say,
    test_what_a_killed_process_had_prepared_is_ended_by_another,
    test_what_a_killed_process_left_open_the_next_producer_aborts,
)

__all__ = [
    "test_a_zombie_is_fenced_by_the_next_producer_of_its_id",
    "test_offsets_change_with_the_transaction",
    "test_the_manuals_examples_do_what_they_say",
    "test_what_a_killed_process_had_prepared_is_ended_by_another",
    "test_what_a_killed_process_left_open_the_next_producer_aborts",
]


@pytest.fixture
def topic(servers: str, topic_name: str) -> str:
    """A topic with two partitions."""
    create_topics(servers, [NewTopic(topic_name, 2)])
    return topic_name
