"""Whatever the bytes are: a value or a reason, never an error."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from pyspark_kafkalog.decoding.avro_decoder import AvroDecoder, AvroFormat
from pyspark_kafkalog.decoding.schema_registry import Schema
from tests.support.examples import examples
from tests.support.formats.avro_bytes import avro_bytes

SCHEMA = {
    "type": "record", "name": "R",
    "fields": [
        {"name": "text", "type": "string"},
        {"name": "number", "type": ["null", "long"]},
        {"name": "many", "type": {"type": "array", "items": "int"}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "named", "type": {"type": "map", "values": "double"}},
    ],
}  # fmt: skip
DECODE = AvroDecoder(AvroFormat(Schema(json.dumps(SCHEMA))))

records = st.fixed_dictionaries(
    {
        "text": st.text(max_size=20),
        "number": st.none() | st.integers(-(1 << 63), (1 << 63) - 1),
        "many": st.lists(st.integers(-(1 << 31), (1 << 31) - 1), max_size=5),
        "at": st.integers(0, 10**12),
        "named": st.dictionaries(st.text(max_size=5), st.floats(allow_nan=False), max_size=3),
    }
)


@examples(60)
@given(st.lists(records, max_size=5), st.data())
def test_good_values_are_decoded_whatever_lies_between_them(some: list[dict[str, Any]], data: Any) -> None:
    good = [b"\0\0\0\0\1" + avro_bytes(SCHEMA, one) for one in some]
    values: list[bytes | None] = []
    expected: list[dict[str, Any]] = []
    for record, whole in zip(some, good, strict=True):
        values += [
            whole,
            data.draw(st.binary(max_size=30)),
            whole[: data.draw(st.integers(0, len(whole) - 1))],
        ]
        expected.append(record)
    found = DECODE(pa.array(values, pa.binary())).to_pylist()
    assert [row["reason"] for row in found[::3]] == [None] * len(good)
    for row, record in zip(found[::3], expected, strict=True):
        value = row["value"]
        assert (value["text"], value["number"], value["many"]) == (
            record["text"],
            record["number"],
            record["many"],
        )
        assert dict(value["named"]) == record["named"]
        assert round(value["at"].timestamp() * 1000) == record["at"]
    assert all((row["value"] is None) == (row["reason"] is not None) for row in found)
