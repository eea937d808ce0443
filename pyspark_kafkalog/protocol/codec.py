"""Messages as tables, and the readers and writers made from them, once for each (class, version).

A message is a frozen dataclass whose fields have a wire type and versions (`wire`); names, versions and
defaults are those of Kafka's message definitions. A struct can only contain structs defined before it, so the
schema bounds nesting, whatever the bytes say. Neighbouring fields of fixed size are joined into one
``struct``, which is the greatest part of the codec's speed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, make_dataclass
from functools import cache
from itertools import groupby
from operator import attrgetter, itemgetter
from struct import Struct, calcsize, unpack_from
from struct import error as StructError  # noqa: N812  (it is an exception class)
from typing import Any

from pyspark_kafkalog.errors import ErrorCode, InvalidRequest
from pyspark_kafkalog.protocol import primitives
from pyspark_kafkalog.protocol.primitives import (
    ZERO_UUID,
    Output,
    Reader,
    Values,
    Writer,
    read_uuid,
    write_uuid,
)

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
    """A type with its own reader and writer; both sizes are the least it can take."""

    classic_bytes: int
    flexible_bytes: int
    default: Any
    reader: Callable[..., Reader]
    writer: Callable[..., Writer]


STRING = Variable(2, 1, "", primitives.string_reader, primitives.string_writer)
UUID_TYPE = Variable(16, 16, ZERO_UUID, lambda *_, **__: read_uuid, lambda *_, **__: write_uuid)
BYTES = Variable(4, 1, b"", primitives.bytes_reader, primitives.bytes_writer)
"""Small bytes: read as a copy."""

RECORDS = Variable(4, 1, None, primitives.records_reader, primitives.records_writer)
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


_CODES = {int(code): code for code in ErrorCode}


@dataclass(frozen=True, slots=True)
class Form:
    """What readers and writers depend on: the version, whether it is flexible, and nested structs' codecs."""

    version: int
    flexible: bool
    nested: Callable[[Any], Codec]


def error_code(number: int) -> ErrorCode:
    """`ErrorCode.of`, but faster."""
    return _CODES.get(number, ErrorCode.UNKNOWN_SERVER_ERROR)


@cache
def constructor(cls: Any) -> Callable[..., Any]:
    """A function that makes an object of a frozen class from the values of all its fields, in order.

    A frozen dataclass sets each field through ``object.__setattr__``. Here an unfrozen twin with the same
    slots is filled by plain assignments and then changed to ``cls``: 285 ns instead of 1018 for the eleven
    fields of Fetch's `PartitionData` (benchmarks/protocol.py).
    """
    names = [name for name, _, _ in specs(cls)]
    twin: Any = make_dataclass(cls.__name__, names, slots=True, repr=False, eq=False)

    def make(*values: Any) -> Any:
        made = twin(*values)
        made.__class__ = cls
        return made

    return make


def struct_reader(cls: Any, form: Form) -> Reader:
    """The reader of a message, or of a struct within one."""
    table = list(specs(cls))
    present = [row for row in table if row[1].exists_in(form.version)]
    plain = [row for row in present if row[1].tag is None]
    tagged = [row for row in present if row[1].tag is not None]
    absent = [row for row in table if not row[1].exists_in(form.version)]
    steps = _read_steps(cls, plain, form)
    if tagged:
        steps.append(_tags_reader(cls, tagged, form))
    elif form.flexible:
        steps.append(_skip_tags)
    defaults = [default for _, _, default in absent]
    read_order = [name for name, _, _ in plain + tagged + absent]
    positions = [read_order.index(name) for name, _, _ in table]
    arrange: Callable[[Values], Sequence[Any]] | None = None
    if len(positions) > 1 and positions != sorted(positions):
        arrange = itemgetter(*positions)

    make = constructor(cls)

    def read(buf: memoryview, pos: int, out: Values) -> int:
        values: Values = []
        for step in steps:
            pos = step(buf, pos, values)
        values += defaults
        out.append(make(*(values if arrange is None else arrange(values))))
        return pos

    return read


def _runs(plain: list[FieldRow]) -> Iterator[tuple[bool, list[FieldRow]]]:
    """The untagged fields in order: neighbours of fixed size (True), which share one step, or others."""
    for fixed, rows in groupby(plain, key=lambda row: isinstance(row[1].type, Scalar)):
        yield fixed, list(rows)


def _read_steps(cls: Any, plain: list[FieldRow], form: Form) -> list[Reader]:
    steps: list[Reader] = []
    count = 0
    for fixed, rows in _runs(plain):
        if fixed:
            steps.append(_run_reader([spec.type for _, spec, _ in rows], count))
        else:
            steps += [_field_reader(f"{cls.__name__}.{name}", spec, form) for name, spec, _ in rows]
        count += len(rows)
    return steps


