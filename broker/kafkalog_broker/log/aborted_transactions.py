"""Aborted transactions of a segment, for ``read_committed`` readers: ``<segment>.txnindex``.

One row for each abort marker in the segment, in order::

    version:2 = 0  producer_id:8  first_offset:8  marker_offset:8  stable_offset:8

``stable_offset`` is the log's last stable offset after the marker. Source: Kafka 3.9 ``AbortedTxn``,
``TransactionIndex``. Written, if there are rows, when the segment is full or the log is closed, before the
producer snapshot, which thus never covers unsaved rows.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from kafkalog_broker.disk.filesystem import FileSystem, read_file, replace_file
from pyspark_kafkalog.errors import CorruptMessage

ABORTED_SUFFIX = ".txnindex"

_ROW = struct.Struct(">hqqqq")
_VERSION = 0


class AbortedTransaction(NamedTuple):
    """First offset and marker offset of an aborted transaction, and the last stable offset after it."""

    producer_id: int
    first_offset: int
    marker_offset: int
    stable_offset: int


class AbortedIndex:
    """Rows of one segment. *Changed under the log's lock*; readers need none, as rows are only added."""

    def __init__(self, segment: Path, files: FileSystem, *, is_new: bool) -> None:
        self._segment = segment
        self._files = files
        self._rows: list[AbortedTransaction] | None = [] if is_new else None
        self._unsaved = False

    @property
    def path(self) -> Path:
        return self._segment.with_suffix(ABORTED_SUFFIX)

    def rows(self) -> list[AbortedTransaction]:
        """All rows; do not modify. Raises `CorruptMessage`: the file is damaged; `OSError`."""
        rows = self._rows
        if rows is None:
            data = b""
            with suppress(FileNotFoundError):
                data = read_file(self._files, self.path)
            rows = self._rows = parse_aborted(data, self.path)
        return rows

    def touching(self, offset: int, end_offset: int) -> tuple[list[AbortedTransaction], bool]:
        """Rows that overlap ``[offset, end_offset)``; and whether no later segment can have any."""
        rows, found = self.rows(), []
        for number in range(bisect_left(rows, offset, key=lambda row: row.marker_offset), len(rows)):
            row = rows[number]
            if row.first_offset < end_offset:
                found.append(row)
            if row.stable_offset >= end_offset:
                return found, True
        return found, False

    def add(self, row: AbortedTransaction) -> None:
        self.rows().append(row)
        self._unsaved = True

    def replace(self, offset: int, rows: Iterable[AbortedTransaction]) -> None:
        """Replace the rows from ``offset`` on by those read from the log. Raises `OSError`."""
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
        rows = self._rows
        if self._unsaved and rows is not None:
            replace_file(self._files, self.path, aborted_bytes(rows), durable=True)
            self._unsaved = False

    def unload(self) -> None:
        if not self._unsaved:
            self._rows = None


def aborted_bytes(rows: Iterable[AbortedTransaction]) -> bytes:
    return b"".join(_ROW.pack(_VERSION, *row) for row in rows)


def parse_aborted(data: bytes, path: Path) -> list[AbortedTransaction]:
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
    """Aborted transactions in ``[offset, end_offset)``, by marker; ``indexes`` of all segments from there."""
    aborted: list[AbortedTransaction] = []
    for index in indexes:
        rows, complete = index.touching(offset, end_offset)
        aborted += rows
        if complete:
            break
    return aborted
