"""`kafkalog.read_arrow`: the rows, options and errors of the batch source, for programs without Spark."""

from __future__ import annotations

import gc
import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import duckdb
import polars
import psutil
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from pyspark.sql.pandas.types import to_arrow_schema

import pyspark_kafkalog as kafkalog
from kafkalog_broker.embedded import EmbeddedBroker, start_broker
from pyspark_kafkalog.client.admin import delete_records, delete_topics
from pyspark_kafkalog.datasource.reading.source_cluster import DataLoss
from pyspark_kafkalog.datasource.source import DefaultSource
from pyspark_kafkalog.errors import CorruptMessage, InvalidConfig, UnknownTopicOrPartition
from pyspark_kafkalog.formats.batch import encode_batch
from pyspark_kafkalog.ledger.ledger import Ledger
from pyspark_kafkalog.protocol.exchange import ApiKey
from pyspark_kafkalog.types import TopicPartition, encode_id
from tests.support.client.scripted_broker import ScriptedBroker
from tests.support.client.scripted_log import ScriptedLog, batches, serving
from tests.support.datasource.spark_topics import Topic, record
from tests.support.formats.upgraded_log import EXPECTED, expected_rows, stored_log
from tests.support.ledger.plans import facts, loaded
from tests.support.protocol.wire07 import Wire07, entry, fetch, produce, zipped
from tests.support.until import until

ROOT = Path(__file__).parents[3]
NewTopic = Callable[..., Topic]
QUICK = {"kafka.retry.backoff.ms": "1", "fetchOffset.retryIntervalMs": "1", "kafka.fetch.max.wait.ms": "1"}
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def as_spark_reads(servers: str | None, **options: str) -> pa.Table:
    """The rows and the schema of ``spark.read.format("kafkalog")``: what Spark calls, without its JVM."""
    given = {**options, **({"kafka.bootstrap.servers": servers} if servers else {})}
    source = DefaultSource(given)
    reader = source.reader(source.schema())
    rows = [batch for task in reader.partitions() for batch in reader.read(task)]
    return pa.Table.from_batches(rows, to_arrow_schema(source.schema(), timezone="UTC"))


def numbers(reader: Any, column: str = "value") -> list[int]:
    return [int(value) for batch in reader for value in batch[column].to_pylist()]


def one_in_each(new_topic: NewTopic, partitions: int) -> Topic:
    """A topic in which each partition has its own number."""
    topic = new_topic(partitions=partitions)
    for number in range(partitions):
        topic.add(number, partition=number)
    return topic


@pytest.fixture
def three(new_topic: NewTopic) -> Topic:
    """0-9 in partition 0, 10-19 in 1, none in 2; a time is 1000 + ten times its number."""
    topic = new_topic(partitions=3)
    topic.add(*range(10), partition=0, timestamp=1000, step=10)
    topic.add(*range(10, 20), partition=1, timestamp=1100, step=10)
    return topic


@pytest.fixture
def servers(running_broker: EmbeddedBroker) -> str:
    return running_broker.bootstrap_servers


# --- rows


