"""Rows on standard output: a table for people, or a JSON object a line for scripts."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import typer

if TYPE_CHECKING:
    from rich.box import Box
    from rich.table import Table

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
