"""The tables read step by step, as slowly as one likes: the oracle of the generated readers."""

from __future__ import annotations

import struct
from typing import Any
from uuid import UUID

from pyspark_kafkalog.errors import ErrorCode, InvalidRequest
from pyspark_kafkalog.formats.base import read_uvarint
from pyspark_kafkalog.protocol.codec import (
    BYTES,
    ERROR_CODE,
    STRING,
    UUID_TYPE,
    Array,
    Scalar,
    Variable,
    specs,
)


class TableReader:
    """*Not thread-safe.* Reads one message; ``position`` is how far it has come.

    Raises what it meets: `KafkaError`, ``ValueError``, ``LookupError``.
    """

    def __init__(self, data: bytes, version: int, flexible: bool) -> None:
        self._data, self._version, self._flexible = data, version, flexible
        self.position = 0

    def message(self, cls: Any) -> Any:
        """An object of ``cls``."""
        values, tags = {}, {}
        for name, spec in specs(cls):
            values[name] = spec.default
            if not spec.exists_in(self._version):
                continue
            if spec.tag is not None:
                tags[spec.tag] = name, spec
            else:
                values[name] = self._value(spec.type, spec.nullable_in(self._version))
        if self._flexible:
            values |= self._tagged(tags)
        return cls(**values)

    def _take(self, size: int) -> bytes:
        taken = self._data[self.position : self.position + size]
        if size < 0 or len(taken) < size:
            raise InvalidRequest("cut short")
        self.position += size
        return taken

    def _unsigned(self) -> int:
        value, self.position = read_uvarint(self._data, self.position)
        return value

    def _value(self, kind: Any, nullable: bool) -> Any:
        if isinstance(kind, Scalar):
            (number,) = struct.unpack(">" + kind.code, self._take(kind.size))
            return ErrorCode.of(number) if kind is ERROR_CODE else number
        if kind is UUID_TYPE:
            return UUID(bytes=self._take(16))
        if isinstance(kind, Array | Variable):
            short = kind is STRING and not self._flexible
            length = self._unsigned() - 1 if self._flexible else self._value_of("h" if short else "i")
            if length == -1 and nullable:
                return None
            if length < 0 or length > len(self._data):
                raise InvalidRequest("impossible length")
            if isinstance(kind, Array):
                return tuple(self._value(kind.element, False) for _ in range(length))
            content = self._take(length)
            if kind is not STRING:
                return content if kind is BYTES else memoryview(content)
            if length > 0x7FFF:
                raise InvalidRequest("string too long")
            return content.decode()
        if nullable and self._value_of("b") < 0:
            return None
        return self.message(kind)

    def _value_of(self, code: str) -> int:
        (number,) = struct.unpack(">" + code, self._take(struct.calcsize(">" + code)))
        return int(number)

    def _tagged(self, known: dict[int, Any]) -> dict[str, Any]:
        values = {}
        count = self._unsigned()
        if count > 1000:
            raise InvalidRequest("too many tagged fields")
        for _ in range(count):
            tag, size = self._unsigned(), self._unsigned()
            end = self.position + size
            content = self._take(size)
            if tag in known:
                name, spec = known[tag]
                within = TableReader(content, self._version, True)
                values[name] = within._value(spec.type, spec.nullable_in(self._version))
                if within.position != size:
                    raise InvalidRequest("tagged field does not fill its bytes")
            self.position = end
        return values