def test_message_sets_and_batches_of_all_codecs_are_the_rows_that_spark_gets() -> None:
    with serving(ScriptedLog(stored_log(), at_once=True)) as broker:
        found = kafkalog.read_arrow(broker.address, "t", options=QUICK).read_all()
        assert found.equals(as_spark_reads(broker.address, subscribe="t", **QUICK))
    columns = [found[name].to_pylist() for name in ("offset", "key", "value", "timestamp", "timestampType")]
    columns[3] = [(time - EPOCH) // timedelta(milliseconds=1) for time in columns[3]]
    assert list(zip(*columns, strict=True)) == expected_rows(0, len(EXPECTED))


def test_topics_of_kafka_0_7_are_read_too(topic_name: str) -> None:
    settings: dict[str, object] = {
        "listeners": "KAFKA07://127.0.0.1:0",
        "node.id": 7,
        "log.flush.interval": 1,
    }
    plain, packed = entry(b"one"), zipped(entry(b"g1"), entry(b"g2"))
    with start_broker(settings) as kafka:
        port = kafka.port_of("KAFKA07")
        with Wire07(port) as wire:
            wire.send(produce(topic_name, 0, plain + packed))
            assert wire.ask(fetch(topic_name, 0, 0, 0)) is not None
        options = {"protocol": "0.7", "broker.list": f"7:127.0.0.1:{port}", "includeBroker": "true"}
        found = kafkalog.read_arrow(topics=topic_name, options=options).read_all()
        assert found.equals(as_spark_reads(None, subscribe=topic_name, **options))
        later = {topic_name: {"7-0": len(plain)}}
        part = kafkalog.read_arrow(topics=topic_name, startingOffsets=later, options=options)
        assert [batch["value"].to_pylist() for batch in part] == [[b"g1", b"g2"]]
        with pytest.raises(
            InvalidConfig, match=r"kafka\.bootstrap\.servers has no meaning with protocol=0\.7"
        ):
            kafkalog.read_arrow(f"127.0.0.1:{port}", topic_name, options=options)
    named = found.select(["value", "offset", "broker", "innerIndex"]).to_pylist()
    assert [tuple(row.values()) for row in named] == [
        (b"one", 0, 7, 0), (b"g1", len(plain), 7, 0), (b"g2", len(plain), 7, 1)
    ]  # fmt: skip


# --- options


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [*range(20)]),
        ({"startingOffsets": "earliest", "endingOffsets": "latest"}, [*range(20)]),
        (
            {"startingOffsets": {"T": {0: 7, 1: -2, 2: 0}}, "endingOffsets": {"T": {0: -1, 1: 3, 2: -1}}},
            [7, 8, 9, 10, 11, 12],
        ),
        (
            {
                "startingTimestamp": 1050,
                "endingTimestamp": "1130",
                "startingOffsetsByTimestampStrategy": "latest",
            },
            [5, 6, 7, 8, 9, 10, 11, 12],
        ),
        ({"topics": None, "assign": {"T": [1]}}, [*range(10, 20)]),
        ({"topics": None, "pattern": "T|nothing"}, [*range(20)]),
        ({"topics": None, "pattern": "nothing"}, []),
        ({"columns": ["value", "offset"]}, [*range(20)]),
    ],
)  # fmt: skip
def test_options_may_be_texts_as_sparks_or_pythons_own_values(
    servers: str, three: Topic, options: dict[str, Any], expected: list[int]
) -> None:
    def named(value: Any) -> Any:
        if isinstance(value, dict):
            return {three.name: value["T"]}
        return value.replace("T", three.name) if isinstance(value, str) else value

    given = {"topics": three.name, **{name: named(value) for name, value in options.items()}}
    columns = given.get("columns", as_spark_reads(servers, subscribe=three.name).column_names)
    with kafkalog.read_arrow(servers.split(","), **given) as reader:
        assert numbers(reader) == expected
        assert reader.schema.names == columns


def test_it_ends_where_the_logs_ended_when_it_was_called(servers: str, three: Topic) -> None:
    reader = kafkalog.read_arrow(servers, three.name)
    three.add(20, partition=1)
    three.add(30, partition=2)
    assert numbers(reader) == [*range(20)]
    assert numbers(kafkalog.read_arrow(servers, three.name)) == [*range(21), 30]


def test_records_deleted_after_the_call_are_left_out_where_many_partitions_are_begun_together(
    servers: str, new_topic: NewTopic
) -> None:
    topic = one_in_each(new_topic, 10)
    for number in range(10):
        topic.add(100 + number, partition=number)
    with kafkalog.read_arrow(servers, topic.name) as reader:
        delete_records(servers, {TopicPartition(topic.name, 4): 1, TopicPartition(topic.name, 7): 2})
        assert sorted(numbers(reader)) == sorted({*range(10), *range(100, 110)} - {4, 7, 107})


def test_what_was_asked_for_ahead_and_never_read_disturbs_no_later_read(
    servers: str, new_topic: NewTopic
) -> None:
    topic = one_in_each(new_topic, 450)
    with kafkalog.read_arrow(servers, topic.name) as reader:
        assert reader.read_next_batch()["value"].to_pylist() == [b"0"]
    with kafkalog.read_arrow(servers, topic.name) as reader:
        assert numbers(reader) == list(range(450))


