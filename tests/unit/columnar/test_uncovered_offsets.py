"""A flipped bit in the offset of an entry, which no checksum covers: found by every walk, of every format."""

from __future__ import annotations

import pytest

from pyspark_kafkalog.classic.consumer.stream import BatchSets
from pyspark_kafkalog.columnar.decoder import RecordBatchDecoder
from pyspark_kafkalog.errors import CorruptMessage
from pyspark_kafkalog.formats.batch import encode_batch
from pyspark_kafkalog.formats.compression import Codec
from pyspark_kafkalog.formats.legacy import encode_set
from pyspark_kafkalog.formats.message_set import ExpectedOffsets, next_offset_after
from pyspark_kafkalog.types import NewRecord
from tests.support.columnar.rows import ENGINES, column, decode

LIMIT = 1 << 20
START, COUNT, EACH = 1024, 8, 16
END = START + COUNT * EACH
FORMATS = {
    "v2": (2, Codec.NONE),
    "v2 zstd": (2, Codec.ZSTD),
    "v0": (0, Codec.NONE),
    "v1": (1, Codec.NONE),
    "v0 gzip": (0, Codec.GZIP),
    "v1 gzip": (1, Codec.GZIP),
}


def entries(name: str) -> list[bytes]:
    """Those of a dense log of offsets from START to END."""
    magic, codec = FORMATS[name]
    each = 1 if magic < 2 and codec is Codec.NONE else EACH
    found = []
    for base in range(START, END, each):
        records = [NewRecord(b"%d" % offset, timestamp=1) for offset in range(base, base + each)]
        if magic == 2:
            found.append(encode_batch(records, codec=codec, base_offset=base))
        else:
            found.append(encode_set(records, magic=magic, codec=codec, base_offset=base))
    return found


def flipped(entry: bytes, bit: int) -> bytes:
    damaged = bytearray(entry)
    damaged[7 - bit // 8] ^= 1 << bit % 8
    return bytes(damaged)


def values(data: bytes, engine: str, expected: ExpectedOffsets, end: int = END) -> list[bytes]:
    return column(
        decode(data, engine, start=expected.asked, end=end, columns=("value",), expected=expected), "value"
    )


WHOLE = [b"%d" % offset for offset in range(START, END)]
PLACE = ExpectedOffsets.of_answer(START, END)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", FORMATS)
def test_every_flipped_bit_of_an_entrys_offset_is_found(name: str, engine: str) -> None:
    good = entries(name)
    assert values(b"".join(good), engine, PLACE) == WHOLE
    middle, follows = len(good) // 2, ExpectedOffsets.of_answer(START, END, follows=True)
    for bit in range(64):
        data = b"".join([*good[:middle], flipped(good[middle], bit), *good[middle + 1 :]])
        with pytest.raises(CorruptMessage, match="t-0, reading on from offset"):
            values(data, engine, PLACE)
        # Where the task ends before the log does, an offset beyond its end would look like a gap up to there.
        for end in (END - EACH, END - EACH // 2):
            with pytest.raises(CorruptMessage):
                values(data, engine, ExpectedOffsets.of_answer(START, 1 << 62), end)
        # An answer that follows another begins where that ended.
        with pytest.raises(CorruptMessage):
            values(b"".join([flipped(good[0], bit), *good[1:]]), engine, follows)


@pytest.mark.parametrize("name", FORMATS)
def test_consumers_without_columns_find_it_too(name: str) -> None:
    good, sets = entries(name), BatchSets(END)
    whole = memoryview(b"".join(good))
    assert [bytes(m.payload) for m in sets.messages(whole, START, LIMIT)] == WHOLE
    assert sets.end(whole, START) == END
    middle = len(good) // 2
    for bit in range(64):
        data = memoryview(b"".join([*good[:middle], flipped(good[middle], bit), *good[middle + 1 :]]))
        with pytest.raises(CorruptMessage):
            list(sets.messages(data, START, LIMIT))
        if (
            "gzip" not in name or 1 << bit >= EACH
        ):  # of a set only its last offset is known before it is opened
            assert sets.end(data, START) < END, "reading goes on no further than to where the error is"


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", FORMATS)
def test_gaps_are_legal_and_so_is_a_first_entry_that_begins_early(name: str, engine: str) -> None:
    good = entries(name)
    kept = b"".join(good[: len(good) // 4] + good[len(good) // 2 :])
    assert values(kept, engine, PLACE) == WHOLE[: EACH * COUNT // 4] + WHOLE[EACH * COUNT // 2 :]
    # A gap up to the end of the range, with what comes after it below the high watermark.
    head = b"".join(good[: len(good) // 4] + good[-1:])
    assert values(head, engine, PLACE, END - EACH) == WHOLE[: EACH * COUNT // 4]
    if "gzip" in name or "v2" in name:
        late = ExpectedOffsets.of_answer(START + 5, END)
        assert values(b"".join(good), engine, late) == WHOLE[5:]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", FORMATS)
def test_an_answer_that_ends_before_the_offset_asked_for_is_corrupt(name: str, engine: str) -> None:
    good = entries(name)
    with pytest.raises(CorruptMessage, match=f"offset {START + EACH} was asked for"):
        values(b"".join(good), engine, ExpectedOffsets.of_answer(START + EACH, END))
    assert next_offset_after(memoryview(b"".join(good)), START, ExpectedOffsets.of_answer(START, END)) == END


@pytest.mark.parametrize("engine", ENGINES)
def test_the_offset_of_an_entry_that_is_cut_short_is_compared_as_well(engine: str) -> None:
    """A broker that cuts answers by bytes tells that much of the next entry."""
    good = entries("v2")
    cut = good[2][:40]
    assert len(values(b"".join(good[:2]) + cut, engine, PLACE)) == 2 * EACH
    with pytest.raises(CorruptMessage, match=f"the entry before ends at {START + 2 * EACH - 1}"):
        values(b"".join(good[:2]) + flipped(cut, 5), engine, PLACE)


def test_the_error_says_what_was_found_and_what_was_expected() -> None:
    decoder = RecordBatchDecoder(topic="flights", partition=3, columns=("value",), engine="plain")
    good = entries("v2")
    for entry, said in (
        (
            flipped(good[1], 63),
            "claims offsets -9223372036854774768 to -9223372036854774753: offsets are not neg",
        ),
        (flipped(good[1], 40), "to 1099511628831: all offsets must be below the high watermark 1152"),
        (
            flipped(good[1], 4),
            "claims offsets 1024 to 1039: the entry before ends at 1039, so expected is 1040",
        ),
    ):
        with pytest.raises(CorruptMessage, match=said) as raised:
            decoder.decode(memoryview(good[0] + entry), START, END, (), PLACE)
        assert str(raised.value).startswith("flights-3, reading on from offset 1040: ")
