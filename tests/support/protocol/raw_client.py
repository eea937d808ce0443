"""A client of one connection that sends exactly what a test says and returns exactly what came back."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from types import TracebackType
from typing import Any
from uuid import UUID

from msgspec.structs import replace

from pyspark_kafkalog.formats.batch import encode_batch
from pyspark_kafkalog.formats.compression import Codec
from pyspark_kafkalog.formats.message_set import records
from pyspark_kafkalog.protocol.api.fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData
from pyspark_kafkalog.protocol.api.log_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from pyspark_kafkalog.protocol.api.metadata import MetadataRequest, MetadataRequestTopic
from pyspark_kafkalog.protocol.api.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    TopicProduceData,
)
from pyspark_kafkalog.protocol.api.topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreateTopicsRequest,
)
from pyspark_kafkalog.protocol.exchange import APIS, ApiKey, api_of, decode_response, encode_request
from pyspark_kafkalog.types import NewRecord, Record

TIMEOUT_SECONDS = 90.0

NEWEST_BY_NAME = {ApiKey.FETCH: 12}
"""The newest version that names topics, where later ones have their ids."""


class RawClient:
    """*Not thread-safe: one connection, one caller.* `send` and `receive` apart, or `ask` for both."""

    def __init__(self, port: int, host: str = "127.0.0.1", timeout: float = TIMEOUT_SECONDS) -> None:
        self.socket = socket.create_connection((host, port), timeout)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._next_id = 1
        self._waiting: list[tuple[int, ApiKey, int]] = []

    def ask(self, request: Any, version: int | None = None) -> Any:
        """The answer to ``request``, in the newest version we know, and that names topics, unless told."""
        self.send(request, version)
        return self.receive()

    def send(self, request: Any, version: int | None = None) -> None:
        """Send a request; its answer is for a later `receive`, in order."""
        api = api_of(type(request))
        version = NEWEST_BY_NAME.get(api.key, api.versions.max) if version is None else version
        parts = encode_request(request, version=version, correlation_id=self._next_id, client_id="raw")
        self._waiting.append((self._next_id, api.key, version))
        self._next_id += 1
        self.socket.sendall(b"".join(bytes(part) for part in parts))

    def send_bytes(self, data: bytes) -> None:
        """Send bytes as they are."""
        self.socket.sendall(data)

    def receive(self) -> Any:
        """The next answer."""
        correlation_id, key, version = self._waiting.pop(0)
        got, message = decode_response(key, version, self.receive_frame())
        assert got == correlation_id
        return message

    def receive_frame(self) -> bytes:
        """The body of the next frame, whatever it is."""
        return self._exactly(int.from_bytes(self._exactly(4), "big"))

    def closed_by_broker(self) -> bool:
        """Whether the broker has closed the connection, or does now; False if it sends something instead."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> RawClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _exactly(self, size: int) -> bytes:
        parts = []
        while size:
            part = self.socket.recv(min(size, 1 << 20))
            if not part:
                raise ConnectionError("the broker closed the connection")
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    # What most tests need, in one line each.

    def create_topic(
        self, name: str, partitions: int = 1, configs: dict[str, str] | None = None
    ) -> CreatableTopicResult:
        """Make a topic; the result may be an error."""
        topic = CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=1,
            configs=tuple(CreatableTopicConfig(name=k, value=v) for k, v in (configs or {}).items()),
        )
        (result,) = self.ask(CreateTopicsRequest(topics=(topic,), timeout_ms=60_000)).topics
        return result

    def produce(
        self, topic: str, data: bytes, partition: int = 0, *, acks: int = 1, version: int = 11
    ) -> PartitionProduceResponse:
        """Send one record set to one partition, in the newest version that Kafka 3.9 serves unless told."""
        response = self.ask(produce_request({(topic, partition): data}, acks=acks), version)
        return response.responses[0].partition_responses[0]

    def fetch(
        self,
        topic: str,
        offset: int,
        partition: int = 0,
        *,
        max_bytes: int = 1 << 20,
        version: int | None = None,
        **fields: Any,
    ) -> PartitionData:
        """Fetch from one partition, without waiting unless told; by the topic's id where that is asked."""
        request = fetch_request({(topic, partition): offset}, max_bytes, **fields)
        if version is not None and version > NEWEST_BY_NAME[ApiKey.FETCH]:
            wanted = replace(request.topics[0], topic_id=self.topic_id(topic))
            request = replace(request, topics=(wanted,))
        response = self.ask(request, version)
        return response.responses[0].partitions[0]

    def topic_id(self, topic: str) -> UUID:
        """The id of a topic; the one that none has if there is no such topic."""
        (found,) = self.ask(MetadataRequest((MetadataRequestTopic(name=topic),))).topics
        wanted: UUID = found.topic_id
        return wanted

    def read(self, topic: str, offset: int = 0, partition: int = 0) -> list[Record]:
        """Every record from ``offset`` to the end."""
        found: list[Record] = []
        while True:
            data = self.fetch(topic, offset, partition)
            assert data.error_code == 0
            new = [r for r in decode(data) if r.offset >= offset]
            if not new:
                return found
            found += new
            offset = new[-1].next_offset

    def offset_at(
        self,
        topic: str,
        timestamp: int,
        partition: int = 0,
        version: int | None = None,
        isolation_level: int = 0,
    ) -> ListOffsetsPartitionResponse:
        """What ListOffsets says for one partition."""
        wanted = ListOffsetsPartition(partition_index=partition, timestamp=timestamp)
        topics = (ListOffsetsTopic(name=topic, partitions=(wanted,)),)
        response = self.ask(ListOffsetsRequest(topics=topics, isolation_level=isolation_level), version)
        return response.topics[0].partitions[0]


