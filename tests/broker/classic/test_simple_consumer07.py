"""The consumer of one broker on 0.7's wire: what it gives out, how its buffer grows, trouble."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from pyspark_kafkalog.classic.consumer.simple_consumer import SimpleConsumer
from pyspark_kafkalog.classic.consumer.stream import MessageSet
from pyspark_kafkalog.errors import (
    ConnectionLost,
    CorruptMessage,
    ErrorCode,
    FrameTooLarge,
    InvalidConfig,
    InvalidRequest,
    MessageTooLarge,
    OffsetOutOfRange,
    ServerError,
    UnknownTopicOrPartition,
    UnsupportedVersion,
)
from pyspark_kafkalog.formats.compression import Codec
from pyspark_kafkalog.formats.v07 import encode_set
from pyspark_kafkalog.protocol.v07 import FetchRequest, FetchResponse, MultiFetchRequest, OffsetsRequest
from pyspark_kafkalog.types import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, TopicPartition
from tests.support.client.broker07 import Broker07
from tests.support.client.scripted_server import Close, Raw, Silence
from tests.support.until import until


@pytest.fixture
def broker() -> Iterator[Broker07]:
    with Broker07() as broker:
        yield broker


@pytest.fixture
def consumer(broker: Broker07) -> Iterator[SimpleConsumer]:
    with consumer_of(broker) as consumer:
        yield consumer


def consumer_of(broker: Broker07, **properties: Any) -> SimpleConsumer:
    named = {name.replace("_", "."): value for name, value in properties.items()}
    return SimpleConsumer("127.0.0.1", broker.port, named)


def listed(messages: MessageSet) -> list[tuple[bytes, int]]:
    return [(bytes(payload), offset) for payload, offset in messages]


def test_messages_come_with_the_offset_after_them(broker: Broker07, consumer: SimpleConsumer) -> None:
    broker.append("t", 0, encode_set([b"zero"], magic=0) + encode_set([b"one", b""]))
    found = consumer.fetch("t", 0, 0)
    assert listed(found) == [(b"zero", 13), (b"one", 26), (b"", 36)]
    assert listed(found) == [(b"zero", 13), (b"one", 26), (b"", 36)]
    assert found.next_offset == 36
    assert listed(consumer.fetch("t", 0, 13)) == [(b"one", 26), (b"", 36)]
    assert listed(consumer.fetch("t", 0, 36)) == []


def test_inner_messages_have_the_offsets_that_the_first_consumers_gave_out(
    broker: Broker07, consumer: SimpleConsumer
) -> None:
    packed = encode_set([b"g1", b"g2", b"g3"], codec=Codec.GZIP)
    broker.append("t", 0, packed + encode_set([b"after"]))
    end = len(packed)
    assert listed(consumer.fetch("t", 0, 0)) == [
        (b"g1", 0), (b"g2", 0), (b"g3", end), (b"after", end + 15),
    ]  # fmt: skip
    records = list(consumer.fetch("t", 0, 0).records())
    assert [(r.offset, r.next_offset, r.value) for r in records] == [
        (0, 0, b"g1"), (0, 0, b"g2"), (0, end, b"g3"), (end, end + 15, b"after"),
    ]  # fmt: skip


def test_a_set_without_messages_is_passed_by_its_next_offset(
    broker: Broker07, consumer: SimpleConsumer
) -> None:
    end = broker.append("t", 0, encode_set([], codec=Codec.GZIP))
    found = consumer.fetch("t", 0, 0)
    assert listed(found) == []
    assert found.next_offset == end > 0


def test_what_is_cut_short_is_left_for_the_next_fetch(broker: Broker07, consumer: SimpleConsumer) -> None:
    broker.append("t", 0, encode_set([b"one", b"two"]))
    for size in (13, 14, 17, 25):
        found = consumer.fetch("t", 0, 0, size)
        assert listed(found) == [(b"one", 13)]
        assert found.next_offset == 13


def test_the_buffer_doubles_until_a_message_fits(broker: Broker07, consumer: SimpleConsumer) -> None:
    broker.append("t", 0, encode_set([b"x" * 1000, b"next"]))
    assert listed(consumer.fetch("t", 0, 0, 3)) == [(b"x" * 1000, 1010), (b"next", 1024)]
    asked = [request.max_bytes for request in broker.received(FetchRequest)]
    assert asked == [3 << n for n in range(10)]
    assert consumer.fetch("t", 0, 0, 0).next_offset == 0


def test_a_message_above_the_limit_is_an_error_that_names_it(broker: Broker07) -> None:
    broker.append("t", 0, encode_set([b"x" * 1000]) + encode_set([b"y" * 1001]))
    with consumer_of(broker, max_message_size=1000) as consumer:
        assert len(listed(consumer.fetch("t", 0, 0, 100))) == 1
        with pytest.raises(
            MessageTooLarge, match=r"t-0 at offset 1010: an entry of 1011 bytes.*max.message.size is 1000"
        ):
            consumer.fetch("t", 0, 1010, 100)
        assert len(listed(consumer.fetch("t", 0, 1010, 2000))) == 1, "who asks for more may have it"


def test_an_offset_where_no_message_begins_is_an_error_and_no_endless_loop(
    broker: Broker07, consumer: SimpleConsumer
) -> None:
    broker.append("t", 0, encode_set([b"one", b"two"]))
    with pytest.raises(MessageTooLarge, match="t-0 at offset 3: an entry of 151060606 bytes, or no entry"):
        consumer.fetch("t", 0, 3)
    with pytest.raises(CorruptMessage, match="t-0 at offset 24: the log ends after 2 bytes"):
        consumer.fetch("t", 0, 24)
    broker.append("t", 1, bytes.fromhex("00000000 00"))
    with pytest.raises(CorruptMessage, match="impossible message length 0"):
        listed(consumer.fetch("t", 1, 0))


def test_an_offset_outside_the_log_is_an_error_with_its_range(
    broker: Broker07, consumer: SimpleConsumer
) -> None:
    end = broker.append("t", 0, encode_set([b"one"]))
    for offset in (-1, end + 1):
        with pytest.raises(OffsetOutOfRange) as caught:
            consumer.fetch("t", 0, offset)
        assert (caught.value.offset, caught.value.start, caught.value.end) == (offset, 0, end)
        assert broker.address in str(caught.value)


def test_the_brokers_errors_are_ours(broker: Broker07, consumer: SimpleConsumer) -> None:
    with pytest.raises(UnknownTopicOrPartition, match=f"{broker.address}: t-9 at offset 0"):
        consumer.fetch("t", 9, 0)
    broker.script(FetchRequest, FetchResponse(ErrorCode.UNKNOWN_SERVER_ERROR))
    with pytest.raises(ServerError, match="t-0 at offset 0: UNKNOWN_SERVER_ERROR"):
        consumer.fetch("t", 0, 0)
    with pytest.raises(ServerError, match="INVALID_FETCH_SIZE: t-0: a fetch of -1 bytes"):
        consumer.fetch("t", 0, 0, -1)
    assert listed(consumer.fetch("never-heard-of", 0, 50)) == []
    assert broker.connection_count == 1


def test_one_bad_partition_does_not_fail_the_others(broker: Broker07, consumer: SimpleConsumer) -> None:
    broker.append("t", 0, encode_set([b"one"]))
    broker.append("t", 1, encode_set([b"x" * 500]))
    sets = consumer.multifetch(
        [FetchRequest("t", 0, 0, 100), FetchRequest("t", 9, 0, 100), FetchRequest("t", 0, 99, 100),
         FetchRequest("t", 1, 0, 100), FetchRequest("t", 0, 13, 100)]
    )  # fmt: skip
    assert len(broker.received(MultiFetchRequest)) == 1
    assert listed(sets[0]) == [(b"one", 13)]
    assert isinstance(sets[1].error, UnknownTopicOrPartition)
    with pytest.raises(UnknownTopicOrPartition, match="t-9"):
        iter(sets[1])
    with pytest.raises(UnknownTopicOrPartition, match="t-9"):
        sets[1].records()
    assert isinstance(sets[2].error, OffsetOutOfRange)
    assert listed(sets[3]) == [(b"x" * 500, 510)], "its buffer grew by itself"
    assert listed(sets[4]) == []
    assert [found.tp.partition for found in sets] == [0, 9, 0, 1, 0]
    assert consumer.multifetch([]) == []


def test_offsets_before_are_the_segments_the_largest_first() -> None:
    with Broker07(segment_ends=(440, 880)) as broker, consumer_of(broker) as consumer:
        broker.append("t", 0, encode_set([b"x" * 30] * 30))
        assert consumer.get_offsets_before("t", 0, LATEST_TIMESTAMP, 99) == [1200, 880, 440, 0]
        assert consumer.get_offsets_before("t", 0, LATEST_TIMESTAMP) == [1200]
        assert consumer.get_offsets_before("t", 0, EARLIEST_TIMESTAMP, 9) == [0]
        assert consumer.get_offsets_before("t", 0, 1, 9) == []
        with pytest.raises(InvalidRequest, match="t-0: max_offsets=-1 is not allowed"):
            consumer.get_offsets_before("t", 0, LATEST_TIMESTAMP, -1)
        read, position = [], 0
        while messages := listed(consumer.fetch("t", 0, position)):
            read.append(len(messages))
            position = messages[-1][1]
        assert (read, position) == ([11, 11, 8], 1200), "a fetch ends where a segment does"


def test_a_partition_that_is_not_there_is_reported_by_a_closed_connection(
    broker: Broker07, consumer: SimpleConsumer
) -> None:
    with pytest.raises(ConnectionLost, match=r"also does this for a partition that it does not have.*t-9"):
        consumer.get_offsets_before("t", 9, LATEST_TIMESTAMP)
    assert len(broker.received(OffsetsRequest)) == 2, "asked once more over a new connection"


def test_an_answer_that_does_not_come_is_no_partition_that_is_missing(broker: Broker07) -> None:
    broker.append("t", 0, encode_set([b"one"]))
    broker.script(OffsetsRequest, Silence(), Silence())
    with (
        consumer_of(broker, socket_timeout_ms=1000) as consumer,
        pytest.raises(ConnectionLost, match="no answer in time") as e,
    ):
        consumer.get_offsets_before("t", 0, LATEST_TIMESTAMP)
    assert "does not have" not in str(e.value)


def test_a_connection_lost_between_the_parts_of_a_call_fails_the_call(
    broker: Broker07, consumer: SimpleConsumer
) -> None:
    broker.append("t", 0, encode_set([b"one"]))
    broker.script(OffsetsRequest, Close(), Close())
    with pytest.raises(ConnectionLost, match=broker.address):
        consumer.multifetch([FetchRequest("t", 0, 99, 100), FetchRequest("t", 0, 0, 100)])
    assert listed(consumer.fetch("t", 0, 0)) == [(b"one", 13)]


def test_a_connection_that_broke_is_recreated(broker: Broker07, consumer: SimpleConsumer) -> None:
    broker.append("t", 0, encode_set([b"one"]))
    consumer.fetch("t", 0, 0)
    broker.cut_connections()
    assert listed(consumer.fetch("t", 0, 0)) == [(b"one", 13)]
    assert broker.connection_count == 2
    broker.script(FetchRequest, Close(), Close())
    with pytest.raises(ConnectionLost, match=broker.address):
        consumer.fetch("t", 0, 0)
    assert listed(consumer.fetch("t", 0, 0)) == [(b"one", 13)]


def test_one_call_has_one_time_limit(broker: Broker07) -> None:
    broker.script(FetchRequest, Silence(), Silence())
    with (
        consumer_of(broker, socket_timeout_ms=1000) as consumer,
        pytest.raises(ConnectionLost, match=f"{broker.address}: fetching: timed out after 1 attempt"),
    ):
        consumer.fetch("t", 0, 0)
    until(lambda: broker.received(FetchRequest))
    assert len(broker.received(FetchRequest)) == 1


def test_nonsense_ends_the_connection_but_not_the_consumer(
    broker: Broker07, consumer: SimpleConsumer
) -> None:
    broker.script(FetchRequest, Raw(bytes.fromhex("fffffffd")), Raw(bytes.fromhex("00000001 00")))
    with pytest.raises(FrameTooLarge, match=broker.address):
        consumer.fetch("t", 0, 0)
    with pytest.raises(InvalidRequest, match=broker.address):
        consumer.fetch("t", 0, 0)
    assert listed(consumer.fetch("t", 0, 0)) == []
    assert broker.connection_count == 3


def test_several_threads_may_share_a_consumer(broker: Broker07, consumer: SimpleConsumer) -> None:
    offsets = [broker.append("t", 0, encode_set([b"%d" % n])) for n in range(40)]
    starts = [0, *offsets[:-1]]
    wrong: list[int] = []

    def read() -> None:
        for n, start in enumerate(starts):
            payload, following = listed(consumer.fetch("t", 0, start))[0]
            if (payload, following) != (b"%d" % n, offsets[n]):
                wrong.append(n)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert broker.connection_count == 1


def test_offsets_are_not_kept_by_brokers_of_that_time(consumer: SimpleConsumer) -> None:
    with pytest.raises(UnsupportedVersion, match=r"protocol=0.7 store no offsets; ZooKeeper does"):
        consumer.commit_offsets("g", {TopicPartition("t", 0): 1})
    with pytest.raises(UnsupportedVersion, match=r"protocol=0.7 store no offsets"):
        consumer.fetch_offsets("g")


def test_a_wire_that_there_is_not_is_refused() -> None:
    with pytest.raises(InvalidConfig, match=r"consumer: protocol=0.6 is not allowed; .*0.7, 0.8"):
        SimpleConsumer("127.0.0.1", 1, {"protocol": "0.6"})
