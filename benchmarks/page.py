"""docs/benchmarks.md: a chapter for each benchmark, as it was last measured, and what is written by hand."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from datetime import date
from importlib.metadata import version

MARKER = "<!-- What follows is written by hand; the benchmarks keep it. -->"
VERSIONS = (
    "pyspark", "pyarrow", "numpy", "numba", "crc32c", "isal", "confluent-kafka", "aiokafka", "kafka-python",
)  # fmt: skip

INTRODUCTION = """\
# Benchmarks

Written by `make bench`, or a chapter alone by the command that stands in it. Every figure is a median of
rounds in which the contestants take turns; machines are noisy, so only the ratio within one line means
something. The question of each benchmark and what it measures stand at the top of its file in `benchmarks/`.
"""
_CHAPTER = "\n## "


def chapter(title: str, module: str, rows: str) -> str:
    """A chapter that was measured now, on this machine; ``rows`` is its table."""
    return f"## {title}\n\n`python -m benchmarks {module}`: {_machine()}\n\n{rows}\n"


def renewed(page: str, order: Sequence[str], chapters: Mapping[str, str]) -> str:
    """The page with ``chapters``, by title, in place of its own; those that are nowhere yet are left out.

    ``order`` has all titles; what the page has under another title goes.
    """
    generated, _, by_hand = page.partition(MARKER)
    kept = {text.split("\n", 1)[0]: "## " + text.strip() + "\n" for text in generated.split(_CHAPTER)[1:]}
    whole = {**kept, **chapters}
    return "\n".join([INTRODUCTION, *(whole[title] for title in order if title in whole), MARKER]) + (
        by_hand or "\n"
    )


def _machine() -> str:
    with_versions = ", ".join(f"{name} {version(name)}" for name in VERSIONS)
    return (
        f"{date.today()}, {platform.system()} {platform.machine()}, "
        f"{len(os.sched_getaffinity(0))} processors, Python {platform.python_version()}; {with_versions}."
    )
