"""Fetch 0-3, as clients of Kafka 0.8 to 0.10 send it."""

from __future__ import annotations

import select

import pytest

from kafkalog_broker.embedded import EmbeddedBroker, start_broker
from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.formats.batch import encode_batch, magic_at
from pyspark_kafkalog.formats.compression import Codec
from pyspark_kafkalog.formats.legacy import encode_set
from pyspark_kafkalog.formats.message_set import frames
from pyspark_kafkalog.protocol.api.fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData
from pyspark_kafkalog.types import NewRecord
from tests.support.protocol.raw_client import RawClient, batch, decode, fetch_request
from tests.support.until import until

NOW_MS = 1_700_000_000_000
OLD = range(4)
FOR_EVER_MS = 600_000
"""Longer than any test waits: whoever is not woken is not answered."""


def old(magic: int, *values: bytes, codec: Codec = Codec.NONE) -> bytes:
    return encode_set([NewRecord(v, b"k", NOW_MS) for v in values], magic=magic, codec=codec)


def magics(data: PartitionData) -> set[int]:
    return {magic_at(data.records, frame.position) for frame in frames(data.records)}


def read(client: RawClient, topic: str, version: int, *, max_bytes: int = 1 << 20) -> list[bytes | None]:
    """Every value, as a client of that time goes on: behind the last message it could read."""
    found: list[bytes | None] = []
    offset = 0
    while True:
        data = client.fetch(topic, offset, max_bytes=max_bytes, version=version)
        assert data.error_code == ErrorCode.NONE
        new = [r for r in decode(data) if r.offset >= offset]
        if not new:
            return found
        found += [r.value for r in new]
        offset = new[-1].offset + 1


def as_sent(client: RawClient, topic: str) -> str:
    """Create a topic that keeps formats as producers send them."""
    client.create_topic(topic, 2, {"message.format.version": "producer"})
    return topic


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4])
def test_what_todays_producers_write_is_converted_to_the_clients_format(
    client: RawClient, topic: str, version: int, codec: Codec
) -> None:
    for n in range(3):
        client.produce(topic, batch(b"%d" % n, b"x" * 100, codec=codec))
    data = client.fetch(topic, 0, version=version)
    assert magics(data) == {0 if version < 2 else 1}
    assert data.high_watermark == 6
    got = decode(data)
    assert [(r.offset, r.key) for r in got] == [(n, b"k%d" % (n % 2)) for n in range(6)]
    assert [r.timestamp for r in got][:2] == ([-1, -1] if version < 2 else [NOW_MS, NOW_MS + 1])
    assert {r.headers for r in got} == {()}


class TestLimits:
    def test_before_version_3_each_partition_comes_cut_by_its_own_limit(
        self, client: RawClient, topic_name: str
    ) -> None:
        topic = as_sent(client, topic_name)
        for partition in (0, 1):
            client.produce(topic, old(1, b"x" * 500), partition, version=2)
        request = fetch_request({(topic, 0): 0, (topic, 1): 0}, 100)
        assert [len(t.partitions[0].records) for t in client.ask(request, 2).responses] == [100, 100]
        assert [len(t.partitions[0].records) for t in client.ask(request, 3).responses] == [
            len(old(1, b"x" * 500)), 0,
        ]  # fmt: skip

    def test_version_3_has_a_limit_for_all_partitions(self, client: RawClient, topic_name: str) -> None:
        topic = as_sent(client, topic_name)
        size = len(old(1, b"x" * 500))
        for partition in (0, 1):
            client.produce(topic, old(1, b"x" * 500) + old(1, b"x" * 500), partition, version=2)
        request = fetch_request({(topic, 0): 0, (topic, 1): 0}, max_bytes=3 * size + 10)
        assert [len(t.partitions[0].records) for t in client.ask(request, 3).responses] == [
            2 * size, size,
        ]  # fmt: skip

    @pytest.mark.parametrize("version", [0, 2])
    def test_the_brokers_own_limit_cuts_no_entry(self, version: int) -> None:
        with start_broker({"fetch.max.bytes": 1024}) as broker, RawClient(broker.port) as client:
            client.create_topic("t", 2)
            for partition in (0, 1):
                client.produce("t", old(0, b"x" * 900), partition, version=0)
            request = fetch_request({("t", 0): 0, ("t", 1): 0}, 50_000)
            assert [len(decode(t.partitions[0])) for t in client.ask(request, version).responses] == [1, 0]

    @pytest.mark.long("megabytes are converted")
    def test_a_batch_that_outgrows_an_entry_in_the_clients_format_is_read_to_its_end(
        self, client: RawClient, topic: str
    ) -> None:
        # 33.2 MB as it lies, and more than the 32 MiB that an entry may hold with the overhead of v0 or v1.
        count = 33_000
        stored = encode_batch([NewRecord(bytes(1000), None, NOW_MS)] * count, codec=Codec.GZIP)
        client.produce(topic, stored)
        client.produce(topic, batch(b"after it"))
        found = read(client, topic, 0)
        assert (len(found), found[-1]) == (count + 1, b"after it")
        first = next(frames(client.fetch(topic, 0, version=0).records))
        assert first.next_offset < count  # so it was one batch, and more than one set is made of it
        assert {len(value or b"") for value in found[:-1]} == {1000}


