"""The aborted transactions of a segment, for readers of committed data: ``<segment>.txnindex``.

One row for each transaction whose abort marker is in the segment, in the markers' order::

    version:2 = 0  producer_id:8  first_offset:8  marker_offset:8  stable_offset:8

``stable_offset`` is the log's last stable offset after the marker. Source: Kafka 3.9 ``AbortedTxn``,
``TransactionIndex``. The file is there only where there are rows, and is written when its segment is full or
the log is closed, before the producers' snapshot: the rows of everything below a snapshot's offset are in the
files, and the others come from the log itself.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from kafkalog_broker.disk.filesystem import FileSystem, read_file, replace_file
from pyspark_kafkalog.errors import CorruptMessage

ABORTED_SUFFIX = ".txnindex"

_ROW = struct.Struct(">hqqqq")
_VERSION = 0


class AbortedTransaction(NamedTuple):
    """An aborted transaction in one partition: its first offset, that of its marker, and the last stable
    offset after it.
    """

    producer_id: int
    first_offset: int
    marker_offset: int
    stable_offset: int


class AbortedIndex:
    """The rows of one segment. *Changed under the log's lock*; readers take none, as rows are only added."""

    def __init__(self, segment: Path, files: FileSystem, *, is_new: bool) -> None:
        """``is_new``: the segment is empty, and so is this."""
        self.path = segment.with_suffix(ABORTED_SUFFIX)
        self._files = files
        self._rows: list[AbortedTransaction] | None = [] if is_new else None
        self._unsaved = False

    def rows(self) -> list[AbortedTransaction]:
        """All rows, which the caller does not change.

        Raises:
            CorruptMessage: the file is not what was written.
            OSError: the disk refused.
        """
        rows = self._rows
        if rows is None:
            rows = self._rows = self._load()
        return rows

    def touching(self, offset: int, end_offset: int) -> tuple[list[AbortedTransaction], bool]:
        """Those that end at ``offset`` or later and begin before ``end_offset``; and whether no later segment
        can have any. Raises as `rows`.
        """
        rows, found = self.rows(), []
        for number in range(bisect_left(rows, offset, key=lambda row: row.marker_offset), len(rows)):
            row = rows[number]
            if row.first_offset < end_offset:
                found.append(row)
            if row.stable_offset >= end_offset:
                return found, True
        return found, False

    def add(self, row: AbortedTransaction) -> None:
        """A marker was appended to the segment. Raises as `rows`."""
        self.rows().append(row)
        self._unsaved = True

    def replace(self, offset: int, rows: Iterable[AbortedTransaction]) -> None:
        """From ``offset`` on there are these markers: the log itself was read. Raises `OSError`."""
        try:
            before = self.rows()
        except CorruptMessage:
            before = []
            self._unsaved = True
        kept = [row for row in before if row.marker_offset < offset]
        kept += rows
        if kept != before:
            self._unsaved = True
        self._rows = kept

    def save(self) -> None:
        """Put the rows on the disk, unless they are there. Raises `OSError`."""
        rows = self._rows
        if self._unsaved and rows is not None:
            replace_file(self._files, self.path, aborted_bytes(rows), durable=True)
            self._unsaved = False

    def unload(self) -> None:
        """Let the rows leave memory, unless they are nowhere else."""
        if not self._unsaved:
            self._rows = None

    def _load(self) -> list[AbortedTransaction]:
        try:
            data = read_file(self._files, self.path)
        except FileNotFoundError:
            return []
        return parse_aborted(data, self.path)


def aborted_bytes(rows: Iterable[AbortedTransaction]) -> bytes:
    """The content of the file with these rows."""
    return b"".join(_ROW.pack(_VERSION, *row) for row in rows)


def parse_aborted(data: bytes, path: Path) -> list[AbortedTransaction]:
    """The rows in a file's ``data``. Raises `CorruptMessage`: it is cut, or a row cannot be."""
    if len(data) % _ROW.size:
        raise CorruptMessage(f"{path}: {len(data)} bytes are not whole rows of {_ROW.size}")
    rows: list[AbortedTransaction] = []
    last = -1
    for version, *fields in _ROW.iter_unpack(data):
        row = AbortedTransaction(*fields)
        if version != _VERSION or not 0 <= row.first_offset < row.marker_offset or row.marker_offset <= last:
            raise CorruptMessage(f"{path}: row {len(rows)} is not one of an aborted transaction: {row}")
        last = row.marker_offset
        rows.append(row)
    return rows


def aborted_in(indexes: Iterable[AbortedIndex], offset: int, end_offset: int) -> list[AbortedTransaction]:
    """The aborted transactions that touch offsets ``[offset, end_offset)``, in the order of their markers, by
    the ``indexes`` of all segments from the one with ``offset`` on. Raises `OSError`, `CorruptMessage`.
    """
    aborted: list[AbortedTransaction] = []
    for index in indexes:
        rows, complete = index.touching(offset, end_offset)
        aborted += rows
        if complete:
            break
    return aborted
