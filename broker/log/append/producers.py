"""A log's guard over its producers: loaded when first needed, saved when a segment is full.

``producers.snapshot``: version:1 = 1, offset:8, crc32c:4 of the rest and of the fields before, then what the
guard dumped. It is a shortcut: when it is missing or damaged the log itself is read.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path

from broker.disk.filesystem import FileSystem, read_file, replace_file
from broker.log.append.validation import AppendGuard, CheckedBatch
from pyspark_kafkalog.errors import CorruptMessage
from pyspark_kafkalog.formats.base import Frame
from pyspark_kafkalog.formats.batch import MAGIC, read_header
from pyspark_kafkalog.formats.checksum import crc32c
from pyspark_kafkalog.formats.message_set import magic_at

SNAPSHOT_NAME = "producers.snapshot"

_HEAD = struct.Struct(">bq")
_CRC = struct.Struct(">I")
_VERSION = 1

_logger = logging.getLogger(__name__)


class NoProducers:
    """For messages that name none. *Thread-safe: it holds nothing.*"""

    loaded = True

    def check(self, batches: Sequence[CheckedBatch]) -> None:
        """None repeats an earlier one."""

    def record(self, batches: Sequence[CheckedBatch], base_offset: int, now_ms: int) -> None:
        """Nothing to learn."""

    def forget_before(self, now_ms: int) -> None:
        """Nobody to forget."""

    def restore(self, end_offset: int) -> int:
        """Nothing was saved, and nothing is missing."""
        return end_offset

    def replay(self, heads: Iterable[tuple[Frame, bytes]], now_ms: int) -> None:
        """Nobody to find."""

    def save(self, end_offset: int) -> None:
        """Nobody to note."""


class GuardedProducers:
    """*Not thread-safe: the log's lock guards it.*"""

    def __init__(self, guard: AppendGuard, directory: Path, files: FileSystem) -> None:
        self._guard = guard
        self._directory = directory
        self._files = files
        self.loaded = False
        self._noted: tuple[int, int] | None = None
        """Offset and checksum of what was noted last."""

    def check(self, batches: Sequence[CheckedBatch]) -> tuple[int, int] | None:
        """First and last offset of the batch that is repeated; None when all are new. Raises as the guard."""
        if batches[0].magic != MAGIC:
            return None  # message sets of v0 and v1 name no producer
        for batch in batches:
            if batch.header is not None and batch.header.producer_id >= 0:
                duplicate = self._guard.check(batch.header)
                if duplicate is not None:
                    return duplicate
        return None

    def record(self, batches: Sequence[CheckedBatch], base_offset: int, now_ms: int) -> None:
        """The batches were appended from ``base_offset`` on."""
        if batches[0].magic != MAGIC:
            return
        for batch in batches:
            last_offset = base_offset + batch.offset_count - 1
            if batch.header is not None and batch.header.producer_id >= 0:
                self._guard.record(batch.header, base_offset, last_offset, now_ms)
            base_offset = last_offset + 1

    def forget_before(self, now_ms: int) -> None:
        """Forget those who have been silent for too long."""
        if self.loaded:
            self._guard.forget_before(now_ms)

    def replay(self, heads: Iterable[tuple[Frame, bytes]], now_ms: int) -> None:
        """Learn the producers of these batches, from what stands at the beginning of each.

        They count as seen at ``now_ms``, so that none is forgotten because its records are old.
        """
        for frame, head in heads:
            if magic_at(head, 0) != MAGIC:
                continue  # message sets of v0 and v1 name no producer
            header = read_header(head)
            if header.producer_id >= 0:
                self._guard.record(header, frame.first_offset, frame.last_offset, now_ms)

    def save(self, end_offset: int) -> None:
        """Note what is known of everything before ``end_offset``.

        A disk that refuses costs a longer replay after a crash, and nothing else: it is only logged.
        """
        if not self.loaded:
            return
        dump = self._guard.dump()
        noted = (end_offset, crc32c(dump))
        if noted == self._noted:
            return
        try:
            write_snapshot(self._files, self._directory, end_offset, dump)
        except OSError as e:
            _logger.warning("%s: producers could not be noted: %s", self._directory, e)
        else:
            self._noted = noted

    def restore(self, end_offset: int) -> int:
        """Take over what was noted; returns the offset from which the log tells more. Raises `OSError`."""
        self._guard.clear()
        noted = read_snapshot(self._files, self._directory)
        if noted is None or noted[0] > end_offset:
            return 0
        try:
            self._guard.restore(noted[1])
            self._noted = (noted[0], crc32c(noted[1]))
        except CorruptMessage as e:
            _logger.warning("%s: the log is replayed: %s", self._directory, e)
            self._guard.clear()
            return 0
        return noted[0]


def write_snapshot(files: FileSystem, directory: Path, offset: int, dump: bytes) -> None:
    """Write down what was known of everything before ``offset``. Raises `OSError`."""
    head = _HEAD.pack(_VERSION, offset)
    crc = _CRC.pack(crc32c(dump, crc32c(head)))
    replace_file(files, directory / SNAPSHOT_NAME, head + crc + dump, durable=False)


def read_snapshot(files: FileSystem, directory: Path) -> tuple[int, bytes] | None:
    """The offset and what was dumped there; None when there is no whole snapshot. Raises `OSError`."""
    try:
        data = read_file(files, directory / SNAPSHOT_NAME)
    except FileNotFoundError:
        return None
    body = _HEAD.size + _CRC.size
    if len(data) < body:
        return None
    version, offset = _HEAD.unpack_from(data)
    (crc,) = _CRC.unpack_from(data, _HEAD.size)
    dump = data[body:]
    if version != _VERSION or crc32c(dump, crc32c(data[: _HEAD.size])) != crc:
        return None
    return offset, dump
