"""Producer ids: each is given out once, even across crashes."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from broker.disk.filesystem import FileSystem, read_file, replace_file
from pyspark_kafkalog.errors import StorageError

BLOCK_SIZE = 1000
"""Ids are reserved on disk in blocks; a crash loses the rest of one, and 2^63 of them are enough."""

FILE_NAME = "producer.ids"

_LAST_ID = (1 << 63) - 1

_log = logging.getLogger(__name__)


class ProducerIds:
    """*Thread-safe: ``_lock`` guards the block in hand, ``_reserving`` the files.* Allocates producer ids,
    never one twice.

    The file holds the first id that no block has reserved, as a decimal number. It is forced to disk before
    any id of a new block is given out. It is kept in every data directory, and the largest number counts: so
    directories may be added, reordered, or fail, as long as one of the last run's is there.

    Brokers that share their partitions take blocks from one place: ``take``. `prepare` takes the next block
    before the one in hand is used up, so that no request has to wait for that place.
    """

    def __init__(
        self,
        directories: Sequence[Path],
        files: FileSystem,
        take: Callable[[int, int], int] | None = None,
    ) -> None:
        """``take`` gives the first of so many ids, its second argument, that are no other broker's, and none
        of them below its first one. Raises `StorageError`.
        """
        self._paths = [directory / FILE_NAME for directory in directories]
        self._files = files
        self._lock = threading.Lock()
        self._take = take
        self._next = 0
        self._block_end = 0
        self._spare: int | None = None
        self._reserved_end = 0
        self._reserving = threading.Lock()

    def next(self) -> int:
        """An id that was never given out before.
        Raises `StorageError`: a new block cannot be reserved: no disk takes it, or a file is damaged.
        """
        with self._lock:
            if self._next == self._block_end:
                first, self._spare = self._spare, None
                self._next = self._reserve() if first is None else first
                self._block_end = self._next + BLOCK_SIZE
            self._next += 1
            return self._next - 1

    def prepare(self) -> None:
        """Reserve the next block if less than half of one is left. Waits for it: not for a thread that
        serves requests. Where it fails, that is logged, and `next` raises it.
        """
        if self._spare is not None or self._block_end - self._next > BLOCK_SIZE // 2:
            return
        try:
            first = self._reserve()
        except StorageError as e:
            _log.warning("%s", e)
            return
        with self._lock:
            self._spare = first

    def _reserve(self) -> int:
        """A new block's first id."""
        with self._reserving:
            return self._reserve_alone()

    def _reserve_alone(self) -> int:
        refusals: list[OSError] = []
        first = max((self._read(path, refusals) for path in self._paths), default=0)
        if len(refusals) == len(self._paths):
            raise StorageError(f"producer ids cannot be read: {refusals[0]}") from refusals[0]
        # What this run has given out counts as well: the only file that knew of it may be unreadable now.
        first = max(first, self._reserved_end)
        if self._take is not None:
            first = self._take(first, BLOCK_SIZE)
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
        self._reserved_end = first + BLOCK_SIZE
        return first

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
