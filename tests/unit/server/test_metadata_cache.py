"""Topics in answers of Metadata: written once, the same bytes as ever, and new ones when they change."""

from __future__ import annotations

from uuid import UUID

import pytest
from msgspec.structs import replace

from kafkalog_broker.cluster.ownership import ClusterTopic, ClusterView, Ownership, Pulse
from kafkalog_broker.logs.topic_store import StoredTopic
from kafkalog_broker.server import metadata_cache
from kafkalog_broker.server.metadata_cache import MetadataCache
from pyspark_kafkalog.protocol.api.metadata import (
    NOT_ASKED,
    MetadataResponse,
    MetadataResponseTopic,
    written_topic,
)
from pyspark_kafkalog.protocol.exchange import encode_response
from pyspark_kafkalog.types import TopicPartition
from tests.support.manual_clock import ManualClock

TOPIC = StoredTopic(UUID(int=5), (0, 1, 2))
THERE = frozenset({0, 3, 8})


def answer(topic: object, version: int) -> bytes:
    response = MetadataResponse(topics=(topic,))  # type: ignore[arg-type]
    return b"".join(bytes(part) for part in encode_response(response, version=version, correlation_id=7))


def described_by(topics: MetadataCache, brokers: frozenset[int] = THERE) -> MetadataResponseTopic:
    return metadata_cache._described("t", TOPIC, NOT_ASKED, topics._owners("t", TOPIC, brokers))


@pytest.mark.parametrize("version", range(13))
def test_a_written_topic_is_sent_as_the_same_bytes(version: int) -> None:
    topics = MetadataCache(3)
    described = described_by(topics)
    sent = answer(topics.of("t", TOPIC, version, NOT_ASKED, THERE), version)
    assert sent == answer(described, version)


def test_a_topic_is_written_once_until_it_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    written = []

    def note(topic: MetadataResponseTopic, version: int) -> object:
        written.append((topic.name, len(topic.partitions), version))
        return write(topic, version)

    write = metadata_cache.api.written_topic
    monkeypatch.setattr(metadata_cache.api, "written_topic", note)
    topics = MetadataCache(0)
    for _ in range(3):
        assert topics.of("t", TOPIC, 4, NOT_ASKED, THERE) is topics.of("t", TOPIC, 4, NOT_ASKED, THERE)
        topics.of("t", TOPIC, 9, NOT_ASKED, THERE)
    wider = replace(TOPIC, partitions=(0, 1, 2, 3))
    topics.of("t", wider, 4, NOT_ASKED, THERE)
    topics.of("t", wider, 4, NOT_ASKED, THERE)
    assert written == [("t", 3, 4), ("t", 3, 9), ("t", 4, 4)]


def test_what_is_kept_is_bounded() -> None:
    topics = MetadataCache(0, max_bytes=5000)
    for number in range(100):
        topics.of(f"t{number}", TOPIC, 4, NOT_ASKED, THERE)
    assert topics._size <= 5000
    assert 5 < len(topics._kept) < 25
    assert ("t99", 4, NOT_ASKED) in topics._kept


def test_a_new_owners_leader_epoch_comes_with_its_name_also_while_it_is_away() -> None:
    topics = MetadataCache(0, ownership := Ownership(0))
    ours = replace(TOPIC, epochs={1: 3})
    for each in (topics, MetadataCache(0)):
        told = each.described("t", ours, NOT_ASKED, THERE).partitions
        assert [partition.leader_epoch for partition in told] == [0, 3, 0], "what its own disk says"

    def see(version: int, owners: tuple[int, ...], epochs: dict[int, int], *pending: int) -> list[int]:
        registered = ClusterTopic(replace(TOPIC, epochs=epochs), owners, frozenset(pending), 0, 0)
        ownership.see(ClusterView(version, "r", {"t": registered}))
        described = described_by(topics)
        assert topics.of("t", TOPIC, 9, NOT_ASKED, THERE) == written_topic(described, 9)
        return [partition.leader_epoch for partition in described.partitions]

    assert see(1, (0, 8, 7), {}) == [0, 0, 0]
    assert see(2, (0, 8, 7), {1: 1, 2: 4}) == [0, 1, 4]
    assert see(3, (0, 8, 7), {1: 2, 2: 4}, 1) == [0, 2, 4]


def test_what_is_known_of_the_owners_is_reported_at_once() -> None:
    clock = ManualClock()
    ownership = Ownership(0, pulse := Pulse(3.0, clock))
    topics = MetadataCache(0, ownership)

    def leaders(brokers: frozenset[int] = THERE) -> list[int]:
        described = described_by(topics, brokers)
        assert topics.of("t", TOPIC, 9, NOT_ASKED, brokers) == written_topic(described, 9)
        assert topics.of("t", TOPIC, 9, NOT_ASKED, brokers) is topics.of("t", TOPIC, 9, NOT_ASKED, brokers)
        return [partition.leader_id for partition in described.partitions]

    def see(version: int, owners: tuple[int, ...], *pending: int) -> None:
        registered = ClusterTopic(TOPIC, owners, frozenset(pending), 0, 0)
        ownership.see(ClusterView(version, "r", {"t": registered}))

    assert leaders() == [-1, -1, -1]
    see(1, (0, 8, 0), 0, 1)
    ownership.serve()
    assert leaders() == [-1, -1, 0], "their owners have yet to make the others"
    see(2, (0, 8, 0))
    assert leaders() == [0, 8, 0]
    assert leaders(frozenset({0})) == [0, -1, 0], "the other owner is away"
    ownership.set_offline([TopicPartition("t", 2)])
    assert leaders() == [0, 8, -1]
    see(1, (0, 0, 0))
    assert leaders() == [0, 8, -1], "an older view changes nothing"
    clock.advance(4)
    assert leaders() == [-1, 8, -1], "this process was stopped: it does not know yet what it still owns"
    pulse.caught_up(pulse.beat())
    assert leaders() == [0, 8, -1]
    ownership.refuse("somebody else has our id")
    assert leaders() == [-1, 8, -1]
