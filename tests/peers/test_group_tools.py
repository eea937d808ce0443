"""Kafka's own console consumer and its command for groups, at our broker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kafkalog_broker.embedded import start_broker
from tests.support.foreign.apache_kafka import run_tool
from tests.support.foreign.foreign_clients import CLIENTS
from tests.support.foreign.foreign_face import Message

_CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
_GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
_TOPIC, _GROUP, _RECORDS = "read-in-a-group", "of-the-console", 20


@pytest.fixture
def servers() -> Iterator[str]:
    with start_broker({"auto.create.topics.enable": False}) as broker:
        yield broker.bootstrap_servers


def test_a_group_is_read_described_reset_and_deleted(servers: str, kafka_jars: Path) -> None:
    def groups(*arguments: str) -> list[list[str]]:
        """The words of each line about the group or the topic; the others are headings and what it logs."""
        told = run_tool(kafka_jars, _GROUPS, "--bootstrap-server", servers, *arguments)
        lines = [line.split() for line in told.splitlines() if line.strip()]
        return [words for words in lines if words[0] in (_GROUP, _TOPIC)]

    def consume(count: int) -> list[str]:
        told = run_tool(
            kafka_jars, _CONSUMER, "--bootstrap-server", servers, "--topic", _TOPIC, "--group", _GROUP,
            "--from-beginning", "--max-messages", str(count), "--timeout-ms", "20000",
        )  # fmt: skip
        return sorted(line for line in told.splitlines() if line.startswith("value"))

    client = CLIENTS[0]
    client.create_topic(servers, _TOPIC, 2)
    values = [f"value {n:02}" for n in range(_RECORDS)]
    for partition in range(2):
        half = [Message(value.encode(), None, 1, ()) for value in values[partition::2]]
        client.produce(servers, _TOPIC, partition, half, "none", idempotent=False)
    assert consume(_RECORDS) == values
    named = ("--group", _GROUP)
    described = groups("--describe", *named)
    assert sorted(words[:6] for words in described) == [
        [_GROUP, _TOPIC, str(partition), "10", "10", "0"] for partition in range(2)
    ]
    ((*_, state, members),) = groups("--describe", "--state", *named)
    assert (state, members) == ("Empty", "0")
    assert [_GROUP, "Empty"] in [words[:2] for words in groups("--list", "--state")]
    groups("--reset-offsets", "--to-offset", "7", "--topic", f"{_TOPIC}:1", "--execute", *named)
    assert consume(3) == values[1::2][7:]
    groups("--delete-offsets", "--topic", f"{_TOPIC}:0", *named)
    assert sorted(words[2:4] for words in groups("--describe", *named)) == [["1", "10"]]
    groups("--delete", *named)
    assert groups("--list") == []
