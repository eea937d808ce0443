"""Producer ids: each is given out once, whatever happens to the process in between."""

from __future__ import annotations

import threading
from pathlib import Path

from broker.log.filesystem import FileSystem, read_file, replace_file
from pyspark_kafkalog.errors import StorageError

BLOCK_SIZE = 1000
"""Ids are reserved on disk in blocks; a crash loses the rest of one, and 2^63 of them are enough."""

FILE_NAME = "producer.ids"

_LAST_ID = (1 << 63) - 1


class ProducerIds:
    """*Thread-safe: ``_lock`` guards the block in hand.* Allocates producer ids, never one twice.

    The file holds the first id that no block has reserved, as a decimal number. It is forced to disk before
    any id of a new block is given out.
    """

    def __init__(self, directory: Path, files: FileSystem) -> None:
        self._path = directory / FILE_NAME
        self._files = files
        self._lock = threading.Lock()
        self._next = 0
        self._block_end = 0

    def next(self) -> int:
        """An id that was never given out before.

        Raises:
            StorageError: a new block cannot be reserved: the disk refuses, or its file is damaged.
        """
        with self._lock:
            if self._next == self._block_end:
                self._reserve()
            self._next += 1
            return self._next - 1

    def _reserve(self) -> None:
        try:
            first = self._read()
            replace_file(self._files, self._path, str(first + BLOCK_SIZE).encode(), durable=True)
        except OSError as e:
            raise StorageError(f"{self._path}: producer ids cannot be reserved: {e}") from e
        self._next, self._block_end = first, first + BLOCK_SIZE

    def _read(self) -> int:
        try:
            text = read_file(self._files, self._path)
        except FileNotFoundError:
            return 0
        # Starting anew after damage could give out ids twice, which mixes two producers' sequences.
        if not text.isdigit() or int(text) > _LAST_ID - BLOCK_SIZE:
            raise StorageError(f"{self._path}: {text[:40]!r} is not the next producer id")
        return int(text)
