"""Allocates producer ids, each only once, even across crashes."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from kafkalog_broker.disk.filesystem import FileSystem, read_file, replace_file
from pyspark_kafkalog.errors import ErrorCode, KafkaError, StorageError

BLOCK_SIZE = 1000
"""Ids reserved on disk at a time; a crash loses the rest of a block, of 2^63 ids."""

FILE_NAME = "producer.ids"

_LAST_ID = (1 << 63) - 1

_log = logging.getLogger(__name__)


class NoProducerId(KafkaError):
    """The next block is not reserved yet, or could not be."""

    code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    """As in Kafka: the only code after which every client retries."""


def _in_a_thread(work: Callable[[], object]) -> None:
    threading.Thread(target=work, name="producer-ids", daemon=True).start()


class ProducerIds:
    """*Thread-safe: ``_lock`` guards the blocks in hand and who waits.* Allocates producer ids, each once.

    A file holds the first unreserved id as a decimal number, synced to disk before an id of a new block is
    used. Every data directory has one and the largest counts. Disk and ZooKeeper may take seconds, so a
    thread of its own reserves the next block when half of the current one is left.
    """

    def __init__(
        self,
        directories: Sequence[Path],
        files: FileSystem,
        take: Callable[[int, int], int] | None = None,
        run: Callable[[Callable[[], object]], object] = _in_a_thread,
    ) -> None:
        """In a cluster ``take(least, count)`` returns the first of ``count`` new ids, or raises
        `StorageError`.
        """
        self._paths = [directory / FILE_NAME for directory in directories]
        self._files = files
        self._take = take
        self._run = run
        self._lock = threading.Lock()
        self._next = 0
        self._block_end = 0
        self._spare: int | None = None
        self._reserved_end = 0
        self._reserving = False
        self._waiting: list[Callable[[], object]] = []
        self._failure = "the first block of producer ids is not reserved yet"

    def next(self) -> int:
        """A new id; never blocks. Raises `NoProducerId`: call `reserve`, then try again."""
        with self._lock:
            if self._next == self._block_end:
                if self._spare is None:
                    raise NoProducerId(self._failure)
                self._next, self._spare = self._spare, None
                self._block_end = self._next + BLOCK_SIZE
            found = self._next
            self._next += 1
            is_half = self._block_end - self._next == BLOCK_SIZE // 2
        if is_half:
            self.reserve()
        return found

    def prepare(self) -> None:
        if self._block_end - self._next <= BLOCK_SIZE // 2:
            self.reserve()

    def reserve(self, done: Callable[[], object] = lambda: None) -> None:
        """In the background, then calls ``done``. After a failure `next` raises the reason."""
        with self._lock:
            reserved = self._spare is not None
            if not reserved:
                self._waiting.append(done)
                if self._reserving:
                    return
                self._reserving = True
        if reserved:
            done()
        else:
            self._run(self._reserve_next)

    def _reserve_next(self) -> None:
        spare, failure = None, ""
        try:
            spare = self._reserve()
        except StorageError as e:
            failure = str(e)
            _log.warning("%s", e)
        except Exception as e:
            failure = f"no block of producer ids can be reserved: {e}"
            _log.exception("no block of producer ids can be reserved")
        with self._lock:
            self._spare, self._failure = spare, failure
            self._reserving = False
            waiting, self._waiting = self._waiting, []
        for done in waiting:
            done()

    def _reserve(self) -> int:
        """Returns a new block's first id. Only the reserving thread calls this."""
        refusals: list[OSError] = []
        first = max((self._read(path, refusals) for path in self._paths), default=0)
        if len(refusals) == len(self._paths):
            raise StorageError(f"producer ids cannot be read: {refusals[0]}") from refusals[0]
        # Also count ids of this run: the only file that knew of them may be unreadable now.
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
        # Starting over after damage could repeat ids, which would mix two producers' sequences.
        if not text.isdigit() or int(text) > _LAST_ID - BLOCK_SIZE:
            raise StorageError(f"{path}: {text[:40]!r} is not the next producer id")
        return int(text)
