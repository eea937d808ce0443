"""A log's guard over its producers: loaded when first needed, noted when a segment is full."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from broker.log.filesystem import FileSystem
from broker.log.segment import Segment
from broker.log.snapshot import read_snapshot, write_snapshot
from broker.log.validation import AppendGuard, CheckedBatch
from pyspark_kafkalog.errors import CorruptMessage
from pyspark_kafkalog.formats.batch import HEADER_SIZE, MAGIC, read_header
from pyspark_kafkalog.formats.checksum import crc32c
from pyspark_kafkalog.formats.message_set import magic_at

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

    def load(self, segments: Sequence[Segment], end_offset: int, now_ms: int) -> None:
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

    def load(self, segments: Sequence[Segment], end_offset: int, now_ms: int) -> None:
        """Learn the producers of a log: from what was noted, and from the batches behind that.

        They count as seen at ``now_ms``, so that none is forgotten because its records are old.

        Raises:
            OSError: the log cannot be read.
        """
        self._guard.clear()
        offset = self._restore(end_offset)
        for segment in segments:
            if segment.next_offset <= offset:
                continue
            try:
                for frame, head in segment.heads(offset, HEADER_SIZE):
                    if magic_at(head, 0) != MAGIC:
                        continue  # message sets of v0 and v1 name no producer
                    header = read_header(head)
                    if header.producer_id >= 0:
                        self._guard.record(header, frame.first_offset, frame.last_offset, now_ms)
            except CorruptMessage as e:
                # The log goes on: at worst a batch that is sent again is appended again.
                _logger.error("%s: producers behind the damage are not known: %s", segment.path, e)
        self.loaded = True

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

    def _restore(self, end_offset: int) -> int:
        """Take over what was noted; returns the offset from which the log tells more."""
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
