"""How one option of the reader is read: as a word, a number, a flag, a duration. Pure.

Keys are in lower case; what is not given has the default of `option_table`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from pyspark_kafkalog.config.definition import LONG_MAX
from pyspark_kafkalog.datasource.option_table import OPTIONS
from pyspark_kafkalog.errors import InvalidConfig

BY_KEY = {option.name.lower(): option for option in OPTIONS}
"""The options that there are, by their names in lower case."""

_UNITS_MS = {
    "us": 0.001, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000,
}  # fmt: skip
"""Spark's units of time, in milliseconds."""


def value_of(options: Mapping[str, str], name: str) -> str:
    """What is given, or the default."""
    return options.get(name.lower(), BY_KEY[name.lower()].default)


def choice(options: Mapping[str, str], name: str, allowed: tuple[str, ...]) -> str:
    """One of several words, in any case. Raises `InvalidConfig`."""
    value = value_of(options, name).strip().lower()
    if value not in allowed:
        raise InvalidConfig(f"{name} is one of {', '.join(allowed)}; got '{value}'")
    return value


def flag(options: Mapping[str, str], name: str) -> bool:
    """True or false. Raises `InvalidConfig`."""
    return choice(options, name, ("true", "false")) == "true"


def number(options: Mapping[str, str], name: str, *, least: int) -> int:
    """A whole number, ``least`` or more. Raises `InvalidConfig`."""
    value = value_of(options, name)
    if not _is_whole(value) or int(value) < least:
        raise InvalidConfig(f"{name} is a whole number, {least} or more; got '{value}'")
    return int(value)


def positive(options: Mapping[str, str], name: str) -> int | None:
    """A whole number above 0; None where it is not given. Raises `InvalidConfig`."""
    value = options.get(name.lower())
    if value is None:
        return None
    if not _is_whole(value) or int(value) == 0:
        raise InvalidConfig(
            f"{name} must be positive; got '{value}'; expected a whole number of 1 or more, such as 1000"
        )
    return int(value)


def duration_ms(options: Mapping[str, str], name: str) -> int:
    """A time as Spark writes it, ``100ms``, ``15m``, ``2h``, in milliseconds; so is a number alone.

    Raises:
        InvalidConfig: anything else.
    """
    value = value_of(options, name).strip().lower()
    found = re.fullmatch(r"([0-9]{1,12})\s*([a-z]*)", value)
    if found is None or (found[2] or "ms") not in _UNITS_MS:
        raise InvalidConfig(f"{name} is a time such as 100ms, 30s, 15m, 2h or 1d; got '{value}'")
    return int(int(found[1]) * _UNITS_MS[found[2] or "ms"])


def _is_whole(text: str) -> bool:
    return re.fullmatch(r"\s*[0-9]{1,19}\s*", text) is not None and int(text) <= LONG_MAX
