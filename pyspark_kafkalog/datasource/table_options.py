"""Options of tables: what ``CREATE TABLE ... USING kafkalog OPTIONS (...)`` says reaches their readers.

Spark gives a table's options to the source only when the table is made (Spark 4.3: ``schema()`` gets them,
with what the catalog says of the table; the readers and writers of the table get none). What it does keep is
the schema, metadata of its fields included; so that is where the options travel. A table that is made with
columns of its own has no such schema: its readers know nothing but what they are given.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark_kafkalog.errors import InvalidConfig

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_KEY = "kafkalog.options"
_OF_TABLE = "option."
"""How the catalog names each option beside the option itself."""
_MADE_BY = "provider"


def table_options(options: Mapping[str, str]) -> dict[str, str] | None:
    """The options of a table that is being made; None where these are those of a read or a write."""
    if _MADE_BY not in options:
        return None
    return {key[len(_OF_TABLE) :]: value for key, value in options.items() if key.startswith(_OF_TABLE)}


def with_options(schema: StructType, options: Mapping[str, str]) -> StructType:
    """The schema that a table is made with: ``options`` are in the metadata of its first field."""
    schema.fields[0].metadata = {_KEY: json.dumps(dict(options), sort_keys=True)}
    return schema


def options_for(given: Mapping[str, str], schema: StructType) -> dict[str, str]:
    """The options of a read or a write: those that were given, and for the rest those of its table.

    Raises:
        InvalidConfig: the schema says that it is a table's, and is not as `with_options` made it.
    """
    kept = next((f.metadata[_KEY] for f in schema.fields if f.metadata and _KEY in f.metadata), None)
    if kept is None:
        return dict(given)
    try:
        options = json.loads(kept)
        of_table = {str(key).lower(): str(value) for key, value in options.items()}
    except (TypeError, ValueError, AttributeError) as e:
        raise InvalidConfig(f"the table's options cannot be read from its schema: {e}; make it anew") from e
    return {**of_table, **given}
