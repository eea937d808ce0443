"""Through Spark Connect, where there is neither a SparkContext nor py4j: all that users do, once each."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from kafkalog_broker.embedded import EmbeddedBroker
from pyspark_kafkalog.client.discovery import Cluster
from pyspark_kafkalog.client.groups import committed_offsets
from pyspark_kafkalog.config.client_config import ClientConfig
from pyspark_kafkalog.ledger.stores.locations import open_store
from tests.support.datasource.spark_topics import Topic, record
from tests.support.foreign.clients07 import ClientError
from tests.support.foreign.fetched import NotAvailable
from tests.support.formats.avro_bytes import avro_bytes
from tests.support.ledger.s3_server import BUCKET, KEYS, s3_server
from tests.support.spark.spark_environments import SparkProcess, s3a_configs, s3a_jars

pytestmark = pytest.mark.clusters

NewTopic = Callable[..., Topic]
Errand = Callable[..., Any]


@pytest.fixture(scope="module")
def do(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Errand]:
    """``do("read", options=...)``: an errand of `spark_errands`, in a program with a session of Connect."""
    directory = tmp_path_factory.mktemp("connect")
    configs = {
        "spark.remote": "local[2]",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
    }
    # The server's processes find a store by their environment only, Spark's own writers by its keys.
    with s3_server() as port, pytest.MonkeyPatch.context() as environment:
        endpoint = f"http://127.0.0.1:{port}"
        for name, value in {**KEYS, "AWS_ENDPOINT_URL": endpoint}.items():
            environment.setenv(name, value)
        with suppress(NotAvailable):
            configs |= {"spark.jars": ",".join(map(str, s3a_jars())), **s3a_configs(endpoint)}
        process = SparkProcess(directory / "spark.log", configs=configs)
        yield lambda errand, /, **named: process.call(f"tests.support.spark.spark_errands:{errand}", **named)
        process.close()


@pytest.fixture
def options(server: EmbeddedBroker) -> Callable[..., dict[str, str]]:
    """``options(topic, startingOffsets="latest")``: what names the broker and the topic, and more."""

    def of(topic: Topic, **more: str) -> dict[str, str]:
        named = {"kafka.bootstrap.servers": server.bootstrap_servers, "subscribe": topic.name}
        return {**named, **more}

    return of


def target(server: EmbeddedBroker, topic: Topic) -> dict[str, str]:
    return {"kafka.bootstrap.servers": server.bootstrap_servers, "topic": topic.name}


def test_the_session_is_one_of_connect(do: Errand) -> None:
    assert do("kind") == "pyspark.sql.connect.session"


def test_a_listener_that_commits_is_refused_and_the_way_out_named(do: Errand) -> None:
    said = r"Spark Connect does not tell clients how a query ended\. .*block of kafkalog\.load\(\), and call"
    with pytest.raises(ClientError, match=said):
        do("commit_on_success")


def test_a_batch_has_the_rows_and_is_split_into_tasks(
    do: Errand, new_topic: NewTopic, options: Callable[..., dict[str, str]]
) -> None:
    topic = new_topic(partitions=2)
    topic.add_records([record(b"a", b"k", 5, (("h", b"v"),)), record(None, None, 6)])
    topic.add("x", "y", partition=1)
    assert do("full_rows", options=options(topic)) == [
        ["k", "a", 0, 0, 5, 0, ["h=v"]],
        [None, None, 0, 1, 6, 0, None],
        [None, "x", 1, 0, 1000, 0, None],
        [None, "y", 1, 1, 1000, 0, None],
    ]
    assert do("read", options=options(topic, minPartitions="4", columns="value,partition,offset")) == {
        "columns": ["value", "partition", "offset"],
        "rows": [[0, 0, "a"], [0, 1, None], [1, 0, "x"], [1, 1, "y"]],
        "tasks": 4,
    }


def test_what_is_wrong_is_reported_by_driver_and_tasks(
    do: Errand, new_topic: NewTopic, options: Callable[..., dict[str, str]]
) -> None:
    topic = new_topic()
    topic.add("a")
    with pytest.raises(ClientError, match=r"Unknown option 'startingofset'\. Did you mean 'startingOffsets'"):
        do("read", options=options(topic, startingOfset="earliest"))
    ends = {"startingOffsets": topic.offsets(p0=7), "endingOffsets": topic.offsets(p0=9)}
    said = re.escape(f"Could not read offsets [7, 9) of {topic.name}-0: the log holds [0, 1)")
    with pytest.raises(ClientError, match=said):
        do("read", options=options(topic, **ends))


@pytest.mark.parametrize("at", ["path", "s3", "s3 table"])
def test_loads_continue_where_the_last_one_ended(
    do: Errand, new_topic: NewTopic, options: Callable[..., dict[str, str]], tmp_path: Path, at: str
) -> None:
    topic = new_topic(partitions=2)
    bucket = f"s3a://{BUCKET}/{topic.name}"
    if at == "s3 table":
        try:
            s3a_jars()
        except NotAvailable as e:
            pytest.skip(f"Hadoop's s3a is not here: {e}")
    load = {
        "options": options(topic), "name": "connect",
        "offsets": str(tmp_path / "offsets") if at == "path" else f"{bucket}/offsets",
        "path": f"{bucket}/table" if at == "s3 table" else str(tmp_path / "table"),
    }  # fmt: skip
    topic.add(*range(3))
    assert do("load", **load)["records"] == 3
    topic.add(*range(2), partition=1)
    topic.add(3)
    second = do("load", **load)
    assert second["records"] == 3
    assert [row[:3] for row in second["rows"]] == [
        [1, 0, 0], [1, 0, 1], [1, 0, 2], [2, 0, 3], [2, 1, 0], [2, 1, 1],
    ]  # fmt: skip
    assert do("load", **load)["records"] == 0
    assert do("audited", name="connect", offsets=load["offsets"]) == [
        [1, 0, 0, 3, 3], [2, 0, 3, 4, 1], [2, 1, 0, 2, 2],
    ]  # fmt: skip
    assert do("compact", path=load["path"]) == 3
    topic.add(4)
    assert [row[:3] for row in do("load", **load)["rows"]] == [
        [1, 0, 0], [1, 0, 1], [1, 0, 2], [2, 0, 3], [2, 1, 0], [2, 1, 1], [4, 0, 4],
    ]  # fmt: skip


def test_dead_letters_are_kept_beside_what_was_loaded(
    do: Errand, new_topic: NewTopic, options: Callable[..., dict[str, str]], tmp_path: Path
) -> None:
    topic = new_topic()
    topic.add(1, "two", 3)
    places = {"offsets": str(tmp_path / "offsets"), "path": str(tmp_path / "table")}
    assert do("load_numbers", options=options(topic), name="numbers", **places) == {
        "numbers": [1, 3],
        "dead": [["two", "no number at 1"]],
    }


def test_a_load_into_sqlite_has_each_row_once(
    do: Errand, new_topic: NewTopic, options: Callable[..., dict[str, str]], tmp_path: Path
) -> None:
    topic = new_topic(partitions=2)
    database = tmp_path / "loaded.db"
    load = {
        "options": options(topic), "name": "sql", "offsets": str(tmp_path / "offsets"),
        "url": f"sqlite:///{database}", "table": "clicks",
    }  # fmt: skip
    topic.add("a", "b")
    assert do("load_sql", **load) == 2
    topic.add("c", partition=1)
    assert do("load_sql", **load) == 1
    with closing(sqlite3.connect(database)) as connection:
        found = connection.execute('SELECT _kl_load, "partition", "offset", value FROM clicks').fetchall()
    assert sorted(found) == [(1, 0, 0, b"a"), (1, 0, 1, b"b"), (2, 1, 0, b"c")]


def test_a_stream_continues_from_its_checkpoint_into_a_topic_and_its_listener_tells_lag_and_group(
    do: Errand,
    server: EmbeddedBroker,
    new_topic: NewTopic,
    options: Callable[..., dict[str, str]],
    tmp_path: Path,
) -> None:
    source, sink = new_topic(partitions=2), new_topic()
    source.add(*range(9))
    given = options(source, startingOffsets="earliest", maxOffsetsPerTrigger="5")
    query = {
        "options": given, "target": target(server, sink),
        "checkpoint": str(tmp_path / "checkpoint"), "group": f"group-{source.name}",
    }  # fmt: skip
    assert do("stream", **query, name="first") == {"batches": [5, 4], "behind": [4, 0]}
    source.add(9, 10, partition=1)
    assert do("stream", **query, name="second") == {"batches": [2], "behind": [0]}
    rows = do("read", options=options(sink))["rows"]
    assert sorted(int(value) for _, _, value in rows) == list(range(11))
    cluster = Cluster(ClientConfig(bootstrap_servers=server.bootstrap_servers))
    committed = committed_offsets(cluster, query["group"])
    cluster.close()
    assert {p.partition: c.offset for p, c in committed.items()} == {0: 9, 1: 2}


def test_a_stream_keeps_its_start_in_a_bucket(
    do: Errand,
    server: EmbeddedBroker,
    new_topic: NewTopic,
    options: Callable[..., dict[str, str]],
    tmp_path: Path,
) -> None:
    source, sink = new_topic(), new_topic()
    source.add(*range(5))
    offsets = f"s3a://{BUCKET}/{source.name}"
    given = options(source, startingOffsets="latest", offsetsPath=offsets, streamName="kept")
    query = {
        "options": given, "target": target(server, sink), "checkpoint": str(tmp_path / "checkpoint")
    }  # fmt: skip
    do("stream", **query, name="kept-first")
    assert open_store(offsets).names("kept")
    source.add(5, 6)
    do("stream", **query, name="kept-second")
    rows = do("read", options=options(sink))["rows"]
    assert sorted(int(value) for _, _, value in rows) == [5, 6]


def test_a_batch_is_written(
    do: Errand, server: EmbeddedBroker, new_topic: NewTopic, options: Callable[..., dict[str, str]]
) -> None:
    topic = new_topic()
    do("write", target=target(server, topic), count=5)
    assert sorted(value for _, _, value in do("read", options=options(topic))["rows"]) == list("01234")
    with pytest.raises(ClientError, match="topic option required when no 'topic' attribute is present"):
        do("write", target={"kafka.bootstrap.servers": server.bootstrap_servers}, count=1)


def test_values_are_decoded(do: Errand, new_topic: NewTopic, options: Callable[..., dict[str, str]]) -> None:
    schema = {"type": "record", "name": "N", "fields": [{"name": "n", "type": "int"}]}
    topic = new_topic()
    topic.add_records([record(b'{"n": 2}', avro_bytes(schema, {"n": 1})), record(b"{", b"\xff")])
    good, bad = do("decoded", options=options(topic), avro=json.dumps(schema))
    assert good == [0, 1, None, 2, None]
    assert (bad[:2], bad[3:]) == ([1, None], [None, "not a JSON object"])
    assert bad[2].startswith("not Avro of the schema")


def test_tables_and_views_of_sql(do: Errand, server: EmbeddedBroker, new_topic: NewTopic) -> None:
    topic = new_topic(partitions=2)
    topic.add("a", "b", partition=1)
    name = topic.name
    given = f"'kafka.bootstrap.servers' '{server.bootstrap_servers}', subscribe '{name}', topic '{name}'"
    counted = do("sql", statements=[
        f"CREATE TABLE clicks USING kafkalog OPTIONS ({given})",
        "SELECT partition, count(*) FROM clicks GROUP BY partition",
    ])  # fmt: skip
    assert counted == [[1, 2]]
    inserted = do("sql", statements=[
        f"CREATE TEMPORARY VIEW target (key STRING, value STRING) USING kafkalog OPTIONS ({given})",
        "INSERT INTO target VALUES ('k', 'c')",
        "SELECT cast(value AS string) FROM clicks ORDER BY 1",
    ])  # fmt: skip
    assert inserted == [["a"], ["b"], ["c"]]
