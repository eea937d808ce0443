"""The Arrow types of Spark's Kafka rows."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from pyspark_kafkalog.errors import InvalidConfig

COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers", "broker")
"""All columns there are, in their usual order; `broker` is the id of the broker that answered."""

INNER_INDEX = "innerIndex"

COLUMNS_07 = (*COLUMNS, INNER_INDEX)
"""Those of messages of Kafka 0.7: the place of a message in its compressed entry comes last. Such messages
have no key, no time and no headers: these columns are null."""

BINARY, STRING, INT32, INT64 = pa.binary(), pa.string(), pa.int32(), pa.int64()
TIMESTAMP = pa.timestamp("us", tz="UTC")
HEADER = pa.struct([pa.field("key", STRING), pa.field("value", BINARY)])
HEADERS = pa.list_(pa.field("element", HEADER))

_TYPES = {
    "key": BINARY,
    "value": BINARY,
    "topic": STRING,
    "partition": INT32,
    "offset": INT64,
    "timestamp": TIMESTAMP,
    "timestampType": INT32,
    "headers": HEADERS,
    "broker": INT32,
    INNER_INDEX: INT32,
}


def arrow_schema(columns: Sequence[str], known: Sequence[str] = COLUMNS) -> pa.Schema:
    """The schema that PySpark makes of these columns' Spark types: Spark takes no other.

    ``known``: the columns that there are.

    Raises:
        InvalidConfig: there is no such column, one is asked for twice, or none at all.
    """
    if not columns:
        raise InvalidConfig(f"at least one column is needed, of: {', '.join(known)}")
    for at, name in enumerate(columns):
        if name not in known:
            raise InvalidConfig(f"no column {name!r}; there are: {', '.join(known)}")
        if name in columns[:at]:
            raise InvalidConfig(f"column {name!r} is asked for twice")
    return pa.schema([pa.field(name, _TYPES[name]) for name in columns])
