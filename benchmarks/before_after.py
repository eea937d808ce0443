"""Another working tree of this repository against this one: what a change did to the benchmarks' figures.

    git worktree add --detach ../before COMMIT
    python -m benchmarks.before_after ../before decode broker [--rounds N]

Every round runs each benchmark once in the old tree and once in the new one, in turn, each in a process of
its own with its tree's code. The new tree's own figure is divided by the old one's: above 1 is faster.
The last column says how far the old tree is from itself (the medians of its odd and even rounds): the noise
that a difference must exceed. ``--small`` reads a fifth of the data in ``spark_read``.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent

_RUN = """
import json, sys
from importlib import import_module
from pathlib import Path

tree = Path.cwd()
# Before its rename the broker's package was the folder broker/ itself.
broker = "broker" if (tree / "broker" / "__init__.py").exists() else "kafkalog_broker"
for name in ("pyspark_kafkalog", broker):
    path = import_module(name).__spec__.submodule_search_locations[0]
    if not Path(path).resolve().is_relative_to(tree):
        sys.exit(f"{name} was imported from {path}, not from {tree}")
module, _, part = sys.argv[1].partition(".")
benchmark = import_module("benchmarks." + module)
if sys.argv[2] == "small" and hasattr(benchmark, "ROWS_BY_VALUE_BYTES"):
    benchmark.ROWS_BY_VALUE_BYTES = {size: rows // 5 for size, rows in benchmark.ROWS_BY_VALUE_BYTES.items()}
rows = (benchmark.PARTS[part] if part else benchmark.run)(1)
speeds = {}
for row in rows:
    # Rates are per second; all else, times and memory, is better if less.
    speeds.setdefault(row.question, row.ours if row.unit.endswith("/s") else 1 / row.ours)
print("\\n" + json.dumps(speeds))
"""


def speeds(tree: Path, name: str, size: str) -> dict[str, float]:
    """What one round of a benchmark gives for ours in ``tree``, by question: more is better."""
    # Where byte code is not cached, whichever tree has some of it starts sooner.
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPATH"] = f"{tree}{os.pathsep}{tree / 'broker'}"
    command = [sys.executable, "-c", _RUN, name, size]
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{name} failed in {tree}: {done.stderr.strip()}")
    return dict(json.loads(done.stdout.rstrip().rsplit("\n", 1)[-1]))


def main() -> int:
    arguments = _arguments()
    trees = {"old": arguments.old.resolve(), "new": HERE}
    for name in arguments.names:
        found: dict[str, dict[str, list[float]]] = defaultdict(lambda: {"old": [], "new": []})
        for number in range(arguments.rounds):
            # Whoever runs second finds a warmer machine: they change places from round to round.
            for tree in sorted(trees, reverse=bool(number % 2)):
                for question, speed in speeds(trees[tree], name, arguments.size).items():
                    found[question][tree].append(speed)
        print(f"\n{name}, {arguments.rounds} rounds\n")
        print("| question | new / old | old / old |\n| --- | --- | --- |")
        for question, by_tree in found.items():
            old, new = by_tree["old"], by_tree["new"]
            if not old or not new:
                continue
            noise = statistics.median(old[::2]) / statistics.median(old[1::2]) if len(old) > 1 else 1.0
            change = statistics.median(new) / statistics.median(old)
            print(f"| {question} | {change:.2f} | {min(noise, 1 / noise):.2f} |", flush=True)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.before_after",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("old", type=Path, help="a working tree with the code to compare with")
    parser.add_argument("names", nargs="+", metavar="NAME", help="those of python -m benchmarks, parts too")
    parser.add_argument("--rounds", type=int, default=9, help="rounds of each tree (default: 9)")
    parser.add_argument("--small", dest="size", action="store_const", const="small", default="full")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
