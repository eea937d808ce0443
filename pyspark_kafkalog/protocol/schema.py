"""Messages as tables: a frozen dataclass whose fields carry wire type and versions, for all versions.

`wire` describes a field; `codec.codec` gives the readers and writers that are made of the tables. A struct
can hold only structs that were defined before it: nesting is bounded by the schema, whatever the bytes say.
Names, versions and defaults are those of Kafka's message definitions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from struct import calcsize
from typing import Any, Protocol

from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.primitives import ZERO_UUID, Reader, Writer

_SPEC = "wire"
_UNSET: Any = object()


@dataclass(frozen=True, slots=True)
class Scalar:
    """A type of fixed size that ``struct`` knows by ``code``."""

    code: str
    default: Any

    @property
    def size(self) -> int:
        """Bytes on the wire."""
        return calcsize(">" + self.code)


BOOL = Scalar("?", False)
INT8 = Scalar("b", 0)
INT16 = Scalar("h", 0)
INT32 = Scalar("i", 0)
INT64 = Scalar("q", 0)
ERROR_CODE = Scalar("h", ErrorCode.NONE)
"""An int16 that reads as `ErrorCode`."""


@dataclass(frozen=True, slots=True)
class Variable:
    """A type with codecs of its own in `primitives`; ``classic_bytes`` is the least it takes there."""

    classic_bytes: int
    flexible_bytes: int
    default: Any


STRING = Variable(2, 1, "")
UUID_TYPE = Variable(16, 16, ZERO_UUID)
BYTES = Variable(4, 1, b"")
"""Bytes that are small: read as a copy of their own."""

RECORDS = Variable(4, 1, None)
"""A record set: read as a slice of the frame, written as a region of its own."""


@dataclass(frozen=True, slots=True)
class Array:
    """Any number of ``element``: a `Scalar`, `STRING` or a struct class. A tuple in Python."""

    element: Any


@dataclass(frozen=True, slots=True)
class FieldSpec:
    """What the message definition says of a field. Versions are inclusive; ``until`` None is "and later"."""

    type: Any
    since: int
    until: int | None
    null_since: int | None
    ignorable: bool
    tag: int | None

    def exists_in(self, version: int) -> bool:
        """Whether this version has the field."""
        return version >= self.since and (self.until is None or version <= self.until)

    def nullable_in(self, version: int) -> bool:
        """Whether null is a value of the field in this version."""
        return self.null_since is not None and version >= self.null_since


def wire(
    type: Any,
    since: int = 0,
    until: int | None = None,
    *,
    default: Any = _UNSET,
    null_since: int | None = None,
    ignorable: bool = False,
    tag: int | None = None,
) -> Any:
    """A dataclass field for a message.

    ``type`` is one of the types above, an `Array`, or a struct class. Without ``default`` a field is null
    where it may be, else 0, "", (), or the struct's own defaults. A field with a ``tag`` is a tagged
    field in all its versions. A field that is not ``ignorable`` may not hold anything but its default
    in a version without it.
    """
    if default is _UNSET:
        if null_since is not None:
            default = None
        elif isinstance(type, Scalar | Variable):
            default = type.default
        else:
            default = () if isinstance(type, Array) else type()
    return field(default=default, metadata={_SPEC: FieldSpec(type, since, until, null_since, ignorable, tag)})


FieldRow = tuple[str, FieldSpec, Any]
"""A field's name, description and default."""


def specs(cls: Any) -> Iterator[FieldRow]:
    """The fields of a message or struct class, in wire order."""
    for item in fields(cls):
        yield item.name, item.metadata[_SPEC], item.default


class ReaderAndWriter(Protocol):
    """What `Form.nested` gives: how a struct within a struct is read and written."""

    @property
    def reader(self) -> Reader:
        """Reads the struct."""
        ...

    @property
    def writer(self) -> Writer:
        """Writes the struct."""
        ...


@dataclass(frozen=True, slots=True)
class Form:
    """For what readers and writers are made: a version, whether it is flexible, and the structs below."""

    version: int
    flexible: bool
    nested: Callable[[Any], ReaderAndWriter]
