"""Producer ids: each is given out once, even across crashes."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from kafkalog_broker.disk.filesystem import FileSystem, read_file, replace_file
from pyspark_kafkalog.errors import ErrorCode, KafkaError, StorageError

BLOCK_SIZE = 1000
"""Ids are reserved on disk in blocks; a crash loses the rest of one, and 2^63 of them are enough."""

FILE_NAME = "producer.ids"

_LAST_ID = (1 << 63) - 1

_log = logging.getLogger(__name__)


class NoProducerId(KafkaError):
    """None is at hand: the next block is not reserved yet, or it cannot be."""

    code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    """As Kafka answers where it has none: the one code after which every client asks again."""


def _in_a_thread(work: Callable[[], object]) -> None:
    threading.Thread(target=work, name="producer-ids", daemon=True).start()


class ProducerIds:
    """*Thread-safe: ``_lock`` guards the blocks in hand and who waits.* Allocates producer ids, each once.

    A file holds the first id that no block has reserved, as a decimal number. It is forced to disk before any
    id of a new block is given out. It is kept in every data directory, and the largest number counts: so
    directories may be added, reordered, or fail, as long as one of the last run's is there. Brokers that
    share their partitions take blocks from one place: ``take``.

    Disk and ZooKeeper may take seconds, so a block is reserved by a thread of its own, one at a time, and in
    time: when half of the present one is left.
    """

    def __init__(
        self,
        directories: Sequence[Path],
        files: FileSystem,
        take: Callable[[int, int], int] | None = None,
        run: Callable[[Callable[[], object]], object] = _in_a_thread,
    ) -> None:
        """``take`` gives the first of so many ids, its second argument, that are no other broker's, and none
        of them below its first one; it raises `StorageError`. ``run`` has a thread do a piece of work.
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
        """An id that was never given out before; never waits. Raises `NoProducerId`: then call `reserve`."""
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
        """Have the next block reserved if half of one is left, or less."""
        if self._block_end - self._next <= BLOCK_SIZE // 2:
            self.reserve()

    def reserve(self, done: Callable[[], object] = lambda: None) -> None:
        """Have the next block reserved, unless one is; then ``done`` is called, from any thread, and also
        where that failed: `next` says why.
        """
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
        """A new block's first id. Only the thread that reserves calls it."""
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
