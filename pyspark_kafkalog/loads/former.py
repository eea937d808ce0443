"""How one names what loads read formerly: a commit by its number or a time, or two of them.

Which offsets these are is `former_ranges`'. Every task of every read imports this module, so it is light.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timezone

from pyspark_kafkalog.errors import InvalidConfig

START = 0
"""In the place of a commit's number: before the first load."""

_COMMIT = re.compile(r"commit:0*([1-9][0-9]{0,7})")


@dataclass(frozen=True, slots=True)
class Former:
    """A part of a load's history: the loads after commit ``since``, up to ``until`` or a time."""

    since: int = START
    until: int | None = None
    as_of_ms: int | None = None


def parse_commit(option: str, text: str) -> int:
    """The number in ``commit:37``; `START` for ``start``.

    Raises:
        InvalidConfig: it is neither.
    """
    word = text.strip().lower()
    found = _COMMIT.fullmatch(word)
    if found is None and word != "start":
        raise InvalidConfig(f"{option} names commits, as commit:37, or start; got '{text}'")
    return START if found is None else int(found[1])


def parse_between(text: str) -> Former:
    """``commit:30,commit:37``: what loads 31 to 37 read; ``start,commit:37`` from the first on.

    Raises:
        InvalidConfig: it is not, or the second does not come after the first.
    """
    named = [parse_commit("between", part) for part in text.split(",")]
    if len(named) != 2 or named[0] >= named[1]:
        raise InvalidConfig(f"between is commit:30,commit:37, the earlier one first; got '{text}'")
    return Former(named[0], named[1])


def parse_as_of(text: str) -> Former:
    """A time: milliseconds since the epoch, or ISO 8601, of UTC where it does not say.

    Raises:
        InvalidConfig: it is neither.
    """
    given = text.strip()
    if re.fullmatch(r"[0-9]{1,15}", given):
        return Former(as_of_ms=int(given))
    try:
        moment = datetime.fromisoformat(re.sub("[zZ]$", "+00:00", given))
    except ValueError:
        raise InvalidConfig(
            f"asOf is a time, 2026-11-21T18:00:00Z or milliseconds since the epoch; got '{text}'"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=timezone.utc)
    return Former(as_of_ms=round(moment.timestamp() * 1000))
