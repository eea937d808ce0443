"""0.7's messages: the bytes of its clients and broker, and what is refused."""

from __future__ import annotations

import gzip

import pytest

from pyspark_kafkalog.errors import CorruptMessage, InvalidRecord, MessageTooLarge
from pyspark_kafkalog.formats.compression import Codec
from pyspark_kafkalog.formats.v07 import (
    CheckedSet,
    V07Format,
    check_produced,
    encode_message,
    encode_set,
    entries,
    messages,
)
from tests.support.formats.captures_07 import MAX_BYTES, PRODUCED, SEGMENTS, captured, compressed

FORMAT = V07Format()


def texts(data: bytes, offset: int = 0) -> list[tuple[str, int]]:
    return [(str(m.payload, "utf-8"), m.offset) for m in messages(data, offset, max_bytes=MAX_BYTES)]


def refuse(data: bytes, why: str) -> None:
    """Both readers of ``data`` must raise `CorruptMessage` that says ``why``."""
    with pytest.raises(CorruptMessage, match=why):
        list(messages(data, 0, max_bytes=MAX_BYTES))
    with pytest.raises(CorruptMessage, match=why):
        check_produced(data, max_message_bytes=MAX_BYTES, max_bytes=MAX_BYTES)


# --- the broker's segments


@pytest.mark.parametrize("name", SEGMENTS)
def test_a_segment_of_the_broker_gives_the_messages_and_offsets_that_its_own_consumer_saw(name: str) -> None:
    expected = SEGMENTS[name]
    assert texts(captured(name)) == [(text, next_offset) for text, _, _, next_offset in expected]
    assert texts(captured(name), 7000) == [(text, 7000 + following) for text, _, _, following in expected]


@pytest.mark.parametrize("name", PRODUCED)
def test_a_produced_set_holds_what_the_client_sent(name: str) -> None:
    topic, _, magic, expected = PRODUCED[name]
    data = captured(name)[4 + 2 + 2 + len(topic) + 8 :]
    assert [text for text, _ in texts(data)] == expected
    assert {data[e.position + 4] for e in entries(data)} == {magic}
    assert check_produced(data, max_message_bytes=100, max_bytes=MAX_BYTES) == (len(data), len(expected))


# --- the clients' sets


@pytest.mark.parametrize(
    "name", [name for name, made in PRODUCED.items() if made[0] != "sn" and len(made[3]) < 3]
)
def test_what_we_write_is_what_the_clients_wrote(name: str) -> None:
    topic, _, magic, expected = PRODUCED[name]
    ours = encode_set([text.encode() for text in expected], magic=magic)
    assert captured(name)[4 + 2 + 2 + len(topic) + 8 :] == ours


def test_a_snappy_set_is_framed_as_the_jvm_frames_it() -> None:
    theirs = next(entries(captured("broker-0.7.2-segment-sn-0")))
    (ours,) = entries(encode_set([b"s1", b"s2", b"s3"], codec=Codec.SNAPPY))
    assert bytes(ours.payload[:16]) == bytes(theirs.payload[:16]) == b"\x82SNAPPY\0\0\0\0\1\0\0\0\1"
    assert ours.codec is theirs.codec is Codec.SNAPPY


def test_a_bare_snappy_block_is_read_too() -> None:
    import cramjam

    block = bytes(cramjam.snappy.compress_raw(encode_set([b"bare"])))
    assert texts(encode_message(block, codec=Codec.SNAPPY)) == [("bare", len(block) + 10)]


# --- the layout


@pytest.mark.parametrize(
    ("payload", "magic", "expected"),
    [
        (b"zero", 0, "00000009 00 abdef192 7a65726f"),
        (b"one", 1, "00000009 01 00 7a6c86f1 6f6e65"),
        (b"", 0, "00000005 00 00000000"),
        (b"", 1, "00000006 01 00 00000000"),
    ],
)
def test_a_message_is_written_as_the_real_broker_served_it(payload: bytes, magic: int, expected: str) -> None:
    assert encode_message(payload, magic=magic) == bytes.fromhex(expected)
    assert texts(bytes.fromhex(expected)) == [(payload.decode(), len(bytes.fromhex(expected)))]


def test_unknown_bits_of_the_attributes_are_ignored() -> None:
    assert texts(bytes.fromhex("00000009 01 84 c3273dca 7a7a7a")) == [("zzz", 13)]


