"""What the rows of a stream are: transactions, nulls, headers, columns (S27-S30, S33, S34, S77)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from pyspark_kafkalog.errors import KafkaError
from pyspark_kafkalog.formats.batch import ControlType, encode_control
from tests.support.client.scripted_log import ScriptedLog, batches, serving
from tests.support.datasource.spark_stream import Checkpoint, Run
from tests.support.datasource.spark_topics import Topic, record
from tests.support.formats.vectors import vector

NewTopic = Callable[..., Topic]
Start = Callable[..., Run]

# Offsets 0-2 of producer 4000, its abort at 3, 4-5 of 4001, 6-7 of neither, the commit of 4001 at 8.
LOG = vector("v2-txn-log.bin").data
ABORTED = [(4000, 0)]
LEVELS = ["read_committed", "read_uncommitted"]


def marker(kind: ControlType, offset: int) -> bytes:
    return encode_control(kind, producer_id=4000, producer_epoch=1, timestamp=1000, base_offset=offset)


def stream_of(broker: Any, checkpoint: Checkpoint, level: str, **options: str) -> Run:
    return Run(
        {
            "kafka.bootstrap.servers": broker.address, "subscribe": "t", "startingOffsets": "earliest",
            "kafka.isolation.level": level, **options,
        },
        checkpoint,
        columns=("offset",),
    )  # fmt: skip


def offsets_of_batches(run: Run) -> list[list[int]]:
    """The offsets that each batch of a run has, until there is nothing to read."""
    found = []
    while run.batch() is not None:
        found.append([o for batch in run.tables for o in batch.column("offset").to_pylist()])
        run.tables.clear()
    run.reader.stop()
    return found


@pytest.mark.parametrize(
    ("level", "stable", "expected"),
    [
        ("read_committed", 0, [[]]),  # nothing is committed yet
        ("read_committed", 4, [[]]),  # an aborted transaction is all there is
        ("read_committed", 9, [[4, 5, 6, 7]]),
        ("read_uncommitted", 0, [[0, 1, 2, 4, 5, 6, 7]]),
        ("read_uncommitted", 9, [[0, 1, 2, 4, 5, 6, 7]]),
    ],
)
def test_s27_and_s28_transactions_are_seen_when_the_level_says_so(
    level: str, stable: int, expected: list[list[int]]
) -> None:
    log = ScriptedLog(LOG, aborted=ABORTED, at_once=True)
    log.last_stable = stable
    checkpoint = Checkpoint()
    with serving(log) as broker:
        assert offsets_of_batches(stream_of(broker, checkpoint, level)) == expected
        log.last_stable = 9
        later = [] if stable == 9 or level == "read_uncommitted" else [[4, 5, 6, 7]]
        assert offsets_of_batches(stream_of(broker, checkpoint, level)) == later


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("limit", ["1", "4"])
def test_s27_to_s29_batches_may_be_cut_anywhere_in_a_transaction(level: str, limit: str) -> None:
    with serving(ScriptedLog(LOG, aborted=ABORTED, at_once=True)) as broker:
        found = offsets_of_batches(stream_of(broker, Checkpoint(), level, maxOffsetsPerTrigger=limit))
    read = [o for batch in found for o in batch]
    assert read == ([4, 5, 6, 7] if level == "read_committed" else [0, 1, 2, 4, 5, 6, 7])
    assert len(found) == -(-9 // int(limit))  # a batch of only markers or aborted records is a batch too


@pytest.mark.parametrize("level", LEVELS)
def test_s27_and_s28_markers_are_not_rows_wherever_they_are(level: str) -> None:
    log = ScriptedLog(marker(ControlType.COMMIT, 0) + batches(range(1, 4)))
    checkpoint = Checkpoint()
    with serving(log) as broker:
        assert offsets_of_batches(stream_of(broker, checkpoint, level)) == [[1, 2, 3]]
        log.append(marker(ControlType.ABORT, 4) + marker(ControlType.COMMIT, 5))
        assert offsets_of_batches(stream_of(broker, checkpoint, level)) == [[]]
        log.append(batches(range(6, 8)) + marker(ControlType.COMMIT, 8))
        assert offsets_of_batches(stream_of(broker, checkpoint, level)) == [[6, 7]]


def table(run: Run) -> list[dict[str, Any]]:
    run.batches()
    return pa.Table.from_batches(run.tables).to_pylist()


def test_s30_keys_and_values_may_be_null(new_topic: NewTopic, start: Start) -> None:
    topic = new_topic()
    topic.add_records([record(None, b"k"), record(b"v", None), record(None, None)])
    found = table(start(Checkpoint(), subscribe=topic.name, columns=("key", "value")))
    assert [(row["key"], row["value"]) for row in found] == [(b"k", None), (None, b"v"), (None, None)]


def test_s33_a_time_beyond_microseconds_is_reported_in_a_stream_too(
    new_topic: NewTopic, start: Start
) -> None:
    topic = new_topic(**{"message.timestamp.after.max.ms": str(2**63 - 1)})
    topic.add_records([record(b"fine"), record(b"wrong", timestamp=1_700_000_000_123_456_789)])
    with pytest.raises(KafkaError, match="KAFKA_MALFORMED_RECORD_TIMESTAMP") as raised:
        start(Checkpoint(), subscribe=topic.name).batches()
    assert f"topic {topic.name}, partition 0, offset 1" in str(raised.value)


def test_s34_a_checkpoint_does_not_know_about_headers(new_topic: NewTopic, start: Start) -> None:
    topic, checkpoint = new_topic(), Checkpoint()
    topic.add_records([record(b"1", headers=(("a", b"1"),))])
    assert "headers" not in table(start(checkpoint, subscribe=topic.name))[0]
    topic.add_records([record(b"2", headers=(("a", b"2"),))])
    found = table(start(checkpoint, subscribe=topic.name, includeHeaders="true"))
    assert [row["headers"] for row in found] == [[{"key": "a", "value": b"2"}]]


def test_s77_columns_have_sparks_types_and_headers_their_order(new_topic: NewTopic, start: Start) -> None:
    topic = new_topic()
    topic.add_records([record(b"v", b"k", 1234, (("a", b"1"), ("b", None), ("a", b"2"))), record(b"w")])
    run = start(Checkpoint(), subscribe=topic.name, includeHeaders="true", includeBroker="true")
    first, second = table(run)
    assert first.pop("headers") == [
        {"key": "a", "value": b"1"}, {"key": "b", "value": None}, {"key": "a", "value": b"2"}
    ]  # fmt: skip
    assert second["headers"] is None
    assert first.pop("timestamp").timestamp() == 1.234
    assert first == {
        "key": b"k", "value": b"v", "topic": topic.name, "partition": 0, "offset": 0, "timestampType": 0,
        "broker": 0,
    }  # fmt: skip
