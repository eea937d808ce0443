"""Names the extra that installs a missing package."""

from __future__ import annotations

EXTRAS = {"pyspark": "spark", "pandas": "spark", "pyarrow": "arrow", "numpy": "fast"}
"""Packages that many modules need, by their import names. One of a single module is reported there."""


def needs(what: str, missing: ModuleNotFoundError) -> ModuleNotFoundError:
    """The error to raise where ``what`` cannot be used; the one that was found, if no extra helps."""
    package = (missing.name or "").partition(".")[0]
    if package not in EXTRAS:
        return missing
    there = " (a Spark cluster has it)" if EXTRAS[package] == "spark" else ""
    text = f"{what} needs {package}{there}: pip install 'pyspark-kafkalog[{EXTRAS[package]}]'"
    return ModuleNotFoundError(text, name=missing.name)
