"""A progress bar by bytes on standard error, where somebody looks at it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Advance = Callable[[int], object]


@contextmanager
def byte_progress(what: str, total_bytes: int) -> Iterator[Advance]:
    """Shows how far the work is while the block runs; what it gives is told how many more bytes are done.

    Where standard error is no terminal nothing is shown, and nothing loaded.
    """
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console  # here: who sees no bar need not wait for it
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total_bytes)
        yield lambda count: bar.advance(task, count)
