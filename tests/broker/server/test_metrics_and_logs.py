"""What the broker counts, and what it says."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from kafkalog_broker.config.broker_config import BrokerConfig
from kafkalog_broker.server.broker import Broker
from tests.support.protocol.raw_client import RawClient, batch, fetch_request


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    config = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(tmp_path)}
    running = Broker(BrokerConfig.load(None, config))
    running.start()
    yield running
    running.stop()


def value(broker: Broker, name: str, **labels: str) -> float | None:
    return broker.metrics.registry.get_sample_value(f"kafkalog_broker_{name}", labels)


def test_requests_appends_and_errors_are_counted(broker: Broker) -> None:
    data = batch(b"a", b"b")
    with RawClient(broker.port) as client:
        client.create_topic("t")
        client.produce("t", data)
        client.produce("t", data)
        client.produce("t", b"rubbish")
        client.fetch("t", 99)
        client.ask(fetch_request({("u", 0): 0, ("v", 0): 0}))
    assert value(broker, "requests_total", api="PRODUCE") == 3
    assert value(broker, "requests_total", api="FETCH") == 2
    assert value(broker, "requests_total", api="CREATE_TOPICS") == 1
    assert value(broker, "requests_total", api="METADATA") == 0
    assert value(broker, "appended_messages_total") == 4
    assert value(broker, "appended_bytes_total") == 2 * len(data)
    assert value(broker, "request_errors_total", api="PRODUCE", code="CORRUPT_MESSAGE") == 1
    assert value(broker, "request_errors_total", api="FETCH", code="OFFSET_OUT_OF_RANGE") == 1
    assert value(broker, "request_errors_total", api="FETCH", code="UNKNOWN_TOPIC_OR_PARTITION") == 2


def test_a_duplicate_is_not_counted_as_appended(broker: Broker) -> None:
    data = batch(b"a", producer_id=5, epoch=0, sequence=0)
    with RawClient(broker.port) as client:
        client.create_topic("t")
        assert [client.produce("t", data).base_offset for _ in range(3)] == [0, 0, 0]
    assert value(broker, "appended_messages_total") == 1


def test_flushes_are_timed(broker: Broker) -> None:
    with RawClient(broker.port) as client:
        client.create_topic("t", configs={"flush.messages": "1"})
        for _ in range(3):
            client.produce("t", batch(b"x"))
    assert value(broker, "log_flush_seconds_count") == 3
    assert (value(broker, "log_flush_seconds_sum") or 0) > 0


def test_requests_are_logged_one_by_one_when_that_is_turned_on(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    with RawClient(broker.port) as client:
        client.fetch("t", 0)
        assert [r for r in caplog.records if r.name == "kafkalog_broker.requests"] == []
        with caplog.at_level(logging.DEBUG, "kafkalog_broker.requests"):
            client.fetch("t", 0, version=11)
            host, port = client.socket.getsockname()
    (line,) = [r.getMessage() for r in caplog.records if r.name == "kafkalog_broker.requests"]
    assert line.startswith(f"{host}:{port} FETCH v11 id 2 client raw: ")


def test_what_is_refused_and_what_is_closed_says_why(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "kafkalog_broker.server")
    with RawClient(broker.port) as client:
        client.fetch("never-made", 0)
        client.send_bytes(b"\x00\x00\x00\x0a" + b"\x00\x07\x00\x00" + b"\x00\x00\x00\x01" + b"\xff\xff")
        assert client.closed_by_broker()
    assert "refused: never-made-0 does not exist" in caplog.text
    assert "api key 7 is not served" in caplog.text
