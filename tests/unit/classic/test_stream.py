"""What a stream gives out, when, and what counts as dealt with."""

from __future__ import annotations

import threading
import time

import pytest

from pyspark_kafkalog.classic.consumer.stream import (
    ConsumerTimeout,
    MessageSet,
    MessageStream,
    OwnedPartition,
    V07Sets,
)
from pyspark_kafkalog.errors import CorruptMessage, InvalidRequest
from pyspark_kafkalog.formats.compression import Codec
from pyspark_kafkalog.formats.v07 import encode_set
from pyspark_kafkalog.types import TopicPartition
from pyspark_kafkalog.zookeeper.paths import PartitionKey
from tests.support.manual_clock import ManualClock
from tests.support.protocol.wire07 import zipped
from tests.support.until import until

KEY = PartitionKey("t", "1-0", 0)


def messages(data: bytes, offset: int = 0) -> MessageSet:
    return MessageSet(TopicPartition("t", 0), offset, memoryview(data), V07Sets(), max_bytes=1 << 20)


def stream_with(*chunks: MessageSet, timeout_ms: int = 0) -> tuple[MessageStream, OwnedPartition]:
    stream = MessageStream(0, timeout_ms=timeout_ms)
    partition = OwnedPartition(KEY, 1, stream, 0)
    for chunk in chunks:
        stream.put(partition, chunk)
    return stream, partition


def test_a_message_is_dealt_with_when_the_next_one_is_asked_for() -> None:
    stream, partition = stream_with(messages(encode_set([b"a", b"b"])))
    assert next(stream)[0] == b"a"
    assert (partition.done, partition.given) == (0, 11)
    assert next(stream)[0] == b"b"
    assert (partition.done, partition.given) == (11, 22)
    with pytest.raises(ConsumerTimeout):
        next(stream)
    assert partition.done == 22


def test_the_reader_may_say_so_itself_and_nobody_else_for_it() -> None:
    stream, partition = stream_with(messages(encode_set([b"a"])))
    next(stream)
    other = threading.Thread(target=stream.mark_processed)
    other.start()
    other.join()
    assert partition.done == 0
    stream.mark_processed()
    assert partition.done == 11


def test_a_compressed_set_is_dealt_with_as_a_whole() -> None:
    data = encode_set([b"a", b"b"], codec=Codec.GZIP)
    stream, partition = stream_with(messages(data))
    found = [next(stream)[1].next_offset for _ in range(2)]
    assert found == [0, len(data)]
    assert partition.done == 0


def test_a_set_without_messages_is_passed() -> None:
    empty = zipped()
    stream, partition = stream_with(messages(empty), messages(encode_set([b"a"]), len(empty)))
    assert next(stream)[1].offset == len(empty)
    assert partition.done == len(empty)


def test_nothing_comes_of_a_partition_that_was_taken_away() -> None:
    stream, partition = stream_with(messages(encode_set([b"a", b"b"])), messages(encode_set([b"c"]), 22))
    next(stream)
    stream.revoke(partition)
    stream.put(partition, messages(encode_set([b"d"]), 33))
    with pytest.raises(ConsumerTimeout):
        next(stream)


def test_a_reader_is_given_time_to_finish_before_its_partition_goes() -> None:
    stream, partition = stream_with(messages(encode_set([b"a", b"b"])), timeout_ms=0)
    got, done = threading.Event(), threading.Event()

    def read() -> None:
        next(stream)
        got.set()
        until(lambda: partition.revoked)
        time.sleep(0.05)  # long enough for who does not wait
        with pytest.raises(ConsumerTimeout):
            next(stream)
        done.set()

    reader = threading.Thread(target=read)
    reader.start()
    assert got.wait(60)
    stream.revoke(partition, 60)
    assert partition.done == 11, "what it had in hand need not come again"
    reader.join()
    assert done.is_set()


def test_what_is_wrong_comes_again_until_the_partition_goes() -> None:
    data = bytearray(encode_set([b"a", b"b"]))
    data[-1] ^= 1
    stream, partition = stream_with(messages(bytes(data)))
    other = OwnedPartition(PartitionKey("t", "1-1", 1), 1, stream, 0)
    stream.put(other, messages(encode_set([b"c"])))
    assert next(stream)[0] == b"a"
    for _ in range(2):
        with pytest.raises(CorruptMessage):
            next(stream)
    assert partition.done == 11
    stream.revoke(partition)
    assert next(stream)[0] == b"c"


def test_an_error_and_a_new_beginning_stand_in_the_queue_in_their_turn() -> None:
    stream, partition = stream_with(messages(encode_set([b"a"])))
    stream.put(partition, 500)
    stream.put(partition, messages(encode_set([b"b"]), 500))
    stream.put(partition, InvalidRequest("no more"))
    assert [next(stream)[1].offset for _ in range(2)] == [0, 500]
    with pytest.raises(InvalidRequest, match="no more"):
        next(stream)


def test_nothing_is_given_out_while_it_may_not_be() -> None:
    allowed: list[bool] = []
    stream = MessageStream(0, timeout_ms=0, may_give=lambda: bool(allowed))
    stream.put(OwnedPartition(KEY, 1, stream, 0), messages(encode_set([b"a"])))
    with pytest.raises(ConsumerTimeout):
        next(stream)
    allowed.append(True)
    assert next(stream)[0] == b"a"


def test_a_waiting_reader_is_woken_by_messages_and_by_the_end() -> None:
    stream = MessageStream(0)
    partition, found = OwnedPartition(KEY, 1, stream, 0), []
    reader = threading.Thread(target=lambda: found.extend(message for message, _ in stream))
    reader.start()
    stream.put(partition, messages(encode_set([b"a"])))
    until(lambda: found)
    stream.close()
    reader.join(60)
    assert not reader.is_alive()
    assert found == [b"a"]


def test_there_is_room_for_so_many_chunks_and_taking_one_asks_for_more() -> None:
    stream = MessageStream(0, timeout_ms=0, max_chunks=1, clock=ManualClock())
    asked: list[bool] = []
    stream.wanted = lambda: asked.append(stream.room())
    assert stream.room()
    stream.put(OwnedPartition(KEY, 1, stream, 0), messages(encode_set([b"a"])))
    assert not stream.room()
    next(stream)
    with pytest.raises(ConsumerTimeout):
        next(stream)
    assert asked == [True]


def test_a_message_tells_how_its_entry_was_compressed() -> None:
    stream, _ = stream_with(messages(encode_set([b"a"]) + encode_set([b"b", b"c"], codec=Codec.GZIP)))
    assert [next(stream)[1].codec for _ in range(3)] == [Codec.NONE, Codec.GZIP, Codec.GZIP]
