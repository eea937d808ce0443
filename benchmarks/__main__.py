"""``make bench``: runs all benchmarks, or those named, prints their tables and writes them down.

    python -m benchmarks [--rounds N] [--dry-run | --table-only] [NAME ...]

A table goes to benchmarks/results/MODULE.md, with the date and the machine, in place of the last one of the
same benchmark; text below the marker there is written by hand and kept. Then the table of goals in
docs/benchmarks.md is computed again from all results.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.goals import renewed_page
from benchmarks.harness import Row, table
from benchmarks.page import chapter, renewed

RESULTS = Path(__file__).resolve().parent / "results"
PAGE = RESULTS.parent.parent / "docs" / "benchmarks.md"


class Benchmark(NamedTuple):
    """A module with ``run(rounds)``, or one of its ``PARTS``, and the title of its results."""

    module: str
    title: str
    part: str = ""

    @property
    def name(self) -> str:
        """As it is named on the command line; a module's name stands for all of its parts."""
        return f"{self.module}.{self.part}" if self.part else self.module

    @property
    def run(self) -> Callable[[int], Sequence[Row]]:
        module: Any = import_module(f"benchmarks.{self.module}")
        chosen: Callable[[int], Sequence[Row]] = module.PARTS[self.part] if self.part else module.run
        return chosen


BENCHMARKS = (
    Benchmark("decode", "Decode: fetched bytes to Arrow"),
    Benchmark("protocol", "Protocol: requests and answers, without the records in them"),
    Benchmark("pipeline", "Pipeline: from the broker to record batches, and back"),
    Benchmark("client_tls", "Client, TLS"),
    Benchmark("read_arrow", "Arrow without Spark"),
    Benchmark("broker", "Broker"),
    Benchmark("broker_tls", "Broker, TLS"),
    *(
        Benchmark("broker_and_kafka", f"Broker, beside Apache Kafka: {title}", part)
        for part, title in (
            ("produce", "librdkafka produces"),
            ("consume", "librdkafka consumes"),
            ("tools", "Kafka's own tools, start and memory"),
        )
    ),
    Benchmark("transactions", "Broker, transactions"),
    Benchmark("cleaner", "Log cleaner, beside Apache Kafka", "cleaning"),
    Benchmark("cleaner", "Consumer offsets, loaded at a start", "offsets"),
    Benchmark("fairness", "Broker, one client beside another"),
    Benchmark("partitions", "Broker, 10,000 partitions"),
    Benchmark("many_partitions", "Many partitions, a client's side"),
    Benchmark("groups", "Broker, consumer groups"),
    Benchmark("scale", "Loads of many partitions, by simulation"),
    Benchmark("broker07", "Broker, the listener of Kafka 0.7"),
    Benchmark("view07", "Messages of Kafka 0.7 for today's clients"),
    Benchmark("old_fetch", "Clients of Kafka 0.8 to 0.10"),
    Benchmark("spark_read", "Spark"),
    Benchmark("spark_connector", "Spark, beside its own Kafka connector", "codecs_and_streams"),
    *(
        Benchmark("spark_connector", f"Spark, beside its own Kafka connector: {title}", part)
        for part, title in (
            ("first_row", "the first row"),
            ("values_100", "100 B by records a batch"),
            ("values_1000", "1000 B by records a batch"),
            ("values_10000", "10 kB by records a batch"),
            ("direct_loads", "loads whose tasks write"),
            ("many_partitions", "many partitions"),
            ("over_tls", "TLS"),
        )
    ),
    Benchmark("stages", "Stages of a read: processor seconds for one GB"),
    Benchmark("memory", "Memory of a worker"),
    Benchmark("direct_loads", "Loads by tasks, without Spark"),
    Benchmark("iceberg_sink", "Loads by tasks to Iceberg, beside Kafka Connect"),
    Benchmark("loads", "Loads", "at_paths"),
    Benchmark("loads", "Loads, with their ledger in an object store", "at_a_store"),
)


def main() -> int:
    arguments = _arguments()
    chosen = [b for b in BENCHMARKS if not arguments.names or {b.module, b.name} & set(arguments.names)]
    # Users have byte code; without it each process of ours would compile its modules anew.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    missed = 0
    for number, benchmark in enumerate([] if arguments.table_only else chosen, 1):
        print(f"[{number}/{len(chosen)}] {benchmark.title}", flush=True)
        began = time.monotonic()
        rows = benchmark.run(arguments.rounds)
        missed += sum(not row.met for row in rows)
        print(table(rows), f"\n{time.monotonic() - began:.0f} s\n", flush=True)
        if not arguments.dry_run:
            write(benchmark, table(rows))
    if not arguments.dry_run:
        PAGE.write_text(renewed_page(PAGE.read_text(encoding="utf-8"), results_of), encoding="utf-8")
        print(f"written: {PAGE.name}")
    if not arguments.table_only:
        print(f"goals missed: {missed}")
    return 0


def results_of(module: str) -> str:
    """The results file of a module; empty if it has none yet."""
    path = RESULTS / f"{module}.md"
    return path.read_text(encoding="utf-8") if path.exists() else ""


def write(benchmark: Benchmark, rows: str) -> None:
    titles = [b.title for b in BENCHMARKS if b.module == benchmark.module]
    new = {benchmark.title: chapter(benchmark.title, benchmark.name, rows)}
    page = renewed(results_of(benchmark.module), benchmark.module, titles, new)
    (RESULTS / f"{benchmark.module}.md").write_text(page, encoding="utf-8")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(b.name for b in BENCHMARKS))
    parser.add_argument("--rounds", type=int, default=7, help="rounds of each contestant (default: 7)")
    writing = parser.add_mutually_exclusive_group()
    writing.add_argument("--dry-run", action="store_true", help="print only, write no file")
    writing.add_argument(
        "--table-only", action="store_true", help="measure nothing, only write docs/benchmarks.md"
    )
    arguments = parser.parse_args()
    unknown = set(arguments.names) - {name for b in BENCHMARKS for name in (b.module, b.name)}
    if unknown:
        parser.error(f"no benchmark is called {', '.join(sorted(unknown))}")
    return arguments


if __name__ == "__main__":
    raise SystemExit(main())
