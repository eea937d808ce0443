"""The broker against each foreign client alone: admin, produce, consume, offsets."""

from __future__ import annotations

import pytest

from tests.support.foreign.foreign_clients import CLIENTS
from tests.support.foreign.foreign_face import CODECS, ForeignClient, messages

pytestmark = pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)


def test_topics_are_created_listed_and_deleted(servers: str, topic_name: str, client: ForeignClient) -> None:
    client.create_topic(servers, topic_name, 3)
    assert topic_name in client.topics(servers)
    client.delete_topic(servers, topic_name)
    assert topic_name not in client.topics(servers)


@pytest.mark.parametrize("idempotent", [True, False])
@pytest.mark.parametrize("codec", CODECS)
def test_what_it_writes_it_reads(
    servers: str, topic_name: str, client: ForeignClient, codec: str, idempotent: bool
) -> None:
    client.create_topic(servers, topic_name, 2)
    written = messages()
    offsets = client.produce(servers, topic_name, 1, written, codec, idempotent=idempotent)
    assert offsets == list(range(len(written)))
    assert client.consume(servers, topic_name, 1, 0, len(written)) == written
    assert client.consume(servers, topic_name, 1, 77, len(written) - 77) == written[77:]


def test_offsets_are_found_by_position_and_time(servers: str, topic_name: str, client: ForeignClient) -> None:
    client.create_topic(servers, topic_name, 1)
    written = messages(60)
    client.produce(servers, topic_name, 0, written, "none", idempotent=True)
    assert client.offsets(servers, topic_name, 0, written[33].timestamp - 1) == (0, 60, 33)
    assert client.offsets(servers, topic_name, 0, written[-1].timestamp + 1) == (0, 60, None)


def test_a_group_without_members_keeps_its_offset(
    servers: str, topic_name: str, client: ForeignClient
) -> None:
    client.create_topic(servers, topic_name, 1)
    group = f"group-of-{topic_name}"
    assert client.committed(servers, group, topic_name, 0) is None
    client.commit(servers, group, topic_name, 0, 42)
    assert client.committed(servers, group, topic_name, 0) == 42
