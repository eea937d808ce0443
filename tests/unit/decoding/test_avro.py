"""Avro values: what becomes of them, and why some do not become anything."""

from __future__ import annotations

import datetime as dt
import json
import struct
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from pyspark_kafkalog.decoding.avro_decoder import AvroDecoder, AvroFormat, arrow_types
from pyspark_kafkalog.decoding.schema_registry import (
    RegistryError,
    Schema,
    Undecodable,
    message_path,
    schema_id,
)
from pyspark_kafkalog.errors import InvalidConfig
from tests.support.foreign.schema_registry import SchemaRegistry, running_registry
from tests.support.formats.avro_bytes import avro_bytes

FLIGHT = {
    "type": "record", "name": "Flight", "namespace": "air",
    "fields": [
        {"name": "carrier", "type": "string"},
        {"name": "delay", "type": ["null", "int"], "default": None},
    ],
}  # fmt: skip
OLDER = {**FLIGHT, "fields": [FLIGHT["fields"][0], {"name": "gate", "type": "int"}]}


def written(schema: Any, value: Any, number: int | None = 1) -> bytes:
    return avro_bytes(schema, value, number)


def decoder(reader: Any = FLIGHT, **how: Any) -> AvroDecoder:
    return AvroDecoder(AvroFormat(Schema(json.dumps(reader)), **how))


def rows(found: pa.Array) -> list[tuple[Any, Any]]:
    return [(row["value"], row["reason"]) for row in found.to_pylist()]


@pytest.fixture
def server() -> Iterator[SchemaRegistry]:
    with running_registry() as running:
        yield running


def test_values_are_decoded_and_the_others_have_a_reason() -> None:
    whole = written(FLIGHT, {"carrier": "AA", "delay": 7})
    values = [whole, None, whole[:-1], whole + b"x", b"\1" + whole[1:], b"\0\0", b""]
    found = rows(decoder()(pa.array(values, pa.binary())))
    assert found[:2] == [({"carrier": "AA", "delay": 7}, None), (None, None)]
    assert [value for value, _ in found[2:]] == [None] * 5
    reasons = [reason for _, reason in found[2:]]
    assert reasons[0].startswith("not Avro of schema 1: ")
    assert reasons[1:] == [
        "not Avro of schema 1: 1 bytes are left over",
        "no Confluent header: the first byte is 1, not 0",
        "no Confluent header: 2 bytes are fewer than its 5",
        "no Confluent header: 0 bytes are fewer than its 5",
    ]


def test_the_registry_says_how_a_value_was_written_and_is_asked_once_for_each_id(
    server: SchemaRegistry,
) -> None:
    server.add(OLDER, id=4)
    server.add(FLIGHT, id=5)
    server.add("{}", id=6, kind="JSON")
    decode = decoder(registry=server.url)
    values = [
        written(OLDER, {"carrier": "AA", "gate": 3}, 4), written(FLIGHT, {"carrier": "B6", "delay": 9}, 5),
        written(OLDER, {"carrier": "CC", "gate": 3}, 4), written(FLIGHT, {"carrier": "x", "delay": 1}, 9),
        written(FLIGHT, {"carrier": "x", "delay": 1}, 9), written(FLIGHT, {"carrier": "x", "delay": 1}, 6),
    ]  # fmt: skip
    assert rows(decode(pa.array(values, pa.binary()))) == [
        ({"carrier": "AA", "delay": None}, None), ({"carrier": "B6", "delay": 9}, None),
        ({"carrier": "CC", "delay": None}, None),
        *[(None, f"the registry {server.url} has no schema 9")] * 2,
        (None, "schema 6 is JSON, not Avro"),
    ]  # fmt: skip
    assert sorted(server.asked) == [f"/schemas/ids/{n}" for n in (4, 5, 6, 9)]


def test_a_registry_that_is_away_fails_the_task_and_no_record() -> None:
    with pytest.raises(RegistryError):
        decoder(registry="http://127.0.0.1:1")(pa.array([written(FLIGHT, {"carrier": "AA"})], pa.binary()))


def test_schemas_in_files_serve_without_a_registry_and_values_without_a_header() -> None:
    by_id = decoder(writers=((4, json.dumps(OLDER)),))
    values = [written(OLDER, {"carrier": "AA", "gate": 3}, 4), written(FLIGHT, {"carrier": "x"}, 5)]
    assert rows(by_id(pa.array(values, pa.binary()))) == [
        ({"carrier": "AA", "delay": None}, None), (None, "schema 5 is unknown; known are 4"),
    ]  # fmt: skip
    bare = decoder(framed=False)(pa.array([written(FLIGHT, {"carrier": "AA"}, None), b""], pa.binary()))
    assert rows(bare)[0] == ({"carrier": "AA", "delay": None}, None)
    assert rows(bare)[1][1].startswith("not Avro of the schema: ")


