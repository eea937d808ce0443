"""A broker's status page and metrics, and the same of a cluster from the command line."""

from __future__ import annotations

import json
import re
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

import pyspark_kafkalog as kafkalog
from kafkalog_broker.embedded import EmbeddedBroker, start_broker, start_cluster
from pyspark_kafkalog.errors import InvalidConfig
from tests.support.command_line import COMMAND, environment
from tests.support.command_line import kafkalog as command
from tests.support.ledger.plans import P0, facts, loaded
from tests.support.two_brokers import await_all
from tests.support.until import until
from tests.support.zookeeper import PATIENT, expire_broker


@pytest.fixture(scope="module")
def watched() -> Iterator[EmbeddedBroker]:
    """A broker with a topic of two partitions, a thousand records in one, and a group that has read 400."""
    with start_broker({"metrics.listener": "127.0.0.1:0", "num.partitions": 2}) as broker:
        servers = broker.bootstrap_servers
        with kafkalog.Producer({"bootstrap.servers": servers}) as producer:
            for _ in range(1000):
                producer.send("flights", b"x" * 100, partition=1)
        with kafkalog.Consumer({"bootstrap.servers": servers, "group.id": "board"}) as consumer:
            partitions = consumer.partitions_for("flights")
            consumer.assign(partitions)
            consumer.commit({partitions[0]: 0, partitions[1]: 400})
        yield broker


def got(url: str, path: str) -> str:
    with urllib.request.urlopen(f"{url}/{path}", timeout=60) as answer:
        return str(answer.read().decode())


def now_at(url: str) -> dict[str, Any]:
    """The newest snapshot; without topics, if there is none yet."""
    return json.loads(got(url, "status.json"))["now"] or {
        "topics": {"rows": []},
        "brokers": [],
        "problems": [],
    }


def topics_at(url: str) -> dict[str, Any]:
    return {topic["name"]: topic for topic in now_at(url)["topics"]["rows"]}


def test_a_broker_shows_its_topics_and_groups(watched: EmbeddedBroker) -> None:
    url = watched.status_url
    until(lambda: topics_at(url).get("flights", {}).get("offsets") == 1000)
    now = now_at(url)
    assert now["broker"] is None, "it is no part of a cluster"
    assert now["brokers"] == [
        {"id": 0, "host": watched.host, "port": watched.port, "partitions": 3, "live": True}
    ]
    assert topics_at(url)["flights"]["partitions"] == 2
    assert topics_at(url)["flights"]["bytes"] > 1000 * 100
    (group,) = now["groups"]["rows"]
    assert (group["name"], group["state"], group["lag"], group["topics"]) == (
        "board",
        "Empty",
        600,
        ["flights"],
    )
    assert got(url, "health") == "ok\n"
    samples = {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(got(url, "metrics"))
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


@pytest.mark.long("brokers that come and go")
def test_the_dashboard_serves_any_cluster_until_it_is_ended(watched: EmbeddedBroker) -> None:
    running = subprocess.Popen(
        [*COMMAND, "dashboard", "-b", watched.bootstrap_servers, "--listen", "127.0.0.1:0"],
        env=environment(None), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert running.stderr is not None
        said = running.stderr.readline()
        assert re.fullmatch(r"http://127\.0\.0\.1:[1-9]\d* \(Ctrl-C ends it\)\n", said), said
        url = said.split()[0]
        until(lambda: "flights" in topics_at(url))
        now = now_at(url)
        assert {"flights", "__consumer_offsets"} <= topics_at(url).keys()
        assert [(group["name"], group["lag"]) for group in now["groups"]["rows"]] == [("board", 600)]
        assert topics_at(url)["flights"]["bytes"] > 100_000
    finally:
        running.send_signal(2)
        out, err = running.communicate(timeout=180)
    assert (running.returncode, out, err) == (0, "", "")


@pytest.mark.long("brokers that come and go")
def test_brokers_of_a_cluster_show_their_part_and_who_is_away() -> None:
    with start_cluster(2, {**PATIENT, "metrics.listener": "127.0.0.1:0"}) as cluster:
        await_all(cluster)
        servers = cluster.bootstrap_servers
        kafkalog.create_topics(servers, [kafkalog.NewTopic("flights", 4)])
        urls = {number: broker.status_url for number, broker in cluster.brokers.items()}
        assert len(set(urls.values())) == 2

        def shown(url: str) -> tuple[Any, ...]:
            now = now_at(url)
            flights = [topic for topic in now["topics"]["rows"] if topic["name"] == "flights"]
            return (
                now.get("broker"),
                [(topic["partitions"], topic["of"], topic["offline"]) for topic in flights],
                [(b["id"], b["partitions"], b["live"]) for b in now["brokers"]],
            )

        for number, url in urls.items():
            expected = (number, [(2, 4, 0)], [(1, 2, True), (2, 2, True)])
            until(lambda url=url, expected=expected: shown(url) == expected)
        cluster.brokers[2].kill()
        expire_broker(cluster.zookeeper_connect, 2)

        def away() -> list[tuple[int, int]]:
            return [(b["id"], b["partitions"]) for b in now_at(urls[1])["brokers"] if not b["live"]]

        until(lambda: away() == [(2, 2)])
        assert got(urls[1], "health") == "ok\n"
        assert (
            "1 broker, 2 AWAY, 1 topic, 4 partitions, 2 OFFLINE"
            in command("top", "--once", "-b", cluster.brokers[1].bootstrap_servers).stdout
        )
        assert cluster.brokers[2].restart().status_url == urls[2]
        until(lambda: away() == [])


def test_without_a_listener_there_is_no_status(running_broker: EmbeddedBroker) -> None:
    with pytest.raises(InvalidConfig, match=r"without metrics\.listener"):
        _ = running_broker.status_url


def test_a_cluster_that_is_not_there_is_an_error() -> None:
    found = command("dashboard", "-b", "127.0.0.1:1", "--listen", "127.0.0.1:0")
    assert (found.returncode, found.stdout) == (1, "")
    assert "127.0.0.1:1" in found.stderr