def batch(
    *values: bytes | None,
    codec: Codec = Codec.NONE,
    timestamp: int = 1_700_000_000_000,
    producer_id: int = -1,
    epoch: int = -1,
    sequence: int = -1,
    transactional: bool = False,
) -> bytes:
    """A record batch of these values, with keys ``b"k0"``, ``b"k1"``, ... and times one ms apart."""
    rows = [NewRecord(v, b"k%d" % i, timestamp + i, (("h", b"%d" % i),)) for i, v in enumerate(values)]
    return bytes(
        encode_batch(
            rows,
            codec=codec,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=transactional,
        )
    )


def decode(data: PartitionData) -> list[Record]:
    """The records of a fetch answer, those before the asked offset included."""
    view = memoryview(data.records or b"")
    return list(records(view, start_offset=0, max_bytes=1 << 26))


def produce_request(
    sets: dict[tuple[str, int], bytes | None], *, acks: int = 1, **fields: Any
) -> ProduceRequest:
    """A request with one record set for each partition, in order, each under a topic entry of its own."""
    topics = tuple(
        TopicProduceData(
            name=topic,
            partition_data=(
                PartitionProduceData(index=p, records=None if data is None else memoryview(data)),
            ),
        )
        for (topic, p), data in sets.items()
    )
    return ProduceRequest(acks=acks, timeout_ms=5000, topic_data=topics, **fields)


def fetch_request(
    offsets: dict[tuple[str, int], int],
    partition_max_bytes: int = 1 << 20,
    *,
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 50 << 20,
    **fields: Any,
) -> FetchRequest:
    """A full fetch of these partitions from these offsets; each partition under a topic entry of its own."""
    topics: Sequence[FetchTopic] = [
        FetchTopic(
            topic=topic,
            partitions=(
                FetchPartition(partition=p, fetch_offset=o, partition_max_bytes=partition_max_bytes),
            ),
        )
        for (topic, p), o in offsets.items()
    ]
    return FetchRequest(
        max_wait_ms=max_wait_ms, min_bytes=min_bytes, max_bytes=max_bytes, topics=tuple(topics), **fields
    )


def versions(key: ApiKey) -> range:
    """Every version of an API that our tables hold: for parametrized tests."""
    low, high = APIS[key].versions
    return range(low, high + 1)
