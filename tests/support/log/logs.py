"""Logs for tests: batches in a line, managers that are opened and crashed at will."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from kafkalog_broker.config.broker_config import LogConfig
from kafkalog_broker.config.topic_config import AS_PRODUCED
from kafkalog_broker.disk.filesystem import FileSystem
from kafkalog_broker.log.family import Grown
from kafkalog_broker.log.file_slice import FileSlice
from kafkalog_broker.log.log import Log
from kafkalog_broker.logs.manager import LogManager
from pyspark_kafkalog.formats.batch import encode_batch
from pyspark_kafkalog.formats.compression import Codec
from pyspark_kafkalog.formats.legacy import encode_message, encode_set, wrap_set
from pyspark_kafkalog.formats.message_set import records
from pyspark_kafkalog.types import NewRecord, Record, TopicPartition
from tests.support.manual_clock import ManualClock

START_MS = 1_700_000_000_000
TOPIC = "my_topic"
PARTITION = TopicPartition(TOPIC, 0)
FIRST = "00000000000"
"""Stem of the first segment's files."""


def batch(
    *values: bytes, timestamps: Sequence[int] | None = None, codec: Codec = Codec.NONE, **fields: Any
) -> bytearray:
    """One batch with a record per value, at `START_MS` unless ``timestamps`` says otherwise."""
    times = timestamps if timestamps is not None else [START_MS] * len(values)
    new = [NewRecord(value, None, time) for value, time in zip(values, times, strict=True)]
    return bytearray(encode_batch(new, codec=codec, **fields))


def message_set(
    *values: bytes,
    magic: int,
    timestamps: Sequence[int] | None = None,
    codec: Codec = Codec.NONE,
    inner_offsets: Sequence[int] | None = None,
) -> bytearray:
    """A set of v0 or v1 as a producer sends it: entries, or one wrapper. The offsets in it count from 0
    unless there are ``inner_offsets``, which need not rise.
    """
    times = timestamps if timestamps is not None else [START_MS] * len(values)
    new = [NewRecord(value, None, time) for value, time in zip(values, times, strict=True)]
    if inner_offsets is None:
        return bytearray(encode_set(new, magic=magic, codec=codec))
    entries = [
        encode_message(record, magic=magic, offset=offset)
        for record, offset in zip(new, inner_offsets, strict=True)
    ]
    if codec is Codec.NONE:
        return bytearray(b"".join(entries))
    # The first one's time, as librdkafka writes it: the broker sets the largest.
    return bytearray(wrap_set(b"".join(entries), magic=magic, codec=codec, last_offset=0, timestamp=times[0]))


_opened: list[LogManager] = []


def open_manager(
    *paths: Path,
    clock: ManualClock | None = None,
    files: FileSystem | None = None,
    max_open_files: int = 512,
    node_id: int = 0,
    grown: Grown = lambda _partition, _size: None,
    truncate_missing: bool = False,
    run_moves: Callable[[Callable[[], object]], object] = lambda run: run(),
    **config: Any,
) -> LogManager:
    """A started manager; ``config`` are fields of `LogConfig`. Entries are stored as they come unless it says
    otherwise.
    """
    manager = LogManager(
        paths,
        defaults=LogConfig(**{"message_format_version": AS_PRODUCED} | config),
        clock=clock or ManualClock(START_MS),
        files=files,
        producer_expiration_ms=86_400_000,
        max_open_files=max_open_files,
        node_id=node_id,
        grown=grown,
        truncate_missing=truncate_missing,
        run_moves=run_moves,
    )
    manager.start()
    _opened.append(manager)
    return manager


def open_log(*paths: Path, generation: str = "0.8", **options: Any) -> tuple[LogManager, Log]:
    """A manager with one topic of one partition, and its log; the topic is made when it is missing."""
    manager = open_manager(*paths, **options)
    if TOPIC not in manager.topics:
        manager.create_topic(TOPIC, uuid.uuid4(), 1, {}, generation=generation)
    return manager, manager.log(PARTITION)


def crash(manager: LogManager) -> None:
    """What a killed process does: descriptors and locks are gone, nothing is written."""
    manager.open_files.close()
    for directory in manager._directories:
        directory.close()
    manager.logs = {}
    if manager in _opened:
        _opened.remove(manager)


def crash_all() -> None:
    """Give back what the managers of a test still hold."""
    for manager in list(_opened):
        crash(manager)


def contents(piece: FileSlice) -> bytes:
    """The bytes of a slice, which is closed."""
    try:
        return piece.read()
    finally:
        piece.close()


def read_all(log: Log, *, start: int | None = None, max_bytes: int = 1 << 20) -> list[Record]:
    """Every record from ``start`` on, fetched as a consumer would."""
    found: list[Record] = []
    offset = log.start_offset if start is None else start
    while offset < log.end_offset:
        data = contents(log.read(offset, max_bytes, at_least_one=True))
        got = list(records(memoryview(data), start_offset=offset, max_bytes=1 << 26))
        assert got, f"nothing to read at {offset} before {log.end_offset}"
        found += got
        offset = got[-1].next_offset
    return found


def values(log: Log, **options: Any) -> list[bytes | None]:
    """The values of `read_all`."""
    return [record.value for record in read_all(log, **options)]
