from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from kafkalog_broker.transactions.states import CoordinatorState, Transaction
from kafkalog_broker.transactions.transaction_records import (
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)
from pyspark_kafkalog.errors import CorruptMessage
from pyspark_kafkalog.types import TopicPartition

OPEN = Transaction(
    "id", 4, 1, 60_000, CoordinatorState.ONGOING, 1_700_000_000_002,
    frozenset({TopicPartition("b", 0), TopicPartition("a", 2), TopicPartition("a", 1)}), 1_700_000_000_001,
)  # fmt: skip
OPEN_BYTES = bytes.fromhex(
    "0000" "0000000000000004" "0001" "0000ea60" "01"
    "00000002" "000161" "00000002" "00000001" "00000002" "000162" "00000001" "00000000"
    "0000018bcfe56802" "0000018bcfe56801"
)  # fmt: skip


def test_keys_and_values_are_kafka_s() -> None:
    assert encode_key("id") == b"\x00\x00\x00\x02id"
    assert encode_value(OPEN) == OPEN_BYTES
    assert decode_value("id", OPEN_BYTES) == OPEN


def test_an_empty_one_has_no_list_of_partitions() -> None:
    empty = Transaction("id", 4, 0, 1, CoordinatorState.EMPTY, 5)
    data = encode_value(empty)
    assert data[17:21] == b"\xff\xff\xff\xff"
    assert decode_value("id", data) == empty


def test_a_former_producer_id_is_stored_in_version_1() -> None:
    tagged = (
        OPEN_BYTES[:17].replace(b"\x00\x00", b"\x00\x01", 1)
        + bytes.fromhex("03" "0261" "03" "00000001" "00000002" "00" "0262" "02" "00000000" "00")
        + OPEN_BYTES[-16:]
        + bytes.fromhex("01" "00" "08" "0000000000000003")
    )  # fmt: skip
    moved = replace(OPEN, last_producer_id=3)
    assert encode_value(moved) == tagged
    assert decode_value("id", tagged) == moved


@given(st.binary(max_size=80))
def test_garbage_raises_nothing_else(data: bytes) -> None:
    for read in (decode_key, lambda value: decode_value("id", value)):
        try:
            read(data)
        except CorruptMessage:
            continue


def test_a_cut_value_is_refused_at_every_byte() -> None:
    for end in range(len(OPEN_BYTES)):
        with pytest.raises(CorruptMessage):
            decode_value("id", OPEN_BYTES[:end])
