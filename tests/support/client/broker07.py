"""A broker of 0.7 in memory, for the clients' tests: logs as they were sent, and trouble when asked for.

It answers as the recorded 0.7.2 broker does (facts of the protocol, "Answers of a real 0.7.2 broker"),
except that what is produced can be read at once. A test may have the next requests of a type end otherwise:
`Close`, `Silence`, or an answer of its own.
"""

from __future__ import annotations

import socket
from collections import defaultdict, deque
from typing import Any

from pyspark_kafkalog.errors import ErrorCode, KafkaError
from pyspark_kafkalog.formats import v07
from pyspark_kafkalog.formats.v07 import check_produced
from pyspark_kafkalog.protocol.v07 import (
    FetchRequest,
    FetchResponse,
    MultiFetchRequest,
    MultiFetchResponse,
    MultiProduceRequest,
    OffsetsRequest,
    OffsetsResponse,
    ProduceRequest,
    decode_request,
    encode_response,
)
from tests.support.client.scripted_server import Close, Raw, ScriptedServer, Silence

MAX_BYTES = 1 << 24


class Broker07(ScriptedServer):
    """*Thread-safe.* Owns its logs, guarded by the lock."""

    def __init__(
        self,
        *,
        partitions: int = 2,
        segment_ends: tuple[int, ...] = (),
        port: int = 0,
    ) -> None:
        super().__init__(port)
        self.partitions, self.segment_ends = partitions, segment_ends
        self.logs: dict[tuple[str, int], bytearray] = defaultdict(bytearray)
        self.requests: list[Any] = []
        self.frames: list[bytes] = []
        self._scripts: dict[type, deque[Any]] = defaultdict(deque)
        self.start()

    def append(self, topic: str, partition: int, data: bytes) -> int:
        """Put bytes into a log as they are; the offset after them."""
        with self._lock:
            self.logs[topic, partition] += data
            return len(self.logs[topic, partition])

    def payloads(self, topic: str, partition: int | None = None) -> list[bytes]:
        """The messages of a topic's partition, or of all of them one after the other."""
        with self._lock:
            chosen = [p for t, p in sorted(self.logs) if t == topic and partition in (None, p)]
            return [
                bytes(payload)
                for p in chosen
                for payload, _ in v07.messages(bytes(self.logs[topic, p]), 0, max_bytes=MAX_BYTES)
            ]

    def received(self, kind: type) -> list[Any]:
        with self._lock:
            return [request for request in self.requests if isinstance(request, kind)]

    def script(self, kind: type, *steps: Any) -> None:
        """What the next requests of this class get instead of their answer; a function is called with it."""
        with self._lock:
            self._scripts[kind].extend(steps)

    def answer(self, sock: socket.socket, frame: bytearray) -> bool:
        self.frames.append(len(frame).to_bytes(4, "big") + frame)
        try:
            answer = self._answer(decode_request(frame))
        except KafkaError:
            return False
        if isinstance(answer, Close):
            return False
        if isinstance(answer, Raw):
            sock.sendall(answer.data)
        elif not isinstance(answer, Silence):
            sock.sendall(b"".join(map(bytes, encode_response(answer))))
        return True

    def _answer(self, request: Any) -> Any:
        with self._lock:
            self.requests.append(request)
            if self._scripts[type(request)]:
                step = self._scripts[type(request)].popleft()
                return step(request) if callable(step) and not isinstance(step, type) else step
            if isinstance(request, ProduceRequest):
                return self._produce(request)
            if isinstance(request, MultiProduceRequest):
                for produce in request.produces:
                    if isinstance(self._produce(produce), Close):
                        return Close()
                return Silence()
            if isinstance(request, FetchRequest):
                return self._fetch(request)
            if isinstance(request, MultiFetchRequest):
                return MultiFetchResponse(tuple(self._fetch(fetch) for fetch in request.fetches))
            return self._offsets(request)

    def _produce(self, request: ProduceRequest) -> Any:
        partition = request.partition if request.partition >= 0 else len(self.requests) % self.partitions
        if partition >= self.partitions:
            return Close()
        try:
            found = check_produced(bytes(request.messages), max_message_bytes=1_000_000, max_bytes=MAX_BYTES)
        except KafkaError as e:
            return Silence() if e.code == ErrorCode.MESSAGE_TOO_LARGE else Close()
        self.logs[request.topic, partition] += bytes(request.messages)[: found.size]
        return Silence()

    def _fetch(self, request: FetchRequest) -> FetchResponse:
        if not 0 <= request.partition < self.partitions:
            return FetchResponse(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        log = self.logs.get((request.topic, request.partition))
        if log is None:
            return FetchResponse(ErrorCode.NONE)
        if not 0 <= request.offset <= len(log):
            return FetchResponse(ErrorCode.OFFSET_OUT_OF_RANGE)
        ends = [end for end in self.segment_ends if end > request.offset]
        end = min([len(log), request.offset + max(request.max_bytes, 0), *ends])
        return FetchResponse(ErrorCode.NONE, bytes(log[request.offset : end]))

    def _offsets(self, request: OffsetsRequest) -> Any:
        if not 0 <= request.partition < self.partitions or request.max_offsets < 0:
            return Close()
        starts = [*sorted(self.segment_ends, reverse=True), 0]
        if request.timestamp == -1:
            end = len(self.logs.get((request.topic, request.partition), b""))
            found = [end, *(start for start in starts if start < end)]
        else:
            found = [0] if request.timestamp == -2 else []
        return OffsetsResponse(ErrorCode.NONE, tuple(found[: request.max_offsets]))
