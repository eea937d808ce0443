"""A client with long requests takes turns with others. Round trips are counted, and no time is measured."""

from __future__ import annotations

import itertools
import select
from collections.abc import Callable
from typing import Any

import pytest

from kafkalog_broker.embedded import EmbeddedBroker
from pyspark_kafkalog.formats.batch import encode_batch
from pyspark_kafkalog.formats.compression import Codec
from pyspark_kafkalog.formats.legacy import encode_set
from pyspark_kafkalog.protocol.api.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
)
from pyspark_kafkalog.protocol.api.log_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from pyspark_kafkalog.protocol.api.metadata import ApiVersionsRequest, FindCoordinatorRequest
from pyspark_kafkalog.types import LATEST_TIMESTAMP, NewRecord
from tests.support.protocol.raw_client import RawClient, fetch_request, produce_request
from tests.support.until import until

pytestmark = pytest.mark.long("seconds of work beside small requests")

MESSAGES = 60_000
"""Some 0.3 s of work in Python."""

FEW = 4
"""Round trips that others have meanwhile; without turns one or two. Where this process did not run while the
broker was busy it is asked once more.
"""


def set_of_many(magic: int, codec: Codec) -> bytes:
    return encode_set([NewRecord(None, None, 1000)] * MESSAGES, magic=magic, codec=codec)


def round_trips_beside(slow: RawClient, other: RawClient) -> int:
    """How many short requests of another client are answered before the slow one is."""
    count = 0
    while not select.select([slow.socket], [], [], 0)[0]:
        assert other.ask(ApiVersionsRequest(), 0).error_code == 0
        count += 1
    return count


def end_of(client: RawClient, topic: str, partition: int = 0) -> int:
    want = ListOffsetsPartition(partition_index=partition, timestamp=LATEST_TIMESTAMP)
    asked = ListOffsetsRequest(topics=(ListOffsetsTopic(name=topic, partitions=(want,)),))
    return int(client.ask(asked, 5).topics[0].partitions[0].offset)


def old_set(magic: int, codec: Codec) -> Callable[[RawClient, str], tuple[Any, int]]:
    def prepared(_client: RawClient, topic: str) -> tuple[Any, int]:
        return produce_request({(topic, 0): set_of_many(magic, codec)}), 2

    return prepared


def batch_for_an_old_reader(client: RawClient, topic: str) -> tuple[Any, int]:
    data = bytes(encode_batch([NewRecord(None, None, 1000)] * MESSAGES, codec=Codec.GZIP))
    assert client.produce(topic, data).error_code == 0
    return fetch_request({(topic, 0): 0}), 1


def times_in_a_batch(client: RawClient, topic: str) -> tuple[Any, int]:
    new = [NewRecord(None, None, 1000 + number) for number in range(MESSAGES)]
    assert client.produce(topic, bytes(encode_batch(new, codec=Codec.ZSTD))).error_code == 0
    wanted = tuple(
        ListOffsetsPartition(partition_index=0, timestamp=1000 + number) for number in range(10_000)
    )
    return ListOffsetsRequest(topics=(ListOffsetsTopic(name=topic, partitions=wanted),)), 5


@pytest.mark.parametrize(
    "prepare",
    [
        pytest.param(old_set(0, Codec.GZIP), id="v0, offsets in what is compressed"),
        pytest.param(old_set(1, Codec.SNAPPY), id="v1"),
        pytest.param(old_set(1, Codec.NONE), id="v1, not compressed"),
        batch_for_an_old_reader,
        times_in_a_batch,
    ],
)
def test_others_are_answered_beside_a_long_request(
    running_broker: EmbeddedBroker,
    client: RawClient,
    topic: str,
    prepare: Callable[[RawClient, str], tuple[Any, int]],
) -> None:
    request, version = prepare(client, topic)
    answers: list[Any] = []

    def attempt() -> bool:
        with RawClient(running_broker.port) as slow:
            slow.send(request, version)
            slow.send(ApiVersionsRequest(), 0)
            count = round_trips_beside(slow, client)
            answers.append(slow.receive())
            assert slow.receive().error_code == 0  # what came after it is answered after it
        return count >= FEW

    until(attempt)
    for number, answer in enumerate(answers):
        if version == 2:
            (partition,) = answer.responses[0].partition_responses
            assert (partition.error_code, partition.base_offset) == (0, number * MESSAGES)
        elif not hasattr(answer, "responses"):
            found = [(p.timestamp, p.offset) for p in answer.topics[0].partitions]
            assert found == [(1000 + number, number) for number in range(10_000)]
    assert end_of(client, topic) == MESSAGES * (len(answers) if version == 2 else 1)


