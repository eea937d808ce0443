"""Kafka's own consumer reads a topic of 0.7 from our broker, by positions."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from kafkalog_broker.embedded import EmbeddedBroker, start_broker
from tests.support.foreign.apache_kafka import java, run_tool
from tests.support.protocol.wire07 import LATEST, Wire07, entry, offsets, produce, zipped

CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
SET = zipped(entry(b"a"), zipped(entry(b"b")), entry(b"c"))
CROWD = zipped(*[entry(b"")] * 3000)
LOG = entry(b"zero", magic=0) + zipped() + SET + entry(b"one")
START = len(entry(b"zero", magic=0)) + len(zipped())
"""Where the set begins."""
LINES = [
    "Offset:0\tzero",
    *(f"Offset:{START + number}\t{value}" for number, value in enumerate("abc")),
    f"Offset:{START + len(SET)}\tone",
]


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    listeners = "PLAINTEXT://127.0.0.1:0,KAFKA07://127.0.0.1:0"
    with start_broker({"listeners": listeners, "log.flush.interval": 1}) as broker:
        with Wire07(broker.port_of("KAFKA07")) as wire:
            wire.send(produce("old", 0, LOG))
            wire.send(produce("crowd", 0, entry(b"before") + CROWD + entry(b"behind")))
            assert wire.ask(offsets("crowd", 0, LATEST, 1)) is not None
        yield broker


def arguments(broker: EmbeddedBroker, topic: str, offset: int, count: int) -> list[str]:
    return [
        "--bootstrap-server", broker.bootstrap_servers, "--topic", topic, "--partition", "0",
        "--offset", str(offset), "--max-messages", str(count), "--timeout-ms", "20000",
        "--property", "print.offset=true", "--property", "print.value=true",
    ]  # fmt: skip


@pytest.mark.parametrize(("offset", "first"), [(0, 0), (START + 1, 2)])
def test_kafkas_consumer_reads_from_any_position(
    kafka_jars: Path, broker: EmbeddedBroker, offset: int, first: int
) -> None:
    said = run_tool(kafka_jars, CONSUMER, *arguments(broker, "old", offset, len(LINES) - first))
    assert [line for line in said.splitlines() if line.startswith("Offset:")] == LINES[first:]


def test_kafkas_consumer_ends_with_an_error_at_an_entry_that_is_refused(
    kafka_jars: Path, broker: EmbeddedBroker
) -> None:
    command = java(kafka_jars, CONSUMER, *arguments(broker, "crowd", 0, 3))
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert "Offset:0\tbefore" in done.stdout
    assert "behind" not in done.stdout
    assert "Unexpected error code 43 while fetching at offset" in done.stdout + done.stderr
