"""The status page over HTTP: what it answers, to whom, and how many at once."""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry, Counter
from prometheus_client.parser import text_string_to_metric_families

from pyspark_kafkalog.errors import ConnectionLost, InvalidConfig
from pyspark_kafkalog.status import status_server
from pyspark_kafkalog.status.snapshot import (
    MOST_NAMES,
    BrokerStatus,
    GroupStatus,
    History,
    LoadStatus,
    PartitionStatus,
    Snapshot,
    TopicStatus,
)
from pyspark_kafkalog.status.status_server import MOST_REQUESTS, StatusServer, parse_listener

NOW = Snapshot(
    at_ms=10_000,
    cluster_id="c<1>",
    brokers=(BrokerStatus(1, "kafka", 9092),),
    topics=(
        TopicStatus("clicks", (PartitionStatus(0, 1, 5, 12, 700), PartitionStatus(1, -1))),
        TopicStatus("views", (PartitionStatus(0, 1, 0, 3),)),
    ),
    groups=(GroupStatus("g", "Stable", 2, 7, ("clicks",)), GroupStatus("far", "Empty", 0, None)),
    loads=(LoadStatus("nightly", 4, "2026-11-23T01:15:00.000Z", 40, True, 2),),
)


class Health:
    wrong: str | None = None

    def __call__(self) -> str | None:
        return self.wrong


@pytest.fixture
def health() -> Health:
    return Health()


@pytest.fixture
def server(health: Health) -> Iterator[StatusServer]:
    registry = CollectorRegistry()
    Counter("own", "One of the broker's own", registry=registry).inc(3)
    server = StatusServer(
        ("127.0.0.1", 0), lambda: NOW, health=health, registry=registry, title="kafkalog <1>"
    )
    server.take()
    yield server.start()
    server.stop()


def asked(
    server: StatusServer, path: str, method: str = "GET", **headers: str
) -> tuple[int, dict[str, str], str]:
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=10)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    found = answer.status, dict(answer.getheaders()), answer.read().decode()
    connection.close()
    return found


def test_the_snapshot_and_its_past_are_json(server: StatusServer) -> None:
    status, headers, body = asked(server, "/status.json")
    found = json.loads(body)
    assert (status, headers["Content-Type"], found["title"]) == (200, "application/json", "kafkalog <1>")
    assert found["now"]["topics"] == [
        {"name": "clicks", "partitions": 2, "offline": 1, "offsets": 7, "end": 12, "bytes": 700},
        {"name": "views", "partitions": 1, "offline": 0, "offsets": 3, "end": 3, "bytes": -1},
    ]
    assert [(g["name"], g["lag"]) for g in found["now"]["groups"]] == [("g", 7), ("far", None)]
    assert found["history"]["end"][0] == 15
    assert found["history"]["groups"]["g"][0] == 7
    assert json.loads(asked(server, "/partitions.json?topic=clicks")[2])[0] == {
        "partition": 0, "leader": 1, "start": 5, "end": 12, "bytes": 700,
    }  # fmt: skip
    assert asked(server, "/partitions.json?topic=no")[0] == 404


def test_the_metrics_are_prometheus_text_with_the_brokers_own(server: StatusServer) -> None:
    status, headers, body = asked(server, "/metrics")
    assert (status, headers["Content-Type"].split(";")[0]) == (200, "text/plain")
    found = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(body)
        for sample in family.samples
    }
    assert found["own_total",] == 3
    assert found["kafkalog_partition_end_offset", "0", "clicks"] == 12
    assert found["kafkalog_partition_size_bytes", "0", "clicks"] == 700
    assert found["kafkalog_partition_online", "1", "clicks"] == 0
    assert ("kafkalog_partition_end_offset", "1", "clicks") not in found
    assert ("kafkalog_partition_size_bytes", "0", "views") not in found
    assert (found["kafkalog_group_lag", "g"], found["kafkalog_group_members", "g"]) == (7, 2)
    assert ("kafkalog_group_lag", "far") not in found
    assert (found["kafkalog_load_number", "nightly"], found["kafkalog_load_lag", "nightly"]) == (4, 2)


def test_health_says_what_is_wrong(server: StatusServer, health: Health) -> None:
    assert asked(server, "/health")[::2] == (200, "ok\n")
    health.wrong = "/data is offline"
    assert asked(server, "/health")[::2] == (503, "/data is offline\n")


