"""The broker against each foreign client: admin, produce, consume, offsets."""

from __future__ import annotations

import pytest

from pyspark_kafkalog.formats.batch import read_header
from pyspark_kafkalog.formats.compression import Codec
from tests.support.foreign.foreign_clients import CLIENTS
from tests.support.foreign.foreign_face import CODECS, ForeignClient, messages
from tests.support.protocol.raw_client import RawClient

pytestmark = pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)


def test_topics_are_created_listed_and_deleted(servers: str, topic_name: str, client: ForeignClient) -> None:
    client.create_topic(servers, topic_name, 3)
    assert topic_name in client.topics(servers)
    client.delete_topic(servers, topic_name)
    assert topic_name not in client.topics(servers)


def stored_codecs(servers: str, topic: str) -> set[Codec]:
    """The codecs of the batches that the broker keeps: a client that quietly does not compress shows here."""
    with RawClient(int(servers.split(":")[1])) as client:
        data = memoryview(client.fetch(topic, 0, 1).records or b"")
    found, pos = set(), 0
    while pos < len(data):
        header = read_header(data, pos)
        found.add(header.codec)
        pos += header.size
    return found


@pytest.mark.parametrize("codec", CODECS)
def test_what_it_writes_it_reads(servers: str, topic_name: str, client: ForeignClient, codec: str) -> None:
    client.create_topic(servers, topic_name, 2)
    written = messages()
    offsets = client.produce(servers, topic_name, 1, written, codec, idempotent=codec != "none")
    assert offsets == list(range(len(written)))
    assert stored_codecs(servers, topic_name) == {Codec.named(codec)}
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
    assert [each.committed(servers, group, topic_name, 0) for each in CLIENTS] == [42, 42, 42]
