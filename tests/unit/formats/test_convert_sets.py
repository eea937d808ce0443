"""Formats told in one another: what is lost, what is refused, what it may cost."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator

import pytest

from pyspark_kafkalog.errors import (
    CorruptMessage,
    ErrorCode,
    InvalidRecord,
    MessageTooLarge,
    ServerError,
    UnsupportedCompression,
)
from pyspark_kafkalog.formats.batch import (
    ControlType,
    decode_records,
    encode_batch,
    encode_control,
    read_header,
    seal_batch,
)
from pyspark_kafkalog.formats.compression import Codec, compress
from pyspark_kafkalog.formats.convert import Piece, for_reader, for_topic
from pyspark_kafkalog.formats.legacy import CODECS, encode_message, encode_set, read_entry
from pyspark_kafkalog.formats.message_set import records
from pyspark_kafkalog.types import NewRecord, TimestampType

LIMIT = 1 << 22
NEW = [NewRecord(b"a", b"k", 10), NewRecord(None, None, 30), NewRecord(b"", b"", 20)]

older = pytest.mark.parametrize("magic", [0, 1])
every_codec = pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name.lower())


def down(data: bytes, magic: int, start_offset: int = 0, **limits: int) -> list[Piece]:
    return list(for_reader(data, magic, start_offset=start_offset, **{"max_bytes": LIMIT, **limits}))


def up(data: bytes, magic: int = 2, **limits: int) -> list[Piece]:
    return list(for_topic(data, magic, **{"max_bytes": LIMIT, **limits}))


def told(data: bytes | memoryview) -> list[tuple[int, int, bytes | None, bytes | None]]:
    return [(r.offset, r.timestamp, r.key, r.value) for r in records(data, start_offset=0, max_bytes=LIMIT)]


# --- for readers


@older
@every_codec
def test_a_converted_batch_keeps_its_offsets_and_codec(magic: int, codec: Codec) -> None:
    data = encode_batch(NEW, codec=codec, base_offset=50, offset_deltas=[0, 2, 5], last_offset_delta=9)
    (piece,) = down(data, magic)
    assert piece.data == encode_set(NEW, magic=magic, codec=codec, offsets=[50, 52, 55])
    # Compaction took the rest of the batch: reading goes on behind all of it.
    assert (piece.next_offset, piece.message_count) == (60, 3)
    assert piece.block_bytes == len(encode_set(NEW, magic=magic))


@older
def test_headers_producers_and_transactions_are_lost_in_silence(magic: int) -> None:
    new = [NewRecord(b"v", b"k", 10, (("name", b"x" * 300), ("name", None)))]
    data = encode_batch(
        new,
        base_offset=7,
        producer_id=5,
        producer_epoch=1,
        base_sequence=9,
        transactional=True,
        leader_epoch=3,
    )
    (piece,) = down(data, magic)
    assert piece.data == encode_message(NewRecord(b"v", b"k", 10), magic=magic, offset=7)


@older
def test_control_batches_and_empty_ones_only_say_where_to_continue(magic: int) -> None:
    marker = encode_control(ControlType.COMMIT, producer_id=5, producer_epoch=0, timestamp=1, base_offset=3)
    # Compaction leaves the header, codec and all: zstd hurts nobody where there is nothing in it.
    empty = encode_batch([], codec=Codec.ZSTD, base_offset=4, offset_deltas=[], last_offset_delta=5)
    log = encode_batch(NEW) + marker + empty + encode_batch(NEW[:1], base_offset=10)
    assert [(bytes(p.data) != b"", p.next_offset) for p in down(log, magic)] == [
        (True, 3), (False, 4), (False, 10), (True, 11),
    ]  # fmt: skip


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP], ids=["plain", "compressed"])
def test_log_append_time_is_kept_in_v1(codec: Codec) -> None:
    data = encode_batch(NEW, codec=codec, timestamp_type=TimestampType.LOG_APPEND_TIME)
    (piece,) = down(data, 1)
    found = list(records(piece.data, start_offset=0, max_bytes=LIMIT))
    assert {(r.timestamp, r.timestamp_type) for r in found} == {(30, TimestampType.LOG_APPEND_TIME)}


@older
def test_zstd_is_refused_where_it_lies_and_what_is_before_it_comes_first(magic: int) -> None:
    log = encode_batch(NEW) + encode_batch(NEW, codec=Codec.ZSTD, base_offset=3)
    pieces = for_reader(log, magic, max_bytes=LIMIT)
    assert next(pieces).next_offset == 3
    with pytest.raises(UnsupportedCompression, match=f"offset 3 is in zstd, which format v{magic} does not"):
        next(pieces)


@older
def test_a_checksum_is_looked_at_where_an_entry_is_converted_and_only_there(magic: int) -> None:
    damaged = bytearray(encode_batch(NEW, base_offset=4))
    damaged[-1] ^= 1
    with pytest.raises(CorruptMessage, match="batch at offset 4: CRC-32C"):
        down(bytes(damaged), magic)
    assert joined(down(bytes(damaged), 2)) == damaged


@pytest.mark.parametrize(
    ("block", "why"),
    [
        (b"\x0c\0\0\0\1\1\0", None),
        (b"\x0c\0\0\0\1\1\1", None),  # headers are not looked at, but that there are some
        (b"\x0e\0\0\0\1\1\0\0", "its lengths do not add up"),
        (b"\x0a\0\0\0\1\1", "ends before its headers"),
        (b"\x0c\0\0\0\5\1\0", None),  # every negative length is a null
        (b"\x0c\0\0\0\1\x14\0", "a field of 10 bytes where 1 are left"),
    ],
)
def test_a_record_s_lengths_must_fit(block: bytes, why: str | None) -> None:
    data = seal_batch(
        block, attributes=0, last_offset_delta=0, base_timestamp=0, max_timestamp=0, record_count=1
    )
    if why is None:
        assert told(joined(down(data, 1))) == [(0, 0, None, None)]
    else:
        with pytest.raises(CorruptMessage, match=f"batch at offset 0: .*{why}"):
            down(data, 1)


# --- for topics


def test_log_append_times_that_differ_do_not_share_a_batch() -> None:
    kind = TimestampType.LOG_APPEND_TIME
    sent = b"".join(
        encode_message(NewRecord(b"x", timestamp=time), magic=1, timestamp_type=of)
        for time, of in ((5, kind), (5, kind), (6, kind), (6, TimestampType.CREATE_TIME))
    )
    pieces = up(sent)
    assert [p.message_count for p in pieces] == [2, 1, 1]
    found = list(records(joined(pieces), start_offset=0, max_bytes=LIMIT))
    assert [(r.timestamp, int(r.timestamp_type)) for r in found] == [(5, 1), (5, 1), (6, 1), (6, 0)]


def test_a_batch_for_a_topic_of_batches_only_changes_its_place() -> None:
    data = encode_batch(
        [NewRecord(b"x", headers=(("h", b"1"),))] * 3, producer_id=4, producer_epoch=0, base_sequence=2
    )
    sent = encode_message(NEW[0], magic=1) + data
    first, second = up(sent, base_offset=9)
    assert (read_header(second.data).base_offset, second.next_offset) == (10, 13)
    assert bytes(second.data[16:]) == data[16:]
    assert first.message_count == 1


@older
@pytest.mark.parametrize(
    ("batch", "what"),
    [
        (encode_batch([NewRecord(b"x", headers=(("h", None),))]), "headers"),
        (encode_batch(NEW, producer_id=1, producer_epoch=0, base_sequence=0), "no idempotent records"),
        (
            encode_batch(NEW, producer_id=1, producer_epoch=0, base_sequence=0, transactional=True),
            "transactional",
        ),
    ],
    ids=["headers", "idempotent", "transactional"],
)
def test_what_the_topic_s_format_cannot_say_is_refused(magic: int, batch: bytes, what: str) -> None:
    with pytest.raises(ServerError, match=what) as e:
        up(batch, magic)
    assert e.value.code is ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT


@older
def test_zstd_and_control_records_are_refused(magic: int) -> None:
    with pytest.raises(UnsupportedCompression, match="zstd"):
        up(encode_batch(NEW, codec=Codec.ZSTD), magic)
    with pytest.raises(InvalidRecord, match="control records"):
        up(encode_control(ControlType.ABORT, producer_id=1, producer_epoch=0, timestamp=1), magic)


def test_a_set_cut_at_its_end_is_converted_as_far_as_it_is_whole() -> None:
    sent = encode_set(NEW, magic=1)
    assert [p.message_count for p in up(sent[:-1])] == [2]
    assert up(sent[:20]) == []


# --- what it may cost


def small_records(count: int, codec: Codec) -> bytes:
    block = b"".join(b"\x10\0\0" + delta(i) + b"\1\1\0" for i in range(count))
    return seal_batch(
        compress(codec, block), attributes=codec, last_offset_delta=count - 1, base_timestamp=0,
        max_timestamp=0, record_count=count,
    )  # fmt: skip


def delta(value: int) -> bytes:
    """A varint of exactly three bytes."""
    value <<= 1
    return bytes((value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14))


def cost(work: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_batch_of_many_small_records_is_converted_piece_by_piece() -> None:
    data = small_records(8_000, Codec.NONE)
    assert len(decode_records(data, 0, read_header(data), LIMIT)) == 8_000
    counts: list[int] = []

    def walk() -> None:
        for piece in for_reader(data, 1, max_bytes=LIMIT, piece_bytes=16 << 10):
            assert len(piece.data) <= 16 << 10
            counts.append(piece.message_count)

    # Records as objects would take more than two megabytes, and all of them in v1 270 kB.
    assert cost(walk) < 120_000
    assert sum(counts) == 8_000
    assert len(counts) > 15


@pytest.mark.long("many megabytes")
@older
@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4], ids=lambda codec: codec.name.lower())
def test_a_compressed_batch_above_the_limit_is_converted_to_several_sets(magic: int, codec: Codec) -> None:
    data = small_records(20_000, codec)
    # 180 kB of records are 680 kB of messages in v1: nearly four times as large for nothing but overhead.
    pieces = down(data, magic, max_bytes=200_000)
    assert len(pieces) > 2
    assert all(piece.block_bytes <= 200_000 for piece in pieces)
    assert [read_entry(piece.data, 0).codec for piece in pieces] == [codec] * len(pieces)
    every = [row[0] for piece in pieces for row in told(piece.data)]
    assert every == list(range(20_000))
    assert [piece.next_offset for piece in pieces] == [told(piece.data)[-1][0] + 1 for piece in pieces]
    # Who goes on behind the first set gets what follows it, and no message again.
    rest = down(data, magic, pieces[0].next_offset, max_bytes=200_000)
    assert [row[0] for piece in rest for row in told(piece.data)] == every[pieces[0].message_count :]


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4], ids=lambda codec: codec.name.lower())
def test_a_compressed_batch_may_hold_no_more_than_the_limit(codec: Codec) -> None:
    data = small_records(20_000, codec)
    with pytest.raises(MessageTooLarge, match=r"more than 200000 bytes in format v0"):
        up(data, 0, max_bytes=200_000)
    with pytest.raises(MessageTooLarge, match="limit is 160000"):
        down(data, 1, max_bytes=160_000)
    assert cost(lambda: up_refused(data)) < 1_000_000


def up_refused(data: bytes) -> None:
    with pytest.raises(MessageTooLarge):
        up(data, 1, max_bytes=200_000)


@older
@pytest.mark.parametrize("codec", CODECS[1:], ids=lambda codec: codec.name.lower())
def test_a_bomb_is_refused_before_memory_is_taken(magic: int, codec: Codec) -> None:
    bombs: Iterator[tuple[bytes, Callable[[bytes], object]]] = iter(
        (
            (encode_batch([NewRecord(bytes(24 << 20))], codec=codec), lambda data: down(data, magic)),
            (encode_set([NewRecord(bytes(24 << 20))], magic=magic, codec=codec), up),
        )
    )
    for data, work in bombs:

        def refused(data: bytes = data, work: Callable[[bytes], object] = work) -> None:
            with pytest.raises(MessageTooLarge, match=f"limit is {LIMIT}"):
                work(data)

        assert cost(refused) < 4 * LIMIT


def joined(pieces: list[Piece]) -> bytes:
    return b"".join(bytes(piece.data) for piece in pieces)


def test_a_reader_takes_entries_it_knows_together_and_no_more_than_a_piece() -> None:
    log = b"".join(encode_message(NewRecord(bytes(70)), magic=0, offset=i) for i in range(10))
    assert read_entry(log).size == 96
    assert [len(p.data) for p in down(log, 1, piece_bytes=300)] == [288, 288, 288, 96]
    assert [len(p.data) for p in down(log, 1, start_offset=4)] == [576]


def test_entries_that_are_left_out_do_not_go_along_with_their_neighbours() -> None:
    # Offsets that fall back are damage; what comes before the asked one is not sent all the same.
    one, two, three = (encode_message(NewRecord(b"x"), magic=0, offset=offset) for offset in (5, 1, 6))
    assert [bytes(p.data) for p in down(one + two + three, 1, start_offset=3)] == [one, three]
