"""How much of what the machine can do does the listener of Kafka 0.7 give?

The same broker process, bare loops and memory disk as in `broker`; the client does as little as a client can.
A produce has no answer, so a run of them ends with a request that has one: OFFSETS.
"""

from __future__ import annotations

import os
import time
from typing import Any

from benchmarks.bare_loops import Peer
from benchmarks.broker import apart, scratch
from benchmarks.harness import Row, compare, in_turn
from benchmarks.raw_client import Wire
from kafkalog_broker.embedded import start_broker
from pyspark_kafkalog.formats.v07 import encode_set
from pyspark_kafkalog.protocol import v07 as wire
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


class Client(Wire):
    """*Not thread-safe.* Calls the listener of 0.7."""

    def produce(self, topic: str, messages: bytes, count: int) -> float:
        """Seconds until ``count`` sets have been appended."""
        frame = encode07(wire.ProduceRequest(topic, 0, messages))
        started = time.perf_counter()
        for _ in range(count):
            self.send(frame)
        self.latest(topic)
        return time.perf_counter() - started

    def fetch(self, topic: str, total_bytes: int, window: int = 3) -> float:
        """Seconds to read so much from the beginning, ``window`` requests under way."""
        count = total_bytes // FETCH_BYTES
        frames = [encode07(wire.FetchRequest(topic, 0, n * FETCH_BYTES, FETCH_BYTES)) for n in range(count)]
        started = time.perf_counter()
        total = self.skip_answers(frames, window)
        seconds = time.perf_counter() - started
        if total != count * (2 + FETCH_BYTES):
            raise RuntimeError(f"the broker answered with {total} bytes")
        return seconds

    def latest(self, topic: str) -> int:
        self.send(encode07(wire.OffsetsRequest(topic, 0, LATEST_TIMESTAMP, 1)))
        answer = wire.decode_response(wire.RequestType.OFFSETS, self.answer())
        return int(answer.offsets[0])  # type: ignore[union-attr]


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
        rounds,
        ROUND_BYTES,
    )
    return compare("0.7 fetch, 1 MiB", *measured.values(), "MB/s", 0.9)


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
        rounds,
        count * SET_BYTES,
    )
    return compare(f"0.7 produce, 64 KiB of {payload_bytes} B messages", *measured.values(), "MB/s")


def encode07(request: wire.Request) -> bytes:
    parts: list[Any] = wire.encode_request(request)
    return b"".join(bytes(part) for part in parts)
