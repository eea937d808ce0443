from __future__ import annotations

from uuid import UUID

import pytest
from msgspec.structs import replace

from kafkalog_broker.logs.offset_records import (
    CommittedOffset,
    OffsetKey,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)
from pyspark_kafkalog.errors import CorruptMessage
from pyspark_kafkalog.types import TopicPartition

KEY = OffsetKey("grp", TopicPartition("orders", 7))
KEY_BYTES = bytes.fromhex("00010003") + b"grp" + bytes.fromhex("0006") + b"orders" + bytes.fromhex("00000007")


def test_a_key_has_kafkas_layout() -> None:
    assert encode_key(KEY) == KEY_BYTES
    assert decode_key(KEY_BYTES) == KEY


def test_an_older_key_reads_the_same_and_that_of_a_group_is_none() -> None:
    assert decode_key(b"\x00\x00" + KEY_BYTES[2:]) == KEY
    assert decode_key(b"\x00\x02\x00\x03grp") is None


def test_a_value_with_its_topics_id_is_version_4_with_an_expiry_in_a_tag_of_ours() -> None:
    topic_id = UUID("00112233-4455-6677-8899-aabbccddeeff")
    value = CommittedOffset(258, 5, "m", 16, topic_id=topic_id)
    begin = bytes.fromhex("0004 0000000000000102 00000005 02") + b"m" + bytes.fromhex("0000000000000010")
    data = begin + bytes.fromhex("01 00 10") + topic_id.bytes
    assert encode_value(value) == data
    assert decode_value(data) == value
    value = replace(value, expire_timestamp_ms=32)
    data = begin + bytes.fromhex("02 00 10") + topic_id.bytes + bytes.fromhex("904e 08 0000000000000020")
    assert encode_value(value) == data
    assert decode_value(data) == value


def test_a_value_without_topic_id_and_expiry_is_version_3() -> None:
    value = CommittedOffset(258, leader_epoch=5, metadata="m", commit_timestamp_ms=16)
    data = bytes.fromhex("00030000000000000102000000050001") + b"m" + bytes.fromhex("0000000000000010")
    assert encode_value(value) == data
    assert decode_value(data) == value


def test_a_value_with_only_an_expiry_is_version_1_which_has_no_leader_epoch() -> None:
    value = CommittedOffset(258, 5, "m", 16, expire_timestamp_ms=32)
    data = (
        bytes.fromhex("000100000000000001020001") + b"m" + bytes.fromhex("00000000000000100000000000000020")
    )
    assert encode_value(value) == data
    assert decode_value(data) == CommittedOffset(258, -1, "m", 16, 32)


@pytest.mark.parametrize("version", [b"\0\0", b"\0\2"])
def test_values_of_versions_0_and_2_are_read(version: bytes) -> None:
    data = bytes.fromhex("00000000000001020001") + b"m" + bytes.fromhex("0000000000000010")
    assert decode_value(version + data) == CommittedOffset(258, -1, "m", 16)


def test_a_later_version_text_that_is_not_utf8_and_a_group_name_too_long_are_refused() -> None:
    with pytest.raises(CorruptMessage, match="version 5"):
        decode_value(b"\x00\x05" + bytes(20))
    with pytest.raises(CorruptMessage):
        decode_key(KEY_BYTES.replace(b"grp", b"\xff\xfe\xfd"))
    with pytest.raises(CorruptMessage, match="32768 bytes"):
        encode_key(OffsetKey("g" * 32768, TopicPartition("t", 0)))


def test_version_4_has_compact_strings_and_tagged_fields() -> None:
    data = bytes.fromhex("0004 0000000000000102 00000007 02") + b"m" + bytes.fromhex("0000000000000010 00")
    assert decode_value(data) == CommittedOffset(258, 7, "m", 16)
    for size in range(2, len(data) - 1):
        with pytest.raises(CorruptMessage):
            decode_value(data[:size])


def test_cut_keys_and_values_are_refused_at_every_byte() -> None:
    for size in range(len(KEY_BYTES)):
        with pytest.raises(CorruptMessage):
            decode_key(KEY_BYTES[:size])
    for value in (CommittedOffset(1, 0, "text", 2), CommittedOffset(1, -1, "text", 2, 3)):
        data = encode_value(value)
        for size in range(len(data)):
            with pytest.raises(CorruptMessage):
                decode_value(data[:size])