def test_the_checksum_covers_the_payload_alone() -> None:
    (entry,) = entries(encode_message(b"payload", magic=0))
    (other,) = entries(encode_message(b"payload", codec=Codec.GZIP))
    assert entry.crc == other.crc


# --- sets within sets


def test_a_set_within_a_set_is_flattened_and_only_its_very_last_message_leads_on() -> None:
    inner = encode_set([b"b", b"c"], codec=Codec.SNAPPY)
    data = compressed(encode_set([b"a"], magic=0) + inner + encode_set([b"d"]), Codec.GZIP)
    assert texts(data, 50) == [("a", 50), ("b", 50), ("c", 50), ("d", 50 + len(data))]
    ends_in_a_set = compressed(encode_set([b"a"]) + inner, Codec.GZIP)
    assert texts(ends_in_a_set) == [("a", 0), ("b", 0), ("c", len(ends_in_a_set))]


def test_an_empty_set_within_an_entry_has_no_messages_and_is_read_past() -> None:
    empty = encode_set([], codec=Codec.GZIP)
    assert texts(empty + encode_set([b"after"])) == [("after", len(empty) + 15)]
    tail = compressed(encode_set([b"a"]) + empty, Codec.SNAPPY)
    assert texts(tail) == [("a", len(tail))]


def test_an_inner_entry_that_is_cut_is_left_out_but_not_if_it_is_the_first() -> None:
    inner = encode_set([b"whole", b"cut"])
    assert texts(compressed(inner[:-1], Codec.GZIP))[0][0] == "whole"
    assert len(texts(compressed(inner[:-1], Codec.GZIP))) == 1
    refuse(compressed(inner[:7], Codec.GZIP), "in the compressed entry at byte 0: the first of 7 bytes")


def test_sets_nested_deeper_than_python_recurses_are_read() -> None:
    data = encode_set([b"deep"])
    for _ in range(1500):
        data = compressed(data, Codec.SNAPPY)
    (found,) = messages(data, 0, max_bytes=1 << 26)
    assert (bytes(found.payload), found.offset) == (b"deep", len(data))


def test_all_levels_together_may_decompress_to_the_limit_and_no_further() -> None:
    inner = compressed(encode_set([bytes(1000)]), Codec.GZIP)
    data = compressed(inner + inner, Codec.GZIP)
    total = 2 * len(inner) + 2 * 1010
    assert len(list(messages(data, 0, max_bytes=total))) == 2
    with pytest.raises(MessageTooLarge, match="limit is 1009"):
        list(messages(data, 0, max_bytes=total - 1))


def test_the_limit_counts_for_each_entry_again() -> None:
    one = encode_set([bytes(1000)], codec=Codec.GZIP)
    assert len(list(messages(one * 5, 0, max_bytes=1010))) == 5


# --- what is refused


def test_a_bad_checksum_names_the_byte_and_both_sums() -> None:
    data = bytearray(encode_set([b"good", b"bad"]))
    data[-1] ^= 1
    refuse(bytes(data), r"bad checksum 0x[0-9a-f]{8} of the message at byte 14; stored is 0x[0-9a-f]{8}")


def test_a_bad_checksum_of_a_compressed_entry_is_found_before_it_is_opened() -> None:
    data = bytearray(encode_set([b"x"], codec=Codec.GZIP))
    data[-5] ^= 1
    refuse(bytes(data), "^bad checksum")


def test_a_bad_checksum_within_a_set() -> None:
    inner = bytearray(encode_set([b"x"]))
    inner[-1] ^= 1
    refuse(compressed(bytes(inner), Codec.GZIP), "in the compressed entry at byte 0: bad checksum")


@pytest.mark.parametrize("length", [-(1 << 31), -1, 0, 4])
def test_no_message_has_a_length_below_five(length: int) -> None:
    refuse(
        length.to_bytes(4, "big", signed=True) + bytes(40), f"impossible message length {length} at byte 0"
    )


def test_no_message_of_magic_1_has_a_length_of_five() -> None:
    refuse(bytes.fromhex("00000005 01 00 000000"), "impossible message length 5")


def test_magic_2_is_unknown() -> None:
    refuse(bytes.fromhex("00000006 02 00 00000000"), "unknown magic 2 at byte 0")


