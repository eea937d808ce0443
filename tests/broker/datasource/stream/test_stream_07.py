"""Topics of Kafka 0.7 as a stream: offsets are bytes, and partitions go and come with their broker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pyspark_kafkalog.formats.v07 import encode_message
from tests.support.client.broker07 import Broker07
from tests.support.datasource.source07 import QUICK
from tests.support.datasource.spark_stream import Checkpoint, Run

COLUMNS = ("value", "topic", "partition", "offset", "broker")


@pytest.fixture
def broker() -> Iterator[Broker07]:
    broker = Broker07(partitions=2)
    yield broker
    broker.close()


def put(broker: Broker07, *values: bytes, partition: int = 0) -> int:
    return broker.append("t", partition, b"".join(encode_message(value) for value in values))


def stream(broker: Broker07, checkpoint: Checkpoint, **options: str) -> Run:
    given = {
        **QUICK, "protocol": "0.7", "broker.list": f"3:127.0.0.1:{broker.port}", "subscribe": "t",
        "startingOffsets": "earliest", **options,
    }  # fmt: skip
    return Run(given, checkpoint, columns=COLUMNS)


def read(run: Run) -> list[list[str]]:
    found = [[row.value for row in batch.rows] for batch in run.batches()]
    run.reader.stop()
    return found


def test_a_topic_of_the_first_generation_is_a_stream(broker: Broker07) -> None:
    checkpoint = Checkpoint()
    end = put(broker, b"a", b"b")
    assert read(stream(broker, checkpoint)) == [["a", "b"]]
    assert checkpoint.end() == {"t": {"3-0": end, "3-1": 0}}
    put(broker, b"c", partition=1)
    assert read(stream(broker, checkpoint)) == [["c"]]
    assert read(stream(broker, checkpoint)) == []


def test_partitions_of_a_broker_that_is_away_wait(
    broker: Broker07, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = Checkpoint()
    put(broker, b"a")
    run = stream(broker, checkpoint)
    assert [[r.value for r in b.rows] for b in run.batches()] == [["a"]]
    put(broker, b"b")
    lookup = run.reader._driver._cluster
    with monkeypatch.context() as away:
        away.setattr(lookup, "leaders", lambda missing_ok=False: {})
        assert run.batches() == []  # neither lost nor moved, and failOnDataLoss is true
    assert caplog.text.count("brokers are away, their partitions wait: t-3-0, t-3-1") == 1
    assert read(run) == [["b"]]