def _run_reader(run: list[Scalar], first: int = -1) -> Reader:
    """Reads neighbours of fixed size; ``first`` is the index of the first one's value."""
    layout = Struct(">" + "".join(scalar.code for scalar in run))
    unpack, size = layout.unpack_from, layout.size
    codes = [first + i for i, scalar in enumerate(run) if scalar is ERROR_CODE]

    def read(buf: memoryview, pos: int, values: Values) -> int:
        values += unpack(buf, pos)
        return pos + size

    def read_with_codes(buf: memoryview, pos: int, values: Values) -> int:
        values += unpack(buf, pos)
        for index in codes:
            values[index] = error_code(values[index])
        return pos + size

    return read_with_codes if codes else read


def _skip_tags(buf: memoryview, pos: int, values: Values) -> int:  # noqa: ARG001  (a Reader)
    return pos + 1 if buf[pos] == 0 else primitives.skip_tagged_fields(buf, pos)


def _tags_reader(cls: Any, tagged: list[FieldRow], form: Form) -> Reader:
    """Appends the tagged fields in the table's order, defaults for those not sent; skips unknown ones."""
    defaults = [default for _, _, default in tagged]
    known = {
        spec.tag: (i, f"{cls.__name__}.{name}", _field_reader(f"{cls.__name__}.{name}", spec, form))
        for i, (name, spec, _) in enumerate(tagged)
    }

    def read(buf: memoryview, pos: int, values: Values) -> int:
        first = len(values)
        values += defaults
        count, pos = primitives.read_tag_count(buf, pos)
        for _ in range(count):
            tag, pos = primitives.read_length(buf, pos)
            size, pos = primitives.read_length(buf, pos)
            end = pos + size
            if end > len(buf):
                raise InvalidRequest(f"tagged field {tag} claims {size} bytes; {len(buf) - pos} are left")
            if tag in known:
                index, name, reader = known[tag]
                content: Values = []
                if reader(buf[:end], pos, content) != end:
                    raise InvalidRequest(f"{name} does not end with its {size} bytes")
                (values[first + index],) = content
            pos = end
        return pos

    return read


def _field_reader(name: str, spec: FieldSpec, form: Form) -> Reader:
    nullable = spec.nullable_in(form.version)
    if not isinstance(spec.type, Array):
        return _type_reader(name, spec.type, form, nullable)
    element = spec.type.element
    read_count = primitives.count_reader(
        name,
        flexible=form.flexible,
        nullable=nullable,
        element_bytes=_least_bytes(element, form),
    )
    if isinstance(element, Scalar):
        return _scalar_array_reader(read_count, element)
    read_one = _type_reader(name, element, form, False)

    def read(buf: memoryview, pos: int, values: Values) -> int:
        count, pos = read_count(buf, pos)
        if count is None:
            values.append(None)
            return pos
        items: Values = []
        for _ in range(count):
            pos = read_one(buf, pos, items)
        values.append(tuple(items))
        return pos

    return read


def _scalar_array_reader(read_count: Callable[..., tuple[int | None, int]], element: Scalar) -> Reader:
    code, size = element.code, element.size

    def read(buf: memoryview, pos: int, values: Values) -> int:
        count, pos = read_count(buf, pos)
        if count is None:
            values.append(None)
            return pos
        values.append(unpack_from(f">{count}{code}", buf, pos))
        return pos + count * size

    return read


def _type_reader(name: str, kind: Any, form: Form, nullable: bool) -> Reader:
    if isinstance(kind, Variable):
        return kind.reader(name, flexible=form.flexible, nullable=nullable)
    if isinstance(kind, Scalar):
        return _run_reader([kind])
    return form.nested(kind).reader


def _least_bytes(kind: Any, form: Form) -> int:
    """The fewest bytes that a value of a type can take, to check the count of an array."""
    if isinstance(kind, Scalar):
        return kind.size
    if isinstance(kind, Variable):
        return kind.flexible_bytes if form.flexible else kind.classic_bytes
    if isinstance(kind, Array):
        return 1 if form.flexible else 4
    present = (spec for _, spec, _ in specs(kind) if spec.exists_in(form.version) and spec.tag is None)
    return sum(_least_bytes(spec.type, form) for spec in present) + form.flexible


def struct_writer(cls: Any, form: Form) -> Writer:
    """The writer of a message, or of a struct within one."""
    table = list(specs(cls))
    present = [row for row in table if row[1].exists_in(form.version)]
    plain = [row for row in present if row[1].tag is None]
    steps = _write_steps(cls, plain, form)
    absent = [row for row in table if not row[1].exists_in(form.version)]
    lost = [(name, default) for name, spec, default in absent if not spec.ignorable]
    if lost:
        steps.insert(0, _refuse_values_in(lost))
    if form.flexible:
        tagged = [row for row in present if row[1].tag is not None]
        steps.append(_tags_writer(cls, tagged, form) if tagged else _no_tags)
    if len(steps) == 1:
        return steps[0]

    def write(out: Output, value: Any) -> None:
        for step in steps:
            step(out, value)

    return write


