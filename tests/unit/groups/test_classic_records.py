from __future__ import annotations

import pytest

from kafkalog_broker.groups.group_records import (
    StoredGroup,
    StoredMember,
    decode_group,
    decode_group_key,
    encode_group,
    encode_group_key,
)
from pyspark_kafkalog.errors import CorruptMessage

_MEMBER = StoredMember("m-1", "i", "c", "/127.0.0.1", 300_000, 45_000, b"\x00\x01", b"\x02")
_GROUP = StoredGroup("consumer", 7, "range", "m-1", 1_700_000_000_000, (_MEMBER,))
_TEXT = bytes.fromhex("0008") + b"consumer" + bytes.fromhex("00000007 0005") + b"range"
_NAMES = bytes.fromhex("0001") + b"c" + bytes.fromhex("000a") + b"/127.0.0.1"
_TIMES = bytes.fromhex("000493e0 0000afc8")
_BYTES = bytes.fromhex("00000002 0001 00000001 02")
_STATE_TIME = (1_700_000_000_000).to_bytes(8, "big")
_LEADER, _INSTANCE = bytes.fromhex("0003") + b"m-1", bytes.fromhex("0001") + b"i"


def test_a_group_is_written_as_kafkas_version_3() -> None:
    members = bytes.fromhex("00000001") + _LEADER + _INSTANCE + _NAMES + _TIMES + _BYTES
    assert encode_group(_GROUP) == bytes.fromhex("0003") + _TEXT + _LEADER + _STATE_TIME + members


@pytest.mark.parametrize(
    ("version", "state_time", "instance", "times"),
    [
        (0, False, False, _TIMES[4:]),
        (1, False, False, _TIMES),
        (2, True, False, _TIMES),
        (3, True, True, _TIMES),
    ],
)
def test_older_versions_lack_fields(version: int, state_time: bool, instance: bool, times: bytes) -> None:
    data = version.to_bytes(2, "big") + _TEXT + _LEADER + (_STATE_TIME if state_time else b"")
    data += bytes.fromhex("00000001") + _LEADER + (_INSTANCE if instance else b"") + _NAMES + times + _BYTES
    found = decode_group(data)
    (member,) = found.members
    assert found.current_state_timestamp == (1_700_000_000_000 if state_time else -1)
    assert member.group_instance_id == ("i" if instance else None)
    assert (member.rebalance_timeout, member.session_timeout) == (300_000 if version else -1, 45_000)
    assert (member.subscription, member.assignment) == (b"\x00\x01", b"\x02")
    for size in range(len(data)):
        with pytest.raises(CorruptMessage):
            decode_group(data[:size])


def test_version_4_is_flexible() -> None:
    data = (
        bytes.fromhex("0004 09") + b"consumer" + bytes.fromhex("00000007 06") + b"range"
        + bytes.fromhex("04") + b"m-1" + _STATE_TIME + bytes.fromhex("02 04") + b"m-1"
        + bytes.fromhex("02") + b"i" + bytes.fromhex("02") + b"c" + bytes.fromhex("0b") + b"/127.0.0.1"
        + _TIMES + bytes.fromhex("03 0001 02 02 00 00")
    )  # fmt: skip
    assert decode_group(data) == _GROUP


def test_an_empty_group_has_neither_protocol_nor_leader() -> None:
    empty = StoredGroup("", 0, None, None, 5, ())
    data = encode_group(empty)
    assert data == bytes.fromhex("0003 0000 00000000 ffff ffff 0000000000000005 00000000")
    assert decode_group(data) == empty


def test_keys() -> None:
    assert encode_group_key("grp") == bytes.fromhex("0002 0003") + b"grp"
    assert decode_group_key(encode_group_key("grp")) == "grp"
    assert decode_group_key(bytes.fromhex("0001 0003") + b"grp") is None
    for cut in (bytes.fromhex("0002"), bytes.fromhex("0002 0003") + b"gr", bytes.fromhex("0002 0001 ff")):
        with pytest.raises(CorruptMessage):
            decode_group_key(cut)
    with pytest.raises(CorruptMessage, match="32767"):
        encode_group_key("x" * 32_768)


def test_a_later_version_is_refused() -> None:
    with pytest.raises(CorruptMessage, match="version 5"):
        decode_group(bytes.fromhex("0005") + bytes(40))
