"""Topics of 0.7 on the listener of today's protocol: read as record batches, at every position."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from kafkalog_broker.embedded import EmbeddedBroker, start_broker
from pyspark_kafkalog.datasource.source import DefaultSource
from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.types import Record
from tests.support.protocol.raw_client import RawClient, decode, fetch_request
from tests.support.protocol.wire07 import LATEST, Wire07, entry, offsets, offsets_in, produce, zipped

BOTH = "PLAINTEXT://127.0.0.1:0,KAFKA07://127.0.0.1:0"

ENTRIES = [
    ([b"zero"], entry(b"zero", magic=0)),
    ([b"one"], entry(b"one")),
    ([], zipped()),
    ([b"a", b"b", b"c"], zipped(entry(b"a"), zipped(entry(b"b")), entry(b"c"))),
    ([b""], entry(b"")),
    ([], zipped()),
]
"""What is in each entry, and its bytes."""


def expected(start: int = 0) -> list[tuple[int, bytes]]:
    """Offset and value of the records from ``start`` on."""
    found, position = [], 0
    for values, data in ENTRIES:
        found += [(position + number, value) for number, value in enumerate(values)]
        position += len(data)
    return [record for record in found if record[0] >= start]


STARTS = [sum(len(data) for _, data in ENTRIES[:n]) for n in range(len(ENTRIES) + 1)]
END = STARTS[-1]


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with start_broker({"listeners": BOTH, "log.flush.interval": 1, "log.segment.bytes": 60}) as broker:
        yield broker


def written(wire: Wire07, topic: str, *sets: bytes) -> str:
    """The topic with these sets in its partition 0, each produced alone; all can be read."""
    for data in sets:
        wire.send(produce(topic, 0, data))
    assert wire.ask(offsets(topic, 0, LATEST, 1)) is not None
    return topic


@pytest.fixture
def topic(first: Wire07, topic_name: str) -> str:
    """The entries, in several segments; one without messages is on the disk when another is."""
    return written(first, topic_name, *(data for _, data in ENTRIES), entry(b"end"))


def pairs(records: list[Record], start: int = 0) -> list[tuple[int, bytes | None]]:
    return [(record.offset, record.value) for record in records if record.offset >= start]


ALL = [*expected(), (END, b"end")]


@pytest.mark.parametrize("version", [1, 3, 4, 13])
def test_every_version_gets_the_messages(modern: RawClient, topic: str, version: int) -> None:
    data = modern.fetch(topic, STARTS[3], version=version)
    assert pairs(decode(data)) == [record for record in ALL if record[0] >= STARTS[3]]


def test_the_end_is_empty_and_beyond_it_is_out_of_range(modern: RawClient, topic: str) -> None:
    end = END + 13
    at_end = modern.fetch(topic, end)
    assert (at_end.error_code, bytes(at_end.records or b"")) == (ErrorCode.NONE, b"")
    for offset in (end + 1, -1, 1 << 50):
        beyond = modern.fetch(topic, offset)
        assert beyond.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert (beyond.log_start_offset, beyond.high_watermark) == (0, end)


def test_offsets_are_those_of_07(modern: RawClient, first: Wire07, topic: str) -> None:
    assert modern.offset_at(topic, -1).offset == END + 13
    assert modern.offset_at(topic, -1, version=0).old_style_offsets == (END + 13,)
    assert offsets_in(first.ask(offsets(topic, 0, LATEST, 1))) == [END + 13]
    assert modern.offset_at(topic, -2).offset == 0
    assert modern.offset_at(topic, -1, isolation_level=1).offset == END + 13
    assert modern.offset_at(topic, -3).offset == -1
    now_ms = int(time.time() * 1000)
    for when in (0, now_ms - 60_000):
        found = modern.offset_at(topic, when)
        assert (found.error_code, found.offset) == (ErrorCode.NONE, 0)
        assert found.timestamp >= when
    assert modern.offset_at(topic, now_ms + 60_000).offset == -1


def test_a_long_poll_ends_when_messages_reach_the_disk(topic_name: str) -> None:
    properties = {"listeners": BOTH, "log.flush.interval.ms": 600, "log.flush.scheduler.interval.ms": 50}
    with (
        start_broker(properties) as broker,
        Wire07(broker.port_of("KAFKA07")) as wire,
        RawClient(broker.port_of("PLAINTEXT")) as reader,
    ):
        assert reader.create_topic(topic_name, configs={"generation": "0.7"}).error_code == 0
        reader.send(fetch_request({(topic_name, 0): 0}, max_wait_ms=600_000))
        began = time.monotonic()
        wire.send(produce(topic_name, 0, entry(b"late")))
        (answered,) = reader.receive().responses
        assert pairs(decode(answered.partitions[0])) == [(0, b"late")]
        assert time.monotonic() - began > 0.4, "not before the flush"


@pytest.mark.long("megabytes are converted")
def test_a_far_offset_is_found_in_turns(topic_name: str) -> None:
    """A walk over 20 MiB is more than is done at a time: it goes on, parked, whether one waits or not."""
    one = entry(bytes(90))
    with (
        start_broker({"listeners": BOTH, "log.flush.interval": 1, "num.partitions": 2}) as broker,
        Wire07(broker.port_of("KAFKA07")) as wire,
    ):
        for _ in range(20):
            wire.send(produce(topic_name, 0, one * 9000))
            wire.send(produce(topic_name, 1, one * 9000))
        for partition in (0, 1):
            end = offsets_in(wire.ask(offsets(topic_name, partition, LATEST, 1)))
            assert end == [180_000 * len(one)]
        target = 179_990 * len(one)
        with RawClient(broker.port_of("PLAINTEXT")) as client:
            data = client.fetch(topic_name, target + 3, max_wait_ms=600_000)
            assert [record.offset for record in decode(data)][:2] == [target, target + len(one)]
            while not (data := client.fetch(topic_name, target + 3, 1, max_wait_ms=0)).records:
                assert (
                    data.error_code == ErrorCode.NONE
                )  # on a busy machine: it goes on with the next request
            assert decode(data)[0].offset == target
            # Nor does a partition that has much keep the next one from its turn.
            both = client.ask(fetch_request({(topic_name, 0): 0, (topic_name, 1): 0}, 20 << 20)).responses
            first, second = (len(decode(part.partitions[0])) for part in both)
            assert first > second > 1000


def test_the_data_source_however_the_range_is_split(broker: EmbeddedBroker, topic: str) -> None:
    options = {
        "kafka.bootstrap.servers": f"127.0.0.1:{broker.port_of('PLAINTEXT')}",
        "subscribe": topic,
        "minPartitions": "40",
    }
    source = DefaultSource(options)
    reader = source.reader(source.schema())
    splits = reader.partitions()
    assert len(splits) >= 40
    rows = [row for split in splits for batch in reader.read(split) for row in batch.to_pylist()]
    assert [(row["offset"], row["value"]) for row in rows if row["partition"] == 0] == ALL
    assert {(row["key"], row["timestamp"].timestamp()) for row in rows} == {(None, -0.001)}
