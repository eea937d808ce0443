"""Clients that send anything but what they should: the broker stays up, serves others, and stays small."""

from __future__ import annotations

import random
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from kafkalog_broker.embedded import EmbeddedBroker, start_broker
from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.api.metadata import MetadataRequest, MetadataRequestTopic
from tests.support.network.broker_process import MIB, growing_less_than, socket_count
from tests.support.protocol.raw_client import RawClient, batch, produce_request
from tests.support.until import until

GROWTH_LIMIT = 64 * MIB
"""What a broker may grow by over a whole test; one frame alone may claim 100 MiB."""


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with start_broker({"auto.create.topics.enable": False}) as running:
        with RawClient(running.port) as client:
            client.create_topic("t")
            client.produce("t", batch(b"still here"))
        yield running


@pytest.fixture(autouse=True)
def unharmed(broker: EmbeddedBroker) -> Iterator[None]:
    """After each test the same process serves a good client, and has at no moment been much larger."""
    with growing_less_than(broker.pid, GROWTH_LIMIT):
        yield
        assert broker.running
        with RawClient(broker.port) as client:
            assert [r.value for r in client.read("t")][:1] == [b"still here"]
            assert client.produce("t", batch(b"x")).error_code == 0


def frame(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


def header(key: int, version: int, *, flexible: bool = False) -> bytes:
    return struct.pack(">hhih", key, version, 7, -1) + (b"\x00" if flexible else b"")


def drain(client: RawClient, seconds: float = 2) -> None:
    """Read until the broker closes or has no more to say."""
    client.socket.settimeout(seconds)
    try:
        while client.socket.recv(1 << 16):
            pass
    except (TimeoutError, ConnectionError):
        pass


def test_requests_with_one_bit_changed(broker: EmbeddedBroker) -> None:
    """Every byte of a good request is changed; the answer may be anything, or none."""
    from pyspark_kafkalog.protocol.exchange import encode_request
    from tests.support.protocol.raw_client import fetch_request, produce_request

    rng = random.Random(2)
    for request, version in (
        (produce_request({("t", 0): batch(b"x")}), 9),
        (produce_request({("t", 0): batch(b"x")}), 3),
        (fetch_request({("t", 0): 0}), 12),
        (MetadataRequest((MetadataRequestTopic(name="t"),), allow_auto_topic_creation=False), 12),
    ):
        parts = encode_request(request, version=version, correlation_id=1, client_id="c")
        good = b"".join(bytes(p) for p in parts)
        for position in range(4, len(good)):
            bad = bytearray(good)
            bad[position] ^= 1 << rng.randrange(8)
            with RawClient(broker.port) as client:
                client.send_bytes(bytes(bad))
                client.socket.shutdown(socket.SHUT_WR)
                drain(client)


@pytest.mark.parametrize("size", [2**31 - 1, 101 * MIB, -1, -(2**31)])
def test_a_frame_that_claims_too_much_is_closed_at_once(broker: EmbeddedBroker, size: int) -> None:
    for _ in range(20):
        with RawClient(broker.port) as client:
            client.send_bytes(struct.pack(">i", size) + b"\x00" * 100)
            assert client.closed_by_broker()


def test_frames_that_claim_100_mib_and_never_come_take_no_memory(broker: EmbeddedBroker) -> None:
    clients = [RawClient(broker.port) for _ in range(100)]
    for client in clients:
        client.send_bytes(struct.pack(">i", 100 * MIB - 1) + b"\x00" * 5000)
    with RawClient(broker.port) as good:
        assert good.fetch("t", 0).error_code == 0
    for client in clients:
        client.close()


def test_half_frames_and_hang_ups(broker: EmbeddedBroker) -> None:
    whole = frame(header(3, 1) + struct.pack(">i", -1))
    for cut in range(1, len(whole)):
        for _ in range(5):
            with RawClient(broker.port) as client:
                client.send_bytes(whole[:cut])


def test_a_slow_client_is_served_and_delays_nobody(broker: EmbeddedBroker) -> None:
    whole = frame(header(3, 1) + struct.pack(">i", -1))
    slow = [RawClient(broker.port) for _ in range(20)]
    for i in range(len(whole)):
        for client in slow:
            client.send_bytes(whole[i : i + 1])
        with RawClient(broker.port) as good:
            assert good.fetch("t", 0).error_code == 0  # while all the others are in the middle
    for client in slow:
        assert len(client.receive_frame()) > 20
        client.close()


def test_a_client_that_never_reads_its_answers_takes_no_memory(broker: EmbeddedBroker) -> None:
    whole = frame(header(18, 0)) * 1000
    clients = [RawClient(broker.port) for _ in range(10)]
    for client in clients:
        client.socket.settimeout(0.5)
        try:
            for _ in range(200):
                client.send_bytes(whole)
        except TimeoutError:
            pass
    with RawClient(broker.port) as good:
        assert good.fetch("t", 0).error_code == 0
    for client in clients:
        client.close()


def huge_count(key: int, version: int, prefix: bytes, count: int = 2**31 - 1) -> bytes:
    return frame(header(key, version) + prefix + struct.pack(">i", count))


@pytest.mark.parametrize(
    "data",
    [
        huge_count(3, 1, b""),
        huge_count(0, 3, b"\xff\xff" + struct.pack(">hi", 1, 1000)),
        huge_count(1, 4, struct.pack(">iiiib", -1, 0, 0, 0, 0)),
        huge_count(2, 1, struct.pack(">i", -1)),
        huge_count(9, 1, b"\x00\x01g"),
        huge_count(19, 2, b""),
        huge_count(32, 1, b""),
        # The same in flexible versions: an unsigned varint of 2^32-1.
        frame(header(3, 12, flexible=True) + b"\xff\xff\xff\xff\x0f"),
        frame(header(9, 8, flexible=True) + b"\xff\xff\xff\xff\x0f"),
        # Tagged fields without end.
        frame(header(18, 3) + b"\xff\xff\xff\xff\x0f" + b"\x00\x00" * 100),
    ],
)
def test_arrays_that_claim_too_much_close_the_connection(broker: EmbeddedBroker, data: bytes) -> None:
    with RawClient(broker.port) as client:
        client.send_bytes(data)
        assert client.closed_by_broker()


@pytest.mark.parametrize("size", [20 * MIB, 2 * MIB])
def test_a_large_request_of_a_small_api_is_refused(broker: EmbeddedBroker, size: int) -> None:
    """It could hold millions of small fields, each many times larger as an object."""
    body = header(9, 1) + b"\x00\x01g" + struct.pack(">ih", 1, 1) + b"t"
    body += struct.pack(">i", (size - len(body)) // 4) + b"\x00" * (size - len(body) - 4)
    with RawClient(broker.port) as client:
        try:
            client.send_bytes(frame(body))
        except ConnectionError:
            return
        assert client.closed_by_broker()


@pytest.mark.parametrize("version", [2, 3, 8, 9, 11])
def test_many_small_partitions_in_one_produce_request_take_little_memory(
    broker: EmbeddedBroker, version: int
) -> None:
    """A produce request may be large, but not because of what is not records."""
    count = 4_000_000
    if version < 9:
        body = header(0, version) + b"\xff\xff" * (version >= 3) + struct.pack(">hiih", 1, 1000, 1, 1) + b"t"
        body += struct.pack(">i", count) + struct.pack(">ii", 0, -1) * count
    else:
        body = header(0, version, flexible=True) + b"\x00" + struct.pack(">hi", 1, 1000) + b"\x02\x02t"
        body += b"\x81\x92\xf4\x01" + (b"\x00" * 6) * count + b"\x00\x00"
    with RawClient(broker.port) as client:
        try:
            client.send_bytes(frame(body))
        except ConnectionError:
            return
        assert client.closed_by_broker()


def test_a_wide_but_legal_request_is_answered(broker: EmbeddedBroker) -> None:
    names = tuple(MetadataRequestTopic(name=f"none-{i}") for i in range(5000))
    with RawClient(broker.port) as client:
        response = client.ask(MetadataRequest(names, allow_auto_topic_creation=False))
        assert len(response.topics) == 5000


def test_thousands_of_connections_come_and_go(broker: EmbeddedBroker) -> None:
    before = socket_count(broker.pid)
    for _ in range(10):
        for client in [RawClient(broker.port) for _ in range(200)]:
            client.close()
    until(lambda: socket_count(broker.pid) <= before)


def test_idle_connections_leave_descriptors_for_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 160 descriptors 80 are for segments and 64 are kept: 16 connections may be open."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nulimit -n 160\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    with start_broker() as few, RawClient(few.port) as producer, ExitStack() as stack:
        producer.create_topic("t", partitions=100)
        idle = [
            stack.enter_context(socket.create_connection(("127.0.0.1", few.port), 60)) for _ in range(400)
        ]
        for closed in idle[15:]:
            assert closed.recv(1) == b""
        for _ in range(2):
            result = producer.ask(produce_request({("t", number): batch(b"x") for number in range(100)}))
            codes = {each.error_code for each in result.responses[0].partition_responses}
            assert codes == {ErrorCode.NONE}
        for kept in idle[:15]:
            kept.setblocking(False)
            with pytest.raises(BlockingIOError):
                kept.recv(1)
