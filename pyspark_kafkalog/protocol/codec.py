"""Messages as tables, and the readers and writers generated from them per class and version.

A message is a `WireStruct` whose fields have a wire type and versions (`wire`); names, versions and
defaults are those of Kafka's message definitions. A struct contains only structs defined before it, so the
schema bounds nesting. Adjacent fields of fixed size share one ``struct``. A reader is Python source generated
by `ReaderSource` and compiled on first use; a writer consists of closures.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import count, groupby
from operator import attrgetter, itemgetter
from struct import Struct, calcsize, pack, unpack_from
from struct import error as StructError  # noqa: N812  (it is an exception class)
from typing import TYPE_CHECKING, Any, ClassVar
from uuid import UUID

import msgspec

from pyspark_kafkalog.errors import ErrorCode, InvalidRequest
from pyspark_kafkalog.protocol import primitives
from pyspark_kafkalog.protocol.primitives import ZERO_UUID, Output, Writer, write_uuid

_UNSET: Any = object()

Reader = Callable[[memoryview, int], tuple[Any, int]]
"""``(buffer, position)`` to the value there and the position after it."""


class Scalar(msgspec.Struct, frozen=True):
    """A type of fixed size with its ``struct`` code."""

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
FLOAT64 = Scalar("d", 0.0)
ERROR_CODE = Scalar("h", ErrorCode.NONE)  # an int16, read as `ErrorCode`


class Variable(msgspec.Struct, frozen=True):
    """A type with its own writer; sizes are minimums. ``content`` is Python for the value read."""

    classic_bytes: int
    flexible_bytes: int
    default: Any
    content: str
    writer: Callable[..., Writer]


STRING = Variable(2, 1, "", "str(buf[pos:end], 'utf-8')", primitives.string_writer)
UUID_TYPE = Variable(
    16, 16, ZERO_UUID, "UUID(bytes=raw) if raw != ZEROS else ZERO_UUID", lambda *_, **__: write_uuid
)
BYTES = Variable(4, 1, b"", "bytes(buf[pos:end])", primitives.bytes_writer)
"""Small bytes, read as a copy so that they do not keep the frame alive."""

RECORDS = Variable(4, 1, None, "buf[pos:end]", primitives.records_writer)
"""A record set: read as a slice of the frame, written as a region."""


class Array(msgspec.Struct, frozen=True):
    """A sequence of ``element``, a `Scalar`, `STRING` or struct class; a tuple in Python."""

    element: Any


class FieldSpec(msgspec.Struct, frozen=True):
    """A field of a message definition. Versions are inclusive; ``until`` None is "and later"."""

    type: Any
    default: Any
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
    """A field of a message.

    ``type`` is a type above, an `Array`, or a struct class. The default ``default`` is null if allowed, else
    0, "", (), or the struct's defaults. A field with ``tag`` is tagged in all its versions. A version without
    the field requires its default value, unless the field is ``ignorable``.
    """
    if default is _UNSET:
        if null_since is not None:
            default = None
        elif isinstance(type, Scalar | Variable):
            default = type.default
        else:
            default = () if isinstance(type, Array) else type()
    return FieldSpec(type, default, since, until, null_since, ignorable, tag)


if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**_: bool) -> Callable[[type], type]:
        return lambda cls: cls


@dataclass_transform(frozen_default=True)
class _StructType(msgspec.StructMeta):
    def __new__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> Any:
        rows = [(each, spec) for each, spec in namespace.items() if isinstance(spec, FieldSpec)]
        defaults = {each: spec.default for each, spec in rows}
        # Messages contain no cycles, so the garbage collector need not look at them.
        return super().__new__(
            cls, name, bases, {**namespace, **defaults, "_rows": rows}, frozen=True, gc=False
        )


class WireStruct(msgspec.Struct, metaclass=_StructType):
    """*Immutable.* A message or part of one: each subclass is a frozen struct of msgspec, which makes classes
    and their values many times as fast as ``dataclass``.
    """

    _rows: ClassVar[list[tuple[str, FieldSpec]]]


FieldRow = tuple[str, FieldSpec]  # name and description


def specs(cls: Any) -> Sequence[FieldRow]:
    """The table of a struct, or of the class of one."""
    rows: Sequence[FieldRow] = cls._rows
    return rows


_CODES = {int(code): code for code in ErrorCode}
_HELPERS = primitives.bad_count, primitives.bad_length, primitives.read_length, primitives.skip_tagged_fields


class ReaderSource:
    """Generates the source of a function that reads a struct or a field. *Not thread-safe: for one reader.*

    For Produce's partitions, a struct in an array, in a flexible version::

        index_1, n, = unpack2(buf, pos)             # adjacent fixed sizes, and the length's first byte
        pos += 5
        if n > 127:                                 # a longer length
            n, pos = read_length(buf, pos - 1)
        n -= 1
        end = pos + n
        if n >= 0 and end <= size:
            records_2 = buf[pos:end]
            pos = end
        elif n == -1:
            records_2 = None
        else:
            raise bad_length('PartitionProduceData.records', n, size - pos)
        ...                                         # the tagged fields
        item2 = class2(index_1, records_2)

    A length or count ends a run of adjacent fields. Structs are inlined. The source depends only on the
    tables, never on a message's content.
    """

    def __init__(self, version: int, flexible: bool) -> None:
        self._version, self._flexible = version, flexible
        self._lines = ["def read(buf, pos):", "    size = len(buf)"]
        self._indent = 1
        self._numbers = count(1)  # tell fields of one name in different structs apart
        self._run: list[tuple[str, str]] = []
        self._after_run: list[str] = []
        self._names: dict[str, Any] = {
            "UUID": UUID,
            "ZERO_UUID": ZERO_UUID,
            "ZEROS": ZERO_UUID.bytes,
            "codes": _CODES,
            "NONE": ErrorCode.NONE,
            "UNKNOWN": ErrorCode.UNKNOWN_SERVER_ERROR,
            "unpack_from": unpack_from,
            **{f.__name__: f for f in _HELPERS},
        }

    def reader(self, label: str, kind: Any, *, nullable: bool = False) -> Reader:
        self._value(kind, label, "value", nullable)
        self._end_run()
        self._write("return value, pos")
        code = compile("\n".join(self._lines), f"<reader of {label} v{self._version}>", "exec")
        exec(code, self._names)
        read: Reader = self._names["read"]
        return read

    def _write(self, *lines: str) -> None:
        self._lines += ["    " * self._indent + line for line in lines]

    def _named(self, prefix: str, value: Any) -> str:
        name = f"{prefix}{len(self._names)}"
        self._names[name] = value
        return name

    def _constant(self, value: Any) -> str:
        simple = value is None or value == () or type(value) in (int, str, bool)
        return repr(value) if simple else self._named("default", value)

    def _fixed(self, code: str, target: str) -> None:
        self._run.append((code, target))

    def _end_run(self) -> None:
        run, self._run = self._run, []
        if not run:
            return
        codes = "".join(code for code, _ in run)
        if codes == "B":
            self._write(f"{run[0][1]} = buf[pos]", "pos += 1")
        else:
            layout = Struct(">" + codes)
            targets = "".join(f"{target}, " for _, target in run)
            self._write(f"{targets}= {self._named('unpack', layout.unpack_from)}(buf, pos)")
            self._write(f"pos += {layout.size}")
        self._write(*self._after_run)
        self._after_run.clear()

    def _value(self, kind: Any, label: str, target: str, nullable: bool) -> None:
        if isinstance(kind, Scalar):
            self._fixed(kind.code, target)
            if kind is ERROR_CODE:
                self._after_run.append(f"{target} = codes.get({target}, UNKNOWN) if {target} else NONE")
        elif kind is UUID_TYPE:
            self._end_run()
            self._fixed("16s", "raw")
            self._end_run()
            self._write(f"{target} = {kind.content}")
        elif isinstance(kind, Variable):
            self._sized(kind, label, target, nullable)
        elif isinstance(kind, Array):
            self._array(kind.element, label, target, nullable)
        elif nullable:
            # The byte in front says whether it is null.
            self._fixed("b", "n")
            self._end_run()
            self._write("if n < 0:", f"    {target} = None", "else:")
            self._indent += 1
            self._struct(kind, target)
            self._indent -= 1
        else:
            self._struct(kind, target)

    def _length(self, classic_code: str) -> None:
        """Read a length or count into ``n``; -1 is null."""
        self._fixed("B" if self._flexible else classic_code, "n")
        self._end_run()
        if self._flexible:
            self._write("if n > 127:", "    n, pos = read_length(buf, pos - 1)", "n -= 1")

    def _null_or(self, refusal: str, target: str, nullable: bool) -> None:
        if nullable:
            self._write("elif n == -1:", f"    {target} = None")
        self._write("else:", f"    raise {refusal}")

    def _sized(self, kind: Variable, label: str, target: str, nullable: bool) -> None:
        self._length("h" if kind is STRING else "i")
        allowed = "n >= 0"
        if kind is STRING and self._flexible:
            allowed = f"0 <= n <= {primitives.MAX_STRING_BYTES}"
        self._write("end = pos + n", f"if {allowed} and end <= size:")
        self._write(f"    {target} = {kind.content}", "    pos = end")
        self._null_or(f"bad_length({label!r}, n, size - pos)", target, nullable)

    def _array(self, element: Any, label: str, target: str, nullable: bool) -> None:
        """Refuse a count that the rest cannot hold before allocating."""
        least = _least_bytes(element, self._version, self._flexible)
        self._length("i")
        self._write(f"if n >= 0 and n * {least} <= size - pos:")
        self._indent += 1
        if isinstance(element, Scalar):
            self._write(f"{target} = unpack_from(f'>{{n}}{element.code}', buf, pos)", f"pos += n * {least}")
        else:
            items, item = f"items{self._indent}", f"item{self._indent}"
            self._write(f"{items} = []", "for _ in range(n):")
            self._indent += 1
            self._value(element, label, item, False)
            self._end_run()
            self._write(f"{items}.append({item})")
            self._indent -= 1
            self._write(f"{target} = tuple({items})")
        self._indent -= 1
        self._null_or(f"bad_count({label!r}, n, size - pos)", target, nullable)

    def _struct(self, cls: Any, target: str) -> None:
        values, tagged = [], {}
        for name, spec in specs(cls):
            if not spec.exists_in(self._version):
                values.append(self._constant(spec.default))
                continue
            value = f"{name}_{next(self._numbers)}"
            values.append(value)
            if spec.tag is not None:
                tagged[value] = name, spec
            else:
                nullable = spec.nullable_in(self._version)
                self._value(spec.type, f"{cls.__name__}.{name}", value, nullable)
        if self._flexible:
            self._tags(cls, tagged)
        self._end_run()
        self._write(f"{target} = {self._named('class', cls)}({', '.join(values)})")

    def _tags(self, cls: Any, tagged: dict[str, FieldRow]) -> None:
        self._fixed("B", "n")
        self._end_run()
        self._write("if n:")
        if not tagged:
            self._write("    pos = skip_tagged_fields(buf, pos - 1)")
            return
        read = self._named("tags", _tags_reader(cls, list(tagged.values()), self._version))
        self._write(
            f"    ({''.join(f'{target}, ' for target in tagged)}), pos = {read}(buf, pos - 1)", "else:"
        )
        for target, (_, spec) in tagged.items():
            self._write(f"    {target} = {self._constant(spec.default)}")


def _tags_reader(cls: Any, tagged: list[FieldRow], version: int) -> Reader:
    """Read tagged fields in table order, with defaults for missing ones; skip unknown ones."""
    defaults = [spec.default for _, spec in tagged]
    known = {}
    for i, (name, spec) in enumerate(tagged):
        label = f"{cls.__name__}.{name}"
        reader = ReaderSource(version, True).reader(label, spec.type, nullable=spec.nullable_in(version))
        known[spec.tag] = i, label, reader

    def read(buf: memoryview, pos: int) -> tuple[list[Any], int]:
        values = list(defaults)
        tags, pos = primitives.read_tag_count(buf, pos)
        for _ in range(tags):
            tag, pos = primitives.read_length(buf, pos)
            size, pos = primitives.read_length(buf, pos)
            end = pos + size
            if end > len(buf):
                raise InvalidRequest(f"tagged field {tag} claims {size} bytes; {len(buf) - pos} are left")
            if tag in known:
                index, label, reader = known[tag]
                values[index], after = reader(buf[:end], pos)
                if after != end:
                    raise InvalidRequest(f"{label} does not end with its {size} bytes")
            pos = end
        return values, pos

    return read


def _least_bytes(kind: Any, version: int, flexible: bool) -> int:
    if isinstance(kind, Scalar):
        return kind.size
    if isinstance(kind, Variable):
        return kind.flexible_bytes if flexible else kind.classic_bytes
    if isinstance(kind, Array):
        return 1 if flexible else 4
    present = (spec for _, spec in specs(kind) if spec.exists_in(version) and spec.tag is None)
    return flexible + sum(
        1
        if spec.nullable_in(version) and isinstance(spec.type, type)
        else _least_bytes(spec.type, version, flexible)
        for spec in present
    )


def _struct_writer(cls: Any, version: int, flexible: bool) -> Writer:
    plain: list[FieldRow] = []
    tagged: list[FieldRow] = []
    lost = []
    for name, spec in specs(cls):
        if spec.exists_in(version):
            (plain if spec.tag is None else tagged).append((name, spec))
        elif not spec.ignorable:
            lost.append((name, spec.default))
    steps = [_refuse_values_in(lost)] if lost else []
    for fixed, run in groupby(plain, key=lambda row: isinstance(row[1].type, Scalar)):
        rows = list(run)
        if fixed:
            codes = "".join(spec.type.code for _, spec in rows)
            steps.append(_run_writer([name for name, _ in rows], codes))
            continue
        for name, spec in rows:
            writer = _field_writer(f"{cls.__name__}.{name}", spec, version, flexible)
            steps.append(_attribute_writer(name, writer))
    if flexible:
        steps.append(_tags_writer(cls, tagged, version) if tagged else lambda out, _: out.append(0))
    if len(steps) == 1:
        return steps[0]

    def write(out: Output, value: Any) -> None:
        for step in steps:
            step(out, value)

    return write


def _run_writer(names: list[str], codes: str) -> Writer:
    get, pack = attrgetter(*names), Struct(">" + codes).pack

    def write_one(out: Output, value: Any) -> None:
        out += pack(get(value))

    def write_run(out: Output, value: Any) -> None:
        out += pack(*get(value))

    return write_one if len(names) == 1 else write_run


def _attribute_writer(name: str, writer: Writer) -> Writer:
    get = attrgetter(name)

    def write(out: Output, value: Any) -> None:
        writer(out, get(value))

    return write


def _refuse_values_in(lost: list[tuple[str, Any]]) -> Writer:
    def check(out: Output, value: Any) -> None:  # noqa: ARG001  (a Writer)
        for name, default in lost:
            held = getattr(value, name)
            if held is not default and held != default and held not in (None, ()):
                raise InvalidRequest(f"this version has no field for {name}={held!r}")

    return check


def _tags_writer(cls: Any, tagged: list[FieldRow], version: int) -> Writer:
    """Write the tagged fields with non-default values, by ascending tag."""
    rows = [
        (
            spec.tag or 0,
            attrgetter(name),
            spec.default,
            _field_writer(f"{cls.__name__}.{name}", spec, version, True),
        )
        for name, spec in tagged
    ]
    rows.sort(key=itemgetter(0))

    def write(out: Output, value: Any) -> None:
        sent = []
        for tag, get, default, writer in rows:
            held = get(value)
            # Most are the default object itself: the identity test saves comparing structs.
            if held is not default and held != default:
                sent.append((tag, held, writer))
        primitives.write_length(out, len(sent))
        for tag, held, writer in sent:
            content = Output()
            writer(content, held)
            primitives.write_length(out, tag)
            primitives.write_length(out, len(content))
            out += content

    return write


def _field_writer(name: str, spec: FieldSpec, version: int, flexible: bool) -> Writer:
    nullable = spec.nullable_in(version)
    if not isinstance(spec.type, Array):
        return _type_writer(name, spec.type, version, flexible, nullable)
    element = spec.type.element
    write_count = primitives.count_writer(name, flexible=flexible, nullable=nullable)
    if isinstance(element, Scalar):
        code = element.code

        def write_scalars(out: Output, items: Sequence[Any] | None) -> None:
            write_count(out, None if items is None else len(items))
            if items:
                out += pack(f">{len(items)}{code}", *items)

        return write_scalars
    write_one = _type_writer(name, element, version, flexible, False)

    def write(out: Output, items: Sequence[Any] | None) -> None:
        if items is None:
            write_count(out, None)
            return
        write_count(out, len(items))
        for item in items:
            write_one(out, item)

    return write


def _type_writer(name: str, kind: Any, version: int, flexible: bool, nullable: bool) -> Writer:
    if isinstance(kind, Variable):
        return kind.writer(name, flexible=flexible, nullable=nullable)
    if isinstance(kind, Scalar):
        pack = Struct(">" + kind.code).pack

        def write(out: Output, value: Any) -> None:
            out += pack(value)

        return write
    present = codec(kind, version, flexible).writer
    if not nullable:
        return present

    def write_or_null(out: Output, value: Any) -> None:
        out.append(1 if value is not None else 0xFF)
        if value is not None:
            present(out, value)

    return write_or_null


@dataclass(slots=True, eq=False)
class Codec:
    """One message class in one version. Its reader, up to a millisecond to compile, is made on first use."""

    cls: Any
    version: int
    flexible: bool
    writer: Writer
    _reader: Reader | None = None

    def read(self, buf: memoryview, pos: int, *, exact: bool = True) -> Any:
        reader = self._reader
        if reader is None:
            source = ReaderSource(self.version, self.flexible)
            reader = self._reader = source.reader(self.cls.__name__, self.cls)
        try:
            message, end = reader(buf, pos)
        except (StructError, IndexError, UnicodeDecodeError, InvalidRequest) as error:
            raise InvalidRequest(f"{self}: {error}") from None
        if exact and end != len(buf):
            raise InvalidRequest(f"{self}: {len(buf) - end} bytes after its end")
        return message

    def write(self, out: Output, message: Any) -> None:
        try:
            self.writer(out, message)
        except (StructError, UnicodeEncodeError, InvalidRequest) as error:
            raise InvalidRequest(f"{self}: {error}") from None

    def __str__(self) -> str:
        return f"{self.cls.__name__} v{self.version}"


Tuning = Callable[[Writer, bool], Writer]
"""Takes a struct's table writer and whether it is flexible; returns an equivalent faster one."""

_TUNINGS: dict[type[Any], tuple[int, int, Tuning]] = {}
"""Filled by the imports of ``api`` modules, then constant."""


def tuned(cls: type[Any], first: int, last: int) -> Callable[[Tuning], Tuning]:
    """Declare a hand-written writer for a struct; it delegates other cases to its argument, the table's."""

    def declare(tuning: Tuning) -> Tuning:
        _TUNINGS[cls] = first, last, tuning
        return tuning

    return declare


@cache
def codec(cls: Any, version: int, flexible: bool) -> Codec:
    made = table_codec(cls, version, flexible)
    first, last, tuning = _TUNINGS.get(cls, (0, -1, None))
    if tuning is not None and first <= version <= last:
        made.writer = tuning(made.writer, flexible)
    return made


def table_codec(cls: Any, version: int, flexible: bool) -> Codec:
    """The codec from the table, without a hand-written writer for ``cls`` itself."""
    return Codec(cls, version, flexible, _struct_writer(cls, version, flexible))
