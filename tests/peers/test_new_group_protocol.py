"""Groups of the newer protocol at our broker: Java's consumer and Kafka's tools."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from kafkalog_broker.embedded import EmbeddedBroker, start_broker
from pyspark_kafkalog.protocol.api.consumer_groups import ConsumerGroupHeartbeatRequest
from tests.support.foreign.apache_kafka import fetch, java, run_tool
from tests.support.foreign.fetched import NotAvailable
from tests.support.protocol.raw_client import RawClient, batch
from tests.support.until import until

pytestmark = pytest.mark.peers

TOPIC, PARTITIONS = "java-1", 4


@pytest.fixture(scope="module")
def jars() -> Path:
    try:
        return fetch("4.1.1")
    except NotAvailable as e:
        pytest.skip(f"Apache Kafka 4.1.1 is not here: {e}")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("groups")


@pytest.fixture(scope="module")
def broker(data: Path) -> Iterator[EmbeddedBroker]:
    with start_broker({"group.consumer.heartbeat.interval.ms": 300}, data_dir=data) as running:
        with RawClient(running.port) as client:
            client.create_topic(TOPIC, PARTITIONS)
            for partition in range(PARTITIONS):
                client.produce(TOPIC, batch(b"value-%d" % partition), partition=partition)
        yield running


def console_consumer(jars: Path, broker: EmbeddedBroker, group: str, *which: str) -> list[str]:
    """The command of Kafka's console consumer, which ends after as many messages as there are."""
    return java(
        jars,
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        "--bootstrap-server", broker.bootstrap_servers, "--group", group, "--from-beginning",
        "--consumer-property", "group.protocol=consumer",
        "--max-messages", str(PARTITIONS), "--timeout-ms", "30000", *which,
    )  # fmt: skip


@pytest.mark.parametrize("which", [("--topic", TOPIC), ("--include", "java-[0-9]")], ids=["name", "pattern"])
def test_javas_consumer_reads_as_a_member(jars: Path, broker: EmbeddedBroker, which: tuple[str, str]) -> None:
    group = f"of-{which[0].strip('-')}"
    command = console_consumer(jars, broker, group, *which)
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert sorted(done.stdout.split()) == [f"value-{p}" for p in range(PARTITIONS)]

    tool = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
    described = run_tool(
        jars, tool, "--bootstrap-server", broker.bootstrap_servers, "--describe", "--group", group
    )
    rows = re.findall(rf"^{group} +{TOPIC} +(\d+) +(\d+) +(\d+) +(\d+)", described, re.MULTILINE)
    assert sorted(rows) == [(str(p), "1", "1", "0") for p in range(PARTITIONS)]
    listed = run_tool(jars, tool, "--bootstrap-server", broker.bootstrap_servers, "--list", "--type")
    assert re.search(rf"^{group} +Consumer", listed, re.MULTILINE)


def test_kafkas_tool_reads_every_record_of_a_group(
    jars: Path, broker: EmbeddedBroker, data: Path, tmp_path: Path
) -> None:
    """Runs after the others: it reads what their groups left, and a group with an expression of RE2."""
    join = ConsumerGroupHeartbeatRequest(
        "raw", "m", rebalance_timeout_ms=1000, subscribed_topic_regex="java.*", topic_partitions=()
    )
    with RawClient(broker.port) as client:
        assert client.ask(join).error_code == 0
        stay = ConsumerGroupHeartbeatRequest("raw", "m", 1)
        until(lambda: client.ask(stay).member_epoch == 2)
    (segment,) = (data / "__consumer_offsets_0").glob("*.kafka")
    copy = tmp_path / "__consumer_offsets-0" / f"{0:020}.log"
    copy.parent.mkdir()
    shutil.copy(segment, copy)
    told = run_tool(jars, "kafka.tools.DumpLogSegments", "--offsets-decoder", "--files", copy)
    assert "isvalid: false" not in told
    entries = re.findall(r" key: (\{.*\}) payload: (.*)$", told, re.MULTILINE)
    assert len(entries) == told.count("keySize")
    stored = {json.loads(key)["type"] for key, value in entries if value != "<DELETE>"}
    assert stored >= {"1", "3", "4", "5", "6", "7", "8", "16"}
    members = [json.loads(v)["data"] for k, v in entries if json.loads(k)["type"] == "5" and v != "<DELETE>"]
    assert {(m["clientId"], m["clientHost"], tuple(m["subscribedTopicNames"])) for m in members} >= {
        ("console-consumer", "/127.0.0.1", (TOPIC,))
    }
