"""JSON objects to columns, by Arrow's own reader: as strict as Spark's, and stricter where a text column gets
a number. A missing field is null, others are ignored; dates are ISO 8601.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark_kafkalog.decoding.schema_registry import HEADER_BYTES
from pyspark_kafkalog.errors import InvalidConfig

if TYPE_CHECKING:
    import pyarrow as pa

_SAID_CHARACTERS = 200  # of an error that may quote the value
_NO_HEADER = "no Confluent header before the JSON"
_NO_OBJECT = "not a JSON object"


@dataclass(frozen=True)
class JsonFormat:
    """``fields`` are an object's. With ``framed`` Confluent's header comes first; its id is ignored."""

    fields: pa.Schema
    framed: bool = False


class JsonDecoder:
    """*Thread-safe.*"""

    def __init__(self, format: JsonFormat) -> None:
        """Raises `InvalidConfig` for a type that Arrow does not read from JSON."""
        import pyarrow as pa

        self._framed = format.framed
        self.kind = pa.struct(list(format.fields))
        self._read = pa.schema([(field.name, _read_type(field.type)) for field in format.fields])
        python = {field.name: (field.type, _python_types(field.type)) for field in format.fields}
        self._types = {name: (kind, types) for name, (kind, types) in python.items() if types is not None}
        try:
            self._parse(pa.array(["{}"]))
        except pa.ArrowException as e:
            raise InvalidConfig(f"JSON cannot be decoded to these columns: {e}") from None

    def __call__(self, values: pa.Array) -> pa.StructArray:
        """Columns ``value`` and ``reason``. Whether a value is decoded depends on no other value."""
        import pyarrow as pa
        import pyarrow.compute as pc

        found = _Found(pc.indices_nonzero(values.is_valid()), {})
        texts = self._texts(values.take(found.places), found)
        try:
            parts = [self._parse(texts)]
        except pa.ArrowException:
            parts = []
            self._halve(found.without(texts, self._why_not), parts, found)
        decoded = pa.concat_arrays([pa.array([], self.kind), *parts])
        columns = [found.spread(decoded, len(values)), found.reason_column(len(values))]
        return pa.StructArray.from_arrays(columns, ["value", "reason"])

    def _texts(self, values: pa.Array, found: _Found) -> pa.Array:
        """What may be an object."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if self._framed:
            is_long = pc.greater_equal(pc.binary_length(values), HEADER_BYTES)
            values = found.only(values, pc.and_(is_long, pc.starts_with(values, b"\0")), _NO_HEADER)
            values = pc.binary_slice(values, HEADER_BYTES)
        try:
            texts = values.cast(pa.string())
        except pa.ArrowException:
            texts = found.without(values, _why_no_text).cast(pa.string())
        texts = pc.ascii_trim_whitespace(texts)
        is_object = pc.and_(pc.starts_with(texts, "{"), pc.ends_with(texts, "}"))
        return found.only(texts, is_object, _NO_OBJECT)

    def _halve(self, texts: pa.Array, parts: list[pa.Array], found: _Found) -> None:
        """Parse in parts that have no misfit, or are one: one by one costs a hundred times as much."""
        import pyarrow as pa

        misfits: dict[int, str] = {}
        waiting = [(0, len(texts))]
        while waiting:
            start, end = waiting.pop()
            try:
                parts.append(self._parse(texts[start:end]))
            except pa.ArrowException as e:
                middle = (start + end) // 2
                if middle > start:
                    waiting += [(middle, end), (start, middle)]
                else:
                    misfits[start] = f"does not fit the columns: {str(e)[:_SAID_CHARACTERS]}"
        found.drop(misfits)

    def _why_not(self, text: str) -> str | None:
        """What Arrow refuses too, in the words of Python's reader, which say where; None if Arrow must
        decide. Faster than Arrow, where many values are refused.
        """
        if "Inf" in text:  # not in Python's JSON
            return None
        try:
            found = json.loads(text)
        except json.JSONDecodeError as e:
            return f"not one JSON object: {e}"
        except (ValueError, RecursionError):  # limits that Arrow does not have
            return None
        for name, (kind, types) in self._types.items():
            value = found.get(name)
            if value is not None and type(value) not in types:
                return (
                    f"does not fit the columns: {name} is {json.dumps(value)[:_SAID_CHARACTERS]}, not {kind}"
                )
        return None

    def _parse(self, texts: pa.Array) -> pa.Array:
        """Objects, all or none. Each text begins and ends with a brace, and a string has no line break, so
        that objects never span two texts: as many objects as texts are one in each.
        """
        import pyarrow as pa
        import pyarrow.compute as pc
        from pyarrow import json as pj

        if not len(texts):
            return pa.array([], self.kind)
        lines = pa.ListArray.from_arrays(pa.array([0, len(texts)], pa.int32()), texts)
        joined = pc.binary_join(lines, "\n")[0].as_buffer()
        table = pj.read_json(
            pa.BufferReader(joined),
            read_options=pj.ReadOptions(use_threads=False, block_size=joined.size + 1),
            parse_options=pj.ParseOptions(
                explicit_schema=self._read, newlines_in_values=True, unexpected_field_behavior="ignore"
            ),
        )
        if table.num_rows != len(texts):
            raise pa.ArrowInvalid("not one JSON object in each")
        found = table.select(self._read.names).combine_chunks().to_struct_array()
        return pa.concat_arrays(found.chunks).cast(self.kind)


