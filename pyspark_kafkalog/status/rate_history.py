"""Rates and lags of a cluster over the last half hour."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pyspark_kafkalog.status.snapshot import Rates, Snapshot

MOMENTS = 360
"""Number of moments kept; every five seconds for half an hour."""

MOST_NAMES = 200
"""Topics and groups kept per moment: the fastest growing, and those with the largest lag."""

_SHORT_VALUES = 60
"""Values of a sparkline, or one more."""

_LATELY = 12
"""Moments averaged in `History.lately`."""


@dataclass(frozen=True, slots=True)
class _Moment:
    """``rate`` and ``lag`` are totals, None if unknown."""

    at_ms: int
    rate: float | None = None
    lag: int | None = None
    topics: Mapping[str, float] = field(default_factory=dict)
    groups: Mapping[str, float] = field(default_factory=dict)


class History:
    def __init__(self) -> None:
        self._moments: deque[_Moment] = deque(maxlen=MOMENTS)
        self._count = 0
        self.lately: Mapping[str, float] = {}
        """New offsets per second of the busiest topics, over the last minute."""

    def add(self, snapshot: Snapshot, rates: Rates) -> None:
        """Add a moment; ``rates`` are since the previous one."""
        lags = {group.name: group.lag for group in snapshot.groups if group.lag is not None}
        self._append(
            _Moment(
                snapshot.at_ms,
                rates.total,
                sum(lags.values()) if lags else None,
                _largest(rates.topics),
                _largest(lags),
            )
        )

    def skip(self, at_ms: int) -> None:
        self._append(_Moment(at_ms))

    def _append(self, moment: _Moment) -> None:
        self._moments.append(moment)
        self._count += 1
        lately = list(self._moments)[-_LATELY:]
        grown: dict[str, float] = {}
        for one in lately:
            for name, rate in one.topics.items():
                grown[name] = grown.get(name, 0.0) + rate / len(lately)
        self.lately = grown

    def times(self) -> list[int]:
        return [moment.at_ms for moment in self._moments]

    def rates(self) -> list[float | None]:
        return [moment.rate for moment in self._moments]

    def lags(self) -> list[int | None]:
        """Total known lag of all groups at each moment."""
        return [moment.lag for moment in self._moments]

    def topic(self, name: str) -> list[float | None]:
        """Sparkline of a topic's rates; each value is the largest of several moments, None if unknown."""
        return self._short(lambda moment: moment.topics.get(name))

    def group(self, name: str) -> list[float | None]:
        """Sparkline of a group's lags, as `topic`."""
        return self._short(lambda moment: moment.groups.get(name))

    def _short(self, value: Callable[[_Moment], float | None]) -> list[float | None]:
        # Numbered from the very first moment, so that values do not change while the line moves.
        first, each = self._count - len(self._moments), -(-len(self._moments) // _SHORT_VALUES)
        found: list[float | None] = []
        for number, moment in enumerate(self._moments, first):
            if not found or number % each == 0:
                found.append(None)
            found[-1] = _larger(found[-1], value(moment))
        return found


def _larger(one: float | None, other: float | None) -> float | None:
    return other if one is None or (other is not None and other > one) else one


def _largest(values: Mapping[str, float]) -> Mapping[str, float]:
    if len(values) <= MOST_NAMES:
        return values
    names = heapq.nlargest(MOST_NAMES, values, key=lambda name: values[name])
    return {name: values[name] for name in names}
