"""What a client sends under a right checksum, and that is no records all the same."""

from __future__ import annotations

import random
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from kafkalog_broker.log.family import MAX_DECOMPRESSED_BYTES, TakesLong
from pyspark_kafkalog.errors import ErrorCode, InvalidRecord, InvalidTimestamp, KafkaError, MessageTooLarge
from pyspark_kafkalog.formats.base import crc32c, varint_bytes
from pyspark_kafkalog.formats.batch import encode_batch
from pyspark_kafkalog.formats.compression import Codec
from pyspark_kafkalog.formats.legacy import encode_set
from pyspark_kafkalog.types import NewRecord
from tests.support.formats.bad_batches import BLOCKS, CASES, damaged, record, records, sealed, unfolding
from tests.support.log.logs import START_MS, batch, message_set, open_log, values

COMPRESSED = [codec for codec in Codec if codec]


@pytest.mark.long("many megabytes")
@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("what", CASES)
def test_records_that_do_not_fit_their_batch_are_refused_before_anything_is_stored(
    tmp_path: Path, what: str, codec: Codec
) -> None:
    case = CASES[what]
    _, log = open_log(tmp_path, cleanup_policy=("compact",) if case.compacted else ("delete",))
    expected = case.compressed if codec else case.plain
    data = bytearray(sealed(case.block, case.count, codec, timestamp=START_MS))
    if expected is ErrorCode.NONE:
        assert log.append(data).record_count == case.count
        return
    with pytest.raises(KafkaError) as refused:
        log.append(data)
    assert refused.value.code is expected
    assert (log.end_offset, log.size_bytes) == (0, 0)


@pytest.mark.parametrize("codec", COMPRESSED)
@pytest.mark.parametrize("what", BLOCKS)
def test_a_block_that_its_codec_has_not_written_is_refused(tmp_path: Path, what: str, codec: Codec) -> None:
    _, log = open_log(tmp_path)
    with pytest.raises(InvalidRecord, match=f"{codec.name.lower()} data is corrupt|variable-length|records"):
        log.append(bytearray(damaged(what, codec, START_MS)))
    assert log.size_bytes == 0


def test_the_same_records_are_refused_from_an_idempotent_producer(tmp_path: Path) -> None:
    _, log = open_log(tmp_path)
    good = batch(b"a", b"b", codec=Codec.LZ4, producer_id=1, producer_epoch=0, base_sequence=0)
    bad = bytearray(sealed(records(3), 2, Codec.LZ4, timestamp=START_MS))
    bad[43:61] = good[43:61]
    bad[17:21] = crc32c(memoryview(bad)[21:]).to_bytes(4, "big")
    with pytest.raises(InvalidRecord, match="bytes follow the last of 2 records"):
        log.append(bad)
    log.append(good)
    assert values(log) == [b"a", b"b"]


@pytest.mark.long("many megabytes")
@pytest.mark.parametrize("count", [1, 2_000_000])
def test_a_batch_that_unfolds_beyond_the_limit_is_refused_before_it_takes_the_memory(
    tmp_path: Path, count: int
) -> None:
    _, log = open_log(tmp_path)
    data = bytearray(unfolding(8 * MAX_DECOMPRESSED_BYTES, count, START_MS))
    assert len(data) < 33_000
    tracemalloc.start()
    try:
        with pytest.raises(MessageTooLarge, match=f"limit is {MAX_DECOMPRESSED_BYTES}.*send smaller batches"):
            log.append(data)
        assert tracemalloc.get_traced_memory()[1] < 3 * MAX_DECOMPRESSED_BYTES
    finally:
        tracemalloc.stop()
    assert log.size_bytes == 0


def keyed(count: int) -> bytearray:
    return bytearray(encode_batch([NewRecord(b"value", b"key", START_MS)] * count))


@pytest.mark.parametrize("codec", COMPRESSED)
def test_what_is_compressed_is_appended_at_once_if_it_is_little(tmp_path: Path, codec: Codec) -> None:
    _, log = open_log(tmp_path)
    little = sealed(records(4000), 4000, codec, timestamp=START_MS)
    assert log.append(bytearray(little), at_once=True).record_count == 4000
    for much in (
        sealed(records(4001), 4001, codec, timestamp=START_MS),
        sealed(record(0, value=bytes(1 << 20)), 1, codec, timestamp=START_MS),  # unfolds to more than 1 MiB
        sealed(record(0, value=random.Random(1).randbytes(65 << 10)), 1, codec, timestamp=START_MS),
    ):
        with pytest.raises(TakesLong):
            log.append(bytearray(much), at_once=True)
    assert log.end_offset == 4000


@pytest.mark.parametrize(
    ("options", "data"),
    [
        ({}, message_set(*[b"many"] * 1000, magic=1)),
        ({"message_format_version": "0.10.0"}, batch(*[b"many"] * 5000, timestamps=[START_MS] * 5000)),
        ({"cleanup_policy": ("compact",)}, keyed(5000)),
    ],
    ids=["v1", "to be v1", "keys to be looked for"],
)  # fmt: skip
def test_many_messages_that_must_be_looked_at_are_not_appended_at_once(
    tmp_path: Path, options: dict[str, Any], data: bytearray
) -> None:
    _, log = open_log(tmp_path, **options)
    assert log.takes_long(memoryview(data))
    with pytest.raises(TakesLong):
        log.append(bytearray(data), at_once=True)
    assert log.end_offset == 0
    assert log.append(bytearray(data)).record_count == len(values(log)) >= 1000


