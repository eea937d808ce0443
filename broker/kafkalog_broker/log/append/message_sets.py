"""Checks and numbers message sets of 0.7, v0 and v1 before an append. Pure.

The rules for v0 and v1 are Kafka's (2.8 ``LogValidator``, ``UnifiedLog``): one bad message rejects the
request. Every message is read, inner ones too: old producers do not number them.
"""

from __future__ import annotations

from kafkalog_broker.config.broker_config import LogConfig
from kafkalog_broker.log.family import MAX_DECOMPRESSED_BYTES, Checked, CheckedBatch, Unnumbered
from pyspark_kafkalog.errors import InvalidRecord, InvalidTimestamp, MessageTooLarge
from pyspark_kafkalog.formats.compression import Codec
from pyspark_kafkalog.formats.legacy import (
    LOG_APPEND_TIME_BIT,
    EntryHeader,
    assign_entry,
    assign_in_order,
    assign_offset,
    inner_entries,
    inner_set,
    key_and_value,
    read_entry,
    verify_entry,
    wrap_set,
)
from pyspark_kafkalog.formats.v07 import check_produced, entry_header
from pyspark_kafkalog.types import NO_TIMESTAMP, TimestampType

MOST_MESSAGES = 1 << 18
"""Limit per append, inner messages included, at some us each. librdkafka sends 10,000 by default."""

SHORT_SET_BYTES = 16 << 10
"""Uncompressed messages up to this total size are checked and converted within a few ms."""


def check_sets(data: memoryview, config: LogConfig, now_ms: int, *, internal: bool) -> list[CheckedBatch]:
    """Check the entries in ``data``: whole, of one format, fit to append. ``internal``: any time and size."""
    largest = len(data) if internal else config.max_message_bytes
    allowed = None if internal else TimeBounds(config, now_ms)
    needs_key = not internal and "compact" in config.cleanup_policy
    batches: list[CheckedBatch] = []
    position, left, count = 0, MAX_DECOMPRESSED_BYTES, 0
    magic = read_entry(data).magic
    while position < len(data):
        check_count(count + 1)
        header = read_entry(data, position)
        if header.magic != magic:
            raise InvalidRecord(f"an entry of format v{header.magic} after one of v{magic} in one request")
        if header.size > largest:
            raise MessageTooLarge(f"an entry of {header.size} bytes; max.message.bytes is {largest}")
        verify_entry(data, position, header)
        if allowed is not None:
            allowed.check_type(header)
        if header.is_compressed:
            block = inner_set(data, position, header, left)
            left -= len(block)
            checked = _check_wrapper(block, header, allowed, largest, count, needs_key=needs_key)
            batches.append(checked)
        else:
            _check_key(key_and_value(data, position, header)[0], count, needed=needs_key)
            if allowed is not None:
                allowed.check(header.timestamp)
            batches.append(CheckedBatch(header.size, 1, 1, header.timestamp, None, magic))
        position += header.size
        count += batches[-1].record_count
    return batches


def check_count(count: int) -> None:
    if count > MOST_MESSAGES:
        raise MessageTooLarge(f"a request of more than {MOST_MESSAGES} messages for one partition")


def number_sets(
    data: memoryview, batches: list[CheckedBatch], base_offset: int, log_append_time_ms: int | None
) -> Checked:
    """Number the entries, in place but for compressed v0 sets; repeatable. Raises `MessageTooLarge`."""
    numbered: list[CheckedBatch] = []
    made = bytearray()
    position = taken = 0  # bytes before `taken` are in `made`, or were rewritten
    for checked in batches:
        batch = checked
        if log_append_time_ms is not None and batch.magic:
            batch = batch._replace(max_timestamp=log_append_time_ms)
        if batch.inner is None:
            _assign(data, position, batch, base_offset, log_append_time_ms)
        else:
            header = read_entry(data, position)
            rewritten = _rewritten(header, batch, batch.inner, base_offset, log_append_time_ms)
            batch = batch._replace(size=len(rewritten), inner=None if batch.magic else batch.inner)
            made += data[taken:position]
            made += rewritten
            taken = position + checked.size
        numbered.append(batch)
        position += checked.size
        base_offset += batch.offset_count
    if not taken:
        return data, numbered
    made += data[taken:]
    return memoryview(made), numbered


def _check_key(key: memoryview | None, number: int, *, needed: bool) -> None:
    if needed and key is None:
        raise InvalidRecord(f"message {number} has no key, which a compacted topic requires")


