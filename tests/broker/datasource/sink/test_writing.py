"""What a task of a write does with rows, on a real broker: checklist lines W."""

from __future__ import annotations

import logging
import pickle
import time
from collections.abc import Iterator
from datetime import datetime, timezone
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as t
from pyspark.sql.datasource import WriterCommitMessage

from kafkalog_broker.embedded import EmbeddedBroker, start_broker
from pyspark_kafkalog.client.retry import Deadline
from pyspark_kafkalog.datasource.sink.sink_rows import NullTopic, TaskWritten, Written
from pyspark_kafkalog.datasource.sink.sink_writer import summary
from pyspark_kafkalog.datasource.source import DefaultSource
from pyspark_kafkalog.errors import (
    MessageTooLarge,
    RequestTimedOut,
    UnknownTopicOrPartition,
)
from pyspark_kafkalog.producer.routing import ProducerMetadata, partition_for
from pyspark_kafkalog.protocol.exchange import ApiKey
from pyspark_kafkalog.types import TopicPartition
from tests.support.client.scripted_broker import Layout, ScriptedBroker
from tests.support.client.scripted_server import Silence
from tests.support.protocol.raw_client import RawClient
from tests.support.until import until

HEADER = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
HEADERS = t.ArrayType(
    t.StructType([t.StructField("key", t.StringType()), t.StructField("value", t.BinaryType())])
)
SPARKS: dict[pa.DataType, t.DataType] = {
    pa.string(): t.StringType(),
    pa.binary(): t.BinaryType(),
    pa.int32(): t.IntegerType(),
    pa.int64(): t.LongType(),
    pa.timestamp("us", "UTC"): t.TimestampType(),
    HEADER: HEADERS,
}


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedBroker]:
    with start_broker({"auto.create.topics.enable": "false"}) as running:
        yield running


@pytest.fixture
def client(server: EmbeddedBroker) -> Iterator[RawClient]:
    with RawClient(server.port) as raw:
        yield raw


@pytest.fixture
def other(client: RawClient, topic_name: str) -> str:
    """A second topic, of one partition."""
    assert client.create_topic(topic_name + "-other").error_code == 0
    return topic_name + "-other"


def rows(**columns: Any) -> pa.RecordBatch:
    """A batch as Spark hands it over: text is string, numbers are int, unless they come as arrays."""
    return pa.record_batch(
        {name: data if isinstance(data, pa.Array) else pa.array(data) for name, data in columns.items()}
    )


def numbers(*values: int | None) -> pa.Array:
    return pa.array(values, pa.int32())


def write(server: EmbeddedBroker, *batches: pa.RecordBatch, **options: str) -> TaskWritten:
    given = {"kafka.bootstrap.servers": server.bootstrap_servers, **options}
    schema = t.StructType([t.StructField(f.name, SPARKS[f.type]) for f in batches[0].schema])
    # A task has its writer from the planner, pickled.
    writer = pickle.loads(pickle.dumps(DefaultSource(given).writer(schema, False)))
    message = pickle.loads(pickle.dumps(writer.write(iter(batches))))
    assert isinstance(message, TaskWritten)
    return message


def write_all(batches: Iterator[pa.RecordBatch], options: dict[str, str]) -> WriterCommitMessage:
    """What a task makes of batches with the one column ``value``, a text."""
    schema = t.StructType([t.StructField("value", t.StringType())])
    return DefaultSource(options).writer(schema, False).write(batches)


def values(client: RawClient, topic: str, *partitions: int) -> list[bytes | None]:
    return [record.value for number in partitions or (0,) for record in client.read(topic, partition=number)]


def test_w1_rows_go_to_the_topics_that_the_column_names(
    server: EmbeddedBroker, client: RawClient, topic: str, other: str
) -> None:
    batch = rows(topic=[topic, other, topic], value=["a", "b", "c"], partition=numbers(0, 0, 0))
    written = write(server, batch, batch)
    assert values(client, topic) == [b"a", b"c", b"a", b"c"]
    assert values(client, other) == [b"b", b"b"]
    assert written.partitions == {
        TopicPartition(topic, 0): Written(0, 3, 4),
        TopicPartition(other, 0): Written(0, 1, 2),
    }
    assert written.record_count == 6


def test_w2_rows_go_to_the_topic_of_the_option(server: EmbeddedBroker, client: RawClient, other: str) -> None:
    write(server, rows(key=[b"k", None], value=[b"v", None]), topic=other)
    assert [(r.key, r.value, r.headers) for r in client.read(other)] == [(b"k", b"v", ()), (None, None, ())]


