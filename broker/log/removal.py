"""Files that are to go, but not yet."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from pathlib import Path

from broker.log.filesystem import FileSystem, remove_tree
from pyspark_kafkalog.clock import Clock

_logger = logging.getLogger(__name__)


class DelayedRemoval:
    """*Thread-safe: ``_lock`` guards the list.* What a crash leaves of it, the next start removes."""

    def __init__(self, files: FileSystem, clock: Clock) -> None:
        self._files = files
        self._clock = clock
        self._doomed: list[tuple[float, Path, bool]] = []
        self._lock = threading.Lock()

    def add_files(self, paths: Iterable[Path], delay_ms: int) -> None:
        """Remove files in ``delay_ms``."""
        due = self._clock.monotonic() + delay_ms / 1000
        with self._lock:
            self._doomed += [(due, path, False) for path in paths]

    def add_tree(self, path: Path, delay_ms: int) -> None:
        """Remove a directory with all that is in it in ``delay_ms``."""
        with self._lock:
            self._doomed.append((self._clock.monotonic() + delay_ms / 1000, path, True))

    def purge(self) -> None:
        """Remove what is due."""
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
