"""Readers and writers made from the tables of `schema`, once for each (class, version).

Neighbouring fields of fixed size are joined into one ``struct``; that is most of the difference between a
table codec that is slow and one that is not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from struct import error as StructError  # noqa: N812  (it is an exception class)
from typing import Any

from pyspark_kafkalog.errors import InvalidRequest
from pyspark_kafkalog.protocol.primitives import Output, Reader, Values, Writer
from pyspark_kafkalog.protocol.schema import Form
from pyspark_kafkalog.protocol.table_reading import struct_reader
from pyspark_kafkalog.protocol.table_writing import struct_writer


@dataclass(frozen=True, slots=True)
class Codec:
    """How one message is read and written in one version."""

    cls: Any
    version: int
    reader: Reader
    writer: Writer

    def read(self, buf: memoryview, pos: int, *, exact: bool = True) -> Any:
        """The message that begins at ``pos`` and, if ``exact``, ends with ``buf``.

        Raises:
            InvalidRequest: the bytes do not follow the schema, end too early or go on after it.
        """
        try:
            values: Values = []
            end = self.reader(buf, pos, values)
        except (StructError, IndexError, UnicodeDecodeError, InvalidRequest) as error:
            raise InvalidRequest(f"{self}: {error}") from None
        if exact and end != len(buf):
            raise InvalidRequest(f"{self}: {len(buf) - end} bytes after its end")
        return values[0]

    def write(self, out: Output, message: Any) -> None:
        """Append ``message``.

        Raises:
            InvalidRequest: a value does not fit its type, or this version has no place for it.
        """
        try:
            self.writer(out, message)
        except (StructError, UnicodeEncodeError, InvalidRequest) as error:
            raise InvalidRequest(f"{self}: {error}") from None

    def __str__(self) -> str:
        return f"{self.cls.__name__} v{self.version}"


Tuning = Callable[[Codec, bool], Codec]
"""Takes a struct's codec from the table, and whether it is flexible; gives one that does the same, faster."""

_TUNINGS: dict[type[Any], tuple[int, int, Tuning]] = {}
"""Filled while the modules of ``api`` are imported, and not changed after that."""


def tuned(cls: type[Any], first: int, last: int) -> Callable[[Tuning], Tuning]:
    """Declares a hand-written codec for a struct in versions ``first`` to ``last``.

    It handles what is usual and leaves the rest to the table's codec, which it is given.
    """

    def declare(tuning: Tuning) -> Tuning:
        _TUNINGS[cls] = first, last, tuning
        return tuning

    return declare


@cache
def codec(cls: Any, version: int, flexible: bool) -> Codec:
    """The codec of a message, or of a struct within one, in ``version``; made on first use."""
    table = table_codec(cls, version, flexible)
    first, last, tuning = _TUNINGS.get(cls, (0, -1, None))
    return tuning(table, flexible) if tuning is not None and first <= version <= last else table


def table_codec(cls: Any, version: int, flexible: bool) -> Codec:
    """The codec that the table gives, without hand-written parts for ``cls`` itself."""
    form = Form(version, flexible, lambda nested: codec(nested, version, flexible))
    return Codec(cls, version, struct_reader(cls, form), struct_writer(cls, form))