class TestErrors:
    @pytest.mark.parametrize("version", OLD)
    def test_zstd_and_unknown_places_are_refused(self, client: RawClient, topic: str, version: int) -> None:
        client.produce(topic, batch(b"a"))
        client.produce(topic, batch(b"b", codec=Codec.ZSTD))
        assert [r.value for r in decode(client.fetch(topic, 0, version=version))] == [b"a"]
        assert client.fetch(topic, 1, version=version).error_code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
        assert client.fetch(topic, 3, version=version).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert client.fetch(topic, 0, 9, version=version).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


class TestWaiting:
    @pytest.mark.parametrize("version", OLD)
    def test_a_parked_fetch_is_woken_by_an_append(
        self, running_broker: EmbeddedBroker, client: RawClient, topic: str, version: int
    ) -> None:
        with RawClient(running_broker.port) as consumer:
            consumer.send(fetch_request({(topic, 0): 0}, max_wait_ms=FOR_EVER_MS), version)
            client.produce(topic, batch(b"wake up"))
            data = consumer.receive().responses[0].partitions[0]
            assert ([r.value for r in decode(data)], max(magics(data))) == ([b"wake up"], int(version >= 2))

    def test_what_is_cut_before_a_newer_format_is_given_at_once(
        self, client: RawClient, topic_name: str
    ) -> None:
        topic = as_sent(client, topic_name)
        client.produce(topic, old(0, b"a"), version=0)
        client.produce(topic, batch(b"b"))
        request = fetch_request({(topic, 0): 0}, max_wait_ms=FOR_EVER_MS, min_bytes=1 << 20)
        data = client.ask(request, 2).responses[0].partitions[0]
        assert [r.value for r in decode(data)] == [b"a"]

    @pytest.mark.long("megabytes are converted")
    def test_others_are_served_while_one_has_much_converted(
        self, running_broker: EmbeddedBroker, client: RawClient, topic: str
    ) -> None:
        rows = [NewRecord(b"x" * 100, b"k", NOW_MS)] * 5000
        for _ in range(20):
            client.produce(topic, bytes(encode_batch(rows)))

        def attempt() -> int:
            """How often others were answered before all of it was."""
            with RawClient(running_broker.port) as consumer:
                request = fetch_request({(topic, 0): 0}, 1 << 30, max_bytes=1 << 30)
                consumer.send(request, 2)
                others = 0
                while not select.select([consumer.socket], [], [], 0)[0]:
                    client.fetch(topic, 0, max_bytes=1)
                    others += 1
                assert decode(consumer.receive().responses[0].partitions[0])
            return others

        # Without turns one or two; once more where this process did not run meanwhile.
        until(lambda: attempt() >= 4)


def test_a_request_without_an_array_of_topics_is_answered(client: RawClient) -> None:
    assert client.ask(FetchRequest(topics=()), 0).responses == ()
    empty = FetchTopic(topic="never-made", partitions=(FetchPartition(partition=0, partition_max_bytes=9),))
    assert client.ask(FetchRequest(topics=(empty,)), 1).responses[0].partitions[0].error_code == 3
