"""What our clients do over connections that log in, at whatever broker."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing

import pytest

from pyspark_kafkalog import Consumer, NewTopic, Producer, create_topics
from pyspark_kafkalog.cli.consume import read_ranges
from pyspark_kafkalog.client import connection
from pyspark_kafkalog.client.discovery import Cluster
from pyspark_kafkalog.client.offsets import list_offsets
from pyspark_kafkalog.config.client import ConsumerConfig
from pyspark_kafkalog.config.definition import parse
from pyspark_kafkalog.errors import KafkaError
from pyspark_kafkalog.types import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, TopicPartition


def read(given: Mapping[str, str], topic: str) -> list[bytes | None]:
    """By the fetcher and decoder that Spark's tasks use, without Spark."""
    config = parse(ConsumerConfig, given, source="test")
    tp = TopicPartition(topic, 0)
    with closing(Cluster(config)) as cluster:
        first, last = (
            list_offsets(cluster, {tp: t})[tp].offset for t in (EARLIEST_TIMESTAMP, LATEST_TIMESTAMP)
        )
        return [r.value for _, batch in read_ranges(cluster, {tp: (first, last)}, config) for r in batch]


def round_trip(given: Mapping[str, str], topic: str) -> None:
    """Admin, producer, consumer group and fetcher, each over connections that log in."""
    with closing(Cluster(parse(ConsumerConfig, given, source="test"))) as cluster:
        create_topics(cluster, [NewTopic(topic, 1)])
    with Producer(given) as out:
        out.send(topic, b"one")
    with Consumer({**given, "group.id": topic, "auto.offset.reset": "earliest"}) as consumer:
        consumer.subscribe([topic])
        until = time.monotonic() + 30
        found: list[bytes | None] = []
        while not found and time.monotonic() < until:
            found += [record.value for record in consumer.poll(1)]
    assert found == [b"one"]
    assert read(given, topic) == [b"one"]


def refused(given: Mapping[str, str]) -> KafkaError:
    """The error of a first request, which comes within 15 s."""
    began = time.monotonic()
    with (
        closing(Cluster(parse(ConsumerConfig, given, source="test"))) as cluster,
        pytest.raises(KafkaError) as raised,
    ):
        cluster.metadata(["t"])
    assert time.monotonic() - began < 15
    assert "guess" not in str(raised.value)
    return raised.value


def keep_connections(
    given: Mapping[str, str], topic_name: str, session_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Use each kind of client while sessions end several times: no connection is lost, and no record."""
    lost: list[str] = []
    logins: list[str] = []
    close = connection.Connection.close
    login = connection.Connection._start_login

    def closed(self: connection.Connection) -> None:
        lost.append(self.peer)
        close(self)

    def logged_in(self: connection.Connection, seconds: float) -> None:
        logins.append(self.peer)
        login(self, seconds)

    with closing(Cluster(parse(ConsumerConfig, given, source="test"))) as cluster:
        create_topics(cluster, [NewTopic(topic_name, 1)])
        sent = 0
        received: list[bytes | None] = []
        with (
            Producer({**given, "linger.ms": 0}) as out,
            Consumer({**given, "group.id": topic_name, "auto.offset.reset": "earliest"}) as consumer,
        ):
            consumer.subscribe([topic_name])
            consumer.poll(5)
            out.send(topic_name, b"0").result(10)
            sent = 1
            monkeypatch.setattr(connection.Connection, "close", closed)
            monkeypatch.setattr(connection.Connection, "_start_login", logged_in)
            until = time.monotonic() + 3.5 * session_ms / 1000
            while time.monotonic() < until:
                out.send(topic_name, str(sent).encode()).result(10)
                sent += 1
                received += [record.value for record in consumer.poll(0.05)]
                cluster.metadata([topic_name], refresh=True)
            assert lost == []
            # Of producer, consumer's fetcher and group, and cluster: each about three times.
            assert len(logins) >= 8
            while len(received) < sent and time.monotonic() < until + 20:
                received += [record.value for record in consumer.poll(1)]
        assert received == [str(n).encode() for n in range(sent)]
