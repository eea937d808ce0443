"""The status page over HTTP: what it answers, to whom, and how many at once."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace
from prometheus_client import CollectorRegistry, Counter
from prometheus_client.parser import text_string_to_metric_families

from pyspark_kafkalog.errors import ConnectionLost, InvalidConfig
from pyspark_kafkalog.status import status_server
from pyspark_kafkalog.status.page_data import MOST_ROWS
from pyspark_kafkalog.status.snapshot import (
    BrokerStatus,
    GroupStatus,
    LoadStatus,
    PartitionStatus,
    Snapshot,
    TopicStatus,
)
from pyspark_kafkalog.status.status_server import MOST_REQUESTS, StatusServer, parse_listener
from tests.support.until import until

NOW = Snapshot(
    at_ms=10_000,
    cluster_id="c<1>",
    brokers=(BrokerStatus(1, "kafka", 9092, 2), BrokerStatus(2, "", -1, 2, is_live=False)),
    topics=(
        TopicStatus("clicks", (PartitionStatus(0, 1, 5, 12, 700), PartitionStatus(1, -1)), 4),
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
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=60)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    found = answer.status, dict(answer.getheaders()), answer.read().decode()
    connection.close()
    return found


def test_the_snapshot_and_its_past_are_json(server: StatusServer) -> None:
    status, headers, body = asked(server, "/status.json")
    assert (status, headers["Content-Type"]) == (200, "application/json")
    assert json.loads(body)["title"] == "kafkalog <1>"
    quiet = StatusServer(("127.0.0.1", 0), lambda: NOW, health=lambda: None)
    quiet.take()
    now = json.loads(quiet.answer("/status.json", "")[2])["now"]
    quiet.stop()
    assert now["figures"] == {
        "brokers": 1, "away": 1, "topics": 2, "partitions": 3, "offline": 1, "bytes": 700, "groups": 2,
        "rate": None, "lag": 7, "unknown_lags": 1,
    }  # fmt: skip
    assert now["topics"]["count"] == 2
    assert now["topics"]["rows"][0] == {
        "name": "clicks", "partitions": 2, "of": 4, "offline": 1, "offsets": 7, "bytes": 700, "rate": None,
        "past": [None],
    }  # fmt: skip
    assert [(g["name"], g["lag"], g["past"]) for g in now["groups"]["rows"]] == [
        ("g", 7, [7]),
        ("far", None, [None]),
    ]
    assert now["history"] == {"at_ms": [10_000], "rate": [None], "lag": [7]}
    assert now["brokers"][1] == {"id": 2, "host": "", "port": -1, "partitions": 2, "live": False}
    assert now["loads"]["rows"][0]["name"] == "nightly"


def test_a_topics_partitions_have_their_rates_and_come_in_order_of_trouble(health: Health) -> None:
    later = replace(
        NOW,
        at_ms=12_000,
        topics=(TopicStatus("clicks", (PartitionStatus(0, 1, 5, 32, 900), PartitionStatus(1, -1)), 4),),
    )
    answers = [NOW, later]
    server = StatusServer(("127.0.0.1", 0), lambda: answers.pop(0), health=health)
    server.take()
    server.take()
    try:
        assert json.loads(server.answer("/partitions.json", "topic=clicks")[2]) == {
            "count": 2,
            "of": 4,
            "rows": [
                {"partition": 1, "leader": -1, "start": -1, "end": -1, "bytes": -1, "rate": None},
                {"partition": 0, "leader": 1, "start": 5, "end": 32, "bytes": 900, "rate": 10.0},
            ],
        }
        assert server.answer("/partitions.json", "topic=no")[0] == 404
        now = json.loads(server.answer("/status.json", "")[2])["now"]
        assert (now["figures"]["rate"], now["topics"]["rows"][0]["rate"]) == (10.0, 10.0)
        assert now["history"]["rate"] == [None, 10.0]
    finally:
        server.stop()


def test_of_very_many_topics_and_groups_only_what_is_shown_is_sent(health: Health) -> None:
    many = range(2000)
    taken = [0]

    def take() -> Snapshot:
        taken[0] += 1
        moment = taken[0]
        return Snapshot(
            5000 * moment,
            "c",
            topics=tuple(TopicStatus(f"topic-{n}", (PartitionStatus(0, 1, 0, n * moment),)) for n in many),
            groups=tuple(GroupStatus(f"group-{n}", "Empty", 0, n, tuple("abcdefghijkl")) for n in many),
            problems=tuple(map(str, range(30))),
        )

    server = StatusServer(("127.0.0.1", 0), take, health=health)
    try:
        for _ in range(12):
            server.take()
        body = server.answer("/status.json", "")[2]
        assert len(body) < 100_000
        now = json.loads(body)["now"]
        assert (now["topics"]["count"], len(now["topics"]["rows"])) == (2000, MOST_ROWS)
        assert (now["groups"]["count"], len(now["groups"]["rows"])) == (2000, MOST_ROWS)
        assert min(topic["rate"] for topic in now["topics"]["rows"]) > 200
        assert (len(now["groups"]["rows"][0]["topics"]), now["groups"]["rows"][0]["more_topics"]) == (10, 2)
        assert now["problems"][-1] == "and 10 more"
        now = json.loads(server.answer("/status.json", "topics=PIC-7&groups=-1234")[2])["now"]
        assert now["topics"]["count"] == 111
        assert [group["name"] for group in now["groups"]["rows"]] == ["group-1234"]
    finally:
        server.stop()


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
    assert "'unsafe" not in headers["Content-Security-Policy"]
    assert "<title>kafkalog &lt;1&gt;</title>" in body
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


@pytest.mark.parametrize("drips", [False, True], ids=["silent", "a byte now and then"])
def test_slow_clients_do_not_keep_others_out_for_long(
    server: StatusServer, monkeypatch: pytest.MonkeyPatch, drips: bool
) -> None:
    monkeypatch.setattr(status_server, "_REQUEST_SECONDS", 0.5)
    host, port = server.url.removeprefix("http://").split(":")
    slow = [socket.create_connection((host, int(port))) for _ in range(MOST_REQUESTS)]
    try:
        for one in slow:
            one.sendall(b"GET / HTTP/1.1\r\nHost: lo")
        until(lambda: asked(server, "/health")[0] == 503)  # too many at once

        def served() -> bool:
            for one in slow if drips else ():
                with contextlib.suppress(OSError):
                    one.sendall(b"c")
            return asked(server, "/health")[0] == 200

        until(served)
    finally:
        for one in slow:
            one.close()


def test_a_client_that_does_not_read_its_answer_is_not_waited_for(
    server: StatusServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status_server, "_REQUEST_SECONDS", 0.5)
    monkeypatch.setattr(server, "_page", b"x" * (64 << 20))
    begun, plain = threading.Event(), server._server.process_request

    def process(*request: Any) -> None:
        plain(*request)
        begun.set()

    monkeypatch.setattr(server._server, "process_request", process)
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as one:
        one.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert begun.wait(60)
        until(lambda: not server._server._due)


def test_stopping_ends_the_requests_in_hand(server: StatusServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status_server, "_REQUEST_SECONDS", 600)
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as one:
        one.sendall(b"GET / HTTP/1.1\r\n")
        until(lambda: len(server._server._due) == 1)
        server.stop()
        assert one.recv(1) == b""


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"\x00" * 1000,
        b"GET " + b"/" * 70_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 200 + b"\r\n",
    ],
    ids=["no HTTP", "a long line", "many headers"],
)
def test_an_invalid_request_is_refused(server: StatusServer, request_bytes: bytes) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
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
        assert len(found["now"]["history"]["at_ms"]) == 2
        assert found["now"]["history"]["lag"] == [7, None]
        assert server.answer("/health", "")[::2] == (503, b"nobody answers\n")
    finally:
        server.stop()


def test_an_address_that_is_taken_is_an_error(server: StatusServer, health: Health) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    with pytest.raises(ConnectionLost, match=f"cannot listen on 127.0.0.1:{port}: "):
        StatusServer((host, int(port)), lambda: NOW, health=health)


@pytest.mark.parametrize("text", ["9308", "host:", ":9308", "host:x", "host:70000", "host:-1", ""])
def test_an_invalid_address_is_refused(text: str) -> None:
    with pytest.raises(InvalidConfig, match=r"metrics\.listener=.* is not allowed; allowed: host:port"):
        parse_listener(text, "metrics.listener")


def test_an_address_may_be_of_either_kind() -> None:
    assert parse_listener("[::1]:9308", "x") == ("::1", 9308)
    assert parse_listener(" kafka:0 ", "x") == ("kafka", 0)
