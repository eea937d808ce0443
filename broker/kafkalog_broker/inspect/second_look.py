"""Distinguishes damage from changes by a running broker.

`verify-log` takes no lock, and a broker may change files between two reads. Apparent damage is therefore
checked again while files change, and counts if found twice.
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
"""Two suffice unless the second finds new damage."""
_PAUSE_SECONDS = 1.0
"""Pause beside a running broker, to let it finish writing."""


def look_again(
    look: Callable[[], T],
    damage: Callable[[T], frozenset[object]],
    state: Callable[[], object],
    data_directory: Path,
    clock: Clock,
) -> T:
    """Result of ``look`` once its ``damage`` is certain: none, ``state`` unchanged, or found twice."""
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
    """Names, sizes and times of a directory's entries; empty if missing. Raises `OSError`."""
    try:
        return frozenset(files.scan(directory))
    except FileNotFoundError:
        return frozenset()


def _is_served(data_directory: Path) -> bool:
    """Whether a local broker seems to run on the directory. Trying its lock could fail a broker's start."""
    try:
        holder = holder_of(data_directory / LOCK_NAME)
    except OSError:
        return False
    return holder is not None and holder.alive
