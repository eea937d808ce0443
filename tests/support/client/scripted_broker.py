"""A broker that says what a test tells it to: real sockets, our own protocol layer, no log.

Each API answers from its script, one step per request, and from its default once the script is used up.
A step is a function from the request to an answer: a response message, or one of `Raw`, `Cut`, `Silence`,
`Close`, `WrongCorrelation`.
"""

from __future__ import annotations

import socket
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.api.metadata import (
    ApiVersion,
    ApiVersionsResponse,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from pyspark_kafkalog.protocol.api.producers import InitProducerIdResponse
from pyspark_kafkalog.protocol.exchange import (
    APIS,
    ApiKey,
    RequestHeader,
    decode_header,
    decode_request,
    encode_response,
)
from tests.support.client.scripted_server import HOST, Close, Raw, ScriptedServer, Silence


@dataclass(frozen=True)
class Cut:
    """Only the first ``size`` bytes of the answer's frame, then the connection is closed."""

    answer: Any
    size: int


@dataclass(frozen=True)
class WrongCorrelation:
    """The answer under another request's correlation id."""

    answer: Any


Step = Callable[[Any], Any]


@dataclass
class Layout:
    """Which brokers there are and who leads what; several scripted brokers may share one."""

    brokers: dict[int, tuple[str, int]] = field(default_factory=dict)
    leaders: dict[str, dict[int, int]] = field(default_factory=dict)
    epoch: int = 0

    def metadata(self, request: Any) -> MetadataResponse:
        names = list(self.leaders) if request.topics is None else [t.name for t in request.topics]
        return MetadataResponse(
            brokers=tuple(
                MetadataResponseBroker(node_id=n, host=h, port=p) for n, (h, p) in self.brokers.items()
            ),
            cluster_id="scripted",
            controller_id=min(self.brokers, default=-1),
            topics=tuple(self._topic(name) for name in names),
        )

    def _topic(self, name: str) -> MetadataResponseTopic:
        if name not in self.leaders:
            return MetadataResponseTopic(name=name, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return MetadataResponseTopic(
            name=name,
            partitions=tuple(
                MetadataResponsePartition(partition_index=p, leader_id=node, leader_epoch=self.epoch)
                for p, node in self.leaders[name].items()
            ),
        )


class ScriptedBroker(ScriptedServer):
    """*Thread-safe for the test's thread.* Owns its scripts, guarded by the lock."""

    def __init__(
        self,
        layout: Layout | None = None,
        *,
        node_id: int = 0,
        versions: Mapping[ApiKey, tuple[int, int]] | None = None,
    ) -> None:
        super().__init__()
        self.layout = layout or Layout()
        self.versions = {key: (api.versions.min, api.versions.max) for key, api in APIS.items()}
        self.versions.update(versions or {})
        self.requests: list[tuple[RequestHeader, Any]] = []
        self._scripts: dict[ApiKey, deque[Step]] = defaultdict(deque)
        self._defaults: dict[ApiKey, Step] = {
            ApiKey.API_VERSIONS: self._api_versions,
            ApiKey.METADATA: lambda request: self.layout.metadata(request),
            ApiKey.INIT_PRODUCER_ID: lambda _: InitProducerIdResponse(producer_id=7000, producer_epoch=0),
        }
        self.layout.brokers[node_id] = (HOST, self.port)
        self.start()

    def script(self, key: ApiKey, *steps: Step | Any) -> None:
        """The next answers of an API, one per request; an answer need not be a function."""
        self._scripts[key].extend(_as_step(step) for step in steps)

    def default(self, key: ApiKey, step: Step | Any) -> None:
        """The answer of an API once its script is used up."""
        self._defaults[key] = _as_step(step)

    def received(self, key: ApiKey) -> list[Any]:
        """The requests of one API so far."""
        with self._lock:
            return [request for header, request in self.requests if header.api_key == key]

    def answer(self, sock: socket.socket, frame: bytearray) -> bool:
        header, pos = decode_header(frame)
        key = ApiKey(header.api_key)
        if key == ApiKey.API_VERSIONS and header.api_version > self.versions[key][1]:
            request: Any = None
        else:
            request = decode_request(header, frame, pos)
        with self._lock:
            self.requests.append((header, request))
            script = self._scripts[key]
            step = script.popleft() if script else self._defaults.get(key)
        if step is None:
            raise AssertionError(f"nobody told the scripted broker how to answer {key.name}")
        answer = step(request)
        if isinstance(answer, ApiVersionsResponse) and answer.error_code == ErrorCode.UNSUPPORTED_VERSION:
            sock.sendall(_encoded(answer, 0, header.correlation_id))
            return True
        return self._send(sock, header, answer)

    def _send(self, sock: socket.socket, header: RequestHeader, answer: Any) -> bool:
        if isinstance(answer, Raw):
            sock.sendall(answer.data)
        elif isinstance(answer, Cut):
            sock.sendall(_encoded(answer.answer, header.api_version, header.correlation_id)[: answer.size])
            return False
        elif isinstance(answer, WrongCorrelation):
            sock.sendall(_encoded(answer.answer, header.api_version, header.correlation_id + 1000))
        elif isinstance(answer, Close):
            return False
        elif not isinstance(answer, Silence):
            sock.sendall(_encoded(answer, header.api_version, header.correlation_id))
        return True

    def _api_versions(self, request: Any) -> ApiVersionsResponse:
        table = tuple(
            ApiVersion(api_key=key, min_version=low, max_version=high)
            for key, (low, high) in self.versions.items()
        )
        error = ErrorCode.NONE if request is not None else ErrorCode.UNSUPPORTED_VERSION
        return ApiVersionsResponse(error_code=error, api_keys=table)


def _encoded(answer: Any, version: int, correlation_id: int) -> bytes:
    parts = encode_response(answer, version=version, correlation_id=correlation_id)
    return b"".join(bytes(part) for part in parts)  # type: ignore[call-overload]


def _as_step(step: Any) -> Step:
    return step if callable(step) and not isinstance(step, type) else lambda _: step