def test_each_type_of_avro_has_its_column() -> None:
    fields = {
        "b": "boolean", "l": ["long", "null"], "f": "float", "n": ["int", "long"], "x": "bytes",
        "e": {"type": "enum", "name": "E", "symbols": ["A", "B"]},
        "again": "E",
        "fix": {"type": "fixed", "name": "F", "size": 2},
        "a": {"type": "array", "items": ["null", "string"]},
        "m": {"type": "map", "values": {"type": "map", "values": "int"}},
        "d": {"type": "int", "logicalType": "date"},
        "ts": {"type": "long", "logicalType": "timestamp-millis"},
        "dec": {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2},
        "u": {"type": "string", "logicalType": "uuid"},
        "t": {"type": "int", "logicalType": "time-millis"},
    }  # fmt: skip
    schema = {
        "type": "record", "name": "R",
        "fields": [{"name": name, "type": kind} for name, kind in fields.items()],
    }  # fmt: skip
    decode = decoder(schema)
    assert [str(field.type) for field in decode.kind] == [
        "bool", "int64", "float", "int64", "binary", "string", "string", "binary", "list<item: string>",
        "map<string, map<string, int32>>", "date32[day]", "timestamp[us, tz=UTC]", "decimal128(6, 2)",
        "string", "int32",
    ]  # fmt: skip
    moment = dt.datetime(2026, 11, 22, 1, 2, 3, 4000, dt.timezone.utc)
    value = {
        "b": True, "l": None, "f": 0.5, "n": 1 << 40, "x": b"\xff", "e": "B", "again": "A", "fix": b"ab",
        "a": ["x", None], "m": {"k": {"i": 1}}, "d": dt.date(2026, 11, 22), "ts": moment,
        "dec": Decimal("12.30"), "u": "123e4567-e89b-12d3-a456-426614174000", "t": dt.time(0, 0, 1),
    }  # fmt: skip
    ((found, reason),) = rows(decode(pa.array([written(schema, value)], pa.binary())))
    assert reason is None
    assert found == {**value, "m": [("k", [("i", 1)])], "t": 1000}


def test_a_number_that_its_column_cannot_hold_is_that_records_fault_only() -> None:
    money = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}
    schema = {"type": "record", "name": "R", "fields": [{"name": "n", "type": money}]}
    large = b"\0\0\0\0\1\x08" + (1 << 30).to_bytes(4, "big")
    values = [large, written(schema, {"n": Decimal("5.25")}), large]
    (bad, good, other) = rows(decoder(schema)(pa.array(values, pa.binary())))
    assert good == ({"n": Decimal("5.25")}, None)
    assert bad == other
    assert bad[0] is None
    assert bad[1].startswith("does not fit the column: ")


MONEY = {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}
PAIR = {"type": "fixed", "name": "Pair", "size": 2}
INNER = {
    "type": "record", "name": "Inner",
    "fields": [{"name": "b", "type": "bytes"}, {"name": "c", "type": ["Pair", "null"], "default": "\u0080a"}],
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "default", "value"),
    [
        ("bytes", "\u00ff\u0001", b"\xff\x01"),
        (["bytes", "null"], "\u00ff\u0001", b"\xff\x01"),
        (["null", "bytes"], None, None),
        ("Pair", "\u00ff\u0001", b"\xff\x01"),
        (MONEY, "\u00ff\u0001", Decimal("-2.55")),
        ({**MONEY, "type": "fixed", "name": "M", "size": 1}, "\u00ff", Decimal("-0.01")),
        ({"type": "array", "items": "bytes"}, ["\u00ff"], [b"\xff"]),
        ({"type": "map", "values": MONEY}, {"k": "\u0001"}, [("k", Decimal("0.01"))]),
        (INNER, {"b": "\u00ff"}, {"b": b"\xff", "c": b"\x80a"}),
        ("string", "\u00ff", "\u00ff"),
        ("double", 1, 1.0),
    ],
)
def test_a_default_is_what_a_writer_would_have_written(kind: Any, default: Any, value: Any) -> None:
    first = [{"name": "a", "type": "int"}]
    fields = [*first, {"name": "p", "type": ["null", PAIR], "default": None}]
    reader = {
        "type": "record",
        "name": "R",
        "fields": [*fields, {"name": "d", "type": kind, "default": default}],
    }
    writer = {"type": "record", "name": "R", "fields": first}
    decode = decoder(reader, writers=((1, json.dumps(writer)),))
    found = rows(decode(pa.array([written(writer, {"a": 1})], pa.binary())))
    assert found == [({"a": 1, "p": None, "d": value}, None)]


@pytest.mark.parametrize(("kind", "default"), [("bytes", "\u0100"), ("Pair", "a"), (INNER, {})])
def test_a_default_that_is_no_value_of_its_field_is_refused_by_name(kind: Any, default: Any) -> None:
    fields = [{"name": "p", "type": PAIR}, {"name": "d", "type": kind, "default": default}]
    with pytest.raises(InvalidConfig, match=r"field air\.R\.d has a default of another type"):
        decoder({"type": "record", "name": "R", "namespace": "air", "fields": fields})


