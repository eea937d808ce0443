"""Which columns of a frame are written, and what is said of those that cannot be. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark_kafkalog.config.definition import nearest
from pyspark_kafkalog.datasource.schema import COLUMN_TYPES
from pyspark_kafkalog.datasource.sink_options import SinkOptions
from pyspark_kafkalog.errors import InvalidConfig

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

SINK_COLUMNS = {
    "value": ("string", "binary"),
    "key": ("string", "binary"),
    "topic": ("string",),
    "partition": ("int",),
    "headers": (COLUMN_TYPES["headers"],),
    "timestamp": ("timestamp", "timestamp_ntz"),
}
"""Column to the Spark types that it may have."""


def check_sink_schema(schema: StructType, options: SinkOptions) -> tuple[str, ...]:
    """The columns of ``schema`` that are written, in its order; the others are not looked at.

    Names are compared letter by letter, as Spark's own sink does.

    Raises:
        InvalidConfig: ``value`` or a topic is missing, a column is there twice or of another type.
    """
    names = [field.name for field in schema.fields]
    if options.topic is None and "topic" not in names:
        raise InvalidConfig(
            "topic option required when no 'topic' attribute is present. Use the topic option for setting a "
            f"topic.{_perhaps('topic', names)}"
        )
    if "value" not in names:
        raise InvalidConfig(f"Required attribute 'value' not found.{_perhaps('value', names)}")
    if options.include_timestamp and "timestamp" not in names:
        raise InvalidConfig(
            f"includeTimestamp=true needs a column 'timestamp'.{_perhaps('timestamp', names)}"
        )
    left_out = {
        "topic": options.topic is not None,
        "headers": not options.include_headers,
        "timestamp": not options.include_timestamp,
    }
    written = tuple(name for name in names if name in SINK_COLUMNS and not left_out.get(name))
    if len(set(written)) < len(written):
        raise InvalidConfig(f"columns are written by their names, so each may be there once; got {names}")
    for field in schema.fields:
        if (
            field.name in written
            and (kind := _kind(field.dataType.simpleString())) not in SINK_COLUMNS[field.name]
        ):
            allowed = " or ".join(SINK_COLUMNS[field.name])
            raise InvalidConfig(
                f"{field.name} attribute unsupported type {kind}. {field.name} must be a(n) {allowed}"
            )
    return written


def _kind(kind: str) -> str:
    """A type's name; a text is a text whatever its collation."""
    return "string" if kind.startswith("string collate") else kind


def _perhaps(wanted: str, names: list[str]) -> str:
    near = nearest(wanted, [name.lower() for name in names])
    meant = next((name for name in names if name.lower() == near), None)
    return f" Did you mean the column '{meant}'?" if meant else f" Columns: {', '.join(names)}"
