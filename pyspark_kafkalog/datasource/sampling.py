"""Looks at a log in a few places, to tell how many bytes its offsets take (`density`)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence

from pyspark_kafkalog.client.connection import Connection, Ticket
from pyspark_kafkalog.client.discovery import Cluster
from pyspark_kafkalog.datasource.density import SAMPLE_BYTES, Density
from pyspark_kafkalog.errors import CorruptMessage, ErrorCode, error_for
from pyspark_kafkalog.formats import message_set
from pyspark_kafkalog.protocol.api.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from pyspark_kafkalog.types import TopicPartition

_CONSUMER = -1
_IN_FLIGHT = 8
"""Answers that may be on their way at once, each of one batch or `SAMPLE_BYTES`."""
_PASSED_OVER = (ErrorCode.NONE, ErrorCode.OFFSET_OUT_OF_RANGE)


def sample(
    cluster: Cluster, asked: Mapping[TopicPartition, Sequence[int]]
) -> dict[TopicPartition, list[Density]]:
    """What the logs are like at these offsets, in their order.

    A place that retention has taken, or where nothing is read yet, has no sample. The first one is moved to
    the first place that was asked, so that it speaks for what comes before it as well.

    Raises:
        KafkaError: a leader could not be asked, or would not say.
    """
    found: dict[TopicPartition, list[Density]] = {}
    for partition, offset, answer in _answers(cluster, asked):
        density = _density(offset, answer)
        if density is not None:
            found.setdefault(partition, []).append(density)
    for partition, samples in found.items():
        samples[0] = Density(asked[partition][0], samples[0].bytes_per_offset)
    return found


def _answers(
    cluster: Cluster, asked: Mapping[TopicPartition, Sequence[int]]
) -> Iterator[tuple[TopicPartition, int, memoryview]]:
    # A request for each place: of several partitions in one, only the first may exceed its limit by a batch.
    flying: deque[tuple[TopicPartition, int, Connection, Ticket]] = deque()
    for partition, offsets in asked.items():
        leader = cluster.leader(partition)
        for offset in offsets:
            connection = cluster.connection(leader.node_id)
            request = _request(partition, offset, leader.epoch)
            flying.append((partition, offset, connection, connection.send(request)))
            if len(flying) >= _IN_FLIGHT:
                yield _received(*flying.popleft())
    while flying:
        yield _received(*flying.popleft())


def _request(partition: TopicPartition, offset: int, epoch: int) -> FetchRequest:
    wanted = FetchPartition(
        partition=partition.partition,
        current_leader_epoch=epoch,
        fetch_offset=offset,
        partition_max_bytes=SAMPLE_BYTES,
    )
    return FetchRequest(
        replica_id=_CONSUMER,
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=SAMPLE_BYTES,
        topics=(FetchTopic(topic=partition.topic, partitions=(wanted,)),),
    )


def _received(
    partition: TopicPartition, offset: int, connection: Connection, ticket: Ticket
) -> tuple[TopicPartition, int, memoryview]:
    answer: FetchResponse = connection.receive(ticket)
    told = [part for topic in answer.responses for part in topic.partitions]
    errors = [answer.error_code, *(part.error_code for part in told)]
    for code in errors:
        if code not in _PASSED_OVER:
            raise error_for(code, f"{connection.peer}: a look at {partition}, offset {offset}: {code.name}")
    records = told[0].records if told else None
    return partition, offset, memoryview(records or b"")


def _density(offset: int, data: memoryview) -> Density | None:
    """Bytes of the whole entries over the offsets that they take, gaps behind ``offset`` included."""
    try:
        frames = list(message_set.frames(data))
    except CorruptMessage:
        return None  # no estimate here; the task that reads it says what is wrong
    if len(frames) > 1 and not frames[0].first_is_known:
        offset = frames.pop(0).next_offset
    if not frames:
        return None
    first = frames[0].first_offset if frames[0].first_is_known else offset
    size = sum(frame.size for frame in frames)
    return Density(offset, size / max(1, frames[-1].next_offset - min(first, offset)))
