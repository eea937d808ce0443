"""Avro values as a producer writes them."""

from __future__ import annotations

import io
import json
import struct
from typing import Any

import fastavro


def avro_bytes(schema: Any, value: Any, number: int | None = None) -> bytes:
    """A value, with Confluent's header where ``number`` says which schema's id it holds."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(json.dumps(schema))), value)
    return (b"" if number is None else struct.pack(">bI", 0, number)) + out.getvalue()