def test_codec_3_is_unknown() -> None:
    refuse(bytes.fromhex("00000006 01 03 00000000"), "unknown codec 3 at byte 0")


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY])
def test_a_payload_that_is_not_what_its_codec_writes(codec: Codec) -> None:
    refuse(encode_message(b"nothing of the kind", codec=codec), f"{codec.name.lower()} data is corrupt")
    refuse(encode_message(b"", codec=codec), "in the compressed entry at byte 0")


def test_a_frame_that_is_cut_short_is_not_verified() -> None:
    data = memoryview(encode_message(b"payload"))
    frame = FORMAT.frame_at(data, 0, 0)
    assert frame is not None
    FORMAT.verify(data, frame)
    with pytest.raises(CorruptMessage, match="cut short at byte 16"):
        FORMAT.verify(data[:-1], frame)


def test_six_bytes_are_enough_to_know_a_frame_and_fewer_are_none() -> None:
    data = memoryview(encode_message(b"payload"))
    assert [FORMAT.frame_at(data[:n], 0, 0) is None for n in range(8)] == [True] * 6 + [False] * 2


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD])
def test_later_codecs_cannot_be_written(codec: Codec) -> None:
    with pytest.raises(InvalidRecord, match=f"no codec {codec.name.lower()}"):
        encode_set([b"x"], codec=codec)
    with pytest.raises(InvalidRecord, match=f"magic 1 with codec {codec.name.lower()}"):
        encode_message(b"x", codec=codec)


def test_magic_0_has_no_place_for_a_codec_and_there_is_no_magic_2() -> None:
    with pytest.raises(InvalidRecord, match="magic 0 with codec gzip"):
        encode_message(gzip.compress(b""), magic=0, codec=Codec.GZIP)
    with pytest.raises(InvalidRecord, match="magic 2"):
        encode_message(b"x", magic=2)


# --- what a producer sends


def test_a_payload_of_the_largest_size_is_taken_and_one_byte_more_is_not() -> None:
    assert check_produced(encode_set([bytes(2000)]), max_message_bytes=2000, max_bytes=1) == (2010, 1)
    with pytest.raises(MessageTooLarge, match="message of 2001 bytes at byte 11; the limit is 2000"):
        check_produced(encode_set([b"a", bytes(2001)]), max_message_bytes=2000, max_bytes=1)


def test_the_size_of_a_compressed_payload_counts_as_it_lies_there() -> None:
    data = encode_set([bytes(5000)], codec=Codec.GZIP)
    assert check_produced(data, max_message_bytes=2000, max_bytes=MAX_BYTES) == (len(data), 1)


def test_a_message_too_large_is_reported_before_a_bad_checksum() -> None:
    data = bytearray(encode_set([b"bad", bytes(2001)]))
    data[12] ^= 1
    with pytest.raises(MessageTooLarge):
        check_produced(bytes(data), max_message_bytes=2000, max_bytes=1)


def test_all_entries_of_a_produce_together_may_decompress_to_the_limit() -> None:
    one = encode_set([bytes(1000)], codec=Codec.GZIP)
    assert check_produced(one * 5, max_message_bytes=2000, max_bytes=5050) == (5 * len(one), 5)
    with pytest.raises(MessageTooLarge, match="limit is 1009"):
        check_produced(one * 5, max_message_bytes=2000, max_bytes=5049)


def test_a_cut_tail_is_not_counted_and_a_cut_beginning_is_refused() -> None:
    data = encode_set([b"whole", b"tail"])
    for end in range(15, len(data)):
        assert check_produced(data[:end], max_message_bytes=99, max_bytes=1) == CheckedSet(15, 1)
    for end in range(1, 15):
        with pytest.raises(CorruptMessage, match=f"the first of {end} bytes of messages is incomplete"):
            check_produced(data[:end], max_message_bytes=99, max_bytes=1)


def test_an_empty_set_and_an_entry_with_nothing_in_it_hold_no_message() -> None:
    assert check_produced(b"", max_message_bytes=99, max_bytes=99) == (0, 0)
    empty = encode_set([], codec=Codec.GZIP)
    assert check_produced(empty, max_message_bytes=99, max_bytes=99) == (len(empty), 0)


def test_inner_messages_are_counted() -> None:
    nested = compressed(encode_set([b"a", b"b"]) + encode_set([b"c"], codec=Codec.GZIP), Codec.SNAPPY)
    data = nested + encode_set([b"d"], magic=0)
    assert check_produced(data, max_message_bytes=999, max_bytes=999) == (len(data), 4)
