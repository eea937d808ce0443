"""0.7's messages as Arrow: the broker's own segments, limits, faults, and memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import pyspark_kafkalog
from pyspark_kafkalog.columnar.arrow_columns import COLUMNS_07
from pyspark_kafkalog.columnar.decoder import KAFKA_07, Decoded, RecordBatchDecoder
from pyspark_kafkalog.errors import CorruptMessage, InvalidConfig, MessageTooLarge
from pyspark_kafkalog.formats.compression import Codec
from pyspark_kafkalog.formats.v07 import encode_message, encode_set
from tests.support.columnar.rows import ENGINES, FOREVER, column, decode_07
from tests.support.formats.captures_07 import SEGMENTS, captured, compressed

both_engines = pytest.mark.parametrize("engine", ENGINES)


def values(decoded: Decoded) -> list[Any]:
    return column(decoded, "value")


# --- rows


@both_engines
@pytest.mark.parametrize("name", SEGMENTS)
def test_a_segment_of_the_broker_as_rows(name: str, engine: str) -> None:
    data, expected = captured(name), SEGMENTS[name]
    decoded = decode_07(data, engine, start=4000)
    assert decoded.next_offset == 4000 + len(data)
    assert decoded.records == len(expected)
    rows = {name: column(decoded, name) for name in COLUMNS_07}
    nothing = [None] * len(expected)
    assert rows == {
        "key": nothing,
        "value": [text.encode() for text, *_ in expected],
        "topic": ["t"] * len(expected),
        "partition": [0] * len(expected),
        "offset": [4000 + offset for _, offset, _, _ in expected],
        "timestamp": nothing,
        "timestampType": nothing,
        "headers": nothing,
        "broker": [7] * len(expected),
        "innerIndex": [index for _, _, index, _ in expected],
    }


def test_the_types_are_those_of_today_s_rows_and_the_inner_index_is_an_int() -> None:
    schema = RecordBatchDecoder(KAFKA_07, topic="t", partition=0, columns=COLUMNS_07).schema
    assert {field.name: str(field.type) for field in schema} == {
        "key": "binary",
        "value": "binary",
        "topic": "string",
        "partition": "int32",
        "offset": "int64",
        "timestamp": "timestamp[us, tz=UTC]",
        "timestampType": "int32",
        "headers": "list<element: struct<key: string, value: binary>>",
        "broker": "int32",
        "innerIndex": "int32",
    }


def test_only_0_7_has_an_inner_index() -> None:
    with pytest.raises(InvalidConfig, match="no column 'innerIndex'"):
        RecordBatchDecoder(topic="t", partition=0, columns=["innerIndex"])
    with pytest.raises(InvalidConfig, match=r"no column 'inner'; there are: .*, innerIndex$"):
        RecordBatchDecoder(KAFKA_07, topic="t", partition=0, columns=["inner"])


@both_engines
def test_inner_messages_count_through_sets_within_sets_and_start_over_with_each_entry(engine: str) -> None:
    inner = compressed(encode_set([b"b"]) + encode_set([b"c"], codec=Codec.SNAPPY), Codec.GZIP)
    first = compressed(encode_set([b"a"], magic=0) + inner + encode_set([b"d"]), Codec.SNAPPY)
    second = encode_set([b"e", b"f"], codec=Codec.GZIP)
    data = encode_set([b"p"]) + first + second + encode_set([b"q"])
    decoded = decode_07(data, engine)
    assert values(decoded) == [b"p", b"a", b"b", b"c", b"d", b"e", b"f", b"q"]
    assert column(decoded, "innerIndex") == [0, 0, 1, 2, 3, 0, 1, 0]
    second_at = 11 + len(first)
    assert column(decoded, "offset") == [0, 11, 11, 11, 11, second_at, second_at, second_at + len(second)]


@both_engines
def test_rows_are_divided_at_the_usual_size_of_a_record_batch(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyspark_kafkalog.columnar.decoder.ROWS", 3)
    monkeypatch.setattr("pyspark_kafkalog.columnar.decoder.DATA_BYTES", 10)
    sent = [b"1234", b"56789", b"a", b"b", b"", b"", b"c", b"x" * 50, b"y" * 60, b"z" * 6, b"d" * 6]
    cuts = [
        [b"1234", b"56789", b"a"],
        [b"b", b"", b""],
        [b"c"],
        [b"x" * 50],
        [b"y" * 60],
        [b"z" * 6],
        [b"d" * 6],
    ]
    half = compressed(encode_set(sent[5:8]), Codec.GZIP)
    for data in (
        encode_set(sent),
        encode_set(sent, codec=Codec.GZIP),
        encode_set(sent[:5]) + half + encode_set(sent[8:]),
    ):
        decoded = decode_07(data, engine)
        assert [batch.column("value").to_pylist() for batch in decoded.batches] == cuts
        assert decoded.next_offset == len(data)


@both_engines
def test_a_stream_gives_the_rows_of_decode_one_record_batch_at_a_time(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyspark_kafkalog.columnar.decoder.ROWS", 2)
    data = encode_set([b"1", b"2", b"3"], codec=Codec.SNAPPY) + encode_set([b"4", b"cut"])[:-1]
    decoder = RecordBatchDecoder(
        KAFKA_07, topic="t", partition=0, columns=COLUMNS_07, engine=engine, broker=7
    )  # type: ignore[arg-type]
    stream = decoder.stream(memoryview(data), 30, FOREVER)
    batches = []
    while True:
        try:
            batches.append(next(stream))
        except StopIteration as e:
            next_offset = e.value
            break
    assert [batch.num_rows for batch in batches] == [2, 2]
    assert Decoded(batches, next_offset, 4) == decode_07(data, engine, start=30)


# --- how much at once


@both_engines
def test_what_an_answer_becomes_is_bounded_and_reading_continues_after_it(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyspark_kafkalog.columnar.decoder.DECOMPRESSED_BYTES", 2500)
    monkeypatch.setattr("pyspark_kafkalog.columnar.decoder.DECOMPRESSED_RATIO", 0)
    one = encode_set([bytes(990)], codec=Codec.GZIP)
    decoded = decode_07(one * 5, engine, start=10)
    assert (decoded.records, decoded.next_offset) == (3, 10 + 3 * len(one))
    rest = decode_07(one * 2, engine, start=decoded.next_offset)
    assert (rest.records, rest.next_offset) == (2, 10 + 5 * len(one))
    decoder = RecordBatchDecoder(KAFKA_07, topic="t", partition=0, columns=["offset"], engine=engine)  # type: ignore[arg-type]
    assert sum(batch.num_rows for batch in decoder.stream(memoryview(one * 5), 0, FOREVER)) == 5


@both_engines
def test_an_entry_that_decompresses_to_more_than_the_limit_is_refused(engine: str) -> None:
    inner = compressed(encode_set([bytes(1000)]), Codec.GZIP)
    data = compressed(inner, Codec.GZIP)
    assert decode_07(data, engine, max_batch_bytes=1010 + len(inner)).records == 1
    with pytest.raises(MessageTooLarge, match=r"t-7-0, entry at offset 40: .*limit is 1009"):
        decode_07(data, engine, start=40, max_batch_bytes=1009 + len(inner))


@both_engines
def test_the_limit_of_an_entry_counts_for_each_again(engine: str) -> None:
    one = encode_set([bytes(1000)], codec=Codec.GZIP)
    assert decode_07(one * 5, engine, max_batch_bytes=1010).records == 5


# --- faults


def spoiled(data: bytes, at: int = -1) -> bytes:
    changed = bytearray(data)
    changed[at] ^= 1
    return bytes(changed)


FAULTS = {
    "checksum": (spoiled(encode_set([b"x"])), "bad checksum"),
    "checksum of magic 0": (spoiled(encode_set([b"x"], magic=0)), "bad checksum"),
    "checksum of a long payload": (spoiled(encode_set([bytes(500)]), 300), "bad checksum"),
    "checksum of a set": (spoiled(encode_set([b"x"], codec=Codec.GZIP)), "bad checksum"),
    "checksum in a set": (
        compressed(spoiled(encode_set([b"x"])), Codec.GZIP),
        "byte 0 of the set in it: bad checksum",
    ),
    "length": (bytes(20), "impossible message length 0"),
    "length of magic 1": (bytes.fromhex("00000005 01 00 000000"), "impossible message length 5"),
    "length of four": (bytes.fromhex("00000004") + bytes(20), "impossible message length 4"),
    "length of five, and more behind": (
        bytes.fromhex("00000005 01") + bytes(20),
        "impossible message length 5",
    ),
    "magic": (bytes.fromhex("00000006 02 00 00000000"), "unknown magic 2"),
    "codec": (bytes.fromhex("00000006 01 07 00000000"), "unknown codec 3"),
    "no gzip": (encode_message(b"no gzip", codec=Codec.GZIP), "gzip data is corrupt"),
    "cut set": (
        compressed(encode_set([b"cut"])[:8], Codec.GZIP),
        "the first of the 8 bytes in it is incomplete",
    ),
}


@both_engines
@pytest.mark.parametrize(("data", "why"), FAULTS.values(), ids=FAULTS)
def test_a_fault_names_partition_and_offset(engine: str, data: bytes, why: str) -> None:
    good = encode_set([b"good"])
    with pytest.raises(CorruptMessage, match=f"^t-7-0, entry at offset 114: .*{why}"):
        decode_07(good + data, engine, start=100)
    if len(data) > 1:
        assert values(decode_07(good + data, engine, start=100, end=114)) == [b"good"]


@both_engines
def test_an_inner_entry_that_is_cut_is_left_out_after_a_whole_one(engine: str) -> None:
    data = compressed(encode_set([b"whole", b"cut"])[:-1], Codec.GZIP) + encode_set([b"after"])
    assert values(decode_07(data, engine)) == [b"whole", b"after"]


# --- engines and memory


def test_without_numba_plain_python_serves_and_neither_pandas_nor_numba_is_imported_before() -> None:
    script = """if True:
        import sys
        from pyspark_kafkalog.columnar.decoder import COLUMNS_07, KAFKA_07, RecordBatchDecoder
        from pyspark_kafkalog.errors import InvalidConfig
        from pyspark_kafkalog.formats.v07 import encode_set
        decoder = RecordBatchDecoder(KAFKA_07, topic="t", partition=0, columns=COLUMNS_07)
        assert decoder.decode(memoryview(encode_set([b"v"])), 0, 9).records == 1
        print([name for name in ("pandas", "numba", "pyspark", "numpy") if name in sys.modules])
        sys.modules["numba"] = None
        try:
            RecordBatchDecoder(KAFKA_07, topic="t", partition=0, columns=["value"], engine="numba")
        except InvalidConfig as e:
            print(e)
    """
    root = Path(str(pyspark_kafkalog.__file__)).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=root, capture_output=True, text=True, timeout=120
    )
    imported, refused = done.stdout.strip().split("\n")
    assert imported in ("[]", "['numpy']"), done.stderr
    assert refused.startswith("the engine numba cannot be had here: ModuleNotFoundError: ")