def test_topics_without_records_give_no_batch_and_the_same_schema(servers: str, new_topic: NewTopic) -> None:
    empty = new_topic(2)
    reader = kafkalog.read_arrow(servers, empty.name, includeHeaders=True)
    assert list(reader) == []
    asked = as_spark_reads(servers, subscribe=empty.name, includeHeaders="true")
    assert reader.schema.equals(asked.schema)
    assert kafkalog.read_arrow(servers, empty.name).read_pandas().columns.tolist() == asked.column_names[:-1]


@pytest.mark.parametrize("option", ["minPartitions", "maxRecordsPerPartition", "maxBytesPerPartition"])
def test_options_about_tasks_are_checked_and_ignored(
    servers: str, three: Topic, option: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert numbers(kafkalog.read_arrow(servers, three.name, **{option: 4})) == [*range(20)]
    assert f"option {option} has no meaning in read_arrow, which has no tasks, and is ignored" in caplog.text
    with pytest.raises(InvalidConfig, match="must be positive"):
        kafkalog.read_arrow(servers, three.name, **{option: 0})


def test_what_a_load_read_is_read_again_and_a_load_itself_is_refused(
    servers: str, three: Topic, tmp_path: Path
) -> None:
    of_load = {"loadName": "l", "offsetsPath": tmp_path}
    with pytest.raises(InvalidConfig, match=r"loadName=l names a load, .* read_arrow commits nothing"):
        kafkalog.read_arrow(servers, three.name, **of_load)
    first, second = TopicPartition(three.name, 0), TopicPartition(three.name, 1)
    topic_id = encode_id(three.client.topic_id(three.name))
    read = {first: facts(2, 5, topic_id=topic_id), second: facts(0, 1, topic_id=topic_id)}
    loaded(Ledger.at(str(tmp_path), "l"), read)
    again = kafkalog.read_arrow(servers, three.name, between="start,commit:1", **of_load)
    assert numbers(again) == [2, 3, 4, 10]
    delete_topics(servers, [three.name])
    three.client.create_topic(three.name, 3)
    three.add(*range(30, 40))
    three.add(*range(40, 50), partition=1)
    for former in ({"between": "start,commit:1"}, {"startingOffsets": "commit:1"}):
        with pytest.raises(DataLoss, match=rf"Could not read offsets .* of {three.name}-0"):
            numbers(kafkalog.read_arrow(servers, three.name, **former, **of_load))
        given = {"subscribe": three.name, "loadName": "l", "offsetsPath": str(tmp_path), **former}
        with pytest.raises(DataLoss, match=rf"Could not read offsets .* of {three.name}-0"):
            as_spark_reads(servers, **given)
        assert as_spark_reads(servers, **given, failOnDataLoss="false").num_rows == 0


# --- errors


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"startingOffset": "latest"}, "Unknown option 'startingOffset'. Did you mean 'startingOffsets'?"),
        ({"include_headers": True}, "Unknown option 'include_headers'. Did you mean 'includeHeaders'?"),
        ({"onCorruptBatch": "ignore"}, "onCorruptBatch is one of fail, skip; got 'ignore'"),
        ({"startingOffsets": {"t": {0: object()}}}, "option 'startingOffsets' is text, a whole number,"),
        ({"columns": [1, 2]}, "option 'columns' is text, a whole number, True or False, a list"),
        ({"columns": "valu"}, "columns are some of key, value, topic"),
        ({"startingOffsets": "latest"}, "starting offset can't be latest for batch queries on Kafka"),
        ({"subscribe": "u"}, "'subscribe' is given twice, as the argument topics and as the keyword"),
        (
            {"INCLUDEHEADERS": "true", "options": {"includeHeaders": "true"}},
            "option 'INCLUDEHEADERS' is given twice, as options['includeHeaders'] and as the keyword INC",
        ),
        ({"pattern": "t"}, "Only one of the following options can be specified for Kafka source: subscribe"),
        ({"options": {"kafka.auto.offset.reset": "latest"}}, "set the source option 'startingOffsets'"),
        ({"startingOffsets": {"t": {"0": 7}}, "endingOffsets": {"t": {"0": 5}}},
         "The specified start offset 7 is greater than the end offset 5 for topic t partition 0"),
        ({"startingOffsets": {"t": {"0": 99}}},
         "The resolved start offset 99 is greater than the resolved end offset 9 for topic t partition 0"),
    ],
)  # fmt: skip
def test_a_wrong_option_is_named_with_what_is_allowed(options: dict[str, Any], said: str) -> None:
    with serving(ScriptedLog(batches(range(9)))) as broker, pytest.raises(InvalidConfig) as raised:
        kafkalog.read_arrow(broker.address, "t", **options)
    assert said in str(raised.value)


