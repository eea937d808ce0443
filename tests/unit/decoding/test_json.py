"""JSON objects by Arrow: what fits, what does not and why, and that no value decides about another."""

from __future__ import annotations

import random
from datetime import date, datetime, timezone
from typing import Any

import pyarrow as pa
import pytest

from pyspark_kafkalog import decoding
from pyspark_kafkalog.decoding.json_decoder import JsonDecoder, JsonFormat
from pyspark_kafkalog.errors import InvalidConfig

FIELDS = pa.schema(
    [
        ("a", pa.int64()),
        ("b", pa.string()),
        ("f", pa.float64()),
        ("d", pa.date32()),
        ("t", pa.timestamp("us", "UTC")),
        ("x", pa.decimal128(10, 2)),
        ("s", pa.struct([("days", pa.list_(pa.date32())), ("yes", pa.bool_())])),
    ]
)
DEEP = b'{"z": ' + b"[" * 5000 + b"]" * 5000 + b"}"
_CONVERTING = "Failed to convert JSON to int64, couldn't parse:"
LONG = b'{"a": ' + b"1" * 5000 + b"}"

FITS: list[tuple[bytes, dict[str, Any]]] = [
    (b'{"a": 1, "b": "x"}', {"a": 1, "b": "x"}),
    (b'\n{\r\n"b"\t: "\\u00e9\\n"\n}\n', {"b": "é\n"}),
    (b'{"d": "1969-12-31", "t": "2020-01-01T00:00:00+02:00"}',
     {"d": date(1969, 12, 31), "t": datetime(2019, 12, 31, 22, tzinfo=timezone.utc)}),
    (b'{"t": "2020-01-01 00:00:00.123456"}', {"t": datetime(2020, 1, 1, 0, 0, 0, 123456, timezone.utc)}),
    (b'{"s": {"days": ["2020-01-02", null], "yes": true, "no": {}}}',
     {"s": {"days": [date(2020, 1, 2), None], "yes": True}}),
    (b'{"f": 1, "z": [1, {"q": "}{"}], "a": null}', {"f": 1.0}),
    (b'{"f": Inf}', {"f": float("inf")}),
    (b'{"z": 1, "z": 2}', {}),
    (b"{}", {}),
    (DEEP, {}),
]  # fmt: skip

DOES_NOT: list[tuple[bytes, str]] = [
    (b"", "not a JSON object"),
    (b"[1]", "not a JSON object"),
    (b'\xef\xbb\xbf{"a": 1}', "not a JSON object"),
    (b"\xff", "not UTF-8"),
    (b"{}{}", "not one JSON object: Extra data: line 1 column 3 (char 2)"),
    (b'{"a": {}', "not one JSON object: Expecting ',' delimiter: line 1 column 9 (char 8)"),
    (b'{"b": "}', "not one JSON object: Unterminated string starting at: line 1 column 7 (char 6)"),
    (b'{"b": "\n}', "not one JSON object: Invalid control character at: line 1 column 8 (char 7)"),
    (b'{"a": "1"}', 'does not fit the columns: a is "1", not int64'),
    (b'{"a": true}', "does not fit the columns: a is true, not int64"),
    (b'{"b": 5}', "does not fit the columns: b is 5, not string"),
    (b'{"s": []}', "does not fit the columns: s is [], not struct<days: list<item: date32[day]>, yes: bool>"),
    (b'{"a": 1.5}', "does not fit the columns: Failed to convert JSON to int64, couldn't parse:1.5"),
    (b'{"a": 1, "a": 2}',
     "does not fit the columns: JSON parse error: Column(/a) was specified twice in row 0"),
    (b'{"d": "2020-13-01"}',
     "does not fit the columns: Failed to parse string: '2020-13-01' as a scalar of type date32[day]"),
    (LONG, f"does not fit the columns: {_CONVERTING}{'1' * (200 - len(_CONVERTING))}"),
]  # fmt: skip


def whole(found: dict[str, Any]) -> dict[str, Any]:
    return {name: found.get(name) for name in FIELDS.names}


@pytest.fixture(scope="module")
def decoder() -> JsonDecoder:
    return JsonDecoder(JsonFormat(FIELDS))


def test_what_fits_and_what_does_not(decoder: JsonDecoder) -> None:
    values = [None, *(value for value, _ in FITS), *(value for value, _ in DOES_NOT)]
    expected = [
        {"value": None, "reason": None},
        *({"value": whole(found), "reason": None} for _, found in FITS),
        *({"value": None, "reason": why} for _, why in DOES_NOT),
    ]
    assert decoder(pa.array(values, pa.binary())).to_pylist() == expected


def test_no_value_decides_about_another(decoder: JsonDecoder) -> None:
    known: dict[bytes, dict[str, Any]] = {
        value: {"value": whole(found), "reason": None} for value, found in FITS
    }
    known |= {value: {"value": None, "reason": why} for value, why in DOES_NOT}
    for value, expected in known.items():
        assert decoder(pa.array([value])).to_pylist() == [expected]
    mixed = random.Random("mixed").choices(list(known), k=300)
    assert decoder(pa.array(mixed)).to_pylist() == [known[value] for value in mixed]
    assert decoder(pa.array([], pa.binary())).to_pylist() == []
    assert decoder(pa.array([None], pa.binary())).to_pylist() == [{"value": None, "reason": None}]


def test_confluents_header_comes_first_where_it_is_said(decoder: JsonDecoder) -> None:
    framed = JsonDecoder(JsonFormat(pa.schema([("a", pa.int64())]), framed=True))
    values = [b'\x00\x00\x00\x00\x07{"a": 1}', b'{"a": 1}', b"\x00\x00", None]
    assert framed(pa.array(values)).to_pylist() == [
        {"value": {"a": 1}, "reason": None},
        {"value": None, "reason": "no Confluent header before the JSON"},
        {"value": None, "reason": "no Confluent header before the JSON"},
        {"value": None, "reason": None},
    ]


def test_fields_take_the_columns_place_or_are_one_column() -> None:
    rows = pa.record_batch({"key": [b"k", b"l"], "value": [b'{"a": 1}', b"-"], "offset": [7, 8]})
    flat = decoding.json_values({"a": pa.int64()})(rows)
    assert flat.to_pylist() == [
        {"key": b"k", "a": 1, "offset": 7, "reason": None},
        {"key": b"l", "a": None, "offset": 8, "reason": "not a JSON object"},
    ]
    kept = decoding.json_values(pa.schema({"offset": pa.int64()}), into="body")(rows)
    assert kept.schema.names == ["key", "body", "offset", "reason"]
    assert kept["body"].to_pylist() == [{"offset": None}, None]


def test_a_type_that_json_cannot_have_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="JSON cannot be decoded to these columns: "):
        decoding.json_values({"a": pa.union([pa.field("x", pa.int8())], "sparse")})