def test_w3_the_option_beats_the_column(
    server: EmbeddedBroker, client: RawClient, topic: str, other: str
) -> None:
    write(server, rows(topic=[topic, None], value=["a", "b"]), topic=other)
    assert values(client, other) == [b"a", b"b"]
    assert values(client, topic, 0, 1) == []


def test_texts_are_written_as_utf_8_and_other_columns_not_at_all(
    server: EmbeddedBroker, client: RawClient, other: str
) -> None:
    write(server, rows(key=["ключ"], value=["wörld"], offset=pa.array([5])), topic=other)
    (record,) = client.read(other)
    assert (record.key, record.value) == ("ключ".encode(), "wörld".encode())


def test_w6_a_topic_that_is_not_there_fails_in_time_by_its_name(server: EmbeddedBroker) -> None:
    with pytest.raises(UnknownTopicOrPartition, match="topic nowhere"):
        write(server, rows(value=["v"]), topic="nowhere", **{"kafka.max.block.ms": "3600000"})


def test_w9_headers_keep_nulls_repeats_and_their_order(
    server: EmbeddedBroker, client: RawClient, other: str
) -> None:
    headers = [[("a", b"1"), ("b", None), ("a", b"2")], None, [], [("", b"")]]
    batch = rows(value=["0", "1", "2", "3"], headers=pa.array(headers, HEADER))
    write(server, batch, topic=other)
    expected = [(("a", b"1"), ("b", None), ("a", b"2")), (), (), (("", b""),)]
    assert [r.headers for r in client.read(other)] == expected
    write(server, batch, topic=other, includeHeaders="false")
    assert [r.headers for r in client.read(other)[4:]] == [()] * 4


def test_w10_the_column_partition_beats_the_key_and_null_means_the_keys_hash(
    server: EmbeddedBroker, client: RawClient, topic: str
) -> None:
    keys = [str(n) for n in range(50)]
    hashed = [partition_for(key.encode(), 2) for key in keys]
    assert set(hashed) == {0, 1}
    chosen = numbers(*(1 - p if n % 2 else None for n, p in enumerate(hashed)))
    written = write(server, rows(key=keys, value=keys, partition=chosen), topic=topic)
    where = [1 - p if n % 2 else p for n, p in enumerate(hashed)]
    for number in (0, 1):
        expected = [key.encode() for key, p in zip(keys, where, strict=True) if p == number]
        assert [r.key for r in client.read(topic, partition=number)] == expected
        last = len(expected) - 1
        assert written.partitions[TopicPartition(topic, number)] == Written(0, last, last + 1)


def test_a_partition_that_is_not_there_is_reported(server: EmbeddedBroker, topic: str) -> None:
    for number in (2, -1):
        with pytest.raises(UnknownTopicOrPartition, match=f"{topic}-{number}: no such partition"):
            write(server, rows(value=["v"], partition=numbers(number)), topic=topic)


def test_w11_a_row_without_a_topic_fails_the_task(server: EmbeddedBroker, topic: str) -> None:
    with pytest.raises(NullTopic, match="KAFKA_NULL_TOPIC_IN_DATA"):
        write(server, rows(topic=[topic, None], value=["a", "b"]))


def test_w14_rows_of_15_kb_through_a_buffer_of_16_kb_wait_and_do_not_fail(
    server: EmbeddedBroker, client: RawClient, other: str
) -> None:
    value = b"x" * 15_000
    batches = [rows(value=pa.array([value] * 100)) for _ in range(10)]
    small = {"kafka.buffer.memory": "16384", "kafka.block.on.buffer.full": "true"}
    assert write(server, *batches, topic=other, **small).record_count == 1000
    sizes, offset = 0, 0
    while found := client.read(other, offset=offset):
        sizes, offset = sizes + sum(len(r.value or b"") for r in found), found[-1].offset + 1
    assert (offset, sizes) == (1000, 15_000_000)


def test_what_is_read_ahead_is_bounded_by_the_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark's batches are taken one by one, each only when there is room for the one before."""
    look_up = ProducerMetadata.topic
    monkeypatch.setattr(  # it has as long as it needs: only the wait for room is to be short
        ProducerMetadata, "topic", lambda self, name, _: look_up(self, name, Deadline.after(90))
    )
    taken = 0

    def batches() -> Iterator[pa.RecordBatch]:
        nonlocal taken
        while True:
            taken += 1
            yield rows(value=["x" * 1000] * 10)

    with ScriptedBroker(Layout(leaders={"t": {0: 0}})) as broker:
        broker.default(ApiKey.PRODUCE, Silence())
        with pytest.raises(RequestTimedOut, match=r"buffer\.memory"):
            write_all(
                batches(),
                {"kafka.bootstrap.servers": broker.address, "topic": "t"}
                | {"kafka.buffer.memory": "50000", "kafka.max.block.ms": "200"},
            )
    assert taken == 5


