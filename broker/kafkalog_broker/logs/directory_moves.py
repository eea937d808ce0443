"""Moves partitions to another data directory while they are written and read.

The copy is made under the partition's own name. Until it is complete, ``future-partitions`` of its data
directory, a sealed table (`write_table`), has a row ``<partition directory> <number>``. Renaming the original
to ``.deleted~<number in hex>`` decides the move: a start removes the copy before that, the original after it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from contextlib import closing, suppress
from pathlib import Path
from uuid import uuid4

from kafkalog_broker.disk.data_directory import DataDirectory
from kafkalog_broker.disk.filesystem import FileSystem, copy_bytes, read_file, remove_tree, replace_file
from kafkalog_broker.log.aborted_transactions import ABORTED_SUFFIX, aborted_bytes
from kafkalog_broker.log.append.producer_states import SNAPSHOT_NAME
from kafkalog_broker.log.family import LogTools
from kafkalog_broker.log.log import Log
from kafkalog_broker.log.recovery import STRAY_NAME, CleanState, Loaded, Loading
from kafkalog_broker.log.segment import Segment
from kafkalog_broker.log.segment_list import SEGMENT_LIST_NAME
from kafkalog_broker.logs.partition_files import DelayedRemoval, deleted_name
from kafkalog_broker.logs.topic_store import PARTITION_METADATA
from pyspark_kafkalog.errors import KafkaError, StorageError
from pyspark_kafkalog.types import TopicPartition

_REST_BYTES = 1 << 20
"""Copied while appends wait; as long as there is more, they do not."""

_logger = logging.getLogger(__name__)


class _Ended(Exception):
    """The move was cancelled, or the broker stops."""


class DirectoryMove:
    """*Thread-safe: one thread copies, others read how far it is.* One partition on its way to ``target``."""

    def __init__(self, log: Log, target: DataDirectory, files: FileSystem) -> None:
        self.log = log
        self.target = target
        self.number = uuid4().int
        self.path = target.path / log.path.name
        self.original = log.path.with_name(deleted_name(self.number))
        self.size_bytes = 0
        self.end_offset = 0
        """The copy has all records below it that the log still has."""
        self.started = self.made = self.decided = self.cancelled = False
        self.ended = threading.Event()
        self._files = files
        self._copied: dict[Segment, int] = {}
        self._indexed: set[Segment] = set()
        self._before: tuple[Segment, ...] = ()
        self._loaded: Loaded

    @property
    def offset_lag(self) -> int:
        return max(0, self.log.end_offset - self.end_offset)

    def run(self) -> None:
        """Raises `KafkaError`; `OSError`; `_Ended`."""
        if self.path.exists():
            raise StorageError(f"{self.path} is in the way; a restart of the broker clears it")
        self.log.known_producers()  # reading them may still add aborted transactions to full segments
        self._files.make_directory(self.path)
        self.made = True
        if (self.log.path / STRAY_NAME).exists():
            self._copy_stray(self.log.path / STRAY_NAME, self.path / STRAY_NAME)
        copied = _REST_BYTES + 1
        while copied > _REST_BYTES:
            self.log.end_swap()  # else a segment may still have another name
            copied = self._copy()
        self.log.move(self.target, self.path, self._finish, self._decide)

    def _copy_stray(self, source: Path, target: Path) -> None:
        self._files.make_directory(target)
        for entry in self._files.scan(source):
            with (
                closing(self._files.open(source / entry.name)) as read,
                closing(self._files.open(target / entry.name, create=True)) as written,
            ):
                copy_bytes(read, written, entry.size, lambda _: self._check())
                written.sync()
        self._files.sync_directory(target)

    def _copy(self) -> int:
        """Copy durably what the log has and the copy lacks; returns how many bytes that was."""
        before, end_offset, segments = sum(self._copied.values()), self.log.end_offset, self.log.segments
        for gone in self._copied.keys() - set(segments):  # expired, or cleaned
            before -= self._copied[gone]
            self._remove(gone)
        for segment in segments:
            try:
                self._copy_segment(segment)
            except FileNotFoundError:
                if not segment.deleted:
                    raise
        self.end_offset = end_offset
        return sum(self._copied.values()) - before

    def _copy_segment(self, segment: Segment) -> None:
        growing, size = segment.growing, segment.size
        position = self._copied.get(segment, -1)
        if position < size:

            def count(taken: int) -> None:
                self._copied[segment] += taken
                self.size_bytes += taken
                self._check()

            self._check()
            self.end_offset = max(self.end_offset, segment.base_offset)
            self._copied[segment] = max(position, 0)
            with closing(self._files.open(self.path / segment.path.name, create=True)) as file:
                segment.copy_to(file, self._copied[segment], size, count)
                file.set_modified(segment.modified_ms)
                file.sync()
        if not growing and segment not in self._indexed:
            self._copy_indexes(segment)

    def _copy_indexes(self, segment: Segment) -> None:
        for path in segment.index_files():
            with suppress(FileNotFoundError):
                replace_file(self._files, self.path / path.name, read_file(self._files, path), durable=False)
        if rows := segment.aborted.rows():
            name = segment.path.with_suffix(ABORTED_SUFFIX).name
            replace_file(self._files, self.path / name, aborted_bytes(rows), durable=True)
        self._indexed.add(segment)

    def _remove(self, segment: Segment) -> None:
        self.size_bytes -= self._copied.pop(segment)
        self._indexed.discard(segment)
        for path in (segment.path, *segment.index_files(), segment.aborted.path):
            with suppress(FileNotFoundError):
                self._files.remove(self.path / path.name)

    def _check(self) -> None:
        if self.cancelled:
            raise _Ended

    def _finish(self, state: CleanState, tools: LogTools) -> Loaded:
        self._copy()
        self._copy_indexes(self.log.segments[-1])
        for name in (PARTITION_METADATA, SEGMENT_LIST_NAME, SNAPSHOT_NAME):
            with suppress(FileNotFoundError):
                data = read_file(self._files, self.log.path / name)
                replace_file(self._files, self.path / name, data, durable=True)
        self._files.sync_directory(self.path)
        self._files.sync_directory(self.target.path)
        self._before = self.log.segments
        self._loaded = Loading(self.path, self.log.config, tools, state, 0, False).run()
        if self._loaded.flushed_offset != state.end_offset:
            raise StorageError(f"{self.path} does not end at offset {state.end_offset}")
        return self._loaded

    def _decide(self) -> None:
        for segment in self._before:
            segment.forget_files()  # readers that no longer find them look into the copy
        self.decided = True
        try:
            self._files.rename(self.log.path, self.original)
        except OSError:
            self.decided = False
            for segment in self._before:
                segment.deleted = False
            for segment in self._loaded.segments:
                segment.forget_files()
            raise
        for segment in self._before:
            segment.forget_files()  # again: a reader may have opened a file before the rename
        try:
            self._files.sync_directory(self.original.parent)
        except OSError as e:  # the next start finds out whether it was moved
            raise self.log.directory.failed(f"moving {self.log.path.name} away", e) from e


class DirectoryMoves:
    """*Thread-safe: ``_lock`` guards the moves, and the tables of future partitions.* One move runs at a
    time; `stop` leaves the rest to the next start.
    """

    def __init__(self, files: FileSystem, doomed: DelayedRemoval) -> None:
        self._files = files
        self._doomed = doomed
        self._moves: dict[TopicPartition, DirectoryMove] = {}
        self._stopped = False
        self._lock = threading.Lock()

    def to(self, target: DataDirectory) -> dict[TopicPartition, tuple[int, int]]:
        """Partitions on their way to ``target``: bytes copied, and offsets to go."""
        return {
            partition: (move.size_bytes, move.offset_lag)
            for partition, move in list(self._moves.items())
            if move.target is target
        }

    def target_of(self, partition: TopicPartition) -> DataDirectory | None:
        move = self._moves.get(partition)
        return None if move is None else move.target

    def begin(self, log: Log, target: DataDirectory) -> None:
        """Durably note a move, for `run`. Raises `StorageError`."""
        move = DirectoryMove(log, target, self._files)
        with self._lock, target.refusing("noting a future partition"):
            target.write_futures({**target.read_futures(), move.path.name: (move.number,)})
            self._moves[log.topic_partition] = move

    def run(self) -> None:
        """Run the moves that have begun, one after another."""
        while True:
            with self._lock:
                move = next((each for each in self._moves.values() if not each.started), None)
                if move is None or self._stopped:
                    return
                move.started = True
            self._run(move)

    def cancel(self, partitions: Iterable[TopicPartition]) -> None:
        """End moves and wait until they have ended; one may just have been completed."""
        for partition in partitions:
            with self._lock:
                move = self._moves.get(partition)
                if move is None:
                    continue
                move.cancelled = True
                if not move.started:
                    move.started = True
                    self._forget(move)
            move.ended.wait()

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
            for move in self._moves.values():
                move.cancelled = True

    def _run(self, move: DirectoryMove) -> None:
        partition = move.log.topic_partition
        _logger.info("%s is being moved from %s to %s", partition, move.log.path.parent, move.target.path)
        try:
            move.run()
            _logger.info("%s was moved to %s", partition, move.target.path)
        except (_Ended, KafkaError, OSError) as e:
            if not isinstance(e, _Ended):
                _logger.error("%s is not moved to %s: %s", partition, move.target.path, e)
        except Exception:
            _logger.exception("%s is not moved to %s", partition, move.target.path)
        with self._lock:
            if self._stopped and not move.decided:
                move.ended.set()
                return
            self._forget(move)

    def _forget(self, move: DirectoryMove) -> None:
        """Remove the copy unless it is the log now; then its row, which must outlast it and the original."""
        del self._moves[move.log.topic_partition]
        taken = move.log.directory is move.target
        try:
            if move.made and not move.decided:
                remove_tree(self._files, move.path)
            if taken or not move.decided:
                rows = move.target.read_futures()
                rows.pop(move.path.name, None)
                move.target.write_futures(rows)
            if taken:
                self._doomed.add_tree(move.original, move.log.config.file_delete_delay_ms)
        except OSError as e:
            _logger.warning("%s: the next start clears up after a move: %s", move.path, e)
        move.ended.set()
