"""A bar on the terminal while something long runs, and nothing where standard error is no terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import typer

_REDRAW_SECONDS = 0.1
_LINE_SECONDS = 10.0


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


@contextmanager
def status_line(*, quiet: bool = False) -> Iterator[Callable[[str], None]]:
    """Gives a function that shows a text in place of the one before it, for what has no end.

    Where standard error is no terminal each text is a line of its own, and one in ten seconds is shown.
    """
    if quiet:
        yield lambda _: None
        return
    if not sys.stderr.isatty():
        due = time.monotonic() + _LINE_SECONDS

        def write(text: str) -> None:
            nonlocal due
            if time.monotonic() >= due:
                due = time.monotonic() + _LINE_SECONDS
                typer.echo(text, err=True)

        yield write
        return
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    with Live(Text(""), console=Console(stderr=True), transient=True, auto_refresh=False) as live:
        yield lambda text: live.update(Text(text), refresh=True)


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
