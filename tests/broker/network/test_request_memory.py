"""What clients that send large requests, and do not finish them, cost the broker and the others."""

from __future__ import annotations

import threading
import time

import pytest

from kafkalog_broker.embedded import start_broker
from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.exchange import encode_request
from tests.support.network.broker_process import MIB, growing_less_than
from tests.support.protocol.raw_client import RawClient, batch, produce_request

pytestmark = pytest.mark.long("thousands of requests")

LARGEST = 10 * MIB


SETTINGS = {"socket.request.max.bytes": LARGEST, "queued.max.request.bytes": 2 * LARGEST}


def _large_request() -> bytes:
    request = produce_request({("nowhere", 0): bytes(LARGEST - 200)})
    parts = encode_request(request, version=7, correlation_id=1, client_id="large")
    return b"".join(bytes(part) for part in parts)


def test_thirty_half_sent_requests_cost_what_is_configured_and_others_are_served() -> None:
    """They held 30 times their size. Now some are read and the rest wait, and are let in one by one."""
    data = _large_request()
    begun, go_on = threading.Semaphore(0), threading.Event()
    answers: list[bytes] = []

    def send() -> None:
        with RawClient(broker.port, timeout=120) as client:
            client.send_bytes(data[: MIB // 20])
            begun.release()
            client.send_bytes(data[MIB // 20 : -MIB // 10])
            assert go_on.wait(120)
            client.send_bytes(data[-MIB // 10 :])
            answers.append(client.receive_frame())

    with (
        start_broker(SETTINGS) as broker,
        RawClient(broker.port) as small,
        growing_less_than(broker.pid, 4 * LARGEST),
    ):
        assert small.create_topic("small").error_code == ErrorCode.NONE
        threads = [threading.Thread(target=send, daemon=True) for _ in range(30)]
        for thread in threads:
            thread.start()
        for _ in threads:
            assert begun.acquire(timeout=60)
        for _ in range(20):
            assert small.produce("small", batch(bytes(20_000))).error_code == ErrorCode.NONE
        go_on.set()
        for thread in threads:
            thread.join(180)
    assert len(answers) == 30


def test_a_request_that_trickles_ends_its_connection() -> None:
    settings = {**SETTINGS, "request.receive.timeout.ms": 1000}
    with start_broker(settings) as broker, RawClient(broker.port) as slow, RawClient(broker.port) as other:
        began = time.monotonic()
        slow.send_bytes(_large_request()[:1000])
        assert _cut_off(slow, 60.0)
        assert time.monotonic() - began >= 1.0
        assert other.create_topic("still-served").error_code == ErrorCode.NONE


def _cut_off(client: RawClient, seconds: float) -> bool:
    """Whether the broker ends the connection of a client that sends a byte now and then."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            client.send_bytes(b"\0")
        except OSError:
            return True
        time.sleep(0.05)
    return False
