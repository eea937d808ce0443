"""benchmarks/results: a file for each module, with the tables last measured and what is written by hand."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from datetime import date
from importlib.metadata import version

MARKER = "<!-- Written by hand from here on: the command does not change it. -->"
VERSIONS = (
    "pyspark", "pyarrow", "numpy", "numba", "crc32c", "isal", "confluent-kafka", "aiokafka", "kafka-python",
)  # fmt: skip

_INTRODUCTION = """\
# Results of `{module}`

The docstring of [{module}.py](../{module}.py) says what is measured and how. `python -m benchmarks {module}`
measures again and replaces the tables above the marker. How to read them, and the goals of all benchmarks:
[benchmarks.md](../../docs/benchmarks.md).
"""
_CHAPTER = "\n## "


def chapter(title: str, name: str, rows: str) -> str:
    """A chapter measured now, on this machine; ``rows`` is its table."""
    return f"## {title}\n\n`python -m benchmarks {name}`: {_machine()}\n\n{rows}\n"


def renewed(page: str, module: str, order: Sequence[str], chapters: Mapping[str, str]) -> str:
    """The results page of a module with ``chapters``, by title, in place of its own.

    ``order`` has all titles of the module. Chapters of other titles are dropped, and what follows the marker
    is kept. ``page`` is empty for a module without results.
    """
    generated, _, by_hand = page.partition(MARKER)
    kept = {text.split("\n", 1)[0]: "## " + text.strip() + "\n" for text in generated.split(_CHAPTER)[1:]}
    whole = {**kept, **chapters}
    parts = [_INTRODUCTION.format(module=module), *(whole[title] for title in order if title in whole)]
    return "\n".join([*parts, MARKER]) + (by_hand or "\n")


def _machine() -> str:
    with_versions = ", ".join(f"{name} {version(name)}" for name in VERSIONS)
    return (
        f"{date.today()}, {platform.system()} {platform.machine()}, "
        f"{len(os.sched_getaffinity(0))} processors, Python {platform.python_version()}; {with_versions}."
    )
