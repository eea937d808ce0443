"""The sink's transactions at the bundled broker: the same tests that run at Apache Kafka."""

from __future__ import annotations

from tests.peers.test_sink_transactions import (
    query,
    test_a_batch_that_is_run_again_after_its_commit_adds_nothing,
    test_a_batch_write_is_repeated_unless_it_has_an_id,
    test_a_checkpoint_that_was_set_back_is_reported_and_another_query_starts_over,
    test_a_driver_that_died_between_two_commits_finishes_the_rest_when_it_is_back,
    test_a_failed_batch_is_aborted_but_for_what_is_committed,
    test_a_longer_transaction_than_the_broker_allows_is_reported,
    test_a_stream_without_a_batch_number_is_refused,
    test_a_task_that_fails_leaves_nothing,
    test_an_attempt_that_was_superseded_can_do_nothing_any_more,
    test_fewer_tasks_than_a_committed_batch_had_are_reported,
    test_rows_are_seen_when_the_driver_commits_and_not_before,
    test_rows_that_came_to_a_task_that_had_none_are_reported_before_anything_is_committed,
    test_rows_that_come_to_other_tasks_than_before_are_reported,
    test_rows_that_left_a_task_whose_rows_are_committed_are_reported,
    test_tasks_without_rows_take_no_part,
    topic,
)

__all__ = [
    "query",
    "test_a_batch_that_is_run_again_after_its_commit_adds_nothing",
    "test_a_batch_write_is_repeated_unless_it_has_an_id",
    "test_a_checkpoint_that_was_set_back_is_reported_and_another_query_starts_over",
    "test_a_driver_that_died_between_two_commits_finishes_the_rest_when_it_is_back",
    "test_a_failed_batch_is_aborted_but_for_what_is_committed",
    "test_a_longer_transaction_than_the_broker_allows_is_reported",
    "test_a_stream_without_a_batch_number_is_refused",
    "test_a_task_that_fails_leaves_nothing",
    "test_an_attempt_that_was_superseded_can_do_nothing_any_more",
    "test_fewer_tasks_than_a_committed_batch_had_are_reported",
    "test_rows_are_seen_when_the_driver_commits_and_not_before",
    "test_rows_that_came_to_a_task_that_had_none_are_reported_before_anything_is_committed",
    "test_rows_that_come_to_other_tasks_than_before_are_reported",
    "test_rows_that_left_a_task_whose_rows_are_committed_are_reported",
    "test_tasks_without_rows_take_no_part",
    "topic",
]
