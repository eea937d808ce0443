"""Removes files of deleted partitions after a delay, and remains of failed creations at once."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from pathlib import Path

from kafkalog_broker.disk.filesystem import FileSystem, remove_tree
from kafkalog_broker.log.aborted_transactions import ABORTED_SUFFIX
from kafkalog_broker.log.append.producer_states import SNAPSHOT_NAME
from kafkalog_broker.log.segment import base_offset_of
from kafkalog_broker.log.segment_list import SEGMENT_LIST_NAME
from kafkalog_broker.logs.topic_store import PARTITION_METADATA
from pyspark_kafkalog.clock import Clock

DELETED_PREFIX = ".deleted~"
"""Prefix of deleted partitions' directories until removed; topic names have no tilde."""

_OUR_NAMES = (PARTITION_METADATA, SNAPSHOT_NAME, SEGMENT_LIST_NAME)
_OUR_SUFFIXES = (".index", ".timeindex", ABORTED_SUFFIX, ".deleted", ".tmp")

_logger = logging.getLogger(__name__)


def remove_if_empty(files: FileSystem, path: Path) -> bool:
    """Remove a partition's directory if it holds no records and no foreign files."""
    for entry in files.scan(path):
        empty_segment = base_offset_of(entry.name) is not None and entry.size == 0
        ours = entry.name in _OUR_NAMES or entry.name.endswith(_OUR_SUFFIXES)
        if entry.is_directory or not (empty_segment or ours):
            return False
    remove_tree(files, path)
    return True


class DelayedRemoval:
    """*Thread-safe: ``_lock`` guards the list.* After a crash the next start removes the rest."""

    def __init__(self, files: FileSystem, clock: Clock) -> None:
        self._files = files
        self._clock = clock
        self._doomed: list[tuple[float, Path, bool]] = []
        self._lock = threading.Lock()

    def add_files(self, paths: Iterable[Path], delay_ms: int) -> None:
        due = self._clock.monotonic() + delay_ms / 1000
        with self._lock:
            self._doomed += [(due, path, False) for path in paths]

    def add_tree(self, path: Path, delay_ms: int) -> None:
        with self._lock:
            self._doomed.append((self._clock.monotonic() + delay_ms / 1000, path, True))

    def purge(self) -> None:
        now = self._clock.monotonic()
        with self._lock:
            due = [(path, is_tree) for when, path, is_tree in self._doomed if when <= now]
            self._doomed = [doomed for doomed in self._doomed if doomed[0] > now]
        for path, is_tree in due:
            try:
                if is_tree:
                    remove_tree(self._files, path)
                else:
                    self._files.remove(path)
            except FileNotFoundError:
                continue  # its topic was deleted meanwhile
            except OSError as e:
                _logger.warning("%s stays until the next start: %s", path, e)
