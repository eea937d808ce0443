"""How the demos say what they do, and what they can be told."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

from rich.console import Console

import pyspark_kafkalog as kafkalog

console = Console(highlight=False, soft_wrap=True)


@contextmanager
def step(what: str, *, in_spark: bool = False) -> Iterator[None]:
    """Say what begins, and how long it took. What runs ``in_spark`` shows that it goes on."""
    console.print(f"[bold]▸ {what}[/bold]")
    started = time.monotonic()
    with console.status("Spark is at work") if in_spark else nullcontext():
        yield
    say(f"[dim]took {time.monotonic() - started:.1f} s[/]")


def say(what: str) -> None:
    console.print(f"  {what}")


def verdict(different: Sequence[str], started: float) -> int:
    """The exit code, after the last words: what was not as claimed, or how long all of it took."""
    if different:
        say(f"[bold red]not as claimed: {', '.join(different)}[/]")
        return 1
    say(f"[bold]everything as claimed, in {time.monotonic() - started:.0f} s[/]")
    return 0


def say_commit(commit: kafkalog.Commit) -> None:
    say(f"commit {commit.number}: {commit.records:,} events")


def arguments(description: str | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--output", type=Path, help="directory for offsets and Parquet files; kept (default: a temporary one)"
    )
    return parser.parse_args()
