"""Writes in transactions at a real Apache Kafka: whoever dies when, each row is seen once."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as t

from pyspark_kafkalog import NewTopic, create_topics
from pyspark_kafkalog.cli.consume import read_ranges
from pyspark_kafkalog.client.discovery import Cluster
from pyspark_kafkalog.client.offsets import list_offsets
from pyspark_kafkalog.client.transactions import end_transaction
from pyspark_kafkalog.config.client_config import ConsumerConfig
from pyspark_kafkalog.datasource.sink.sink_rows import TaskWritten
from pyspark_kafkalog.datasource.sink.sink_transactions import WrittenOtherwise
from pyspark_kafkalog.datasource.source import DefaultSource
from pyspark_kafkalog.errors import InvalidConfig, ProducerFenced, ServerError
from pyspark_kafkalog.types import LATEST_TIMESTAMP, TopicPartition
from tests.support.datasource.spark_tasks import task

SCHEMA = t.StructType([t.StructField("value", t.StringType())])
WAIT_SECONDS = 30.0


class Query:
    """A streaming query that writes: ``rows[n]`` are those of task n, of each batch."""

    def __init__(self, servers: str, topic: str, name: str = "q", **options: str) -> None:
        self.name, self.topic = name, topic
        self._given = {
            "kafka.bootstrap.servers": servers, "topic": topic, "transactional.id.prefix": topic, **options,
        }  # fmt: skip

    def writer(self) -> Any:
        return DefaultSource(self._given).streamWriter(SCHEMA, False)

    def run(self, batch: int, rows: Sequence[int] = (3, 4, 5)) -> list[TaskWritten]:
        """Run the tasks; each row says its batch, task and number."""
        return [self.run_task(number, batch, count) for number, count in enumerate(rows)]

    def run_task(self, number: int, batch: int, count: int) -> TaskWritten:
        values = [f"{batch}/{number}/{row}" for row in range(count)]
        with task(number, query=self.name, batch=batch):
            message = self.writer().write(iter([pa.record_batch({"value": values})] if count else []))
        assert isinstance(message, TaskWritten)
        return message

    def commit(self, messages: Sequence[TaskWritten | None], batch: int) -> None:
        self.writer().commit(messages, batch)


def rows_of(batch: int, rows: Sequence[int] = (3, 4, 5)) -> list[str]:
    return [f"{batch}/{number}/{row}" for number, count in enumerate(rows) for row in range(count)]


@pytest.fixture
def topic(servers: str, topic_name: str) -> str:
    create_topics(servers, [NewTopic(topic_name, 1)])
    return topic_name


@pytest.fixture
def query(servers: str, topic: str) -> Query:
    return Query(servers, topic)


def committed(servers: str, topic: str) -> list[str]:
    """What readers of committed records see, up to the first open transaction."""
    config = ConsumerConfig(bootstrap_servers=servers, isolation_level="read_committed")
    tp = TopicPartition(topic, 0)
    with closing(Cluster(config)) as cluster:
        end = list_offsets(cluster, {tp: LATEST_TIMESTAMP}, isolation=config.isolation)[tp].offset
        batches = [batch for _, batch in read_ranges(cluster, {tp: (0, end)}, config)]
        return sorted((record.value or b"").decode() for batch in batches for record in batch)


def settled(servers: str, topic: str, expected: Sequence[str]) -> None:
    """Kafka writes markers after it has answered: wait for them."""
    deadline = time.monotonic() + WAIT_SECONDS
    while (found := committed(servers, topic)) != sorted(expected) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert found == sorted(expected)


def test_rows_are_seen_when_the_driver_commits_and_not_before(servers: str, topic: str, query: Query) -> None:
    for batch in range(3):
        messages = query.run(batch)
        assert [message.record_count for message in messages] == [3, 4, 5]
        settled(servers, topic, [row for done in range(batch) for row in rows_of(done)])
        query.commit(messages, batch)
    settled(servers, topic, rows_of(0) + rows_of(1) + rows_of(2))


def test_a_driver_that_died_between_two_commits_finishes_the_rest_when_it_is_back(
    servers: str, topic: str, query: Query, cluster: Cluster
) -> None:
    query.commit(query.run(0), 0)
    first = query.run(1)
    assert first[1].transaction is not None
    end_transaction(cluster, first[1].transaction, commit=True)
    again = query.run(1)
    assert [(m.record_count, m.rows_there) for m in again] == [(3, 0), (0, 4), (5, 0)]
    query.commit(again, 1)
    query.commit(query.run(2), 2)
    settled(servers, topic, rows_of(0) + rows_of(1) + rows_of(2))


def test_a_batch_that_is_run_again_after_its_commit_adds_nothing(
    servers: str, topic: str, query: Query
) -> None:
    query.commit(query.run(0), 0)
    again = query.run(0)
    assert [(m.record_count, m.rows_there, m.transaction) for m in again] == [
        (0, 3, None), (0, 4, None), (0, 5, None),
    ]  # fmt: skip
    query.commit(again, 0)
    settled(servers, topic, rows_of(0))


def test_an_attempt_that_was_superseded_can_do_nothing_any_more(
    servers: str, topic: str, query: Query
) -> None:
    zombies = query.run(0)
    messages = query.run(0)
    with pytest.raises(ProducerFenced, match="0 of 3 transactions of this write are committed"):
        query.commit(zombies, 0)
    query.commit(messages, 0)
    query.commit(messages, 0)
    settled(servers, topic, rows_of(0))


def test_a_failed_batch_is_aborted_but_for_what_is_committed(
    servers: str, topic: str, query: Query, cluster: Cluster
) -> None:
    messages = query.run(0)
    assert messages[0].transaction is not None
    end_transaction(cluster, messages[0].transaction, commit=True)
    query.writer().abort([*messages[:2], None], 0)
    settled(servers, topic, rows_of(0)[:3])
    query.commit(query.run(0), 0)
    settled(servers, topic, rows_of(0))


def test_a_task_that_fails_leaves_nothing(servers: str, topic: str, query: Query) -> None:
    def failing() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"value": ["lost"]})
        raise ValueError("of the plan before")

    with task(0, query="q", batch=0), pytest.raises(ValueError, match="of the plan before"):
        query.writer().write(failing())
    query.commit([query.run_task(1, 0, 2)], 0)
    settled(servers, topic, ["0/1/0", "0/1/1"])


def test_rows_that_come_to_other_tasks_than_before_are_reported(
    servers: str, topic: str, query: Query, cluster: Cluster
) -> None:
    first = query.run(0, (6, 6))
    assert first[0].transaction is not None
    end_transaction(cluster, first[0].transaction, commit=True)
    with pytest.raises(WrittenOtherwise, match="6 rows of q, batch 0, are committed, but the task has 4 now"):
        query.run(0, (4, 4, 4))


def test_rows_that_left_a_task_whose_rows_are_committed_are_reported(
    servers: str, topic: str, query: Query, cluster: Cluster
) -> None:
    first = query.run(0, (2, 2))
    assert first[1].transaction is not None
    end_transaction(cluster, first[1].transaction, commit=True)
    with pytest.raises(WrittenOtherwise, match="2 rows of q, batch 0, are committed, but the task has 0 now"):
        query.run(0, (4, 0))


def test_fewer_tasks_than_a_committed_batch_had_are_reported(servers: str, topic: str, query: Query) -> None:
    query.commit(query.run(0, (2, 3, 4)), 0)
    again = query.run(0, (2, 3))
    with pytest.raises(
        WrittenOtherwise, match=f"{topic}-2: 4 rows of q, batch 0, are committed by a task .* it has 2 tasks"
    ):
        query.commit(again, 0)
    query.commit(query.run(0, (2, 3, 4)), 0)
    query.commit(query.run(1, (2,)), 1)
    settled(servers, topic, rows_of(0, (2, 3, 4)) + rows_of(1, (2,)))


def test_rows_that_came_to_a_task_that_had_none_are_reported_before_anything_is_committed(
    servers: str, topic: str, query: Query
) -> None:
    query.commit(query.run(0, (0, 5)), 0)
    moved = query.run(0, (5,))
    with pytest.raises(WrittenOtherwise, match=f"{topic}-1: 5 rows of q, batch 0"):
        query.commit(moved, 0)
    query.writer().abort(moved, 0)
    settled(servers, topic, rows_of(0, (0, 5)))


def test_a_checkpoint_that_was_set_back_is_reported_and_another_query_starts_over(
    servers: str, topic: str, query: Query
) -> None:
    query.commit(query.run(5), 5)
    with pytest.raises(WrittenOtherwise, match="batch 4 is to be written, but batch 5 of the same query"):
        query.run(4)
    other = Query(servers, topic, "other")
    other.commit(other.run(0), 0)
    settled(servers, topic, rows_of(5) + rows_of(0))


def test_tasks_without_rows_take_no_part(servers: str, topic: str, query: Query) -> None:
    messages = query.run(0, (0, 2, 0))
    assert [message.transaction is None for message in messages] == [True, False, True]
    query.commit(messages, 0)
    settled(servers, topic, ["0/1/0", "0/1/1"])


def write_batch(servers: str, topic: str, *values: str, **options: str) -> TaskWritten:
    """A batch write of one task, up to the driver's part."""
    given = {"kafka.bootstrap.servers": servers, "topic": topic, "transactional.id.prefix": topic, **options}
    writer = DefaultSource(given).writer(SCHEMA, False)
    message = writer.write(iter([pa.record_batch({"value": list(values)})]))
    assert isinstance(message, TaskWritten)
    writer.commit([message])
    return message


