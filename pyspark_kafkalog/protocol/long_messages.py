"""Messages of very many elements, written in steps: others have their turn between them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import cache
from operator import attrgetter
from typing import Any

from pyspark_kafkalog.protocol import primitives
from pyspark_kafkalog.protocol.codec import (
    Array,
    FieldSpec,
    codec,
    field_writers,
    form_of,
    specs,
    tuning_of,
)
from pyspark_kafkalog.protocol.primitives import Output

_A_STEP = 100
"""So many structs are written between two yields: 0.1 to 0.5 ms."""

Writing = Generator[None, None, None]
StepsWriter = Callable[[Output, Any], Writing]
"""Takes ``(output, message)``; appends what the message's codec writes, and yields every `_A_STEP` structs.
What it raises are the writers' own errors, as `Codec.write` gets them.
"""


@cache
def steps_writer(cls: Any, version: int, flexible: bool) -> StepsWriter:
    """The writer in steps of a message, or of a struct within one."""
    form = form_of(version, flexible)
    parts = []
    for row, writer in field_writers(cls, form):
        in_steps = None
        if row is not None and isinstance(row[1].type, Array) and isinstance(row[1].type.element, type):
            in_steps = _array_writer(f"{cls.__name__}.{row[0]}", row[0], row[1], version, flexible)
        parts.append((writer, in_steps))

    def write(out: Output, value: Any) -> Writing:
        for writer, in_steps in parts:
            if in_steps is None:
                writer(out, value)
            else:
                yield from in_steps(out, value)

    return write


def _array_writer(label: str, name: str, spec: FieldSpec, version: int, flexible: bool) -> StepsWriter:
    element, get = spec.type.element, attrgetter(name)
    nullable = spec.nullable_in(version)
    write_count = primitives.count_writer(label, flexible=flexible, nullable=nullable)
    if _has_structs(element, version):
        nested = steps_writer(element, version, flexible)

        def write_each(out: Output, value: Any) -> Writing:
            items = get(value)
            write_count(out, None if items is None else len(items))
            for item in items or ():
                yield from nested(out, item)
                yield None

        return write_each
    write_one = codec(element, version, flexible).writer

    def write(out: Output, value: Any) -> Writing:
        items = get(value)
        write_count(out, None if items is None else len(items))
        for number, item in enumerate(items or (), 1):
            write_one(out, item)
            if not number % _A_STEP:
                yield None

    return write


def _has_structs(cls: Any, version: int) -> bool:
    """Whether the struct has arrays of structs; what is written by hand is not looked into."""
    return tuning_of(cls, version) is None and any(
        isinstance(spec.type, Array) and isinstance(spec.type.element, type) and spec.exists_in(version)
        for _, spec, _ in specs(cls)
    )
