"""Regular expressions over topic names, by RE2, with which members of the newer protocol subscribe. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from pyspark_kafkalog.errors import ErrorCode, ServerError

_MAX_COMPILED_BYTES = 1 << 20
"""RE2 refuses expressions that compile to more."""


def matching(pattern: str, names: Iterable[str]) -> frozenset[str]:
    """The names that match the whole pattern. Raises `ServerError` INVALID_REGULAR_EXPRESSION."""
    matches = compiled(pattern).fullmatch
    return frozenset(name for name in names if matches(name) is not None)


@lru_cache(maxsize=128)
def compiled(pattern: str) -> Any:
    """By RE2, whose time is linear in the text; an expression can block Python's ``re`` indefinitely."""
    try:
        import re2
    except ImportError:
        raise ServerError(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            "regular expressions need the package google-re2; pip install pyspark-kafkalog[regex]",
        ) from None
    options = re2.Options()
    options.log_errors = False
    options.max_mem = _MAX_COMPILED_BYTES
    try:
        return re2.compile(pattern, options)
    except re2.error as e:
        reason = e.args[0].decode("utf-8", "replace") if e.args else ""
        raise ServerError(
            ErrorCode.INVALID_REGULAR_EXPRESSION, f"{pattern!r} is not an expression of RE2: {reason}"
        ) from None
