"""A cleaner for tests, and what a log holds when it has been there."""

from __future__ import annotations

from typing import Any, NamedTuple

from kafkalog_broker.disk.filesystem import FileSystem
from kafkalog_broker.log.log import Log
from kafkalog_broker.logs.cleaner import LogCleaner
from kafkalog_broker.logs.manager import LogManager
from pyspark_kafkalog.formats.batch import MAGIC, encode_batch, magic_at, read_header
from pyspark_kafkalog.formats.message_set import ENTRIES, frames
from pyspark_kafkalog.types import NewRecord
from tests.support.log.logs import START_MS, contents
from tests.support.manual_clock import ManualClock

COMPACT = {"cleanup_policy": ("compact",), "segment_bytes": 300, "min_cleanable_dirty_ratio": 0.0}


class Kept(NamedTuple):
    """One record as it is in the log."""

    offset: int
    key: bytes | None
    value: bytes | None


def cleaner_of(
    manager: LogManager, clock: ManualClock, files: FileSystem | None = None, memory_bytes: int = 1 << 20
) -> LogCleaner:
    """The cleaner of a manager's logs, which the test runs."""
    return LogCleaner(manager, clock, files or FileSystem(), memory_bytes=memory_bytes, bytes_per_second=1e12)


def keyed(*pairs: tuple[bytes | None, bytes | None], timestamp: int = START_MS, **fields: Any) -> bytearray:
    """One batch with a record per key and value."""
    return bytearray(encode_batch([NewRecord(v, k, timestamp) for k, v in pairs], **fields))


def put(log: Log, *pairs: tuple[bytes, bytes | None], **fields: Any) -> None:
    """Append each of them as a batch of its own."""
    for pair in pairs:
        log.append(keyed(pair, **fields))


def whole(log: Log) -> bytes:
    """All entries of a log, as its readers get them."""
    data, offset = b"", log.start_offset
    while offset < log.end_offset:
        piece = contents(log.read(offset, 1 << 20, at_least_one=True))
        if not piece:
            break
        data += piece
        offset = list(frames(memoryview(piece), start_offset=offset))[-1].next_offset
    return data


def kept(log: Log) -> list[Kept]:
    """Its records; those of control batches are left out."""
    data = memoryview(whole(log))
    return [
        Kept(record.offset, record.key, record.value)
        for frame in frames(data, start_offset=log.start_offset)
        for record in ENTRIES.records(data, frame, max_bytes=1 << 26)
    ]


def committed_records(log: Log) -> list[Kept]:
    """What a reader of committed data gets."""
    found: list[Kept] = []
    offset = log.start_offset
    while offset < log.last_stable_offset:
        piece = log.read(offset, 1 << 20, at_least_one=True, committed_only=True)
        aborted = list(piece.aborted)
        data = memoryview(contents(piece))
        if not data:
            break
        for frame in frames(data, start_offset=offset):
            offset = frame.next_offset
            if magic_at(data, frame.position) == MAGIC:
                header = read_header(data, frame.position)
                if header.is_transactional and any(
                    row.producer_id == header.producer_id
                    and row.first_offset <= frame.first_offset < row.marker_offset
                    for row in aborted
                ):
                    continue
            found += [
                Kept(record.offset, record.key, record.value)
                for record in ENTRIES.records(data, frame, max_bytes=1 << 26)
            ]
    return found


def committed(log: Log) -> dict[bytes | None, bytes | None]:
    """Each key's last value, as a reader of committed data gets it."""
    return {record.key: record.value for record in committed_records(log)}
