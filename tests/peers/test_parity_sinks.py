"""Spark's own sink and ours write the same frame: the topics are equal, and so is what they refuse."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.datasource.both_connectors import (
    OURS,
    THEIRS,
    Both,
    ParityTopic,
    Row,
    brief,
    load_stream,
    read,
)
from tests.support.foreign.foreign_face import messages

SINKS = (THEIRS, OURS)
HEADERS = "array<struct<key:string,value:binary>>"
ROWS = [
    (
        None if n % 5 == 0 else bytes(f"key {n % 7}", "ascii"),
        None if n % 11 == 0 else bytes(f"value {n} " * (1 + n % 3), "ascii"),
        n % 3 if n % 5 == 0 or n % 4 == 0 else None,
        None if n % 3 == 0 else [("a", b"1"), ("a", None), (f"h{n}", b"")][: n % 4],
    )
    for n in range(60)
]
"""A row without a key says its partition: where such rows go else is left to each producer."""


def write(source: str, frame: Any, servers: str, **options: str) -> None:
    """In one task, so that the order within a partition is that of the frame."""
    writer = frame.coalesce(1).write.format(source).option("kafka.bootstrap.servers", servers)
    writer.options(**options).mode("append").save()


def written(both: Both, topic: str) -> list[Row]:
    """The rows of a topic but for its name and the time of the write; headers with them."""
    rows = read(both.spark, OURS, both.servers, {"subscribe": topic, "includeHeaders": "true"}).rows
    return [row._replace(topic="", timestamp=0) for row in rows]


@pytest.fixture
def topics(both: Both, topic_name: str) -> dict[str, str]:
    """A topic with three partitions for each of the two."""
    return {source: ParityTopic.make(both.servers, f"{topic_name}-{source}", 3).name for source in SINKS}


@pytest.fixture
def frame(both: Both) -> Any:
    return both.spark.createDataFrame(ROWS, f"key binary, value binary, partition int, headers {HEADERS}")


def test_w2_w9_w10_keys_values_headers_and_partitions(both: Both, topics: dict[str, str], frame: Any) -> None:
    for source in SINKS:
        write(source, frame, both.servers, topic=topics[source], includeHeaders="true")
    ours = written(both, topics[OURS])
    assert ours == written(both, topics[THEIRS])
    assert len(ours) == len(ROWS)
    both.read(subscribe=topics[OURS], includeHeaders="true")


def test_w1_w3_w13_the_topic_in_a_column_an_option_or_an_expression(
    both: Both, topics: dict[str, str], frame: Any
) -> None:
    for source in SINKS:
        named = frame.selectExpr(
            "cast(partition as string) key", f"'{topics[source]}' topic", "'by column' value"
        )
        write(source, named, both.servers)
        beaten = frame.selectExpr("'k' key", "'nowhere' topic", "upper('by option') value")
        write(source, beaten, both.servers, topic=topics[source])
    ours, theirs = (
        sorted((row.key or b"", row.value, row.partition) for row in written(both, topics[source]) if row.key)
        for source in (OURS, THEIRS)
    )
    assert ours == theirs
    assert len([value for _, value, _ in ours if value == b"BY OPTION"]) == len(ROWS)


REFUSED: dict[str, tuple[list[str], dict[str, str], str]] = {
    "w5 the headers' type": (
        ["'v' value", "'h' headers"],
        {"topic": "t"},
        "headers attribute unsupported type",
    ),
    "w11 a topic that is null": (
        ["'v' value", "cast(null as string) topic"],
        {},
        "KAFKA_NULL_TOPIC_IN_DATA|null topic",
    ),
    "w6 a topic that is not there": (
        ["'v' value"],
        {"topic": "parity-not-there", "kafka.max.block.ms": "1500", "kafka.delivery.timeout.ms": "3000",
         "kafka.request.timeout.ms": "1000"},
        "parity-not-there",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_both_sinks_refuse_in_the_same_words(both_at_kafka: Both, case: str) -> None:
    columns, options, words = REFUSED[case]
    frame = both_at_kafka.spark.range(1).selectExpr(*columns)
    for source in SINKS:
        with pytest.raises(Exception) as info:
            write(source, frame, both_at_kafka.servers, **options)
        assert re.search(words, str(info.value)), f"{source}: {brief(str(info.value))}"


def test_streams_are_written_the_same(
    both: Both, topics: dict[str, str], topic_name: str, tmp_path: Path
) -> None:
    came = ParityTopic.make(both.servers, f"{topic_name}-from", 1)
    came.add(0, [m._replace(key=b"%d" % n) for n, m in enumerate(messages(50))])
    for source in SINKS:
        options = {"subscribe": came.name, "startingOffsets": "earliest", "includeHeaders": "true"}
        stream = load_stream(both.spark, source, both.servers, {**options, "maxOffsetsPerTrigger": "20"})
        writer = stream.selectExpr("key", "value", "headers").writeStream.format(source)
        told = {"kafka.bootstrap.servers": both.servers, "topic": topics[source], "includeHeaders": "true"}
        query = (
            writer.options(**told)
            .option("checkpointLocation", str(tmp_path / source))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)
        assert sum(p.numInputRows for p in query.recentProgress) == 50
    ours = written(both, topics[OURS])
    assert len(ours) == 50
    assert ours == written(both, topics[THEIRS])
