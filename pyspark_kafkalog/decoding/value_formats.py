"""The formats of values, as text and bytes that tasks get, and a decoder for each: from a column of bytes to
columns ``value`` and ``reason``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TypeAlias

from pyspark_kafkalog.decoding.avro_decoder import AvroDecoder, AvroFormat
from pyspark_kafkalog.decoding.json_decoder import JsonDecoder, JsonFormat
from pyspark_kafkalog.decoding.protobuf_decoder import ProtobufDecoder, ProtobufFormat
from pyspark_kafkalog.decoding.schema_registry import Registry, Schema
from pyspark_kafkalog.errors import InvalidConfig

Format: TypeAlias = AvroFormat | JsonFormat | ProtobufFormat
Decoder: TypeAlias = AvroDecoder | JsonDecoder | ProtobufDecoder

PathOrText: TypeAlias = str | os.PathLike[str]
Writers: TypeAlias = str | os.PathLike[str] | Mapping[int, str]


@cache
def decoder_of(format: Format) -> Decoder:
    """Decoders cache schemas. One per format and process: tasks run here one after the other. Raises
    `InvalidConfig`.
    """
    if isinstance(format, AvroFormat):
        return AvroDecoder(format)
    return JsonDecoder(format) if isinstance(format, JsonFormat) else ProtobufDecoder(format)


def avro_format(
    schema: PathOrText | None,
    registry: str | None,
    subject: str | None,
    writers: Writers | None,
    framed: bool,
) -> AvroFormat:
    """Reads the files now. Raises `InvalidConfig` and `RegistryError`."""
    return AvroFormat(_reader(schema, registry, subject), registry, _writers(writers), framed)


def protobuf_format(descriptors: str | os.PathLike[str], message: str, framed: bool) -> ProtobufFormat:
    """Reads the file now. Raises `InvalidConfig`."""
    try:
        return ProtobufFormat(Path(descriptors).read_bytes(), message, framed)
    except OSError as e:
        raise InvalidConfig(f"the descriptors cannot be read: {e}") from e


def _reader(schema: PathOrText | None, registry: str | None, subject: str | None) -> Schema:
    if (schema is None) == (subject is None):
        raise InvalidConfig("give schema=..., or subject=... to take it from the registry")
    if schema is not None:
        return Schema(_text(schema))
    if registry is None:
        raise InvalidConfig(f"subject={subject!r} needs registry=..., the URL of the schema registry")
    return Registry(registry).latest(str(subject))


def _text(schema: PathOrText) -> str:
    if isinstance(schema, str) and schema.lstrip()[:1] in ("{", "[", '"'):
        return schema
    try:
        return Path(schema).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise InvalidConfig(f"the schema cannot be read: {e}") from e


def _writers(given: Writers | None) -> tuple[tuple[int, str], ...]:
    if given is None:
        return ()
    if isinstance(given, Mapping):
        return tuple(sorted(given.items()))
    found = {int(file.stem): _text(file) for file in Path(given).glob("*.avsc") if file.stem.isdecimal()}
    if not found:
        raise InvalidConfig(f"{os.fspath(given)} has no schemas: expected are files <id>.avsc")
    return tuple(sorted(found.items()))
