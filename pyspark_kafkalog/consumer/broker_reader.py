"""Fetches and offset look-ups at one broker, in either wire: what `SimpleConsumer` is made over."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pyspark_kafkalog.client.connection import Connection
from pyspark_kafkalog.client.connection07 import Connection07
from pyspark_kafkalog.client.retry import Deadline
from pyspark_kafkalog.clock import Clock
from pyspark_kafkalog.config.client07 import PROTOCOL_07, PROTOCOL_08, Client07Config
from pyspark_kafkalog.consumer.message_set import BatchSets, SetReader, V07Sets
from pyspark_kafkalog.errors import ConnectionLost, ErrorCode, InvalidRequest, error_for
from pyspark_kafkalog.formats.message_set import next_offset_after
from pyspark_kafkalog.formats.placement import Place
from pyspark_kafkalog.protocol.api import fetch, list_offsets
from pyspark_kafkalog.protocol.api.fetch import PartitionData
from pyspark_kafkalog.protocol.exchange import ApiKey
from pyspark_kafkalog.protocol.v07 import FetchRequest, MultiFetchRequest, OffsetsRequest
from pyspark_kafkalog.types import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP

_NO_OFFSET = -1

_TIMES_SINCE = 1
"""The version of ListOffsets that brought one offset for a time instead of several of segments."""


@dataclass(frozen=True, slots=True)
class Brought:
    """What a broker answered to one fetch, and how its bytes are walked."""

    error_code: ErrorCode
    messages: Any
    sets: SetReader


class BrokerReader(Protocol):
    """*Not thread-safe: one thread at a time.* One broker, by one connection."""

    peer: str

    def fetch(self, wanted: Sequence[FetchRequest], deadline: Deadline) -> list[Brought]:
        """An answer to each, in order. Raises `ConnectionLost`, `InvalidRequest`."""
        ...

    def offsets_before(self, request: OffsetsRequest, deadline: Deadline) -> list[int]:
        """Offsets, the largest first. Raises `KafkaError` as the broker answers, `ConnectionLost`."""
        ...

    def close(self) -> None: ...


class BrokerReader07:
    """*Not thread-safe: one thread at a time.* 0.7's wire."""

    def __init__(
        self, host: str, port: int, config: Client07Config, *, deadline: Deadline, clock: Clock
    ) -> None:
        self._connection = Connection07(host, port, config, deadline=deadline, clock=clock)
        self.peer = self._connection.peer

    def fetch(self, wanted: Sequence[FetchRequest], deadline: Deadline) -> list[Brought]:
        if len(wanted) == 1:
            one = self._connection.request(wanted[0], deadline=deadline)
            return [Brought(one.error_code, one.messages, V07Sets())]
        answer = self._connection.request(MultiFetchRequest(tuple(wanted)), deadline=deadline)
        if answer.error_code != ErrorCode.NONE:
            raise error_for(answer.error_code, f"{self.peer}: multifetch: {answer.error_code.name}")
        if len(answer.responses) != len(wanted):
            raise InvalidRequest(
                f"{self.peer}: {len(answer.responses)} answers came to a multifetch of {len(wanted)}"
            )
        return [Brought(one.error_code, one.messages, V07Sets()) for one in answer.responses]

    def offsets_before(self, request: OffsetsRequest, deadline: Deadline) -> list[int]:
        try:
            answer = self._connection.request(request, deadline=deadline)
        except ConnectionLost as e:
            raise ConnectionLost(
                f"{e}; with 0.7 that is also the answer for a partition that the broker does not have, "
                f"here {request.topic}-{request.partition}"
            ) from e
        if answer.error_code != ErrorCode.NONE:
            text = f"{self.peer}: offsets of {request.topic}-{request.partition}: {answer.error_code.name}"
            raise error_for(answer.error_code, text)
        return list(answer.offsets)

    def close(self) -> None:
        self._connection.close()


