"""Files named by properties: key stores, key tabs, tokens.

Executors have files shipped with ``--files`` under their base names in a Spark directory. This room does not
know Spark; the data source says where else to look.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pyspark_kafkalog.errors import InvalidConfig

Shipped = Callable[[str], str | None]
"""Path of a file shipped under this base name, or None if nothing was shipped."""

_shipped: Shipped | None = None


def look_also(shipped: Shipped) -> None:
    """From now on, also look for missing files where ``shipped`` says."""
    global _shipped
    _shipped = shipped


def found_file(path: str, name: str) -> Path:
    """The file at ``path``, or shipped under its base name. `InvalidConfig` has both places."""
    there = Path(path)
    if there.is_file():
        return there
    shipped = _shipped(there.name) if _shipped is not None else None
    if shipped is not None and Path(shipped).is_file():
        return Path(shipped)
    also = f", nor was it shipped with the job: {shipped}" if shipped else ""
    raise InvalidConfig(f"{name}: there is no file {path}{also}")
