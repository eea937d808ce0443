"""Rows on standard output: a table for people, or a JSON object a line for scripts."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import typer

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
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    lines = [[_cell(row.get(column), column in _COUNTS) for column in columns] for row in rows]
    foot = [_cell((total or {}).get(column, ""), column in _COUNTS) for column in columns]
    table = Table(show_footer=total is not None)
    for index, column in enumerate(columns):
        numbers = all(line[index] == _NOTHING or line[index].replace(",", "").isdecimal() for line in lines)
        side: Literal["left", "right"] = "right" if lines and numbers else "left"
        table.add_column(column, Text(foot[index]), justify=side, overflow="fold")
    for line in lines:
        # Names are data: what looks like markup in them is none.
        table.add_row(*map(Text, line))
    # A file or a pipe has no width: nothing of a name may be lost there.
    Console(soft_wrap=True, width=None if sys.stdout.isatty() else _WIDE).print(table)


def _cell(value: Any, thousands: bool) -> str:
    if value is None:
        return _NOTHING
    return f"{value:,}" if thousands and isinstance(value, int) else str(value)
