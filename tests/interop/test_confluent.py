"""The broker against librdkafka alone: admin, produce, consume, offsets."""

from __future__ import annotations

import pytest

from tests.support.foreign_clients import CODECS, Confluent, messages

CLIENT = Confluent()


def test_topics_are_created_listed_and_deleted(servers: str, topic_name: str) -> None:
    CLIENT.create_topic(servers, topic_name, 3)
    assert topic_name in CLIENT.topics(servers)
    CLIENT.delete_topic(servers, topic_name)
    assert topic_name not in CLIENT.topics(servers)


@pytest.mark.parametrize("idempotent", [True, False])
@pytest.mark.parametrize("codec", CODECS)
def test_what_it_writes_it_reads(servers: str, topic_name: str, codec: str, idempotent: bool) -> None:
    CLIENT.create_topic(servers, topic_name, 2)
    written = messages()
    offsets = CLIENT.produce(servers, topic_name, 1, written, codec, idempotent=idempotent)
    assert offsets == list(range(len(written)))
    assert CLIENT.consume(servers, topic_name, 1, 0, len(written)) == written
    assert CLIENT.consume(servers, topic_name, 1, 77, len(written) - 77) == written[77:]


def test_offsets_are_found_by_position_and_time(servers: str, topic_name: str) -> None:
    CLIENT.create_topic(servers, topic_name, 1)
    written = messages(60)
    CLIENT.produce(servers, topic_name, 0, written, "none", idempotent=True)
    assert CLIENT.offsets(servers, topic_name, 0, written[33].timestamp - 1) == (0, 60, 33)
    assert CLIENT.offsets(servers, topic_name, 0, written[-1].timestamp + 1) == (0, 60, None)


def test_a_group_without_members_keeps_its_offset(servers: str, topic_name: str) -> None:
    CLIENT.create_topic(servers, topic_name, 1)
    group = f"group-of-{topic_name}"
    assert CLIENT.committed(servers, group, topic_name, 0) is None
    CLIENT.commit(servers, group, topic_name, 0, 42)
    assert CLIENT.committed(servers, group, topic_name, 0) == 42
