"""Whatever a log mixes, told in an older format or in one, says the same but for what is listed as lost."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from pyspark_kafkalog.errors import KafkaError
from pyspark_kafkalog.formats.batch import magic_at
from pyspark_kafkalog.formats.convert import Piece, for_reader, for_topic
from pyspark_kafkalog.formats.message_set import codec_at, frames, records
from pyspark_kafkalog.types import NO_TIMESTAMP, Record, TimestampType
from tests.support.formats.message_sets import MAX_BYTES, WrittenSet, mixed_logs

any_magic = st.sampled_from((0, 1, 2))
piece_sizes = st.sampled_from((1, 100, 1 << 20))


def log_of(sets: Iterable[WrittenSet]) -> bytes:
    return b"".join(s.data for s in sets)


def joined(pieces: Iterable[Piece]) -> bytes:
    return b"".join(bytes(piece.data) for piece in pieces)


def read(data: bytes, start_offset: int = 0) -> list[Record]:
    return list(records(data, start_offset=start_offset, max_bytes=MAX_BYTES))


def told(record: Record, magic: int, offset: int) -> tuple[object, ...]:
    """What is left of a record in this format."""
    time = (record.timestamp, record.timestamp_type) if magic else (NO_TIMESTAMP, TimestampType.CREATE_TIME)
    return (offset, *time, record.key, record.value)


@given(mixed_logs(), any_magic, piece_sizes, st.data())
def test_a_reader_of_an_older_format_finds_the_same_records_at_the_same_offsets(
    sets: list[WrittenSet], magic: int, piece_bytes: int, draw: st.DataObject
) -> None:
    held = [(record, s.magic) for s in sets for record in s.records]
    start = draw.draw(st.integers(held[0][0].offset, held[-1][0].next_offset)) if held else 0
    pieces = list(
        for_reader(log_of(sets), magic, start_offset=start, max_bytes=MAX_BYTES, piece_bytes=piece_bytes)
    )
    data = joined(pieces)
    found = read(data, start)
    assert [told(r, 2, r.offset) for r in found] == [
        told(r, min(magic, of), r.offset) for r, of in held if r.offset >= start
    ]
    assert all(magic_at(data, frame.position) <= magic for frame in frames(data))
    places = [piece.next_offset for piece in pieces]
    assert places == sorted(places)
    assert not held or not pieces or places[-1] == held[-1][0].next_offset
    made = sum(piece.message_count for piece in pieces)
    assert made == sum(1 for r, of in held if of > magic and r.offset >= start)


@given(mixed_logs(), any_magic)
def test_what_a_reader_knows_already_is_given_as_it_lies(sets: list[WrittenSet], magic: int) -> None:
    known = [s for s in sets if s.magic <= magic]
    data = log_of(known)
    pieces = list(for_reader(data, magic, max_bytes=1))
    assert joined(pieces) == data
    assert all(isinstance(p.data, memoryview) and (p.message_count, p.block_bytes) == (0, 0) for p in pieces)


@given(mixed_logs(), any_magic, piece_sizes, st.integers(0, 1 << 40))
def test_a_topic_of_one_format_has_all_in_it_numbered_without_gaps(
    sets: list[WrittenSet], magic: int, piece_bytes: int, base: int
) -> None:
    # Producers' batches have no gaps: those of a log that was compacted cannot be numbered by their headers.
    older = [s for s in sets if s.magic < 2 or magic < 2]
    pieces = list(
        for_topic(log_of(older), magic, base_offset=base, max_bytes=MAX_BYTES, piece_bytes=piece_bytes)
    )
    data = joined(pieces)
    expected = [(record, s.magic) for s in older for record in s.records]
    found = read(data)
    assert [told(r, 2, r.offset) for r in found] == [
        told(r, min(magic, of), base + i) for i, (r, of) in enumerate(expected)
    ]
    assert {magic_at(data, frame.position) for frame in frames(data)} <= {magic}
    assert not pieces or pieces[-1].next_offset == base + len(expected)
    assert [codec_at(data, f.position) for f in frames(data) if codec_at(data, f.position)] == [
        s.codec for s in older if s.codec
    ]


@given(mixed_logs(gaps=False), any_magic)
def test_two_conversions_lose_no_more_than_the_lower_of_them(sets: list[WrittenSet], magic: int) -> None:
    there = joined(for_topic(log_of(sets), magic, max_bytes=MAX_BYTES))
    back = joined(for_topic(there, 2, max_bytes=MAX_BYTES))
    direct = joined(
        for_reader(joined(for_topic(log_of(sets), 2, max_bytes=MAX_BYTES)), magic, max_bytes=MAX_BYTES)
    )
    assert [told(r, 2, r.offset) for r in read(back)] == [told(r, 2, r.offset) for r in read(there)]
    assert [told(r, 2, r.offset) for r in read(direct)] == [told(r, 2, r.offset) for r in read(there)]


@given(mixed_logs(), any_magic, piece_sizes)
def test_pieces_of_what_is_not_compressed_keep_to_their_size(
    sets: list[WrittenSet], magic: int, piece_bytes: int
) -> None:
    for made in (for_reader, for_topic):
        for piece in made(log_of(sets), magic, max_bytes=MAX_BYTES, piece_bytes=piece_bytes):
            count = sum(1 for _ in frames(piece.data))
            assert len(piece.data) <= piece_bytes or count == 1


@given(mixed_logs(), any_magic, st.data())
def test_a_damaged_log_raises_nothing_but_our_errors(
    sets: list[WrittenSet], magic: int, draw: st.DataObject
) -> None:
    damaged = bytearray(log_of(sets))
    at = draw.draw(st.integers(0, len(damaged)))
    damaged[at : at + draw.draw(st.integers(0, 3))] = draw.draw(st.binary(max_size=4))
    for made in (for_reader, for_topic):
        try:
            list(made(bytes(damaged), magic, max_bytes=MAX_BYTES))
        except KafkaError:
            pass
