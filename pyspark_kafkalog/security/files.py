"""Files that a property names: key stores, key tabs, tokens.

A Spark job ships files with ``--files``, and executors have them under their base names in a directory of
Spark's. This room does not know Spark: the data source says where else to look.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pyspark_kafkalog.errors import InvalidConfig

Shipped = Callable[[str], str | None]
"""The path of a file that was shipped under this base name; None if there are no such files here."""

_shipped: Shipped | None = None


def look_also(shipped: Shipped) -> None:
    """From now on, look for files that are not at their path among those that ``shipped`` finds."""
    global _shipped
    _shipped = shipped


def found_file(path: str, name: str) -> Path:
    """The file that the property ``name`` sets to ``path``: there, or shipped under its base name.

    Raises `InvalidConfig`, which names both places.
    """
    there = Path(path)
    if there.is_file():
        return there
    shipped = _shipped(there.name) if _shipped is not None else None
    if shipped is not None and Path(shipped).is_file():
        return Path(shipped)
    also = f", nor was it shipped with the job: {shipped}" if shipped else ""
    raise InvalidConfig(f"{name}: there is no file {path}{also}")
