from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from kafkalog_broker.config.broker_config import LogConfig
from kafkalog_broker.log.append.validation import (
    _check_contents,
    _check_sender,
    _check_times,
    _Closed,
    _open_records,
    check_batches,
)
from pyspark_kafkalog.errors import CorruptMessage, InvalidRecord, KafkaError
from pyspark_kafkalog.formats.base import crc32c
from pyspark_kafkalog.formats.batch import HEADER, HEADER_SIZE, encode_batch, read_header
from pyspark_kafkalog.formats.compression import Codec
from pyspark_kafkalog.formats.record import check_records
from pyspark_kafkalog.types import NewRecord
from tests.support.examples import examples
from tests.support.formats.batches import codecs, new_records
from tests.support.log.logs import START_MS, batch

CONFIGS = [
    LogConfig(),
    LogConfig(message_timestamp_before_max_ms=1000, message_timestamp_after_max_ms=1000),
    LogConfig(message_timestamp_type="LogAppendTime"),
]
FIELDS = {  # position in the header's struct, and values near the rules' edges
    0: st.sampled_from([0, 1, -1]),
    5: st.integers(-32768, 32767) | st.integers(0, 7),
    6: st.integers(-1, 4),
    7: st.sampled_from([-1, 0, START_MS - 1001, START_MS - 1000, START_MS, START_MS + 1000, START_MS + 1001]),
    8: st.sampled_from([-2, -1, START_MS - 1000, START_MS, START_MS + 1000, START_MS + 3_600_001, 1 << 62]),
    9: st.sampled_from([-1, 0, 7]),
    10: st.sampled_from([-1, 0, 3]),
    11: st.sampled_from([-1, 0, 9]),
    12: st.integers(-1, 4) | st.just(1 << 30),
}


def _by_every_rule(data: bytes, config: LogConfig, internal: bool) -> type[KafkaError] | None:
    try:
        header = read_header(data)
        _check_contents(header)
        if not internal:
            _check_sender(header)
            block = memoryview(data)[HEADER_SIZE:]
            _check_times(header, block, config, START_MS)
            count = header.record_count
            if header.codec:
                _open_records(_Closed(block, header.codec, count), config, 1 << 20, at_once=False)
            else:
                try:
                    most = count if count <= 16 else 8
                    check_records(block, 0, len(block), count, most, 10_000, numbered=False, keyed=False)
                except CorruptMessage:
                    return InvalidRecord  # under a right checksum it is the sender's fault
    except KafkaError as e:
        return type(e)
    return None


def _sealed(data: bytearray) -> bytearray:
    data[17:21] = crc32c(memoryview(data)[21:]).to_bytes(4, "big")
    return data


@examples(1000)
@given(st.fixed_dictionaries({}, optional=FIELDS), st.sampled_from(CONFIGS), st.booleans())
def test_the_glance_at_a_batch_decides_as_its_rules_do_one_by_one(
    changes: dict[int, Any], config: LogConfig, internal: bool
) -> None:
    data = batch(b"0", b"1")
    fields = list(HEADER.unpack_from(data))
    for position, value in changes.items():
        fields[position] = value
    HEADER.pack_into(data, 0, *fields)
    _sealed(data)
    wanted = _by_every_rule(data, config, internal)
    if wanted is not None:
        with pytest.raises(wanted) as refused:
            check_batches(memoryview(data), config, START_MS, internal=internal)
        assert type(refused.value) is wanted
    else:
        (found,) = check_batches(memoryview(data), config, START_MS, internal=internal)
        assert (found.size, found.record_count, found.max_timestamp) == (len(data), fields[12], fields[8])
        assert (found.header is not None) or fields[9] < 0


@given(st.lists(new_records, min_size=1, max_size=40), codecs)
def test_whatever_records_an_encoder_wrote_are_taken(records: list[NewRecord], codec: Codec) -> None:
    data = bytearray(encode_batch([replace(record, timestamp=START_MS) for record in records], codec=codec))
    (found,) = check_batches(memoryview(data), LogConfig(), START_MS, internal=False)
    assert found.record_count == len(records)


@given(st.binary(max_size=300))
def test_nonsense_is_refused_with_an_error_of_ours(data: bytes) -> None:
    try:
        check_batches(memoryview(data), LogConfig(), START_MS, internal=False)
    except KafkaError:
        return
    raise AssertionError("nonsense was taken")


@given(st.data())
def test_a_request_cut_or_changed_anywhere_is_refused_whole(data: st.DataObject) -> None:
    good = bytes(batch(b"0", b"1") + batch(b"2"))
    cut = data.draw(st.integers(0, len(good) - 1))
    whole = len(batch(b"0", b"1"))
    try:
        taken = check_batches(memoryview(good[:cut]), LogConfig(), START_MS, internal=False)
    except KafkaError:
        assert cut != whole
    else:
        assert (cut, len(taken)) == (whole, 1)
    position = data.draw(st.integers(0, len(good) - 1))
    changed = bytearray(good)
    changed[position] ^= data.draw(st.integers(1, 255))
    in_batch = position if position < whole else position - whole
    try:
        check_batches(memoryview(changed), LogConfig(), START_MS, internal=False)
    except KafkaError:
        return
    assert in_batch in range(12, 16)  # the leader epoch is not the producer's to set
