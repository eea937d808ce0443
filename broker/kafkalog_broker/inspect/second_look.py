"""Tells damage from what a broker was changing while it was looked at.

`verify-log` takes no lock, so a broker may roll a segment, save an index, delete or clean segments between
two reads, and what was read then does not fit together. What seems damaged is therefore looked at again
while the files change, and counts if it is found twice.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from kafkalog_broker.disk.data_directory import LOCK_NAME
from kafkalog_broker.disk.filesystem import DirectoryEntry, FileSystem
from kafkalog_broker.disk.process_lock import holder_of
from pyspark_kafkalog.clock import Clock

T = TypeVar("T")

_MOST_LOOKS = 5
"""Two are enough unless the second one finds new damage."""
_PAUSE_SECONDS = 1.0
"""Before a running broker's files are looked at again: it has then finished what it was writing."""


def look_again(
    look: Callable[[], T],
    damage: Callable[[T], frozenset[object]],
    state: Callable[[], object],
    data_directory: Path,
    clock: Clock,
) -> T:
    """What ``look`` returns once its ``damage`` is certain: there is none, no file has changed meanwhile, or
    the look before found it too.

    ``state`` changes whenever the files do. ``data_directory`` is the one whose broker may be writing.
    """
    before = state()
    found = look()
    known = damage(found)
    for _ in range(_MOST_LOOKS - 1):
        if not known:
            break
        if _is_served(data_directory):
            clock.sleep(_PAUSE_SECONDS)
        now = state()
        if now == before:
            break
        before, found = now, look()
        last, known = known, damage(found)
        if known <= last:
            break
    return found


def files_in(directory: Path, files: FileSystem) -> frozenset[DirectoryEntry]:
    """Names, sizes and times of what is in a directory; empty if it is missing. Raises `OSError`."""
    try:
        return frozenset(files.scan(directory))
    except FileNotFoundError:
        return frozenset()


def _is_served(data_directory: Path) -> bool:
    """Whether a broker of this machine seems to hold the directory; trying its lock could stop a start."""
    try:
        holder = holder_of(data_directory / LOCK_NAME)
    except OSError:
        return False
    return holder is not None and holder.alive