def _read_type(kind: pa.DataType) -> pa.DataType:
    """That which Arrow reads: a date comes as text and is cast."""
    import pyarrow as pa

    t = pa.types
    if t.is_date(kind):
        return pa.string()
    if t.is_struct(kind):
        return pa.struct([field.with_type(_read_type(field.type)) for field in kind])
    if t.is_list(kind):
        return pa.list_(kind.value_field.with_type(_read_type(kind.value_type)))
    return kind


@dataclass(slots=True)
class _Found:
    """Of the values that may still be decoded the ``places`` in their column, of all others but null the
    ``reasons`` by place.
    """

    places: pa.Array
    reasons: dict[int, str]

    def only(self, values: pa.Array, mask: pa.Array, reason: str) -> pa.Array:
        """The values where ``mask`` is true; the others have this reason."""
        import pyarrow.compute as pc

        self.reasons |= dict.fromkeys(self.places.filter(pc.invert(mask)).to_pylist(), reason)
        self.places = self.places.filter(mask)
        return values.filter(mask)

    def without(self, values: pa.Array, why_not: Callable[[Any], str | None]) -> pa.Array:
        """The values for which ``why_not`` gives no reason."""
        import pyarrow as pa

        said = list(map(why_not, values.to_pylist()))
        self.drop({at: why for at, why in enumerate(said) if why is not None})
        return values.filter(pa.array([why is None for why in said], pa.bool_()))

    def drop(self, why: Mapping[int, str]) -> None:
        """Note the reasons of the values at these indexes among those that are left."""
        import pyarrow as pa

        places = self.places.to_pylist()
        self.reasons |= {places[at]: reason for at, reason in why.items()}
        self.places = pa.array([place for at, place in enumerate(places) if at not in why], pa.int64())

    def spread(self, decoded: pa.Array, count: int) -> pa.Array:
        """The values at their places, and null at all others."""
        import pyarrow as pa

        if len(decoded) == count:
            return decoded
        at: list[int | None] = [None] * count
        for index, place in enumerate(self.places.to_pylist()):
            at[place] = index
        return decoded.take(pa.array(at, pa.int64()))

    def reason_column(self, count: int) -> pa.Array:
        import pyarrow as pa

        if not self.reasons:
            return pa.nulls(count, pa.string())
        return pa.array(map(self.reasons.get, range(count)), pa.string())


def _why_no_text(value: bytes) -> str | None:
    try:
        value.decode()
    except UnicodeDecodeError:
        return "not UTF-8"
    return None


def _python_types(kind: pa.DataType) -> tuple[type, ...] | None:
    """Of JSON values in Python that may fit a column; None for any."""
    import pyarrow as pa

    t = pa.types
    known: list[tuple[Callable[[pa.DataType], bool], tuple[type, ...]]] = [
        (t.is_integer, (int, float)),
        (t.is_floating, (int, float)),
        (t.is_boolean, (bool,)),
        (t.is_string, (str,)),
        (t.is_date, (str,)),
        (t.is_list, (list,)),
        (t.is_struct, (dict,)),
    ]
    return next((types for matches, types in known if matches(kind)), None)