COMMITTED = 19_000
"""Offsets in one request, near the most that a request may name."""


def commit_of_many(topic: str) -> tuple[Any, int]:
    partitions = tuple(
        OffsetCommitRequestPartition(partition_index=number % 3000, committed_offset=number)
        for number in range(COMMITTED)
    )
    topics = (OffsetCommitRequestTopic(name=topic, partitions=partitions),)
    return OffsetCommitRequest(group_id="g", generation_id_or_member_epoch=-1, topics=topics), 8


def fetch_of_many_offsets(topic: str) -> tuple[Any, int]:
    indexes = tuple(number % 3000 for number in range(COMMITTED))
    return OffsetFetchRequest("g", (OffsetFetchRequestTopic(topic, indexes),)), 7


def many_coordinators(_topic: str) -> tuple[Any, int]:
    return FindCoordinatorRequest(coordinator_keys=tuple(f"g{number}" for number in range(COMMITTED))), 4


@pytest.mark.parametrize("prepare", [commit_of_many, fetch_of_many_offsets, many_coordinators])
def test_others_are_answered_beside_a_long_request_for_coordinators(
    running_broker: EmbeddedBroker, client: RawClient, prepare: Callable[[str], tuple[Any, int]]
) -> None:
    topic = f"committed-{prepare.__name__}"
    assert client.create_topic(topic, 3000).error_code == 0
    assert client.ask(FindCoordinatorRequest(key="g"), 1).error_code == 0  # makes the topic of offsets
    request, version = prepare(topic)
    answers: list[Any] = []

    def attempt() -> bool:
        with RawClient(running_broker.port) as slow:
            slow.send(request, version)
            count = round_trips_beside(slow, client)
            answers.append(slow.receive())
        return count >= FEW

    until(attempt)
    answer = answers[-1]
    if version == 4:
        assert [each.key for each in answer.coordinators] == list(request.coordinator_keys)
        return
    answered = answer.topics[0].partitions
    assert [each.partition_index for each in answered] == [number % 3000 for number in range(COMMITTED)]
    assert {each.error_code for each in answered} == {0}
    if version == 8:  # of several for one partition the last is stored
        asked = OffsetFetchRequest("g", (OffsetFetchRequestTopic(topic, (0, 999, 1000)),))
        stored = [each.committed_offset for each in client.ask(asked, 7).topics[0].partitions]
        assert stored == [18_000, 18_999, 16_000]


def test_pipelined_requests_leave_others_their_turns(
    running_broker: EmbeddedBroker, client: RawClient, topic: str
) -> None:
    numbers = itertools.count()
    small = produce_request({(topic, 0): encode_set([NewRecord(b"x")] * 2000, magic=1)})

    def attempt() -> bool:
        with RawClient(running_broker.port) as greedy:
            for _ in range(20):
                greedy.send(small, 2)
            greedy.send(ApiVersionsRequest(), 0)
            others = 0
            for _ in range(20):
                others += round_trips_beside(greedy, client)
                (answered,) = greedy.receive().responses[0].partition_responses
                assert answered.base_offset == 2000 * next(numbers)
            assert greedy.receive().error_code == 0
        return others >= FEW

    until(attempt)


def test_what_a_client_sent_without_acknowledgements_is_stored_after_it_has_left(
    running_broker: EmbeddedBroker, client: RawClient, topic: str
) -> None:
    """As 0.7's producers do, whose requests have no answers at all."""
    with RawClient(running_broker.port) as gone:
        for _ in range(20):
            small = encode_set([NewRecord(b"x")] * 2000, magic=1)
            gone.send(produce_request({(topic, 0): small}, acks=0), 2)
        gone.send(produce_request({(topic, 1): set_of_many(1, Codec.GZIP)}, acks=0), 2)
    until(lambda: end_of(client, topic, 1) == MESSAGES)
    assert end_of(client, topic, 0) == 40_000