def test_the_page_takes_nothing_from_elsewhere(server: StatusServer) -> None:
    status, headers, body = asked(server, "/")
    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert headers["Content-Security-Policy"].startswith("default-src 'none'")
    assert "<title>kafkalog &lt;1></title>" in body
    assert "http" not in body.replace("http://www.w3.org/2000/svg", "")
    assert asked(server, "/", "HEAD")[2] == ""
    assert asked(server, "/../etc/passwd")[0] == 404
    assert asked(server, "/", "POST")[0] == 501


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:9308", 200),
        ("[::1]:9308", 200),
        ("10.0.0.7", 200),
        ("evil.example:9308", 403),
        ("evil.example", 403),
        ("", 403),
    ],
)
def test_a_name_that_was_made_to_mean_this_address_is_refused(
    server: StatusServer, host: str, status: int
) -> None:
    assert asked(server, "/status.json", Host=host)[0] == status


def test_slow_clients_do_not_keep_others_out_for_long(
    server: StatusServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status_server._Handler, "timeout", 0.5)
    host, port = server.url.removeprefix("http://").split(":")
    slow = [socket.create_connection((host, int(port))) for _ in range(MOST_REQUESTS)]
    try:
        for one in slow:
            one.sendall(b"GET / HTTP/1.1\r\nHost: lo")
        time.sleep(0.2)
        assert asked(server, "/health")[0] == 503, "too many at once"
        deadline = time.monotonic() + 10
        while asked(server, "/health")[0] != 200:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        for one in slow:
            one.close()


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"\x00" * 1000,
        b"GET " + b"/" * 70_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 200 + b"\r\n",
    ],
    ids=["no HTTP", "a long line", "many headers"],
)
def test_what_is_no_request_is_refused(server: StatusServer, request_bytes: bytes) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(request_bytes + b"\r\n\r\n")
        assert b"HTTP/1.1 200" not in connection.recv(1000)
    assert asked(server, "/health")[0] == 200


def test_what_cannot_be_asked_is_said_and_the_last_snapshot_stays(health: Health) -> None:
    answers: list[Snapshot | Exception] = [NOW, ConnectionLost("nobody answers")]

    def take() -> Snapshot:
        found = answers.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    server = StatusServer(("127.0.0.1", 0), take, health=health)
    server.take()
    server.take()
    try:
        found = json.loads(server.answer("/status.json", "")[2])
        assert (found["now"]["cluster_id"], found["problem"]) == ("c<1>", "nobody answers")
        assert server.answer("/health", "")[::2] == (503, b"nobody answers\n")
    finally:
        server.stop()


def test_an_address_that_is_taken_is_an_error(server: StatusServer, health: Health) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    with pytest.raises(ConnectionLost, match=f"cannot listen on 127.0.0.1:{port}: "):
        StatusServer((host, int(port)), lambda: NOW, health=health)


@pytest.mark.parametrize("text", ["9308", "host:", ":9308", "host:x", "host:70000", "host:-1", ""])
def test_an_address_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidConfig, match=r"metrics\.listener=.* is not allowed; allowed: host:port"):
        parse_listener(text, "metrics.listener")


def test_an_address_may_be_of_either_kind() -> None:
    assert parse_listener("[::1]:9308", "x") == ("::1", 9308)
    assert parse_listener(" kafka:0 ", "x") == ("kafka", 0)


def test_the_past_keeps_the_topics_that_grow_and_the_groups_that_are_behind() -> None:
    history = History()
    many = range(MOST_NAMES + 50)
    for moment in range(2):
        history.add(
            Snapshot(
                moment * 5000,
                "c",
                topics=tuple(TopicStatus(f"t{n}", (PartitionStatus(0, 1, 0, n * moment),)) for n in many),
                groups=tuple(GroupStatus(f"g{n}", "Empty", 0, n) for n in many),
            )
        )
    found = history.as_json()
    assert found["at_ms"] == [0, 5000]
    assert found["end"] == [0, sum(many)]
    last = {name for name, values in found["topics"].items() if values[1] is not None}
    assert last == {f"t{n}" for n in range(50, MOST_NAMES + 50)}
    assert set(found["groups"]) == {f"g{n}" for n in range(50, MOST_NAMES + 50)}