def test_a_large_batch_that_must_be_decompressed_takes_long(tmp_path: Path) -> None:
    _, log = open_log(tmp_path)
    count = 50_000
    block = b"".join(record(i, value=bytes(90)) for i in range(count))
    long = bytearray(sealed(block, count, Codec.ZSTD, timestamp=START_MS))
    assert not log.takes_long(memoryview(batch(b"short")))
    assert log.takes_long(memoryview(long))
    assert (log.append(long).record_count, log.end_offset) == (count, count)
    with pytest.raises(InvalidRecord):
        log.append(bytearray(sealed(records(3), 4, Codec.ZSTD, timestamp=START_MS)))


def test_a_topic_with_larger_batches_may_have_as_much_compressed(tmp_path: Path) -> None:
    size = MAX_DECOMPRESSED_BYTES + 100
    data = unfolding(size, 1, START_MS)
    _, usual = open_log(tmp_path / "usual")
    with pytest.raises(MessageTooLarge):
        usual.append(bytearray(data))
    _, log = open_log(tmp_path / "larger", max_message_bytes=size + 1000)
    assert log.append(bytearray(data)).record_count == 1


def test_what_the_broker_appends_itself_is_not_looked_into(tmp_path: Path) -> None:
    _, log = open_log(tmp_path)
    log.append(bytearray(sealed(records(3), 4, Codec.GZIP, timestamp=START_MS)), internal=True)
    assert log.end_offset == 4


@pytest.mark.parametrize(
    ("number", "count", "read"), [(15, 16, True), (7, 17, True), (8, 17, False), (16, 17, False)]
)
def test_uncompressed_batches_of_up_to_16_records_are_read_and_8_of_more(
    tmp_path: Path, number: int, count: int, read: bool
) -> None:
    _, log = open_log(tmp_path)
    block = records(number) + record(number, headers=bytes(2)) + records(count - number - 1, number + 1)
    data = bytearray(sealed(block, count, Codec.NONE, timestamp=START_MS))
    if not read:
        assert log.append(data).record_count == count
        return
    with pytest.raises(InvalidRecord, match=f"record {number}: its lengths do not add up"):
        log.append(data)


def test_more_headers_than_are_read_at_once_take_long(tmp_path: Path) -> None:
    _, log = open_log(tmp_path)
    bad_name = varint_bytes(-1) + varint_bytes(0)
    headers = varint_bytes(10_001) + varint_bytes(0) * 20_000 + bad_name
    plain = bytearray(sealed(record(headers=headers), 1, Codec.NONE, timestamp=START_MS))
    packed = bytearray(sealed(record(headers=headers), 1, Codec.GZIP, timestamp=START_MS))
    assert log.append(plain, at_once=True).record_count == 1  # read by no more than the first 10,000
    with pytest.raises(TakesLong):
        log.append(packed, at_once=True)
    with pytest.raises(InvalidRecord, match="a header has no name"):
        log.append(packed)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_records_without_a_key_are_named(tmp_path: Path, codec: Codec) -> None:
    _, log = open_log(tmp_path, cleanup_policy=("compact",))
    new = [NewRecord(b"v", key, START_MS) for key in (b"k0", None, None, b"k3")]
    with pytest.raises(InvalidRecord, match="record 1 of 4 has no key, which a compacted topic") as refused:
        log.append(bytearray(encode_batch(new, codec=codec)))
    assert refused.value.records == dict.fromkeys((1, 2), "no key, which a compacted topic requires")


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_records_with_a_wrong_time_are_named(tmp_path: Path, codec: Codec) -> None:
    _, log = open_log(tmp_path, message_timestamp_after_max_ms=1000)
    ahead = [0, 2000, 1000, 3000]
    new = [NewRecord(b"v", b"k", START_MS + ms) for ms in ahead]
    with pytest.raises(InvalidTimestamp, match="is outside") as refused:
        log.append(bytearray(encode_batch(new, codec=codec)))
    assert {number: text.split()[1] for number, text in refused.value.records.items()} == {
        1: str(START_MS + 2000),
        3: str(START_MS + 3000),
    }


@pytest.mark.parametrize(
    ("block", "count"), [(b"no records, only a text", 1), (records(4001), 4001)], ids=["malformed", "many"]
)
def test_no_record_is_named_for_its_time_if_they_are_many_or_malformed(
    tmp_path: Path, block: bytes, count: int
) -> None:
    _, log = open_log(tmp_path, message_timestamp_after_max_ms=1000)
    with pytest.raises(InvalidTimestamp) as refused:
        log.append(bytearray(sealed(block, count, Codec.NONE, timestamp=START_MS + 2000)))
    assert refused.value.records == {}


def test_the_first_1000_records_without_a_key_are_named(tmp_path: Path) -> None:
    _, log = open_log(tmp_path, cleanup_policy=("compact",))
    with pytest.raises(InvalidRecord, match="record 1 of 2000 has no key") as refused:
        log.append(bytearray(encode_batch([NewRecord(b"v", b"k", START_MS), *[NewRecord(b"v")] * 1999])))
    assert list(refused.value.records) == list(range(1, 1001))


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_messages_without_a_key_are_refused_by_a_compacted_topic(
    tmp_path: Path, magic: int, codec: Codec
) -> None:
    _, log = open_log(tmp_path, cleanup_policy=("compact", "delete"))
    new = [NewRecord(b"v", b"k", START_MS), NewRecord(b"v", None, START_MS)]
    with pytest.raises(InvalidRecord, match="message 1 has no key, which a compacted topic requires"):
        log.append(bytearray(encode_set(new, magic=magic, codec=codec)))
    assert log.append(bytearray(encode_set(new[:1], magic=magic, codec=codec))).record_count == 1
