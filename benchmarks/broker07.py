"""How much of what the machine can do does the listener of Kafka 0.7 give?

The same broker process, bare loops and memory disk as in `broker`; the client does as little as a client can.
A produce has no answer, so a run of them ends with a request that has one: OFFSETS.
"""

from __future__ import annotations

import os
import socket
import struct
import time

from benchmarks.bare_loops import Peer
from benchmarks.broker import apart, in_turn, scratch
from benchmarks.harness import Row, compare
from kafkalog_broker.embedded import start_broker
from pyspark_kafkalog.formats.v07 import encode_set
from pyspark_kafkalog.protocol.v07 import (
    FetchRequest,
    OffsetsRequest,
    ProduceRequest,
    Request,
    RequestType,
    decode_response,
    encode_request,
)
from pyspark_kafkalog.types import LATEST_TIMESTAMP

ROUND_BYTES = 256 << 20
FETCH_BYTES = 1 << 20
SET_BYTES = 64 << 10
_SETTINGS = {"listeners": "KAFKA07://127.0.0.1:0", "log.segment.delete.delay.ms": 0}


def run(rounds: int = 7) -> list[Row]:
    """All rows of this question; about half a minute."""
    with scratch() as directory:
        source = directory / "source"
        source.write_bytes(os.urandom(1 << 20) * (ROUND_BYTES >> 20))
        with (
            start_broker(_SETTINGS, data_dir=directory / "broker") as broker,
            Peer("sendfile", source) as sender,
            Peer("store", directory / "stored") as store,
            Client(broker.port) as client,
            apart(broker.pid, sender.pid, store.pid),
        ):
            return [
                _fetch_row(client, sender, rounds),
                *(_produce_row(client, store, size, rounds) for size in (100, 10_000)),
            ]


class Client:
    """*Not thread-safe.* One connection; of an answer to FETCH only the size is read."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = bytearray(FETCH_BYTES)

    def produce(self, topic: str, messages: bytes, count: int) -> float:
        """Seconds until ``count`` sets have been appended."""
        frame = _encoded(ProduceRequest(topic, 0, messages))
        started = time.perf_counter()
        for _ in range(count):
            self._socket.sendall(frame)
        self.latest(topic)
        return time.perf_counter() - started

    def fetch(self, topic: str, total_bytes: int, window: int = 3) -> float:
        """Seconds to read so much from the beginning, ``window`` requests under way."""
        count = total_bytes // FETCH_BYTES
        frames = [_encoded(FetchRequest(topic, 0, n * FETCH_BYTES, FETCH_BYTES)) for n in range(count)]
        started = time.perf_counter()
        self._socket.sendall(b"".join(frames[:window]))
        for number in range(count):
            left = struct.unpack(">i", self._exactly(4))[0]
            if left != 2 + FETCH_BYTES:
                raise RuntimeError(f"the broker answered with {left} bytes")
            while left:
                left -= self._socket.recv_into(self._buffer, min(left, FETCH_BYTES))
            if number + window < count:
                self._socket.sendall(frames[number + window])
        return time.perf_counter() - started

    def latest(self, topic: str) -> int:
        """The end of what can be read."""
        self._socket.sendall(_encoded(OffsetsRequest(topic, 0, LATEST_TIMESTAMP, 1)))
        size = struct.unpack(">i", self._exactly(4))[0]
        answer = decode_response(RequestType.OFFSETS, self._exactly(size))
        return int(answer.offsets[0])  # type: ignore[union-attr]

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            more = self._socket.recv(count - len(data))
            if not more:
                raise ConnectionError("the broker closed the connection")
            data += more
        return data


def _fetch_row(client: Client, sender: Peer, rounds: int) -> Row:
    messages = encode_set([bytes(990)]) * 65  # 65,000 bytes
    client.produce("fetched", messages, (ROUND_BYTES // len(messages)) + 1)
    while client.latest("fetched") < ROUND_BYTES:  # what is not flushed is not seen
        time.sleep(0.1)
    measured = in_turn(
        {
            "0.7 listener": lambda: client.fetch("fetched", ROUND_BYTES),
            "bare sendfile loop": lambda: sender.fetch(ROUND_BYTES, FETCH_BYTES),
        },
        ROUND_BYTES,
        rounds,
    )
    return compare("0.7 fetch, 1 MiB", *measured, goal=0.9, unit="MB/s", scale=1e-6)


def _produce_row(client: Client, store: Peer, payload_bytes: int, rounds: int) -> Row:
    """Against the loop that reads a socket, makes one CRC of all, and writes; ours makes one a message."""
    one = encode_set([bytes(payload_bytes)])
    messages = one * (SET_BYTES // len(one))
    count = (ROUND_BYTES >> 3) // SET_BYTES
    names = iter(range(1 << 30))
    measured = in_turn(
        {
            "0.7 listener": lambda: client.produce(f"stored{payload_bytes}-{next(names)}", messages, count),
            "bare socket-crc-file loop": lambda: store.store(count * SET_BYTES, SET_BYTES),
        },
        count * SET_BYTES,
        rounds,
    )
    question = f"0.7 produce, 64 KiB of {payload_bytes} B messages"
    return compare(question, *measured, goal=None, unit="MB/s", scale=1e-6)


def _encoded(request: Request) -> bytes:
    return b"".join(bytes(part) for part in encode_request(request))  # type: ignore[arg-type]
