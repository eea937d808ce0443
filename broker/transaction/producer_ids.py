"""Producer ids: each is given out once, even across crashes."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from pathlib import Path

from broker.disk.filesystem import FileSystem, read_file, replace_file
from pyspark_kafkalog.errors import StorageError

BLOCK_SIZE = 1000
"""Ids are reserved on disk in blocks; a crash loses the rest of one, and 2^63 of them are enough."""

FILE_NAME = "producer.ids"

_LAST_ID = (1 << 63) - 1

_log = logging.getLogger(__name__)


class ProducerIds:
    """*Thread-safe: ``_lock`` guards the block in hand.* Allocates producer ids, never one twice.

    The file holds the first id that no block has reserved, as a decimal number. It is forced to disk before
    any id of a new block is given out. It is kept in every data directory, and the largest number counts: so
    directories may be added, reordered, or fail, as long as one of the last run's is there.
    """

    def __init__(self, directories: Sequence[Path], files: FileSystem) -> None:
        self._paths = [directory / FILE_NAME for directory in directories]
        self._files = files
        self._lock = threading.Lock()
        self._next = 0
        self._block_end = 0

    def next(self) -> int:
        """An id that was never given out before.
        Raises `StorageError`: a new block cannot be reserved: no disk takes it, or a file is damaged.
        """
        with self._lock:
            if self._next == self._block_end:
                self._reserve()
            self._next += 1
            return self._next - 1

    def _reserve(self) -> None:
        refusals: list[OSError] = []
        first = max((self._read(path, refusals) for path in self._paths), default=0)
        if len(refusals) == len(self._paths):
            raise StorageError(f"producer ids cannot be read: {refusals[0]}") from refusals[0]
        # What this run has given out counts as well: the only file that knew of it may be unreadable now.
        first = max(first, self._block_end)
        written = 0
        for path in self._paths:
            try:
                replace_file(self._files, path, str(first + BLOCK_SIZE).encode(), durable=True)
                written += 1
            except OSError as e:
                refusals.append(e)
                _log.warning("%s: producer ids are not noted there: %s", path, e)
        if not written:
            raise StorageError(f"producer ids cannot be reserved: {refusals[-1]}") from refusals[-1]
        self._next, self._block_end = first, first + BLOCK_SIZE

    def _read(self, path: Path, refusals: list[OSError]) -> int:
        try:
            text = read_file(self._files, path)
        except FileNotFoundError:
            return 0
        except OSError as e:
            refusals.append(e)
            return 0
        # Starting over after damage could give out ids twice, which mixes two producers' sequences.
        if not text.isdigit() or int(text) > _LAST_ID - BLOCK_SIZE:
            raise StorageError(f"{path}: {text[:40]!r} is not the next producer id")
        return int(text)
