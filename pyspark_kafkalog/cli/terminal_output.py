"""A bar on the terminal while something long runs, and nothing where standard error is no terminal."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import typer

if TYPE_CHECKING:
    from rich.box import Box
    from rich.table import Table

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


Row = Mapping[str, Any]
"""Values by column; None is what there is not."""

_COUNTS = frozenset({"offsets", "lag", "load_lag", "records", "bytes"})
"""Columns in thousands; offsets are to be copied into a command."""

_NOTHING = "-"
_WIDE = 10_000


def show(rows: Iterable[Row], columns: Sequence[str], *, as_json: bool, total: Row | None = None) -> None:
    """Print the ``columns`` of ``rows`` and, in a table only, those of ``total`` below them.

    JSON has every field of a row, the table what it has room for.
    """
    if as_json:
        for row in rows:
            typer.echo(json.dumps(row, ensure_ascii=False))
        return
    lines = [[_cell(row.get(column), column in _COUNTS) for column in columns] for row in rows]
    foot = None
    if total is not None:
        foot = [_cell(total.get(column, ""), column in _COUNTS) for column in columns]
    _print(columns, lines, foot, _width())


def _print(columns: Sequence[str], lines: list[list[str]], foot: list[str] | None, width: int | None) -> None:
    """A table with lines around it; where ``width`` is too small, one without; else each row as a block.

    Cells are never cut into pieces: these could be neither read nor copied.
    """
    from rich import box
    from rich.console import Console

    # A file or a pipe has no width: nothing of a name may be lost there.
    console = Console(soft_wrap=True, width=width or _WIDE)
    for around in (box.HEAVY_HEAD, None):
        table = _table(columns, lines, foot, around)
        if (
            width is None
            or console.measure(table, options=console.options.update(width=_WIDE)).maximum <= width
        ):
            console.print(table)
            return
    longest = max(map(len, columns))
    for number, line in enumerate([*lines, *([foot] if foot is not None else [])]):
        if number:
            typer.echo()
        for column, cell in zip(columns, line, strict=True):
            if cell:
                typer.echo(f"{column:<{longest}}  {cell}")


def _table(
    columns: Sequence[str], lines: list[list[str]], foot: list[str] | None, around: Box | None
) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(show_footer=foot is not None, box=around, pad_edge=around is not None)
    for index, column in enumerate(columns):
        numbers = all(line[index] == _NOTHING or line[index].replace(",", "").isdecimal() for line in lines)
        side: Literal["left", "right"] = "right" if lines and numbers else "left"
        table.add_column(column, Text(foot[index] if foot else ""), justify=side, no_wrap=True)
    for line in lines:
        # Names are data: what looks like markup in them is none.
        table.add_row(*map(Text, line))
    return table


def _width() -> int | None:
    """The columns of the terminal; None where standard output is none."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def _cell(value: Any, thousands: bool) -> str:
    if value is None:
        return _NOTHING
    return f"{value:,}" if thousands and isinstance(value, int) else str(value)
