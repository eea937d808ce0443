"""Topics in answers of Metadata: written once, the same bytes as ever, and new ones when they change."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from broker.server import served_topics as written_topics
from broker.server.served_logs import Ownership
from broker.server.served_topics import WrittenTopics
from broker.store.topic_store import StoredTopic
from pyspark_kafkalog.protocol.api.metadata import (
    NOT_ASKED,
    MetadataResponse,
    MetadataResponseTopic,
    written_topic,
)
from pyspark_kafkalog.protocol.exchange import encode_response
from pyspark_kafkalog.types import TopicPartition

TOPIC = StoredTopic(UUID(int=5), (0, 1, 2))


def answer(topic: object, version: int) -> bytes:
    response = MetadataResponse(topics=(topic,))  # type: ignore[arg-type]
    return b"".join(bytes(part) for part in encode_response(response, version=version, correlation_id=7))


@pytest.mark.parametrize("version", range(13))
def test_a_written_topic_is_sent_as_the_same_bytes(version: int) -> None:
    topics = WrittenTopics(3)
    described = topics._described("t", TOPIC, NOT_ASKED)
    sent = answer(topics.of("t", TOPIC, version, NOT_ASKED), version)
    assert sent == answer(described, version)


def test_a_topic_is_written_once_until_it_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    written = []

    def note(topic: MetadataResponseTopic, version: int) -> object:
        written.append((topic.name, len(topic.partitions), version))
        return write(topic, version)

    write = written_topics.written_topic
    monkeypatch.setattr(written_topics, "written_topic", note)
    topics = WrittenTopics(0)
    for _ in range(3):
        assert topics.of("t", TOPIC, 4, NOT_ASKED) is topics.of("t", TOPIC, 4, NOT_ASKED)
        topics.of("t", TOPIC, 9, NOT_ASKED)
    wider = replace(TOPIC, partitions=(0, 1, 2, 3))
    topics.of("t", wider, 4, NOT_ASKED)
    topics.of("t", wider, 4, NOT_ASKED)
    assert written == [("t", 3, 4), ("t", 3, 9), ("t", 4, 4)]


def test_what_is_kept_is_bounded() -> None:
    topics = WrittenTopics(0, max_bytes=5000)
    for number in range(100):
        topics.of(f"t{number}", TOPIC, 4, NOT_ASKED)
    assert topics._size <= 5000
    assert 5 < len(topics._kept) < 25
    assert ("t99", 4, NOT_ASKED) in topics._kept


def test_what_other_brokers_have_registered_is_reported_as_soon_as_it_is_known() -> None:
    ownership = Ownership()
    topics = WrittenTopics(0, ownership)

    def leaders() -> list[int]:
        described = topics._described("t", TOPIC, NOT_ASKED)
        assert topics.of("t", TOPIC, 9, NOT_ASKED) == written_topic(described, 9)
        assert topics.of("t", TOPIC, 9, NOT_ASKED) is topics.of("t", TOPIC, 9, NOT_ASKED)
        return [partition.leader_id for partition in described.partitions]

    assert leaders() == [-1, -1, -1]
    ownership.update({})
    assert leaders() == [0, 0, 0]
    ownership.update({TopicPartition("t", 1): 8})
    assert leaders() == [0, -1, 0]
