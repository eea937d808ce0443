"""Writers made from the tables of `schema`."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter, itemgetter
from struct import Struct
from typing import Any

from pyspark_kafkalog.errors import InvalidRequest
from pyspark_kafkalog.protocol import primitives
from pyspark_kafkalog.protocol.primitives import Output, Writer
from pyspark_kafkalog.protocol.schema import (
    BYTES,
    RECORDS,
    STRING,
    UUID_TYPE,
    Array,
    FieldRow,
    FieldSpec,
    Form,
    Scalar,
    specs,
)


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
    names: list[str] = []
    codes = ""
    for name, spec, _ in plain:
        if isinstance(spec.type, Scalar):
            names.append(name)
            codes += spec.type.code
            continue
        if names:
            steps.append(_run_writer(names, codes))
            names, codes = [], ""
        writer = _field_writer(f"{cls.__name__}.{name}", spec, form)
        steps.append(_attribute_writer(name, writer))
    if names:
        steps.append(_run_writer(names, codes))
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
    """Checks that the fields which this version lacks, and may not lose, hold nothing."""

    def check(out: Output, value: Any) -> None:  # noqa: ARG001  (a Writer)
        for name, default in lost:
            held = getattr(value, name)
            if held is not default and held != default and held not in (None, ()):
                raise InvalidRequest(f"this version has no place for {name}={held!r}")

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
            # Most hold the default object itself: no need to compare structs field by field.
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
    if kind is STRING:
        return primitives.string_writer(name, flexible=form.flexible, nullable=nullable)
    if kind is BYTES:
        return primitives.bytes_writer(name, flexible=form.flexible, nullable=nullable)
    if kind is RECORDS:
        return primitives.records_writer(name, flexible=form.flexible, nullable=nullable)
    if kind is UUID_TYPE:
        return primitives.write_uuid
    if isinstance(kind, Scalar):
        pack = Struct(">" + kind.code).pack

        def write(out: Output, value: Any) -> None:
            out += pack(value)

        return write
    return form.nested(kind).writer
