"""What all benchmarks share: rounds in turn, medians, and a table of ratios against named peers.

The same figure moves by a factor of two between runs on a shared machine, so a benchmark runs its
contestants in turn, round by round, and reports the ratio of medians; figures of different runs are not to
be compared.
"""

from __future__ import annotations

import gc
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

LIMIT = "peer: the limit"
_SCALES = {"M": 1e-6, "k": 1e-3, "thousand": 1e-3}  # of an amount, by the beginning of its unit


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
        return statistics.median(self.seconds)

    @property
    def rate(self) -> float:
        return self.amount / self.median

    @property
    def spread(self) -> float:
        """Slowest round over the fastest: 1 is a quiet machine, above 2 look at nothing but the order."""
        return max(self.seconds) / min(self.seconds)


@dataclass(frozen=True)
class Row:
    """One line of the report: what was asked, our figure, the peer's, and their ratio against its goal.

    ``ours`` and ``peer`` are in ``unit``. A ratio counts in our favour when it is high: `cost` turns it
    round. ``goal`` None means the line is for information.
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
        return self.goal is None or self.ratio >= self.goal


def in_turn(
    contestants: Mapping[str, Callable[[], float]], rounds: int, amount: float = 1.0, *, warm_up: int = 1
) -> dict[str, Measurement]:
    """Call each contestant once per round, in turn, ``rounds`` times after ``warm_up`` rounds that do not
    count. A call returns what it took, and gets through ``amount``.
    """
    measured = {name: Measurement(name, amount) for name in contestants}
    for number in range(warm_up + rounds):
        for name, call in contestants.items():
            took = call()
            if number >= warm_up:
                measured[name].seconds.append(took)
    return measured


def interleave(
    contestants: Mapping[str, Callable[[], object]], rounds: int, amount: float = 1.0, *, warm_up: int = 1
) -> dict[str, Measurement]:
    """As `in_turn`, for calls that do not know how long they took."""
    clocked = {name: partial(_seconds, call) for name, call in contestants.items()}
    return in_turn(clocked, rounds, amount, warm_up=warm_up)


def _seconds(call: Callable[[], object]) -> float:
    """Garbage is collected before the call and not during it."""
    gc.collect()
    gc.disable()
    try:
        began = time.perf_counter()
        call()
        return time.perf_counter() - began
    finally:
        gc.enable()


def in_stride(
    contestants: Mapping[str, Callable[[], object]], rounds: int, amount: float = 1.0, seconds: float = 0.05
) -> dict[str, Measurement]:
    """As `interleave`, for calls that take a moment: a round repeats each for so many seconds."""
    times = {name: max(1, round(seconds / _second_call(call))) for name, call in contestants.items()}
    repeated = {name: partial(_repeat, call, times[name]) for name, call in contestants.items()}
    measured = interleave(repeated, rounds)
    for name, one in measured.items():
        one.amount = amount * times[name]
    return measured


def _second_call(call: Callable[[], object]) -> float:
    call()
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def _repeat(call: Callable[[], object], times: int) -> None:
    for _ in range(times):
        call()


def compare(
    question: str, ours: Measurement, peer: Measurement, unit: str, goal: float | None = None, note: str = ""
) -> Row:
    """The row of two rates, in millions or thousands if the unit says so."""
    scale = next((scale for prefix, scale in _SCALES.items() if unit.startswith(prefix)), 1.0)
    spread = max(ours.spread, peer.spread)
    noise = f"spread {spread:.1f}x" if spread > 1.5 else ""
    notes = "; ".join(text for text in (f"peer: {peer.name}", note, noise) if text)
    return Row(question, ours.rate * scale, peer.rate * scale, ours.rate / peer.rate, goal, unit, notes)


def cost(
    question: str, ours: float, peer: float, unit: str, goal: float | None = None, note: str = LIMIT
) -> Row:
    """The row of two times or sizes, of which less is better."""
    return Row(question, ours, peer, peer / ours, goal, unit, note)


def shown(rows: list[Row]) -> list[Row]:
    """The same, printed at once: for what takes long."""
    print(table(rows), file=sys.stderr, flush=True)
    return rows


def table(rows: Sequence[Row]) -> str:
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
