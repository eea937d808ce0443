"""A group of Java's consumer and ours at the bundled broker: each leads once, or the broker assigns."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kafkalog_broker.embedded import EmbeddedBroker, start_broker
from tests.support.client.consumer_cases import QUICK_GROUPS, Seat, drive, new_topic, produce
from tests.support.foreign.apache_kafka import java


@pytest.fixture(scope="module")
def group_broker() -> Iterator[EmbeddedBroker]:
    with start_broker(QUICK_GROUPS) as broker:
        yield broker


@contextmanager
def java_member(
    jars: Path, servers: str, topic: str, group: str, out: Path, *properties: str
) -> Iterator[subprocess.Popen[bytes]]:
    """Kafka's console consumer; its values are lines of ``out``."""
    given = ("heartbeat.interval.ms=200", "fetch.max.wait.ms=50", "auto.offset.reset=earliest", *properties)
    chosen = [word for one in given for word in ("--consumer-property", one)]
    command = java(
        jars, "org.apache.kafka.tools.consumer.ConsoleConsumer", "--bootstrap-server", servers,
        "--topic", topic, "--group", group, *chosen,
    )  # fmt: skip
    with out.open("wb") as file, (out.parent / "stderr").open("wb") as errors:
        process = subprocess.Popen(command, stdout=file, stderr=errors)
        try:
            yield process
        finally:
            process.terminate()
            process.wait(30)


@pytest.mark.parametrize(
    ("strategy", "ours_first"),
    [
        ("Range", True), ("RoundRobin", False), ("Sticky", True), ("Sticky", False),
        ("CooperativeSticky", True), ("CooperativeSticky", False), ("consumer", True), ("consumer", False),
    ],
)  # fmt: skip
def test_java_and_ours_share_a_group(
    group_broker: EmbeddedBroker, kafka_jars: Path, tmp_path: Path, strategy: str, ours_first: bool
) -> None:
    servers = group_broker.bootstrap_servers
    topic = new_topic(servers)
    if strategy == "consumer":
        protocol, ours, theirs = "consumer", {}, ("group.protocol=consumer",)
    else:
        name = f"org.apache.kafka.clients.consumer.{strategy}Assignor"
        protocol, ours = "classic", {"partition_assignment_strategy": name}
        theirs = (f"partition.assignment.strategy={name}",)
    out = tmp_path / "java"
    seat = Seat(servers, topic, protocol, **ours)
    sent = produce(servers, topic, 20)

    def read() -> list[bytes]:
        return sorted(seat.values + out.read_bytes().split())

    def join() -> None:
        seat.subscribe(topic)
        drive([seat], lambda: len(seat.held) > 0)

    try:
        if ours_first:
            join()
        with java_member(kafka_jars, servers, topic, topic, out, *theirs):
            if not ours_first:
                drive([], lambda: len(out.read_bytes().split()) == 20)
                join()
            drive([seat], lambda: len(seat.held) == 2 and len(read()) >= 20)
            sent += produce(servers, topic, 40, first=20)
            drive([seat], lambda: len(read()) >= 60)
            assert len(seat.got) >= 20 <= len(out.read_bytes().split())
        drive([seat], lambda: seat.held == [0, 1, 2, 3])
        sent += produce(servers, topic, 20, first=60)
        drive([seat], lambda: len(read()) >= 80)
        assert read() == sorted(sent)
    finally:
        seat.consumer.close()