@pytest.mark.parametrize(
    ("kind", "value"),
    [("string", "x"), ("bytes", b"x"), ("int", 7), ("long", 7), ("double", 0.5), ("boolean", True)],
)
def test_a_primitive_may_be_the_whole_schema_as_for_keys(kind: str, value: object) -> None:
    values = pa.array([written(kind, value)], pa.binary())
    assert rows(decoder(kind)(values)) == [(value, None)]
    assert rows(decoder(["null", kind], writers=((1, json.dumps(kind)),))(values)) == [(value, None)]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"precision": 64}, "precision 64 and scale 0"),
        ({}, "precision None and scale 0"),
        ({"precision": 4, "scale": 6}, "precision 4 and scale 6"),
        ({"precision": 4, "scale": -1}, "precision 4 and scale -1"),
    ],
)
def test_a_decimal_that_a_column_cannot_hold_is_refused_by_name(given: dict[str, int], said: str) -> None:
    money = {"type": "bytes", "logicalType": "decimal", **given}
    place = {"type": "record", "name": "Place", "fields": [{"name": "fee", "type": ["null", money]}]}
    schema = {"type": "record", "name": "R", "fields": [{"name": "to", "type": place}]}
    with pytest.raises(
        InvalidConfig, match=rf"field Place\.fee a decimal of {said}: a column's precision is 1 to 38"
    ):
        decoder(schema)


def test_decimals_are_exact_and_are_bytes_for_a_reader_who_asks_for_bytes() -> None:
    def record(kind: Any) -> Any:
        return {"type": "record", "name": "R", "fields": [{"name": "n", "type": kind}]}

    value = b"\0\0\0\0\1\x08" + (1 << 30).to_bytes(4, "big")
    for kind, found in (({**MONEY, "precision": 12}, Decimal("10737418.24")), ("bytes", value[6:])):
        for precision in (4, 40):
            writer = json.dumps(record({**MONEY, "precision": precision}))
            decode = decoder(record(kind), writers=((1, writer),))
            assert rows(decode(pa.array([value], pa.binary()))) == [({"n": found}, None)]


def test_the_whole_schema_may_be_a_list_of_another_schemas_records() -> None:
    place = {"type": "record", "name": "air.Place", "fields": [{"name": "code", "type": "string"}]}
    places = json.dumps({"type": "array", "items": "air.Place"})
    decode = AvroDecoder(AvroFormat(Schema(places, references=(json.dumps(place),))))
    value = b"\0\0\0\0\1\x02\x06JFK\x00"
    assert rows(decode(pa.array([value], pa.binary()))) == [([{"code": "JFK"}], None)]


def test_a_schema_may_refer_to_others(server: SchemaRegistry) -> None:
    place = {"type": "record", "name": "air.Place", "fields": [{"name": "code", "type": "string"}]}
    flight = {"type": "record", "name": "air.F", "fields": [{"name": "to", "type": "air.Place"}]}
    server.add(place, id=1, subject="place")
    server.add(flight, id=2, references=[{"name": "air.Place", "subject": "place", "version": 1}])
    reader = Schema(json.dumps(flight), references=(json.dumps(place),))
    decode = AvroDecoder(AvroFormat(reader, server.url))
    value = struct.pack(">bI", 0, 2) + b"\x06JFK"
    assert rows(decode(pa.array([value], pa.binary()))) == [({"to": {"code": "JFK"}}, None)]


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (
            {"type": "record", "name": "L", "fields": [{"name": "next", "type": ["null", "L"]}]},
            "within itself",
        ),
        ({"type": "record", "name": "U", "fields": [{"name": "u", "type": ["int", "string"]}]}, "a union of"),
        ({"type": "record", "name": "N", "fields": [{"name": "n", "type": "Nobody"}]}, "not an Avro schema"),
        ({"fields": []}, "not an Avro schema"),
        ({"type": "record", "name": "F"}, "not an Avro schema: 'fields' is missing"),
    ],
)
def test_a_schema_that_is_not_a_column_is_refused(schema: Any, said: str) -> None:
    with pytest.raises(InvalidConfig, match=said):
        decoder(schema)


def test_a_type_that_is_defined_nowhere_is_reported() -> None:
    with pytest.raises(InvalidConfig, match="unknown type 'null'"):
        arrow_types("null")


def test_the_header_is_a_zero_and_the_id() -> None:
    assert schema_id(b"\0\0\0\1\2rest") == 258
    with pytest.raises(Undecodable):
        schema_id(b'{"a":1}')


def test_the_path_to_a_message_is_zigzag_varints_and_a_zero_is_the_first() -> None:
    assert message_path(b"\x00rest", 0) == ((0,), 1)
    assert message_path(b"\x04\x02\x00rest", 0) == ((1, 0), 3)
    for cut in (b"", b"\x04\x02", b"\x80", b"\x80" * 6, b"\x01"):
        with pytest.raises(Undecodable):
            message_path(cut, 0)
