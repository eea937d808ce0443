"""Protobuf values to columns, of the types of Spark's source: ``uint32`` is a long, ``uint64`` a decimal.
Fields are identified by number, so one descriptor file decodes other versions too; no registry is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark_kafkalog.decoding.schema_registry import (
    HEADER_BYTES,
    Undecodable,
    decode_column,
    message_path,
    schema_id,
)
from pyspark_kafkalog.errors import InvalidConfig

if TYPE_CHECKING:
    import pyarrow as pa

_TIMESTAMP = "google.protobuf.Timestamp"
_MAX_DEPTH = 50


@dataclass(frozen=True)
class ProtobufFormat:
    descriptors: bytes
    message: str
    framed: bool = True


class ProtobufDecoder:
    """Decodes Protobuf columns. *Not thread-safe: belongs to one task's process.*"""

    def __init__(self, format: ProtobufFormat) -> None:
        """Raises `InvalidConfig` if the descriptors are invalid or lack the message, or it is recursive."""
        try:
            from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
            from google.protobuf.message import DecodeError
        except ImportError as e:
            raise InvalidConfig(
                "decoding Protobuf needs protobuf, on driver and executors: pip install "
                "'pyspark-kafkalog[protobuf]'"
            ) from e
        self._error, self._framed = DecodeError, format.framed
        pool = descriptor_pool.DescriptorPool()
        try:
            for file in descriptor_pb2.FileDescriptorSet.FromString(format.descriptors).file:
                pool.Add(file)
            self._message = pool.FindMessageTypeByName(format.message)
        except (DecodeError, KeyError, TypeError) as e:
            raise InvalidConfig(
                f"no message {format.message!r} in the descriptors: {e}. Write them with protoc "
                "--include_imports --descriptor_set_out"
            ) from e
        self._new = message_factory.GetMessageClass(self._message)
        self._path = _path_of(self._message)
        self.kind, self._read = _message(self._message, 0)

    def __call__(self, values: pa.Array) -> pa.StructArray:
        import pyarrow as pa

        return decode_column(values, self._decode, lambda found: pa.array(found, self.kind))

    def _decode(self, value: bytes) -> Any:
        begin = 0
        if self._framed:
            schema_id(value)
            path, begin = message_path(value, HEADER_BYTES)
            if path != self._path:
                raise Undecodable(
                    f"message {list(path)} of its file, where {self._message.full_name} is {list(self._path)}"
                )
        try:
            found = self._new.FromString(value[begin:])
        except self._error as e:
            raise Undecodable(f"not a {self._message.full_name}: {e}") from e
        return self._read(found)


def _path_of(message: Any) -> tuple[int, ...]:
    path: list[int] = []
    while message is not None:
        parent = message.containing_type
        siblings = message.file.message_types_by_name if parent is None else parent.nested_types_by_name
        path.insert(0, list(siblings).index(message.name))
        message = parent
    return tuple(path)


Read = Callable[[Any], Any]


def _message(message: Any, depth: int) -> tuple[pa.DataType, Read]:
    import pyarrow as pa

    if depth > _MAX_DEPTH:
        raise InvalidConfig(
            f"{message.full_name} nests more than {_MAX_DEPTH} deep, or within itself: a column cannot"
        )
    if message.full_name == _TIMESTAMP:
        return pa.timestamp("us", "UTC"), lambda v: v.seconds * 1_000_000 + v.nanos // 1000
    fields = [(one.name, one.has_presence, *_field(one, depth)) for one in message.fields]

    def read(value: Any) -> dict[str, Any]:
        return {
            name: None if optional and not value.HasField(name) else take(getattr(value, name))
            for name, optional, _, take in fields
        }

    return pa.struct([pa.field(name, kind) for name, _, kind, _ in fields]), read


def _field(field: Any, depth: int) -> tuple[pa.DataType, Read]:
    import pyarrow as pa

    inner = field.message_type
    if inner is not None and inner.GetOptions().map_entry:
        key, _ = _single(inner.fields_by_name["key"], depth)
        item, take = _single(inner.fields_by_name["value"], depth)
        return pa.map_(key, item), lambda v: [(k, take(one)) for k, one in v.items()]
    kind, one_of = _single(field, depth)
    if field.is_repeated:
        return pa.list_(kind), lambda v: [one_of(one) for one in v]
    return kind, one_of


def _single(field: Any, depth: int) -> tuple[pa.DataType, Read]:
    import pyarrow as pa

    if field.message_type is not None:
        return _message(field.message_type, depth + 1)
    if field.enum_type is not None:
        names = {number: value.name for number, value in field.enum_type.values_by_number.items()}
        return pa.string(), lambda v: names.get(v, str(v))
    kinds = {
        field.TYPE_BOOL: pa.bool_(), field.TYPE_STRING: pa.string(), field.TYPE_BYTES: pa.binary(),
        field.TYPE_FLOAT: pa.float32(), field.TYPE_DOUBLE: pa.float64(),
        field.TYPE_INT32: pa.int32(), field.TYPE_SINT32: pa.int32(), field.TYPE_SFIXED32: pa.int32(),
        field.TYPE_UINT32: pa.int64(), field.TYPE_FIXED32: pa.int64(),
        field.TYPE_INT64: pa.int64(), field.TYPE_SINT64: pa.int64(), field.TYPE_SFIXED64: pa.int64(),
        field.TYPE_UINT64: pa.decimal128(20, 0), field.TYPE_FIXED64: pa.decimal128(20, 0),
    }  # fmt: skip
    if field.type not in kinds:
        raise InvalidConfig(f"{field.full_name} is a group, which has no column type")
    return kinds[field.type], lambda v: v