def test_a_batch_write_is_repeated_unless_it_has_an_id(servers: str, topic: str) -> None:
    write_batch(servers, topic, "a")
    write_batch(servers, topic, "a")
    settled(servers, topic, ["a", "a"])
    named = {"transactional.write.id": "day-1"}
    write_batch(servers, topic, "b", **named)
    assert write_batch(servers, topic, "b", **named).rows_there == 1
    write_batch(servers, topic, "c", **{"transactional.write.id": "day-2"})
    settled(servers, topic, ["a", "a", "b", "c"])


def test_a_longer_transaction_than_the_broker_allows_is_reported(servers: str, topic: str) -> None:
    with pytest.raises(
        ServerError, match=r"transaction\.timeout\.ms is above .* transaction\.max\.timeout\.ms"
    ):
        write_batch(servers, topic, "a", **{"kafka.transaction.timeout.ms": "900001"})


def test_a_stream_without_a_batch_number_is_refused(query: Query) -> None:
    with task(0), pytest.raises(InvalidConfig, match="does not say which batch a task writes"):
        query.writer().write(iter([pa.record_batch({"value": ["v"]})]))


def test_a_stream_of_spark_is_written_once_however_its_end_is_forgotten(
    spark: Any, servers: str, topic: str, tmp_path: Path
) -> None:
    """Without the last entry of Spark's commit log the driver died right before it was written."""
    lines, checkpoint = tmp_path / "lines", tmp_path / "checkpoint"
    lines.mkdir()

    def run() -> None:
        stream = (
            spark.readStream.text(str(lines)).writeStream.format("kafkalog")
            .option("kafka.bootstrap.servers", servers).option("topic", topic)
            .option("transactional.id.prefix", topic).option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True).start()
        )  # fmt: skip
        assert stream.awaitTermination(90)

    (lines / "0.txt").write_text("a\nb\nc")
    run()
    settled(servers, topic, ["a", "b", "c"])
    for entry in (checkpoint / "commits").glob("*0*"):
        entry.unlink()
    (lines / "1.txt").write_text("d")
    run()
    settled(servers, topic, ["a", "b", "c", "d"])