def _write_steps(cls: Any, plain: list[FieldRow], form: Form) -> list[Writer]:
    steps: list[Writer] = []
    for fixed, rows in _runs(plain):
        if fixed:
            steps.append(_run_writer([name for name, _, _ in rows], "".join(s.type.code for _, s, _ in rows)))
            continue
        for name, spec, _ in rows:
            steps.append(_attribute_writer(name, _field_writer(f"{cls.__name__}.{name}", spec, form)))
    return steps


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
    """Checks that fields missing in this version, and not ignorable, have no value."""

    def check(out: Output, value: Any) -> None:  # noqa: ARG001  (a Writer)
        for name, default in lost:
            held = getattr(value, name)
            if held is not default and held != default and held not in (None, ()):
                raise InvalidRequest(f"this version has no field for {name}={held!r}")

    return check


def _no_tags(out: Output, value: Any) -> None:  # noqa: ARG001  (a Writer)
    out.append(0)


def _tags_writer(cls: Any, tagged: list[FieldRow], form: Form) -> Writer:
    """Writes the tagged fields that do not hold their default, in ascending order of tag."""
    rows = [
        (
            spec.tag or 0,
            attrgetter(name),
            default,
            _field_writer(f"{cls.__name__}.{name}", spec, form),
        )
        for name, spec, default in tagged
    ]
    rows.sort(key=itemgetter(0))

    def write(out: Output, value: Any) -> None:
        sent = []
        for tag, get, default, writer in rows:
            held = get(value)
            # Most are the default object itself, which saves comparing structs field by field.
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


def _field_writer(name: str, spec: FieldSpec, form: Form) -> Writer:
    nullable = spec.nullable_in(form.version)
    if not isinstance(spec.type, Array):
        return _type_writer(name, spec.type, form, nullable)
    element = spec.type.element
    write_count = primitives.count_writer(name, flexible=form.flexible, nullable=nullable)
    write_one = _type_writer(name, element, form, False)

    def write(out: Output, items: Sequence[Any] | None) -> None:
        if items is None:
            write_count(out, None)
            return
        write_count(out, len(items))
        for item in items:
            write_one(out, item)

    return write


def _type_writer(name: str, kind: Any, form: Form, nullable: bool) -> Writer:
    if isinstance(kind, Variable):
        return kind.writer(name, flexible=form.flexible, nullable=nullable)
    if isinstance(kind, Scalar):
        pack = Struct(">" + kind.code).pack

        def write(out: Output, value: Any) -> None:
            out += pack(value)

        return write
    return form.nested(kind).writer


@dataclass(frozen=True, slots=True)
class Codec:
    """Reads and writes one message class in one version."""

    cls: Any
    version: int
    reader: Reader
    writer: Writer

    def read(self, buf: memoryview, pos: int, *, exact: bool = True) -> Any:
        """The message at ``pos``; if ``exact``, it must end with ``buf``."""
        try:
            values: Values = []
            end = self.reader(buf, pos, values)
        except (StructError, IndexError, UnicodeDecodeError, InvalidRequest) as error:
            raise InvalidRequest(f"{self}: {error}") from None
        if exact and end != len(buf):
            raise InvalidRequest(f"{self}: {len(buf) - end} bytes after its end")
        return values[0]

    def write(self, out: Output, message: Any) -> None:
        """Append ``message``."""
        try:
            self.writer(out, message)
        except (StructError, UnicodeEncodeError, InvalidRequest) as error:
            raise InvalidRequest(f"{self}: {error}") from None

    def __str__(self) -> str:
        return f"{self.cls.__name__} v{self.version}"


Tuning = Callable[[Codec, bool], Codec]
"""Takes the table's codec of a struct and whether it is flexible; returns a faster one that does the same."""

_TUNINGS: dict[type[Any], tuple[int, int, Tuning]] = {}
"""Filled while the modules of ``api`` are imported, then constant."""


def tuned(cls: type[Any], first: int, last: int) -> Callable[[Tuning], Tuning]:
    """Declares a hand-written codec for a struct; the rest goes to the table's codec, its argument."""

    def declare(tuning: Tuning) -> Tuning:
        _TUNINGS[cls] = first, last, tuning
        return tuning

    return declare


@cache
def codec(cls: Any, version: int, flexible: bool) -> Codec:
    """The codec of a message, or of a nested struct, in ``version``; created on first use."""
    table = table_codec(cls, version, flexible)
    first, last, tuning = _TUNINGS.get(cls, (0, -1, None))
    return tuning(table, flexible) if tuning is not None and first <= version <= last else table


def table_codec(cls: Any, version: int, flexible: bool) -> Codec:
    """The codec made from the table, without a hand-written part for ``cls`` itself."""
    form = Form(version, flexible, lambda nested: codec(nested, version, flexible))
    return Codec(cls, version, struct_reader(cls, form), struct_writer(cls, form))
