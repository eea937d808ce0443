"""`message.format` v0 and v1: what is sent, by which version of Produce, and what is refused before."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from pyspark_kafkalog.errors import (
    ErrorCode,
    InvalidRecord,
    MessageTooLarge,
    UnsupportedVersion,
)
from pyspark_kafkalog.formats.compression import Codec
from pyspark_kafkalog.formats.legacy import messages, read_entry
from pyspark_kafkalog.protocol.api.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from pyspark_kafkalog.protocol.exchange import ApiKey
from tests.support.client.scripted_broker import Layout, ScriptedBroker
from tests.support.client.scripted_producers import Make, producers

PRODUCE, FETCH = ApiKey.PRODUCE, ApiKey.FETCH
TIME = 1_600_000_000_123

Entry = tuple[int, "bytes | None", "bytes | None", int]
"""Offset, key, value and time."""


class Entries:
    """What arrived, entry by entry; each is told the next offsets."""

    def __init__(self) -> None:
        self.sets: list[bytes] = []
        self.count = 0

    def produce(self, request: ProduceRequest) -> ProduceResponse:
        (topic,) = request.topic_data
        (part,) = topic.partition_data
        self.sets.append(bytes(part.records))
        first, self.count = self.count, self.count + len(entries(self.sets[-1]))
        answer = PartitionProduceResponse(
            index=part.index, error_code=ErrorCode.NONE, base_offset=first, log_append_time_ms=-1
        )
        return ProduceResponse(
            responses=(TopicProduceResponse(name=topic.name, partition_responses=(answer,)),)
        )


def entries(data: bytes) -> list[Entry]:
    found: list[Entry] = []
    pos = 0
    while pos < len(data):
        for m in messages(data, pos, max_bytes=1 << 20):
            key = None if m.key is None else bytes(m.key)
            found.append((m.offset, key, None if m.value is None else bytes(m.value), m.timestamp))
        pos += read_entry(data, pos).size
    return found


@pytest.fixture
def sent() -> Entries:
    return Entries()


@pytest.fixture
def broker(sent: Entries) -> Iterator[ScriptedBroker]:
    with ScriptedBroker(Layout(leaders={"t": {0: 0}})) as scripted:
        scripted.default(PRODUCE, sent.produce)
        yield scripted


@pytest.fixture
def make(broker: ScriptedBroker) -> Iterator[Make]:
    """``make("v1")``: a producer of this format."""
    with producers(broker.address, linger_ms=600_000) as plain:
        yield lambda message_format, **changes: plain(message_format=message_format, **changes)


def versions_sent(broker: ScriptedBroker) -> list[int]:
    return [header.api_version for header, _ in broker.requests if header.api_key == PRODUCE]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4"])
@pytest.mark.parametrize(("name", "magic"), [("v0", 0), ("v1", 1)])
def test_records_go_as_messages_of_the_format(
    broker: ScriptedBroker, sent: Entries, make: Any, name: str, magic: int, codec: str
) -> None:
    rows = [(b"value", b"key"), (None, b"gone"), (b"", None), (b"x" * 500, b"")]
    producer = make(name, compression_type=codec)
    deliveries = [
        producer.send("t", value, key, timestamp_ms=TIME + i) for i, (value, key) in enumerate(rows)
    ]
    producer.flush(90)
    times = [TIME + i if magic else -1 for i in range(4)]
    assert [(d.result(90).offset, d.result(90).timestamp) for d in deliveries] == list(enumerate(times))
    (data,) = sent.sets
    assert entries(data) == [(i, key, value, times[i]) for i, (value, key) in enumerate(rows)]
    header = read_entry(data)
    assert (header.magic, header.codec) == (magic, Codec.named(codec))
    assert versions_sent(broker) == [2]
    assert broker.received(ApiKey.INIT_PRODUCER_ID) == []


@pytest.mark.parametrize(
    ("name", "served", "version"),
    [("v0", (0, 0), 0), ("v0", (0, 1), 1), ("v0", (0, 2), 2), ("v1", (0, 2), 2), ("v1", (2, 9), 2)],
)
def test_the_highest_version_that_takes_message_sets_is_used(
    broker: ScriptedBroker, make: Any, name: str, served: tuple[int, int], version: int
) -> None:
    broker.versions.update({PRODUCE: served, FETCH: (0, 3)})
    assert make(name, linger_ms=0).send("t", b"v").result(90).offset == 0
    assert versions_sent(broker) == [version]


@pytest.mark.parametrize(
    ("name", "produce", "fetch", "message"),
    [
        ("v1", (3, 11), (4, 12), r"the broker does not accept message sets.*message\.format=v1.* v2 can"),
        # Kafka 4: it advertises what it does not serve.
        ("v0", (0, 13), (4, 18), r"the broker does not accept message sets.*message\.format=v0.* v2 can"),
        ("v1", (0, 1), (0, 1), r"the broker supports Produce 0 to 1; message\.format=v1 needs 2 or later"),
        ("v2", (0, 2), (0, 3), r"the broker is older than Kafka 0\.11 .*message\.format=v1 is for 0\.10"),
    ],
)
def test_a_broker_that_does_not_take_the_format_is_reported(
    broker: ScriptedBroker,
    make: Any,
    name: str,
    produce: tuple[int, int],
    fetch: tuple[int, int],
    message: str,
) -> None:
    broker.versions.update({PRODUCE: produce, FETCH: fetch})
    with pytest.raises(UnsupportedVersion, match=f"^{broker.address}: {message}"):
        make(name, linger_ms=0, enable_idempotence="false").send("t", b"v").result(90)
    assert versions_sent(broker) == []


@pytest.mark.parametrize("name", ["v0", "v1"])
def test_headers_are_refused_and_not_dropped(sent: Entries, make: Any, name: str) -> None:
    producer = make(name, linger_ms=0)
    with pytest.raises(InvalidRecord, match=rf"t: message\.format={name} has no headers; v2 has them"):
        producer.send("t", b"v", headers=[("h", b"1")])
    table = pa.table({"value": [b"v"], "headers": [[{"key": "h", "value": b"1"}]]})
    with pytest.raises(InvalidRecord, match=rf"message\.format={name} has no headers"):
        producer.send_arrow("t", table)
    assert producer.send_arrow("t", table.drop(["headers"])).result(90)[0].first_offset == 0
    assert len(sent.sets) == 1


@pytest.mark.parametrize(("name", "overhead"), [("v0", 26), ("v1", 34)])
def test_a_batch_is_no_larger_than_was_reckoned(sent: Entries, make: Any, name: str, overhead: int) -> None:
    limit = 61 + 10 * (100 + overhead)
    producer = make(name, batch_size=limit)
    for _ in range(25):
        producer.send("t", bytes(60), bytes(40))
    producer.flush(90)
    assert [len(entries(data)) for data in sent.sets] == [10, 10, 5]
    producer.send_arrow("t", pa.table({"value": [bytes(100)] * 25}))
    producer.flush(90)
    assert [len(entries(data)) for data in sent.sets[3:]] == [10, 10, 5]
    assert len(sent.sets[0]) == 10 * (100 + overhead)
    narrow = make(name, linger_ms=0, max_request_size=5000)
    with pytest.raises(MessageTooLarge, match=r"above max\.request\.size=5000"):
        narrow.send("t", bytes(5001 - overhead))
    assert narrow.send("t", bytes(5000 - overhead)).result(90).offset == 50


def test_a_set_that_is_too_large_for_the_broker_is_sent_as_two(
    broker: ScriptedBroker, sent: Entries, make: Any
) -> None:
    refused = PartitionProduceResponse(index=0, error_code=ErrorCode.MESSAGE_TOO_LARGE, base_offset=-1)
    broker.script(
        PRODUCE,
        ProduceResponse(responses=(TopicProduceResponse(name="t", partition_responses=(refused,)),)),
    )
    producer = make("v1", compression_type="gzip")
    deliveries = [producer.send("t", b"%d" % i, timestamp_ms=TIME + i) for i in range(6)]
    producer.flush(90)
    assert [d.result(90).offset for d in deliveries] == list(range(6))
    assert [[value for _, _, value, _ in entries(data)] for data in sent.sets] == [
        [b"0", b"1", b"2"], [b"3", b"4", b"5"],
    ]  # fmt: skip
