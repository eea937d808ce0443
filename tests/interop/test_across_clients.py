"""What one foreign client writes the others read."""

from __future__ import annotations

import pytest

from pyspark_kafkalog.formats.batch import read_header
from pyspark_kafkalog.formats.compression import Codec
from tests.support.foreign.foreign_clients import CLIENTS
from tests.support.foreign.foreign_face import CODECS, ForeignClient, messages
from tests.support.protocol.raw_client import RawClient


def stored_codecs(servers: str, topic: str) -> set[Codec]:
    """The codecs of the batches that the broker keeps: a client that quietly does not compress shows here."""
    with RawClient(int(servers.split(":")[1])) as client:
        data = memoryview(client.fetch(topic, 0).records or b"")
    found, pos = set(), 0
    while pos < len(data):
        header = read_header(data, pos)
        found.add(header.codec)
        pos += header.size
    return found


by_name = pytest.mark.parametrize("writer", CLIENTS, ids=lambda client: client.name)


@pytest.mark.long("every client with every other")
@by_name
@pytest.mark.parametrize("codec", CODECS)
def test_records_are_the_same_forevery_reader(
    servers: str, topic_name: str, writer: ForeignClient, codec: str
) -> None:
    writer.create_topic(servers, topic_name, 1)
    written = messages()
    writer.produce(servers, topic_name, 0, written, codec, idempotent=True)
    assert stored_codecs(servers, topic_name) == {Codec.named(codec)}
    for reader in CLIENTS:
        assert reader.consume(servers, topic_name, 0, 0, len(written)) == written, reader.name


@by_name
def test_a_committed_offset_is_the_same_forevery_reader(
    servers: str, topic_name: str, writer: ForeignClient
) -> None:
    writer.create_topic(servers, topic_name, 1)
    writer.commit(servers, f"group-{topic_name}", topic_name, 0, 7)
    assert [r.committed(servers, f"group-{topic_name}", topic_name, 0) for r in CLIENTS] == [7, 7, 7]
