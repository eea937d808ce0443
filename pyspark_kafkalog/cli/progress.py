"""A bar on the terminal while something long runs, and nothing where standard error is no terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_REDRAW_SECONDS = 0.1


@contextmanager
def progress(
    what: str, total: int | None, *, in_bytes: bool = False, quiet: bool = False
) -> Iterator[Callable[[int], None]]:
    """Gives a function that is told how much is done in all. ``total`` None: it is not known.

    The function is cheap enough to be called for every record.
    """
    if quiet or not sys.stderr.isatty():
        yield lambda _: None
        return
    # Only who looks at it pays for it.
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
    )

    count = DownloadColumn() if in_bytes else MofNCompleteColumn()
    columns = (TextColumn("{task.description}"), BarColumn(), count, TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task, due = bar.add_task(what, total=total), 0.0

        def show(done: int) -> None:
            nonlocal due
            now = time.monotonic()
            if now >= due:
                due = now + _REDRAW_SECONDS
                bar.update(task, completed=done)

        yield show


def counted(number: int, what: str) -> str:
    """A number of things, ``what`` in the singular."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def size(byte_count: int) -> str:
    """Bytes as people read them."""
    if byte_count < 1000:
        return counted(byte_count, "byte")
    for power, unit in enumerate(("kB", "MB", "GB"), start=1):
        if byte_count < 1000 ** (power + 1):
            return f"{byte_count / 1000**power:.1f} {unit}"
    return f"{byte_count / 1e12:.1f} TB"
