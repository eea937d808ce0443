"""What a missing package is answered with: the extra of `pip install` that brings it."""

from __future__ import annotations

EXTRAS = {"pyspark": "spark", "pandas": "spark", "pyarrow": "arrow", "numpy": "fast"}
"""Packages that are not in the base, by their import names; those of one module each say so themselves."""


def needs(what: str, missing: ModuleNotFoundError) -> ModuleNotFoundError:
    """The error to raise where ``what`` cannot be used; the one that was found, if no extra helps."""
    package = (missing.name or "").partition(".")[0]
    if package not in EXTRAS:
        return missing
    there = " (a Spark cluster has it)" if EXTRAS[package] == "spark" else ""
    text = f"{what} needs {package}{there}: pip install 'pyspark-kafkalog[{EXTRAS[package]}]'"
    return ModuleNotFoundError(text, name=missing.name)
