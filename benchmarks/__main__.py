"""``make bench``: every benchmark in one run, printed, and written into docs/benchmarks.md.

    python -m benchmarks [--rounds N] [--dry-run] [NAME ...]

Only a run of all of them writes the page, so that its figures are of one machine on one day; what stands
there below the marker is written by hand and kept.
"""

from __future__ import annotations

import argparse
import os
import platform
import time
from collections.abc import Callable, Sequence
from datetime import date
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from benchmarks.harness import Row, table

PAGE = Path(__file__).resolve().parent.parent / "docs" / "benchmarks.md"
MARKER = "<!-- What follows is written by hand; `make bench` keeps it. -->"
VERSIONS = (
    "pyspark", "pyarrow", "numpy", "numba", "crc32c", "isal", "confluent-kafka", "aiokafka", "kafka-python",
)  # fmt: skip

INTRODUCTION = """\
# Benchmarks

Written by `make bench`. Every figure is a median of rounds in which the contestants take turns; machines are
noisy, so only the ratio within one line means something. The question of each benchmark and what it measures
stand at the top of its file in `benchmarks/`.
"""


class Benchmark(NamedTuple):
    """A module with ``run(rounds)``, and what the page calls it."""

    module: str
    title: str


BENCHMARKS = (
    Benchmark("decode", "Decode: fetched bytes to Arrow"),
    Benchmark("protocol", "Protocol: requests and answers, without the records in them"),
    Benchmark("pipeline", "Pipeline: from the broker to record batches, and back"),
    Benchmark("broker", "Broker"),
    Benchmark("broker07", "Broker, the listener of Kafka 0.7"),
    Benchmark("view07", "Messages of Kafka 0.7 for today's clients"),
    Benchmark("old_fetch", "Clients of Kafka 0.8 to 0.10"),
    Benchmark("spark_read", "Spark"),
    Benchmark("loads", "Loads"),
)


def main() -> int:
    arguments = _arguments()
    chosen = [b for b in BENCHMARKS if not arguments.names or b.module in arguments.names]
    chapters, missed = [], 0
    for number, benchmark in enumerate(chosen, 1):
        print(f"[{number}/{len(chosen)}] {benchmark.title}", flush=True)
        began = time.monotonic()
        run: Callable[[int], Sequence[Row]] = import_module(f"benchmarks.{benchmark.module}").run
        rows = run(arguments.rounds)
        missed += sum(not row.met for row in rows)
        print(table(rows), f"\n{time.monotonic() - began:.0f} s\n", flush=True)
        chapters.append(
            f"## {benchmark.title}\n\n`python -m benchmarks {benchmark.module}`\n\n{table(rows)}\n"
        )
    if len(chosen) == len(BENCHMARKS) and not arguments.dry_run:
        PAGE.write_text("\n".join([INTRODUCTION, _machine(), *chapters, _by_hand()]), encoding="utf-8")
        print(f"written: {PAGE.name}")
    print(f"goals missed: {missed}")
    return 0


def _machine() -> str:
    with_versions = ", ".join(f"{name} {version(name)}" for name in VERSIONS)
    return (
        f"{date.today()}, {platform.system()} {platform.machine()}, "
        f"{len(os.sched_getaffinity(0))} processors, Python {platform.python_version()}; {with_versions}.\n"
    )


def _by_hand() -> str:
    _, _, kept = PAGE.read_text(encoding="utf-8").partition(MARKER) if PAGE.exists() else ("", "", "\n")
    return MARKER + kept


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(b.module for b in BENCHMARKS))
    parser.add_argument("--rounds", type=int, default=7, help="rounds of each contestant (default: 7)")
    parser.add_argument("--dry-run", action="store_true", help="leave docs/benchmarks.md as it is")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - {b.module for b in BENCHMARKS}
    if unknown:
        parser.error(f"no benchmark is called {', '.join(sorted(unknown))}")
    return arguments


if __name__ == "__main__":
    raise SystemExit(main())