def test_times_are_those_of_the_write_unless_the_column_is_to_be_sent(
    server: EmbeddedBroker, client: RawClient, other: str
) -> None:
    times = pa.array([datetime(2013, 1, 1, tzinfo=timezone.utc), None], pa.timestamp("us", "UTC"))
    batch = rows(value=["a", "b"], timestamp=times)
    began = int(time.time() * 1000)
    write(server, batch, topic=other)
    write(server, batch, topic=other, includeTimestamp="true")
    found = [record.timestamp for record in client.read(other)]
    assert found[2] == 1_356_998_400_000
    assert all(began <= stamp <= time.time() * 1000 for stamp in (found[0], found[1], found[3]))


def test_a_task_ends_at_the_first_record_that_the_broker_refuses(
    server: EmbeddedBroker, client: RawClient, topic_name: str
) -> None:
    assert client.create_topic(topic_name, configs={"max.message.bytes": "1000"}).error_code == 0

    def batches() -> Iterator[pa.RecordBatch]:
        while True:  # until the task has had enough
            time.sleep(0.002)
            yield rows(value=["x" * 5000])

    with pytest.raises(MessageTooLarge, match=f"{topic_name}-0"):
        write_all(batches(), {"kafka.bootstrap.servers": server.bootstrap_servers, "topic": topic_name})


def test_a_task_without_rows_writes_nothing_and_asks_nobody(topic_name: str) -> None:
    given = {"kafka.bootstrap.servers": "127.0.0.1:1", "topic": topic_name}
    assert write_all(iter([]), given) == TaskWritten()


def test_the_driver_says_what_was_written_where(
    server: EmbeddedBroker, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    given = {"kafka.bootstrap.servers": server.bootstrap_servers, "topic": topic}
    schema = t.StructType(
        [t.StructField("value", t.StringType()), t.StructField("partition", t.IntegerType())]
    )
    stream = DefaultSource(given).streamWriter(schema=schema, overwrite=True)
    batch = rows(value=["a", "b", "c"], partition=numbers(0, 1, 0))
    messages = [stream.write(iter([batch])), stream.write(iter([batch])), None]
    said = f"6 records by 2 tasks ({topic}-0: 4 within [0, 3]; {topic}-1: 2 within [0, 1])"
    assert summary(messages) == said
    with caplog.at_level(logging.INFO):
        stream.commit(messages, 7)
        stream.abort(messages, 8)
        writer = DefaultSource(given).writer(schema, False)
        writer.commit(messages)
        writer.abort([None])
    assert caplog.messages == [
        f"batch 7 is done: {said}",
        f"batch 8 failed; what its tasks wrote stays: {said}",
        f"the write is done: {said}",
        "the write failed; what its tasks wrote stays: 0 records by 0 tasks (nothing)",
    ]


def test_a_task_that_is_run_again_writes_again_what_its_first_attempt_had_sent(
    server: EmbeddedBroker, client: RawClient, other: str
) -> None:
    def dying() -> Iterator[pa.RecordBatch]:
        yield rows(value=["a", "b"])
        until(lambda: values(client, other) == [b"a", b"b"])
        raise MemoryError("the worker is gone")

    given = {"kafka.bootstrap.servers": server.bootstrap_servers, "topic": other}
    with pytest.raises(MemoryError):
        write_all(dying(), given)
    again = write_all(iter([rows(value=["a", "b"]), rows(value=["c"])]), given)
    assert isinstance(again, TaskWritten)
    assert again.record_count == 3
    assert values(client, other) == [b"a", b"b", b"a", b"b", b"c"]


@pytest.mark.parametrize(("kind", "ends"), [("batch", "killed"), ("stream", "aborted")])
def test_a_write_whose_driver_died_before_its_end_is_there_twice_when_it_is_run_again(
    server: EmbeddedBroker, client: RawClient, other: str, kind: str, ends: str
) -> None:
    """What tasks have written stays, and no later run knows of it."""
    source = DefaultSource({"kafka.bootstrap.servers": server.bootstrap_servers, "topic": other})
    schema = t.StructType([t.StructField("value", t.StringType())])
    numbers_of_batch = [7] if kind == "stream" else []

    def run() -> tuple[Any, list[WriterCommitMessage]]:
        make = source.streamWriter if kind == "stream" else source.writer
        writer = make(schema, False)
        return writer, [writer.write(iter([rows(value=[value])])) for value in ("a", "b")]

    writer, messages = run()
    if ends == "aborted":
        writer.abort(messages, *numbers_of_batch)
    assert values(client, other) == [b"a", b"b"]
    writer, messages = run()
    writer.commit(messages, *numbers_of_batch)
    assert values(client, other) == [b"a", b"b", b"a", b"b"]
