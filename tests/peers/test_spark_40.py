"""PySpark 4.0, the oldest that we work with, at the bundled broker: what works, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kafkalog_broker.embedded import start_broker
from tests.support.datasource.both_connectors import OURS, ParityTopic
from tests.support.foreign.clients07 import ClientError
from tests.support.foreign.fetched import NotAvailable
from tests.support.foreign.foreign_face import messages
from tests.support.spark.spark_environments import REDUCED, SparkProcess, older_pyspark

Call = Callable[..., Any]


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    with start_broker() as running:
        yield running.bootstrap_servers


@pytest.fixture(scope="module")
def call(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Call]:
    """Has the driver call one of `spark_41_jobs`."""
    try:
        pyspark = older_pyspark(REDUCED)
    except NotAvailable as e:
        pytest.skip(f"PySpark {REDUCED} is not here: {e}")
    process = SparkProcess(tmp_path_factory.mktemp("spark-40") / "driver.log", pyspark)
    assert process.call("tests.support.spark.spark_41_jobs:version") == [REDUCED, REDUCED]
    yield lambda name, **arguments: process.call(f"tests.support.spark.spark_41_jobs:{name}", **arguments)
    process.close()


@pytest.fixture
def topic(servers: str, topic_name: str) -> ParityTopic:
    """Sixty records in partition 0, ten in 1."""
    topic = ParityTopic.make(servers, topic_name, 2)
    sent = messages(70)
    topic.add(0, sent[:60], "zstd")
    topic.add(1, sent[60:])
    return topic


def test_a_batch_is_read_in_as_many_tasks_as_were_asked_for(call: Call, topic: ParityTopic) -> None:
    options = {"subscribe": topic.name, "includeHeaders": "true", "minPartitions": "6"}
    tasks = call("batch", source=OURS, servers=topic.servers, options=options)
    assert len(tasks) >= 6
    assert sum(map(len, tasks)) == 70


def test_a_stream_continues_where_it_ended(call: Call, topic: ParityTopic, tmp_path: Path) -> None:
    options = {"subscribe": topic.name, "startingOffsets": "earliest"}
    for count in (70, 7):
        batches = call(
            "stream", source=OURS, servers=topic.servers, checkpoint=str(tmp_path), options=options
        )
        assert sum(map(len, batches)) == count
        topic.add(1, messages(7))


def test_rows_are_written_by_a_batch_and_by_a_stream(call: Call, topic: ParityTopic, tmp_path: Path) -> None:
    to = ParityTopic.make(topic.servers, f"{topic.name}-to", 3)
    call("write", source=OURS, servers=topic.servers, topic=to.name, count=50)
    options = {"subscribe": to.name, "columns": "key,value,partition,offset"}
    found = call("keyed", servers=topic.servers, options=options)
    assert len(found) == 50
    assert "value 49" in "".join(found)
    streamed = {"subscribe": topic.name, "startingOffsets": "earliest"}
    arguments = {"source": OURS, "servers": topic.servers, "checkpoint": str(tmp_path), "options": streamed}
    assert call("write_stream", topic=to.name, **arguments) == 70
    assert len(call("keyed", servers=topic.servers, options=options)) == 120


def test_tables_and_listeners_work(call: Call, topic: ParityTopic, tmp_path: Path) -> None:
    assert call("table", servers=topic.servers, topic=topic.name) == [70, 71]
    assert call("listened", servers=topic.servers, topic=topic.name, checkpoint=str(tmp_path)) >= 1


def test_loads_continue_where_they_ended(call: Call, topic: ParityTopic, tmp_path: Path) -> None:
    arguments = {"servers": topic.servers, "topic": topic.name, "root": str(tmp_path)}
    assert call("load", **arguments) == [1, 70]
    topic.add(0, messages(5))
    assert call("load", **arguments) == [2, 75]


def test_what_needs_41_says_so_at_the_call(call: Call, servers: str) -> None:
    with pytest.raises(ClientError, match=r"decoding\.avro and decoding\.protobuf need PySpark 4\.1"):
        call("decode_avro", servers=servers)
