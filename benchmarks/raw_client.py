"""Clients that do as little as a client can, so that what is measured is the broker.

Requests are encoded once by `pyspark_kafkalog.protocol` and sent again and again over one connection; of
an answer only the size is read. The first answer of each run is decoded, to be sure that it is what we
think we measure.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from typing import Any

from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.formats.batch import encode_batch
from pyspark_kafkalog.protocol.api.fetch import FetchPartition, FetchRequest, FetchTopic
from pyspark_kafkalog.protocol.api.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from pyspark_kafkalog.protocol.api.topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    DeleteTopicsRequest,
)
from pyspark_kafkalog.protocol.exchange import api_of, decode_response, encode_request
from pyspark_kafkalog.types import NewRecord

VERSIONS = {"ProduceRequest": 9, "FetchRequest": 12, "CreateTopicsRequest": 5, "DeleteTopicsRequest": 5}
_RECEIVE_BYTES = 1 << 20


def batch(size_bytes: int, value_bytes: int = 1000) -> tuple[bytes, int]:
    """An uncompressed batch of about ``size_bytes`` and the number of records in it."""
    per_record = value_bytes + 10
    count = max(1, (size_bytes - 61) // per_record)
    now = time.time_ns() // 1_000_000
    return encode_batch([NewRecord(bytes(value_bytes), timestamp=now) for _ in range(count)]), count


def encode(request: Any, version: int | None = None) -> bytes:
    """A request as the bytes of its frame, in the version of `VERSIONS` unless told."""
    version = VERSIONS[type(request).__name__] if version is None else version
    parts = encode_request(request, version=version, correlation_id=1, client_id="benchmark")
    return b"".join(bytes(part) for part in parts)  # type: ignore[arg-type]


def produce_request(
    topic: str, data: bytes, partitions: Sequence[int] = (0,), acks: int = 1
) -> ProduceRequest:
    """One batch for each of some partitions."""
    rows = tuple(PartitionProduceData(index=p, records=data) for p in partitions)
    return ProduceRequest(
        acks=acks, timeout_ms=30_000, topic_data=(TopicProduceData(name=topic, partition_data=rows),)
    )


def fetch_request(topic: str, offset: int, max_bytes: int, partition: int = 0) -> FetchRequest:
    """As much of one partition as fits, without waiting for more."""
    want = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=max_bytes)
    topics = (FetchTopic(topic=topic, partitions=(want,)),)
    return FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=max_bytes, session_epoch=-1, topics=topics)


def connected(port: int) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port), timeout=300)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


class Wire:
    """*Not thread-safe.* A connection that sends frames and reads answers; a context manager."""

    def __init__(self, port: int) -> None:
        self._sock = connected(port)
        self._buffer = bytearray(_RECEIVE_BYTES)

    def send(self, frames: bytes) -> None:
        self._sock.sendall(frames)

    def answer(self) -> bytes:
        """The next answer, without its size."""
        return self._exactly(int.from_bytes(self._exactly(4), "big"))

    def skip(self) -> int:
        """Read the next answer, and give its size only."""
        size = left = int.from_bytes(self._exactly(4), "big")
        while left:
            count = self._sock.recv_into(self._buffer, min(left, _RECEIVE_BYTES))
            if not count:
                raise ConnectionError("the broker closed the connection")
            left -= count
        return size

    def skip_answers(self, frames: Sequence[bytes], window: int) -> int:
        """Send frames one after the other, ``window`` of them under way: the size of all answers."""
        self.send(b"".join(frames[:window]))
        total = 0
        for number in range(len(frames)):
            total += self.skip()
            if number + window < len(frames):
                self.send(frames[number + window])
        return total

    def close(self) -> None:
        self._sock.close()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _exactly(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:  # MSG_WAITALL would not wait: the socket has a timeout
            piece = self._sock.recv(count - len(data))
            if not piece:
                raise ConnectionError("the broker closed the connection")
            data += piece
        return bytes(data)


class RawClient(Wire):
    """*Not thread-safe.* Calls today's brokers."""

    def call(self, request: Any, version: int | None = None) -> Any:
        self.send(encode(request, version))
        return self._decode(request, self.answer(), version)

    def create_topic(self, name: str, partitions: int = 1, **configs: str) -> None:
        """Create a topic, unless it exists. Underscores in names of ``configs`` stand for dots."""
        given = tuple(CreatableTopicConfig(key.replace("_", "."), value) for key, value in configs.items())
        topic = CreatableTopic(name, num_partitions=partitions, replication_factor=1, configs=given)
        answer = self.call(CreateTopicsRequest(topics=(topic,), timeout_ms=30_000))
        if answer.topics[0].error_code != ErrorCode.TOPIC_ALREADY_EXISTS:
            _check(answer.topics[0].error_code)

    def delete_topic(self, name: str) -> None:
        _check(self.call(DeleteTopicsRequest(topic_names=(name,), timeout_ms=30_000)).responses[0].error_code)

    def produce(self, topic: str, data: bytes, count: int, window: int = 16, partition: int = 0) -> float:
        """Seconds for ``count`` produce requests of one batch, with ``window`` of them under way."""
        frame = encode(produce_request(topic, data, (partition,)))
        started = time.perf_counter()
        self.send(frame)
        first = self.answer()
        size, sent, got = 4 + len(first), 1, 0
        while got < (count - 1) * size:
            while sent < count and sent - 1 - got // size < window:
                self.send(frame)
                sent += 1
            got += self._sock.recv_into(self._buffer)
        seconds = time.perf_counter() - started
        answer = self._decode(produce_request(topic, data), first)
        _check(answer.responses[0].partition_responses[0].error_code)
        return seconds

    def fetch(
        self, requests: Sequence[FetchRequest], window: int = 3, version: int | None = None
    ) -> tuple[float, int]:
        """Seconds and bytes for some fetches, one after the other, with ``window`` of them under way."""
        frames = [encode(request, version) for request in requests]
        first = self.call(requests[0], version).responses[0].partitions[0]
        _check(first.error_code)
        started = time.perf_counter()
        total = self.skip_answers(frames, window)
        return time.perf_counter() - started, total

    def round_trips(self, frame: bytes, count: int) -> list[float]:
        """Seconds of each of ``count`` round trips of one encoded request with a small answer."""
        samples = []
        for _ in range(count):
            started = time.perf_counter()
            self.send(frame)
            self._sock.recv_into(self._buffer)
            samples.append(time.perf_counter() - started)
        return samples

    def answer_bytes(self, frame: bytes) -> int:
        self.send(frame)
        return 4 + len(self.answer())

    @staticmethod
    def _decode(request: Any, frame: bytes, version: int | None = None) -> Any:
        version = VERSIONS[type(request).__name__] if version is None else version
        return decode_response(api_of(type(request)).key, version, frame)[1]


def _check(code: ErrorCode) -> None:
    if code != ErrorCode.NONE:
        raise RuntimeError(f"the broker answered {code.name}")
