"""What all benchmarks share: rounds in turn, medians, and a table of ratios against named peers.

The same figure moves by a factor of two between runs on a shared machine, so a benchmark runs its
contestants in turn, round by round, and reports the ratio of medians; figures of different runs are not to
be compared.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

ROUNDS = 7
"""Rounds unless a benchmark says otherwise: the fewest that give a median one can trust a little."""


@dataclass
class Measurement:
    """The rounds of one contestant; ``amount`` is what one round gets through, in the benchmark's own
    unit.
    """

    name: str
    amount: float = 1.0
    seconds: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        """Seconds of the middle round."""
        return statistics.median(self.seconds)

    @property
    def rate(self) -> float:
        """Amount per second in the middle round."""
        return self.amount / self.median

    @property
    def spread(self) -> float:
        """Slowest round over the fastest: 1 is a quiet machine, above 2 look at nothing but the order."""
        return max(self.seconds) / min(self.seconds)


@dataclass(frozen=True)
class Row:
    """One line of the report: what was asked, our figure, the peer's, and their ratio against its goal.

    ``ours`` and ``peer`` are in ``unit``. A ratio counts in our favour when it is high: for times the caller
    turns it round. ``goal`` None means the line is for information.
    """

    question: str
    ours: float
    peer: float
    ratio: float
    goal: float | None
    unit: str
    note: str = ""

    @property
    def met(self) -> bool:
        """Whether the goal is reached, or there is none."""
        return self.goal is None or self.ratio >= self.goal


def interleave(
    contestants: Mapping[str, Callable[[], object]],
    rounds: int = ROUNDS,
    *,
    amounts: Mapping[str, float] | None = None,
    warm_up: int = 1,
) -> dict[str, Measurement]:
    """Call each contestant once per round, in turn, ``rounds`` times after ``warm_up`` rounds that do not
    count.

    ``amounts``: what one call gets through, by name; 1 where it does not say. Garbage is collected between
    calls and not during them.
    """
    measured = {name: Measurement(name, (amounts or {}).get(name, 1.0)) for name in contestants}
    for number in range(warm_up + rounds):
        for name, call in contestants.items():
            gc.collect()
            gc.disable()
            try:
                began = time.perf_counter()
                call()
                took = time.perf_counter() - began
            finally:
                gc.enable()
            if number >= warm_up:
                measured[name].seconds.append(took)
    return measured


def repeats(call: Callable[[], object], seconds: float = 0.05) -> int:
    """How often ``call`` must be repeated for a round of so many seconds: what takes a moment is measured
    in its stride.
    """
    call()
    began = time.perf_counter()
    call()
    return max(1, round(seconds / (time.perf_counter() - began)))


def compare(
    question: str,
    ours: Measurement,
    peer: Measurement,
    *,
    goal: float | None,
    unit: str,
    scale: float = 1.0,
    note: str = "",
) -> Row:
    """The row of two rates; ``scale`` turns amount per second into ``unit``."""
    spread = max(ours.spread, peer.spread)
    noise = f"spread {spread:.1f}x" if spread > 1.5 else ""
    return Row(
        question,
        ours.rate * scale,
        peer.rate * scale,
        ours.rate / peer.rate,
        goal,
        unit,
        "; ".join(text for text in (f"peer: {peer.name}", note, noise) if text),
    )


def table(rows: Sequence[Row]) -> str:
    """The rows as a Markdown table."""
    titles = ("question", "ours", "peer", "unit", "ratio", "goal", "met", "note")
    lines = [f"| {' | '.join(titles)} |", f"|{' --- |' * len(titles)}"]
    for row in rows:
        goal = "" if row.goal is None else f">= {row.goal:g}"
        met = "" if row.goal is None else "yes" if row.met else "**no**"
        ours, peer, ratio = map(_figure, (row.ours, row.peer, row.ratio))
        cells = (row.question, ours, peer, row.unit, ratio, goal, met, row.note)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _figure(value: float) -> str:
    """Three significant digits, without an exponent."""
    if value == 0:
        return "0"
    digits = max(0, 2 - int(f"{value:e}".split("e")[1]))
    return f"{value:.{digits}f}"
