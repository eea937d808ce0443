"""Writes in transactions at a scripted coordinator: what the driver looks at before it commits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as t

from pyspark_kafkalog.datasource.sink.sink_rows import TaskWritten
from pyspark_kafkalog.datasource.sink.sink_transactions import WrittenOtherwise
from pyspark_kafkalog.datasource.source import DefaultSource
from pyspark_kafkalog.protocol.exchange import ApiKey
from tests.support.client.fake_log import FakeLog
from tests.support.client.fake_transactions import FakeTransactions
from tests.support.client.scripted_broker import Layout, ScriptedBroker
from tests.support.datasource.spark_tasks import task

SCHEMA = t.StructType([t.StructField("value", t.StringType())])


@pytest.fixture
def broker() -> Iterator[ScriptedBroker]:
    with ScriptedBroker(Layout(leaders={"t": {0: 0}})) as scripted:
        scripted.default(ApiKey.PRODUCE, FakeLog().produce)
        yield scripted


@pytest.fixture
def coordinator(broker: ScriptedBroker) -> FakeTransactions:
    return FakeTransactions(broker)


@pytest.fixture
def writer(broker: ScriptedBroker, coordinator: FakeTransactions) -> Any:
    given = {"kafka.bootstrap.servers": broker.address, "topic": "t", "transactional.id.prefix": "p"}
    return DefaultSource(given).streamWriter(SCHEMA, False)


def run(writer: Any, batch: int, *rows: int) -> list[TaskWritten]:
    """What the tasks of a batch tell the driver; ``rows[n]`` are how many task n has."""
    found = []
    for number, count in enumerate(rows):
        with task(number, query="q", batch=batch):
            found.append(writer.write(iter([pa.record_batch({"value": ["v"] * count})] if count else [])))
    return found


def ends(coordinator: FakeTransactions) -> dict[str, list[str]]:
    return {name: one.ends for name, one in coordinator.ids.items()}


@pytest.mark.parametrize(("before", "now", "missing"), [
    ((2, 2, 2), (2, 2), 2),  # a task's rows are in no task now, or its neighbours would count more
    ((2, 2, 2), (2,), 1),
    ((0, 2), (2,), 1),  # they moved to a task that has no mark of this batch
    ((0, 2), (0,), 1),
])  # fmt: skip
def test_a_batch_that_is_run_again_with_fewer_tasks_is_reported_before_anything_is_committed(
    writer: Any, coordinator: FakeTransactions, before: Sequence[int], now: Sequence[int], missing: int
) -> None:
    writer.commit(run(writer, 0, *before), 0)
    again, seen = run(writer, 0, *now), ends(coordinator)
    said = rf"p-{missing}: 2 rows of q, batch 0, are .* it has {len(now)} tasks, .* spark\.sql\.shuffle"
    with pytest.raises(WrittenOtherwise, match=said):
        writer.commit(again, 0)
    assert ends(coordinator) == seen
    writer.abort(again, 0)
    writer.commit(run(writer, 0, *before), 0)


def test_a_gap_between_tasks_with_marks_is_passed_over_when_a_batch_is_run_again(
    writer: Any, coordinator: FakeTransactions
) -> None:
    writer.commit(run(writer, 0, 2, 2, 2), 0)
    writer.commit(run(writer, 1, 2, 0, 2), 1)
    with pytest.raises(WrittenOtherwise, match="p-2: 2 rows of q, batch 1"):
        writer.commit(run(writer, 1, 2), 1)


def test_a_first_run_with_fewer_tasks_asks_for_one_mark_more_and_is_committed(
    writer: Any, broker: ScriptedBroker, coordinator: FakeTransactions
) -> None:
    writer.commit(run(writer, 0, 2, 2, 2, 2), 0)
    messages, asked = run(writer, 1, 2, 2), len(broker.received(ApiKey.OFFSET_FETCH))
    writer.commit(messages, 1)
    assert len(broker.received(ApiKey.OFFSET_FETCH)) == asked + 1
    assert [ends(coordinator)[f"p-{n}"] for n in range(4)] == [["commit"] * 2] * 2 + [["commit"]] * 2
