"""What one foreign client writes the others read."""

from __future__ import annotations

import pytest

from tests.support.foreign.foreign_clients import CLIENTS
from tests.support.foreign.foreign_face import CODECS, ForeignClient, messages


@pytest.mark.long("every client with every other")
@pytest.mark.parametrize("writer", CLIENTS, ids=lambda client: client.name)
def test_records_are_the_same_forevery_reader(servers: str, topic_name: str, writer: ForeignClient) -> None:
    writer.create_topic(servers, topic_name, 1)
    written = messages(40)
    for codec in CODECS:
        writer.produce(servers, topic_name, 0, written, codec, idempotent=True)
    for reader in CLIENTS:
        found = reader.consume(servers, topic_name, 0, 0, len(written) * len(CODECS))
        assert found == written * len(CODECS), reader.name