def test_a_topic_that_does_not_exist_is_an_error_of_the_call(servers: str) -> None:
    with pytest.raises(UnknownTopicOrPartition, match="topic 'gone' is not on"):
        kafkalog.read_arrow(servers, "gone", options={"fetchOffset.numRetries": 0})


def test_a_failed_read_raises_our_error_and_does_not_look_complete_afterwards() -> None:
    ranges = {"startingOffsets": {"t": {0: 2}}, "endingOffsets": {"t": {0: 9}}, "options": QUICK}
    with serving(ScriptedLog(batches(range(5, 9)), start=5)) as broker:
        reader = kafkalog.read_arrow(broker.address, "t", **ranges)
        for read in (reader.read_next_batch, reader.read_next_batch, reader.read_all, lambda: list(reader)):
            with pytest.raises(DataLoss, match=r"\[2, 9\) of t-0: the log holds \[5, 9\)"):
                read()
        left = kafkalog.read_arrow(broker.address, "t", failOnDataLoss=False, **ranges)
        assert numbers(left, "offset") == [5, 6, 7, 8]


def test_other_libraries_tell_what_went_wrong(tmp_path: Path) -> None:
    log = ScriptedLog(batches(range(5)) + _flipped(batches(range(5, 9))))
    with serving(log) as broker:

        def reader() -> pa.RecordBatchReader:
            return kafkalog.read_arrow(broker.address, "t", options=QUICK)

        for read in (
            lambda: duckdb.from_arrow(reader()).fetchall(),
            lambda: polars.from_arrow(reader()),
            lambda: ds.write_dataset(reader(), tmp_path, format="parquet"),
            lambda: reader().read_pandas(),
        ):
            with pytest.raises(Exception, match=r"t-0, reading on from offset 5: .* onCorruptBatch to skip"):
                read()
        with pytest.raises(CorruptMessage):
            reader().read_pandas()
        assert numbers(kafkalog.read_arrow(broker.address, "t", onCorruptBatch="skip", options=QUICK)) == [
            0, 1, 2, 3, 4
        ]  # fmt: skip


def _flipped(batch: bytes) -> bytes:
    return batch[:-1] + bytes([batch[-1] ^ 1])


# --- who takes it, and what it holds meanwhile


def connections(port: int) -> set[int]:
    """Those that this process has to a port, by its own ports. The system counts them while they change."""
    return {
        c.laddr.port
        for c in psutil.net_connections("tcp")
        if c.pid == os.getpid() and c.raddr and c.raddr.port == port
    }


@pytest.fixture
def large(running_broker: EmbeddedBroker, topic_name: str) -> str:
    """A topic of 16 MiB in eight partitions, each of several record batches."""
    servers = running_broker.bootstrap_servers
    kafkalog.create_topics(servers, [kafkalog.NewTopic(topic_name, 8)])
    with kafkalog.Producer({"bootstrap.servers": servers}) as producer:
        for partition in range(8):
            for number in range(16):
                producer.send(topic_name, b"%d" % number * (1 << 16), partition=partition)
    return topic_name


def test_closing_early_closes_the_connections(running_broker: EmbeddedBroker, large: str) -> None:
    def reader() -> pa.RecordBatchReader:
        return kafkalog.read_arrow(running_broker.bootstrap_servers, large)

    before = connections(running_broker.port)  # of earlier tests, which may be closed meanwhile
    with reader() as left:
        left.read_next_batch()
        until(lambda: len(connections(running_broker.port) - before) == 1)
    until(lambda: connections(running_broker.port) <= before)
    for read in (left.read_next_batch, left.read_all, lambda: list(left)):
        with pytest.raises(ValueError, match="this reader of Kafka topics is closed"):
            read()
    unread, dropped, finished = reader(), reader(), reader()
    unread.close()
    dropped.read_next_batch()
    assert sum(batch.num_rows for batch in finished) == 128
    del dropped
    gc.collect()
    until(lambda: connections(running_broker.port) <= before)


