"""Which message format a version of Kafka writes: the values of ``message.format.version``. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

from pyspark_kafkalog.config.definition import Check

AS_PRODUCED = "producer"
"""Entries stay in the format in which they came, as ``compression.type=producer`` has it of codecs."""

_V0 = ("0.8.0", "0.8.1", "0.8.2", "0.9.0")
_V1 = ("0.10.0", "0.10.1", "0.10.2")
_V2 = ("0.11.0", "1.0", "1.1", *(f"2.{minor}" for minor in range(9)), *(f"3.{minor}" for minor in range(10)))

_FORMATS: Mapping[str, int] = MappingProxyType(
    dict.fromkeys(_V0, 0) | dict.fromkeys(_V1, 1) | dict.fromkeys(_V2, 2)
)
"""By the numbers that name a release. There is none beyond: Kafka 4.0 has no such property any more."""

_VERSION = re.compile(r"((?:0\.)?[0-9]{1,2}\.[0-9]{1,2})(?:(?:\.[0-9]{1,3})+|-IV[0-9])?")
"""A release, perhaps with the number of a patch, or the version of a protocol before it: 0.10.0-IV1."""


def magic_of(version: str) -> int | None:
    """The magic byte of the format that ``version`` stands for, a value that is allowed; None: any format."""
    named = _VERSION.fullmatch(version)
    return _FORMATS[named[1]] if named is not None else None


def _is_known(version: str) -> bool:
    named = _VERSION.fullmatch(version)
    return version == AS_PRODUCED or (named is not None and named[1] in _FORMATS)


format_versions = Check(
    f"{AS_PRODUCED}, or a version of Kafka from 0.8.0 to 3.9, such as 0.9.0, 0.10.2, 0.11.0, 3.0", _is_known
)
