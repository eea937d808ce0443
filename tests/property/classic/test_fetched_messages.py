"""Reading a log of 0.7 by fetches of any size: nothing is missed, and nothing comes twice but a cut set."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pyspark_kafkalog.classic.consumer.stream import MessageSet, V07Sets
from pyspark_kafkalog.errors import KafkaError
from pyspark_kafkalog.formats.compression import Codec
from pyspark_kafkalog.formats.v07 import encode_set
from pyspark_kafkalog.types import TopicPartition

TP = TopicPartition("t", 0)
LIMIT = 1 << 20

sets = st.builds(
    lambda payloads, codec, magic: (payloads, encode_set(payloads, codec=codec, magic=magic)),
    st.lists(st.binary(max_size=30), max_size=5),
    st.sampled_from([Codec.NONE, Codec.GZIP, Codec.SNAPPY]),
    st.sampled_from([0, 1]),
)


def message_set(data: bytes, offset: int) -> MessageSet:
    return MessageSet(TP, offset, memoryview(data), V07Sets(), max_bytes=LIMIT)


@given(st.lists(sets, max_size=8), st.data())
def test_fetches_of_any_size_give_every_message_once(
    written: list[tuple[list[bytes], bytes]], data: st.DataObject
) -> None:
    log = b"".join(encoded for _, encoded in written)
    found: list[bytes] = []
    position = 0
    while position < len(log):
        size = data.draw(st.integers(1, len(log)))
        messages = message_set(log[position : position + size], position)
        following = messages.next_offset
        if following == position:
            # As the consumer does it: nothing whole came, so more is asked for.
            needed = V07Sets().first_size(memoryview(log)[position:])
            assert needed is not None
            assert needed > size
            messages = message_set(log[position : position + needed], position)
            following = messages.next_offset
        found += [bytes(payload) for payload, _ in messages]
        assert [record.value for record in messages.records()] == [bytes(payload) for payload, _ in messages]
        position = following
    assert found == [payload for payloads, _ in written for payload in payloads]
    assert position == len(log)


@given(st.lists(sets, max_size=8), st.data())
def test_who_starts_again_at_an_offset_that_was_given_out_misses_nothing(
    written: list[tuple[list[bytes], bytes]], data: st.DataObject
) -> None:
    log = b"".join(encoded for _, encoded in written)
    messages = [(bytes(payload), offset) for payload, offset in message_set(log, 0)]
    if not messages:
        return
    stop = data.draw(st.integers(0, len(messages) - 1))
    offset = messages[stop][1]
    again = [bytes(payload) for payload, _ in message_set(log[offset:], offset)]
    rest = [payload for payload, _ in messages[stop + 1 :]]
    assert again[len(again) - len(rest) :] == rest
    assert offset <= len(log)


@given(st.binary(max_size=100), st.integers(0, 2**40))
def test_garbage_raises_only_errors_of_ours(data: bytes, offset: int) -> None:
    messages = message_set(data, offset)
    for read in (lambda: list(messages), lambda: list(messages.records()), lambda: messages.next_offset):
        try:
            read()
        except KafkaError:
            pass
