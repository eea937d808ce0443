"""Messages as tables: a frozen dataclass whose fields have a wire type and versions, for all versions.

`wire` describes a field; `codec.codec` gives the readers and writers made from the tables. A struct
can only contain structs defined before it, so the schema bounds nesting, whatever the bytes say.
Names, versions and defaults are those of Kafka's message definitions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from struct import calcsize
from typing import Any

from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.primitives import ZERO_UUID

_SPEC = "wire"
_UNSET: Any = object()


@dataclass(frozen=True, slots=True)
class Scalar:
    """A type of fixed size, packed by ``struct`` with ``code``."""

    code: str
    default: Any

    @property
    def size(self) -> int:
        return calcsize(">" + self.code)


BOOL = Scalar("?", False)
INT8 = Scalar("b", 0)
INT16 = Scalar("h", 0)
INT32 = Scalar("i", 0)
INT64 = Scalar("q", 0)
ERROR_CODE = Scalar("h", ErrorCode.NONE)
"""An int16 read as `ErrorCode`."""


@dataclass(frozen=True, slots=True)
class Variable:
    """A type with its own codecs in `primitives`; both sizes are the least it can take."""

    classic_bytes: int
    flexible_bytes: int
    default: Any


STRING = Variable(2, 1, "")
UUID_TYPE = Variable(16, 16, ZERO_UUID)
BYTES = Variable(4, 1, b"")
"""Small bytes: read as a copy."""

RECORDS = Variable(4, 1, None)
"""A record set: read as a slice of the frame, written as a region."""


@dataclass(frozen=True, slots=True)
class Array:
    """Any number of ``element``: a `Scalar`, `STRING` or a struct class. A tuple in Python."""

    element: Any


@dataclass(frozen=True, slots=True)
class FieldSpec:
    """A field in the message definition. Versions are inclusive; ``until`` None is "and later"."""

    type: Any
    since: int
    until: int | None
    null_since: int | None
    ignorable: bool
    tag: int | None

    def exists_in(self, version: int) -> bool:
        return version >= self.since and (self.until is None or version <= self.until)

    def nullable_in(self, version: int) -> bool:
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
    """A dataclass field of a message.

    ``type`` is one of the types above, an `Array`, or a struct class. Without ``default`` a field is null if
    it may be, else 0, "", (), or the struct's own defaults. A field with a ``tag`` is a tagged field in all
    its versions. A field that is not ``ignorable`` must have its default in a version without it.
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
