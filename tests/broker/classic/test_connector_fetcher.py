"""The fetcher of one broker: trouble with a partition or with the broker, and what becomes of the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from pyspark_kafkalog.classic.consumer.broker_fetcher import BrokerFetcher
from pyspark_kafkalog.classic.consumer.stream import MessageStream, OwnedPartition
from pyspark_kafkalog.config.classic_config import ConnectorConfig
from pyspark_kafkalog.errors import (
    ConnectionLost,
    CorruptMessage,
    ErrorCode,
    MessageTooLarge,
    OffsetOutOfRange,
)
from pyspark_kafkalog.formats.v07 import encode_set
from pyspark_kafkalog.protocol.v07 import FetchRequest, FetchResponse, MultiFetchRequest, OffsetsRequest
from pyspark_kafkalog.zookeeper.paths import PartitionKey
from tests.support.client.broker07 import Broker07
from tests.support.client.scripted_server import Close
from tests.support.until import until

Make = Callable[..., BrokerFetcher]


@pytest.fixture
def broker() -> Iterator[Broker07]:
    with Broker07() as broker:
        yield broker


@pytest.fixture
def stored() -> dict[str, int]:
    """Where partitions were begun."""
    return {}


@pytest.fixture
def make(broker: Broker07, stored: dict[str, int]) -> Iterator[Make]:
    made: list[BrokerFetcher] = []

    def one(**properties: object) -> BrokerFetcher:
        settings = {"fetcher_backoff_ms": 10, "zookeeper_connect": "nobody:1", **properties}
        config = ConnectorConfig(**settings)  # type: ignore[arg-type]

        def store(partition: OwnedPartition, offset: int) -> None:
            stored[partition.key.name] = offset

        made.append(BrokerFetcher(("127.0.0.1", broker.port), config, store))
        return made[-1].start()

    yield one
    for fetcher in made:
        fetcher.stop()


def owned(partition: int, offset: int | None = 0, **properties: int) -> OwnedPartition:
    stream = MessageStream(0, timeout_ms=60_000, **properties)
    return OwnedPartition(PartitionKey("t", f"0-{partition}", partition), 0, stream, offset)


def test_all_partitions_are_asked_for_at_once_and_read_on_as_they_grow(broker: Broker07, make: Make) -> None:
    broker.append("t", 0, encode_set([b"a", b"b"]))
    broker.append("t", 1, encode_set([b"c"]))
    one, two = owned(0), owned(1)
    fetcher = make()
    fetcher.add(one)
    fetcher.add(two)
    assert [next(one.stream)[0], next(one.stream)[0], next(two.stream)[0]] == [b"a", b"b", b"c"]
    broker.append("t", 0, encode_set([b"d"]))
    assert next(one.stream)[1].offset == 22
    until(lambda: broker.received(MultiFetchRequest))


@pytest.mark.parametrize(("reset", "begin"), [("smallest", 0), ("largest", 22)])
def test_a_partition_without_an_offset_begins_as_configured_and_that_is_kept(
    broker: Broker07, make: Make, stored: dict[str, int], reset: str, begin: int
) -> None:
    broker.append("t", 0, encode_set([b"a", b"b"]))
    partition = owned(0, None)
    make(auto_offset_reset=reset).add(partition)
    until(lambda: partition.fetch_offset is not None)
    broker.append("t", 0, encode_set([b"c"]))
    assert next(partition.stream)[1].offset == begin
    assert stored == {"0-0": begin}


def test_a_partition_that_the_broker_does_not_have_does_not_delay_the_others(
    broker: Broker07, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    broker.append("t", 1, encode_set([b"a"]))
    unknown, known = owned(7, None), owned(1, None)
    fetcher = make()
    fetcher.add(unknown)
    fetcher.add(known)
    assert next(known.stream)[0] == b"a"
    assert "the first offset of t/0-7 is not known yet" in caplog.text


def test_an_error_that_passes_is_waited_out(
    broker: Broker07, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    broker.append("t", 0, encode_set([b"a"]))
    broker.script(FetchRequest, FetchResponse(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), Close(), Close())
    partition = owned(0)
    make().add(partition)
    assert next(partition.stream)[0] == b"a"
    assert "fetching t/0-0 failed, retrying: " in caplog.text


def test_an_offset_beyond_the_log_is_an_error_of_its_stream_where_no_reset_is_wanted(
    broker: Broker07, make: Make
) -> None:
    broker.append("t", 0, encode_set([b"a"]))
    broker.append("t", 1, encode_set([b"b"]))
    beyond, fine = owned(0, 500), owned(1)
    fetcher = make(auto_offset_reset="none")
    fetcher.add(beyond)
    fetcher.add(fine)
    with pytest.raises(OffsetOutOfRange, match=r"offset 500 is outside \[0, 11\]"):
        next(beyond.stream)
    assert next(fine.stream)[0] == b"b"


def test_what_cannot_be_read_is_reported_and_not_passed_over(broker: Broker07, make: Make) -> None:
    broker.append("t", 0, b"\xff" * 40)
    broker.append("t", 1, encode_set([b"x" * 200]))
    corrupt, large = owned(0), owned(1)
    fetcher = make(max_message_size=100, fetch_size=50)
    fetcher.add(corrupt)
    fetcher.add(large)
    with pytest.raises((CorruptMessage, MessageTooLarge)):
        next(corrupt.stream)
    with pytest.raises(MessageTooLarge):
        next(large.stream)
    assert (corrupt.fetch_offset, large.fetch_offset) == (0, 0)


def test_a_stream_that_is_full_is_left_alone_and_the_others_are_not(broker: Broker07, make: Make) -> None:
    for n in range(20):
        broker.append("t", 0, encode_set([b"%02d" % n]))
        broker.append("t", 1, encode_set([b"%02d" % n]))
    full, read = owned(0, max_chunks=2), owned(1, max_chunks=2)
    fetcher = make(fetch_size=12)
    for one in (full, read):
        one.stream.wanted = fetcher.wake
        fetcher.add(one)
    assert [next(read.stream)[0] for _ in range(20)] == [b"%02d" % n for n in range(20)]
    assert full.fetch_offset == 24
    assert [next(full.stream)[0] for _ in range(20)] == [b"%02d" % n for n in range(20)]


def test_nothing_is_put_in_nor_stored_for_a_partition_that_was_removed(
    broker: Broker07, make: Make, stored: dict[str, int]
) -> None:
    partition = owned(0, None)
    fetcher = make()
    broker.script(OffsetsRequest, lambda _: fetcher.remove(partition) or Close())
    fetcher.add(partition)
    until(lambda: fetcher.idle)
    broker.append("t", 0, encode_set([b"a"]))
    fetcher.stop()
    assert stored == {}
    assert partition.fetch_offset is None


def test_a_store_that_fails_is_asked_again(broker: Broker07, caplog: pytest.LogCaptureFixture) -> None:
    failures = [ConnectionLost("no ZooKeeper"), None]

    def store(partition: OwnedPartition, offset: int) -> None:
        if (error := failures.pop(0)) is not None:
            raise error

    broker.append("t", 0, encode_set([b"a"]))
    config = ConnectorConfig(zookeeper_connect="nobody:1", fetcher_backoff_ms=10)
    fetcher = BrokerFetcher(("127.0.0.1", broker.port), config, store).start()
    partition = owned(0, None)
    fetcher.add(partition)
    assert next(partition.stream)[0] == b"a"
    assert "no ZooKeeper" in caplog.text
    fetcher.stop()
