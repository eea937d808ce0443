"""What our clients do over connections that log in, at whatever broker."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from contextlib import closing

import pytest

from pyspark_kafkalog import Consumer, NewTopic, Producer, create_topics
from pyspark_kafkalog.cli.consume import read_ranges
from pyspark_kafkalog.client import connection
from pyspark_kafkalog.client.discovery import Cluster
from pyspark_kafkalog.client.offsets import list_offsets
from pyspark_kafkalog.config.client_config import ConsumerConfig
from pyspark_kafkalog.config.definition import parse
from pyspark_kafkalog.errors import KafkaError
from pyspark_kafkalog.types import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, TopicPartition
from tests.support.manual_clock import ManualClock
from tests.support.until import until

_LEAST_SECONDS = 1.1
"""Brokers refuse logins of one connection that follow each other sooner."""


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
        found: list[bytes | None] = []
        until(lambda: found.extend(record.value for record in consumer.poll(0.1)) or found)
    assert found == [b"one"]
    assert read(given, topic) == [b"one"]


def refused(given: Mapping[str, str]) -> KafkaError:
    """The error of a first request, which comes within 15 s of its pauses."""
    clock = ManualClock()
    began = clock.monotonic()
    with (
        closing(Cluster(parse(ConsumerConfig, given, source="test"), clock=clock)) as cluster,
        pytest.raises(KafkaError) as raised,
    ):
        cluster.metadata(["t"])
    assert clock.monotonic() - began < 15
    assert "guess" not in str(raised.value)
    return raised.value


def keep_connections(given: Mapping[str, str], topic_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use each kind of client while logins are renewed three times: no connection is lost, and no record.

    Sessions must have an end that is far away. That most of one has passed is what a connection is made to
    believe.
    """
    known: set[connection.Connection] = set()
    due: set[connection.Connection] = set()
    lost: list[str] = []
    renewed: list[connection.Connection] = []
    logged_in_since: dict[connection.Connection, float] = {}
    close = connection.Connection.close
    login = connection.Connection._start_login
    must_hold = connection.Connection._must_hold

    def closed(self: connection.Connection) -> None:
        lost.append(self.peer)
        close(self)

    def logged_in(self: connection.Connection, seconds: float) -> None:
        known.add(self)
        login(self, seconds)

    def held(self: connection.Connection) -> bool:
        if self._exchange is None:
            since = logged_in_since.setdefault(self, time.monotonic())
            if self in due and time.monotonic() - since > _LEAST_SECONDS:
                assert self._ends_at < math.inf
                due.discard(self)
                del logged_in_since[self]
                renewed.append(self)
                self._renewed_at = -math.inf
        return must_hold(self)

    patient = {**given, "request.timeout.ms": "600000"}
    monkeypatch.setattr(connection.Connection, "_start_login", logged_in)
    with closing(Cluster(parse(ConsumerConfig, patient, source="test"))) as cluster:
        create_topics(cluster, [NewTopic(topic_name, 1)])
        sent = 0
        received: list[bytes | None] = []
        group = {"group.id": topic_name, "auto.offset.reset": "earliest", "heartbeat.interval.ms": 100}
        with (
            Producer({**patient, "linger.ms": 0, "delivery.timeout.ms": 900_000}) as out,
            Consumer({**patient, **group}) as consumer,
        ):

            def use() -> None:
                nonlocal sent
                out.send(topic_name, b"%d" % sent).result(90)
                sent += 1
                received.extend(record.value for record in consumer.poll(0.05))
                cluster.metadata([topic_name], refresh=True)

            consumer.subscribe([topic_name])
            until(lambda: use() or received)
            monkeypatch.setattr(connection.Connection, "close", closed)
            monkeypatch.setattr(connection.Connection, "_must_hold", held)
            for number in range(1, 4):
                due.update(each for each in known if not each.broken)
                # Of producer, consumer's fetcher and group, and cluster.
                until(lambda: use() or len(renewed) >= 4 * number)  # noqa: B023
            assert lost == []
            until(lambda: received.extend(r.value for r in consumer.poll(0.1)) or len(received) >= sent)
        assert received == [b"%d" % n for n in range(sent)]