class BrokerReader08:
    """*Not thread-safe: one thread at a time.* The wire since 0.8; the broker must lead the partitions."""

    def __init__(
        self, host: str, port: int, config: Client07Config, *, deadline: Deadline, clock: Clock
    ) -> None:
        self._connection = Connection(host, port, config.todays((host, port)), deadline=deadline, clock=clock)
        self.peer = self._connection.peer

    def fetch(self, wanted: Sequence[FetchRequest], deadline: Deadline) -> list[Brought]:
        # A partition may be asked for once in a request of this wire: doubles go into further ones.
        left, found = dict(enumerate(wanted)), {}
        while left:
            taken: dict[tuple[str, int], int] = {}
            for place, one in left.items():
                taken.setdefault((one.topic, one.partition), place)
            answers = self._ask([left[place] for place in taken.values()], deadline)
            for key, place in taken.items():
                if key not in answers:
                    raise InvalidRequest(
                        f"{self.peer}: the answer to a fetch of {key[0]}-{key[1]} leaves it out"
                    )
                found[place] = self._brought(wanted[place], answers[key], deadline)
                del left[place]
        return [found[place] for place in range(len(wanted))]

    def _brought(self, one: FetchRequest, answer: PartitionData, deadline: Deadline) -> Brought:
        data, high_watermark = memoryview(answer.records or b""), answer.high_watermark
        if 0 <= high_watermark < next_offset_after(data, one.offset, Place.of_answer(one.offset, -1)):
            # Apache Kafka notes it before it reads: what is appended meanwhile may be in the answer as well.
            latest = OffsetsRequest(one.topic, one.partition, LATEST_TIMESTAMP, 1)
            high_watermark = max(high_watermark, *self.offsets_before(latest, deadline))
        return Brought(answer.error_code, data, BatchSets(high_watermark))

    def _ask(
        self, wanted: Sequence[FetchRequest], deadline: Deadline
    ) -> dict[tuple[str, int], PartitionData]:
        topics: dict[str, list[fetch.FetchPartition]] = defaultdict(list)
        for one in wanted:
            topics[one.topic].append(
                fetch.FetchPartition(
                    partition=one.partition, fetch_offset=one.offset, partition_max_bytes=one.max_bytes
                )
            )
        request = fetch.FetchRequest(
            replica_id=-1,
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=min(sum(one.max_bytes for one in wanted), (1 << 31) - 1),
            topics=tuple(fetch.FetchTopic(topic=name, partitions=tuple(p)) for name, p in topics.items()),
        )
        answer = self._connection.request(request, deadline=deadline)
        if answer.error_code != ErrorCode.NONE:
            raise error_for(answer.error_code, f"{self.peer}: fetch: {answer.error_code.name}")
        return {
            (topic.topic, part.partition_index): part
            for topic in answer.responses
            for part in topic.partitions
        }

    def offsets_before(self, request: OffsetsRequest, deadline: Deadline) -> list[int]:
        """Of LATEST the end and the start, of EARLIEST the start; of a time the first offset at or after it,
        the end where there is none: since 0.10.1 this wire knows no segments.
        """
        if self._connection.version(ApiKey.LIST_OFFSETS) < _TIMES_SINCE:
            return self._of_segments(request, deadline)
        times = [request.timestamp]
        if request.timestamp == LATEST_TIMESTAMP:
            times.append(EARLIEST_TIMESTAMP)
        found = [self._offset(request, time, deadline) for time in times[: request.max_offsets]]
        if found == [_NO_OFFSET]:
            found = [self._offset(request, LATEST_TIMESTAMP, deadline)]
        return list(dict.fromkeys(found))

    def _of_segments(self, request: OffsetsRequest, deadline: Deadline) -> list[int]:
        """As in 0.7: what brokers of 0.8 to 0.10.0 answer."""
        part = self._ask_offsets(request, request.timestamp, deadline)
        return list(part.old_style_offsets)

    def _offset(self, request: OffsetsRequest, timestamp: int, deadline: Deadline) -> int:
        return int(self._ask_offsets(request, timestamp, deadline).offset)

    def _ask_offsets(self, request: OffsetsRequest, timestamp: int, deadline: Deadline) -> Any:
        """What the broker answers of the one partition."""
        tp = f"{request.topic}-{request.partition}"
        many = self._connection.version(ApiKey.LIST_OFFSETS) < _TIMES_SINCE
        wanted = list_offsets.ListOffsetsPartition(
            partition_index=request.partition,
            timestamp=timestamp,
            max_num_offsets=request.max_offsets if many else 1,
        )
        topic = list_offsets.ListOffsetsTopic(name=request.topic, partitions=(wanted,))
        answer: Any = self._connection.request(
            list_offsets.ListOffsetsRequest(topics=(topic,)), deadline=deadline
        )
        part = next((part for topic in answer.topics for part in topic.partitions), None)
        if part is None:
            raise InvalidRequest(f"{self.peer}: the answer to ListOffsets leaves out {tp}")
        if part.error_code != ErrorCode.NONE:
            raise error_for(part.error_code, f"{self.peer}: offsets of {tp}: {part.error_code.name}")
        return part

    def close(self) -> None:
        self._connection.close()


READERS: dict[str, type[BrokerReader07] | type[BrokerReader08]] = {
    PROTOCOL_07: BrokerReader07,
    PROTOCOL_08: BrokerReader08,
}
"""By the value of the property ``protocol``."""
