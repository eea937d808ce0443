"""Progress bars and status lines on standard error, tables or JSON on standard output."""

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

Row = Mapping[str, Any]

_COUNTS = frozenset({"offsets", "lag", "load_lag", "records", "bytes"})
"""Columns with thousands separators; single offsets have none, so that they can be copied."""

_NOTHING = "-"
_WIDE = 10_000


@contextmanager
def progress(
    what: str, total: int | None, *, in_bytes: bool = False, quiet: bool = False
) -> Iterator[Callable[[int], None]]:
    """A bar if standard error is a terminal; yields a function for the amount done, cheap per record."""
    if quiet or not sys.stderr.isatty():
        yield lambda _: None
        return
    # Imported only when a bar is shown.
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
    """Yields a function that replaces the line's text; without a terminal prints one every ten seconds."""
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


def words(text: str) -> None:
    typer.echo(text, err=True)


def counted(number: int, what: str) -> str:
    """``1 record``, ``2,000 records``; ``what`` is singular."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def size(byte_count: int) -> str:
    if byte_count < 1000:
        return counted(byte_count, "byte")
    for power, unit in enumerate(("kB", "MB", "GB"), start=1):
        if byte_count < 1000 ** (power + 1):
            return f"{byte_count / 1000**power:.1f} {unit}"
    return f"{byte_count / 1e12:.1f} TB"


def printable(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def show(rows: Iterable[Row], columns: Sequence[str], *, as_json: bool, total: Row | None = None) -> None:
    """Print ``rows`` as a table of ``columns`` with a ``total`` row, or as JSON with every field."""
    if as_json:
        for row in rows:
            text = json.dumps(row, ensure_ascii=False)
            typer.echo("".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text))
        return
    lines = [[_cell(row.get(column), column in _COUNTS) for column in columns] for row in rows]
    foot = None
    if total is not None:
        foot = [_cell(total.get(column, ""), column in _COUNTS) for column in columns]
    _print(columns, lines, foot, _width())


def _print(columns: Sequence[str], lines: list[list[str]], foot: list[str] | None, width: int | None) -> None:
    """A table; if too narrow without borders, then as blocks of lines. Cells are never cut or wrapped."""
    from rich import box
    from rich.console import Console

    # A file or a pipe has no width: print names in full.
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
        # Text, because names may look like markup.
        table.add_row(*map(Text, line))
    return table


def _width() -> int | None:
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def _cell(value: Any, thousands: bool) -> str:
    if value is None:
        return _NOTHING
    return f"{value:,}" if thousands and isinstance(value, int) else printable(str(value))