def test_other_libraries_take_all_rows(servers: str, three: Topic, tmp_path: Path) -> None:
    def reader() -> pa.RecordBatchReader:
        return kafkalog.read_arrow(servers, three.name, includeHeaders=True)

    expected = reader().read_all()
    assert expected.num_rows == 20
    assert isinstance(reader(), pa.RecordBatchReader)
    assert pa.table(reader()).equals(expected)
    assert reader().read_pandas().equals(expected.to_pandas())
    assert polars.from_arrow(reader()).equals(polars.from_arrow(expected))
    query = 'SELECT "partition", count(*), sum(decode(value)::INT) FROM rows GROUP BY ALL ORDER BY ALL'
    assert duckdb.from_arrow(reader()).query("rows", query).fetchall() == [(0, 10, 45), (1, 10, 145)]
    # By way of Arrow's C++ library, with its own pointer to the reader, and its own threads.
    ds.write_dataset(reader(), tmp_path, format="feather", preserve_order=True)
    assert ds.dataset(tmp_path, format="feather").to_table().equals(expected)


def test_the_example_of_the_manual(servers: str, new_topic: NewTopic) -> None:
    topic = new_topic()
    topic.add_records([record(b"", key) for key in (b"UA", b"AA", b"UA")])
    page = (ROOT / "docs" / "arrow.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    printed: list[object] = []
    code = code.replace("localhost:9092", servers).replace('"flights"', f'"{topic.name}"')
    exec(compile(code, "docs/arrow.md", "exec"), {"print": printed.append})
    assert printed == [[("AA", 1), ("UA", 2)]]


def test_it_reads_no_further_than_it_is_asked_to() -> None:
    value = bytes(1 << 18)
    log = ScriptedLog(b"".join(_one(offset, value) for offset in range(64)))
    with serving(log) as broker:
        before = pa.total_allocated_bytes()
        reader = kafkalog.read_arrow(broker.address, "t", options=QUICK)
        assert broker.received(ApiKey.FETCH) == []
        held, most = 0, 0
        for number, batch in enumerate(reader, 1):
            assert len(broker.received(ApiKey.FETCH)) <= number + 2
            held += batch.num_rows
            most = max(most, pa.total_allocated_bytes() - before)
        assert held == 64
        assert most < 16 * len(value)
        assert _fetch_sizes(broker)[-1] == 2 << 20
        most_bytes = {"kafka.max.partition.fetch.bytes": 3 << 20}
        list(kafkalog.read_arrow(broker.address, "t", options={**QUICK, **most_bytes}))
        assert _fetch_sizes(broker)[-1] == 3 << 20


def _fetch_sizes(broker: ScriptedBroker) -> list[int]:
    """What was asked for at most, in order of size."""
    return sorted(r.topics[0].partitions[0].partition_max_bytes for r in broker.received(ApiKey.FETCH))


def _one(offset: int, value: bytes) -> bytes:
    return encode_batch([record(value)], base_offset=offset)


WITHOUT_SPARK = """
import json, sys
sys.modules["pyspark"] = None  # importing it fails, as where it is not installed
import pyspark_kafkalog as kafkalog
servers, topic, directory = sys.argv[1:]
reader = kafkalog.read_arrow(servers, topic, includeHeaders=True)
rows = reader.read_all().num_rows
again = {"loadName": "l", "offsetsPath": directory, "startingOffsets": "commit:1"}
later = kafkalog.read_arrow(servers, topic, **again).read_all().num_rows
print(json.dumps([rows, later, sorted(m for m in sys.modules if m.startswith("pyspark."))]))
"""


def test_it_works_where_pyspark_is_not_installed(servers: str, three: Topic, tmp_path: Path) -> None:
    first, second = TopicPartition(three.name, 0), TopicPartition(three.name, 1)
    read = {first: facts(0, 10, topic_id=""), second: facts(0, 4, topic_id="")}
    loaded(Ledger.at(str(tmp_path), "l"), read)
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", WITHOUT_SPARK, servers, three.name, str(tmp_path)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout) == [20, 6, []]
