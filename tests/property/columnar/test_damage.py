"""Damage gives the same outcome in both engines, and never anything but rows or a `KafkaError`."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pyspark_kafkalog.columnar.decoder import COLUMNS, Decoded
from pyspark_kafkalog.errors import KafkaError
from pyspark_kafkalog.formats.base import crc32c
from pyspark_kafkalog.formats.batch import ATTRIBUTES_POSITION, CRC_POSITION, HEADER_SIZE, encode_batch
from pyspark_kafkalog.types import NewRecord
from tests.support.columnar.rows import decode, raw_batch
from tests.support.formats.batches import codecs, new_records

LIMIT = 1 << 20

bad_numbers = st.sampled_from(
    [b"\x01", b"\x00", b"\x7f", b"\x80", b"\xff", b"\xff\xff\xff\xff\x0f", b"\xfe\xff\xff\xff\x0f"]
)
bytes_of_interest = st.binary(max_size=3) | bad_numbers


def outcome(data: bytes, engine: str, columns: list[str], start: int) -> Decoded | str:
    """The rows, or the error's type and text."""
    try:
        return decode(data, engine, columns=columns, start=start, max_batch_bytes=LIMIT)
    except KafkaError as e:
        return f"{type(e).__name__}: {e}"


def assert_same(data: bytes, columns: list[str] = list(COLUMNS), start: int = 0) -> Decoded | str:  # noqa: B006
    numba, plain = outcome(data, "numba", columns, start), outcome(data, "plain", columns, start)
    assert numba == plain
    if isinstance(numba, Decoded):
        for batch in numba.batches:
            batch.validate(full=True)
    return numba


def resealed(batch: bytearray) -> bytes:
    """``batch`` with a right checksum again."""
    batch[CRC_POSITION : CRC_POSITION + 4] = crc32c(bytes(batch[ATTRIBUTES_POSITION:])).to_bytes(4, "big")
    return bytes(batch)


columns_of_interest = st.sampled_from(
    [list(COLUMNS), ["offset"], ["value"], ["timestamp", "key"], ["headers"]]
)


@given(st.lists(new_records, min_size=1, max_size=5), st.data(), columns_of_interest)
def test_records_changed_under_a_right_checksum(
    records: list[NewRecord], data: st.DataObject, columns: list[str]
) -> None:
    block = bytearray(encode_batch(records)[HEADER_SIZE:])
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(block)))
        cut = data.draw(st.integers(0, 4))
        block[at : at + cut] = data.draw(bytes_of_interest)
    count = data.draw(st.integers(0, len(records) + 1))
    batch = raw_batch(bytes(block), count, base_timestamp=data.draw(st.integers(-(1 << 63), (1 << 63) - 1)))
    assert_same(batch, columns, start=data.draw(st.integers(0, 3)))


@given(st.binary(max_size=60), st.integers(0, 8), columns_of_interest)
def test_records_of_random_bytes(block: bytes, count: int, columns: list[str]) -> None:
    assert_same(raw_batch(block, count, last_delta=count + 2), columns)


@given(st.lists(new_records, min_size=1, max_size=4), codecs, st.data())
def test_headers_changed_under_a_right_checksum(
    records: list[NewRecord], codec: object, data: st.DataObject
) -> None:
    batch = bytearray(encode_batch(records, codec=codec))  # type: ignore[arg-type]
    for _ in range(data.draw(st.integers(1, 2))):
        at = data.draw(st.integers(ATTRIBUTES_POSITION, min(len(batch), HEADER_SIZE + 12) - 1))
        batch[at] = data.draw(st.integers(0, 255))
    assert_same(resealed(batch))


@given(st.lists(new_records, min_size=1, max_size=4), codecs, st.data())
def test_answers_changed_anywhere(records: list[NewRecord], codec: object, data: st.DataObject) -> None:
    answer = bytearray(encode_batch(records, codec=codec) * 2)  # type: ignore[arg-type]
    at = data.draw(st.integers(0, len(answer) - 1))
    answer[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=4))
    assert_same(bytes(answer))


@given(st.binary(max_size=200))
def test_answers_of_random_bytes(answer: bytes) -> None:
    assert_same(answer)
