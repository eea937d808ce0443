"""A broker's status page and metrics, and the same of a cluster from the command line."""

from __future__ import annotations

import json
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

import pyspark_kafkalog as kafkalog
from broker.embedded import BrokerNotStarted, EmbeddedBroker, start_broker
from tests.support.command_line import COMMAND, environment
from tests.support.command_line import kafkalog as command
from tests.support.foreign.apache_kafka import free_ports
from tests.support.ledger.plans import P0, facts, loaded
from tests.support.network.sockets import eventually


@pytest.fixture(scope="module")
def port() -> int:
    return free_ports(1)[0]


@pytest.fixture(scope="module")
def watched(port: int) -> Iterator[EmbeddedBroker]:
    """A broker with a topic of two partitions, a thousand records in one, and a group that has read 400."""
    with start_broker({"metrics.listener": f"127.0.0.1:{port}", "num.partitions": 2}) as broker:
        servers = broker.bootstrap_servers
        with kafkalog.Producer({"bootstrap.servers": servers}) as producer:
            for _ in range(1000):
                producer.send("flights", b"x" * 100, partition=1)
        with kafkalog.Consumer({"bootstrap.servers": servers, "group.id": "board"}) as consumer:
            partitions = consumer.partitions_for("flights")
            consumer.assign(partitions)
            consumer.commit({partitions[0]: 0, partitions[1]: 400})
        yield broker


def got(port: int, path: str) -> Any:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=10) as answer:
        return answer.read().decode()


def test_a_broker_shows_its_topics_and_groups(watched: EmbeddedBroker, port: int) -> None:
    def topics() -> dict[str, Any]:
        now = json.loads(got(port, "status.json"))["now"]
        return {topic["name"]: topic for topic in now.get("topics", ())}

    assert eventually(lambda: topics().get("flights", {}).get("end") == 1000, seconds=20)
    found = json.loads(got(port, "status.json"))
    assert found["now"]["brokers"] == [{"id": 0, "host": watched.host, "port": watched.port}]
    assert topics()["flights"]["partitions"] == 2
    assert topics()["flights"]["bytes"] > 1000 * 100
    (group,) = found["now"]["groups"]
    assert (group["name"], group["state"], group["lag"], group["topics"]) == (
        "board",
        "Empty",
        600,
        ["flights"],
    )
    assert got(port, "health") == "ok\n"
    samples = {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(got(port, "metrics"))
        for sample in family.samples
    }
    assert samples["kafkalog_partition_end_offset", "1", "flights"] == 1000
    assert samples["kafkalog_group_lag", "board"] == 600
    assert samples["kafkalog_broker_appended_messages_total",] >= 1000


def test_top_prints_the_same_of_any_cluster_and_the_loads_of_a_ledger(
    watched: EmbeddedBroker, tmp_path: Path
) -> None:
    ledger = kafkalog.Ledger.at(tmp_path, "nightly")
    ledger.identify("", {"subscribe": "events"})
    loaded(ledger, {P0: facts(0, 10)})
    found = command("top", "--once", "-b", watched.bootstrap_servers, "--ledger", str(tmp_path))
    assert (found.returncode, found.stderr) == (0, "")
    lines = [line.split() for line in found.stdout.splitlines()]
    assert ["board", "Empty", "0", "600"] in lines
    assert next(line for line in lines if line[:1] == ["flights"])[1:3] == ["2", "1,000"]
    assert next(line for line in lines if line[:1] == ["nightly"])[1] == "1"


def test_the_dashboard_serves_any_cluster_until_it_is_ended(watched: EmbeddedBroker) -> None:
    (port,) = free_ports(1)
    running = subprocess.Popen(
        [*COMMAND, "dashboard", "-b", watched.bootstrap_servers, "--listen", f"127.0.0.1:{port}"],
        env=environment(None), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert running.stderr is not None
        assert running.stderr.readline() == f"http://127.0.0.1:{port} (Ctrl-C ends it)\n"
        assert eventually(lambda: json.loads(got(port, "status.json"))["now"]["at_ms"] is not None)
        now = json.loads(got(port, "status.json"))["now"]
        assert {"flights", "__consumer_offsets"} <= {topic["name"] for topic in now["topics"]}
        assert [(group["name"], group["lag"]) for group in now["groups"]] == [("board", 600)]
        assert next(t for t in now["topics"] if t["name"] == "flights")["bytes"] > 100_000
    finally:
        running.send_signal(2)
        out, err = running.communicate(timeout=20)
    assert (running.returncode, out, err) == (0, "", "")


@pytest.mark.parametrize(
    ("listener", "said"),
    [("9308", "allowed: host:port"), ("nowhere.invalid:0", "cannot listen on nowhere.invalid:0")],
)
def test_a_wrong_listener_ends_the_start_with_the_reason(listener: str, said: str) -> None:
    with pytest.raises(BrokerNotStarted, match=said):
        start_broker({"metrics.listener": listener})


def test_a_cluster_that_is_not_there_is_an_error() -> None:
    found = command("dashboard", "-b", "127.0.0.1:1", "--listen", "127.0.0.1:0")
    assert (found.returncode, found.stdout) == (1, "")
    assert "127.0.0.1:1" in found.stderr