def _check_wrapper(
    block: memoryview,
    wrapper: EntryHeader,
    allowed: TimeBounds | None,
    largest: int,
    count_before: int,
    *,
    needs_key: bool,
) -> CheckedBatch:
    """Check a compressed set's messages; a v1 set whose offsets count from 0 needs no rewriting."""
    count, end, newest, in_order = 0, 0, NO_TIMESTAMP, wrapper.magic == 1
    for position, header in inner_entries(block, wrapper):
        check_count(count_before + count + 1)
        if header.magic != wrapper.magic:
            raise InvalidRecord(
                f"a message of format v{header.magic} in a compressed set of v{wrapper.magic}"
            )
        verify_entry(block, position, header)
        _check_key(key_and_value(block, position, header)[0], count_before + count, needed=needs_key)
        if allowed is not None:
            allowed.check(header.timestamp)
        in_order = in_order and header.offset == count
        newest = max(newest, header.timestamp)
        end = position + header.size
        count += 1
    inner = None if in_order else Unnumbered(block[:end], largest)
    return CheckedBatch(
        wrapper.size, count, count, newest, None, wrapper.magic, count - 1, inner is not None, inner
    )


def _assign(
    data: memoryview, position: int, batch: CheckedBatch, base_offset: int, log_append_time_ms: int | None
) -> None:
    offset = base_offset + batch.named_delta
    if log_append_time_ms is not None:
        kind = TimestampType.LOG_APPEND_TIME
        assign_entry(data, position, offset=offset, timestamp=log_append_time_ms, timestamp_type=kind)
    elif batch.magic and read_entry(data, position).timestamp != batch.max_timestamp:
        # Some producers do not write a set's largest inner time.
        assign_entry(data, position, offset=offset, timestamp=batch.max_timestamp)
    else:
        assign_offset(data, position, offset)


def _rewritten(
    wrapper: EntryHeader,
    batch: CheckedBatch,
    inner: Unnumbered,
    base_offset: int,
    log_append_time_ms: int | None,
) -> bytes:
    """The compressed set with consecutive offsets: absolute in v0, counted from 0 in v1."""
    block = bytearray(inner.block)
    assign_in_order(block, 0 if batch.magic else base_offset)
    kind = TimestampType.CREATE_TIME if log_append_time_ms is None else TimestampType.LOG_APPEND_TIME
    made = wrap_set(
        block,
        magic=batch.magic,
        codec=wrapper.codec,
        last_offset=base_offset + batch.named_delta,
        timestamp=batch.max_timestamp,
        timestamp_type=kind,
    )
    if len(made) > inner.largest:
        raise MessageTooLarge(
            f"a compressed set of {wrapper.size} bytes has {len(made)} with its offsets; max.message.bytes is"
            f" {inner.largest}"
        )
    return made


class TimeBounds:
    """*Thread-safe: immutable.* A topic's bounds on producer timestamps, in ms; v0 has none."""

    def __init__(self, config: LogConfig, now_ms: int) -> None:
        self._unbounded = config.timestamp_type is TimestampType.LOG_APPEND_TIME
        self._earliest = now_ms - config.message_timestamp_before_max_ms
        self._latest = now_ms + config.message_timestamp_after_max_ms

    def check_type(self, header: EntryHeader) -> None:
        if header.magic and header.attributes & LOG_APPEND_TIME_BIT:
            raise InvalidTimestamp("a producer may not set the log append time")

    def check(self, timestamp: int) -> None:
        if timestamp == NO_TIMESTAMP or self._unbounded or self._earliest <= timestamp <= self._latest:
            return
        raise InvalidTimestamp(f"timestamp {timestamp} is outside [{self._earliest}, {self._latest}]")


def takes_long_v07(data: memoryview, _config: LogConfig | None = None, /) -> bool:
    if len(data) > SHORT_SET_BYTES:
        return True
    pos = 0
    while (entry := entry_header(data, pos)) is not None and entry[1] <= len(data):
        if entry[2] is not Codec.NONE:
            return True
        pos = entry[1]
    return False


def check_v07(
    data: memoryview,
    config: LogConfig,
    now_ms: int,  # noqa: ARG001 - these messages have no time
    *,
    internal: bool,
    at_once: bool = False,  # noqa: ARG001 - only the listener of 0.7 appends here, and never at once
) -> Checked:
    """The whole entries of ``data`` as one batch, possibly empty. ``internal`` lifts the size limit."""
    found = check_produced(
        data,
        max_message_bytes=len(data) if internal else config.max_message_bytes,
        max_bytes=MAX_DECOMPRESSED_BYTES,
    )
    batch = CheckedBatch(found.size, found.message_count, found.size, NO_TIMESTAMP, None)
    return data[: found.size], [batch]


def leave_as_they_are(
    data: memoryview, batches: list[CheckedBatch], _base_offset: int, _log_append_time_ms: int | None, /
) -> Checked:
    """0.7 messages hold neither offset nor time, so their bytes stay unchanged."""
    return data, batches
