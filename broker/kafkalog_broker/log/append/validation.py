"""Checks, converts (``message.format.version``) and numbers what is appended to a log. Pure. The rules are
Kafka's (``LogValidator``, ``UnifiedLog``; for v0 and v1 those of 2.8), but not every record of a batch is
read: see docs/formats.md. In message sets every message is: old producers do not number them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from kafkalog_broker.config.broker_config import LogConfig
from kafkalog_broker.log.family import MAX_DECOMPRESSED_BYTES, Checked, CheckedBatch, TakesLong, Unnumbered
from pyspark_kafkalog.errors import (
    CorruptMessage,
    InvalidRecord,
    InvalidTimestamp,
    KafkaError,
    MessageTooLarge,
)
from pyspark_kafkalog.formats import legacy
from pyspark_kafkalog.formats.base import crc32c
from pyspark_kafkalog.formats.batch import (
    ATTRIBUTES_POSITION,
    BATCH_OVERHEAD,
    CODEC_BITS,
    HEADER_SIZE,
    MAGIC,
    BatchHeader,
    assign,
    magic_at,
    read_header,
    read_header_fields,
)
from pyspark_kafkalog.formats.compression import Codec, decompress
from pyspark_kafkalog.formats.convert import PIECE_BYTES, for_topic
from pyspark_kafkalog.formats.message_set import codec_at, frames
from pyspark_kafkalog.formats.record import MOST_NAMED, check_records, read_times
from pyspark_kafkalog.formats.v07 import check_produced, entry_header
from pyspark_kafkalog.types import NO_TIMESTAMP, TimestampType

_LAST_CODEC = int(max(Codec))

_SMALLEST_RECORD = 7
"""Bytes of an uncompressed record without key, value and headers."""

_SMALL_BATCH = 16
"""Records of an uncompressed batch that are all checked, in 8 us."""

_LOOKED_AT = 8
"""Records that are checked of a larger one: 4 us are 5 % of a request of 64 KiB. To check all would make the
broker's work five times as much at 100 B a record."""

_LOOKED_AT_HEADERS = 10_000
"""Headers in such records that are checked, within 2 ms."""

_MANY_KEYS_BYTES = 32 << 10
"""The keys of a batch up to this size are checked within 2 ms."""

_AT_ONCE_PACKED_BYTES, _AT_ONCE_BYTES = 64 << 10, 1 << 20
"""A compressed batch up to these packed and unpacked sizes is checked within 2 ms, with gzip 4."""

_AT_ONCE_RECORDS = 4000
"""Checking a record takes 0.5 us."""


class _Closed(NamedTuple):
    """A batch whose records must be checked one by one, after decompression if ``codec`` is set."""

    data: memoryview
    codec: Codec
    record_count: int


def check_batches(
    data: memoryview, config: LogConfig, now_ms: int, *, internal: bool, at_once: bool = False
) -> list[CheckedBatch]:
    """Whole and fit to append. ``internal``: the broker's own, of any kind, time and size; records unread."""
    batches, closed = _check_headers(data, config, now_ms, internal=internal)
    if closed:
        _open_all(closed, config, at_once=at_once)
    return batches


def _check_headers(
    data: memoryview, config: LogConfig, now_ms: int, *, internal: bool
) -> tuple[list[CheckedBatch], list[_Closed]]:
    largest = len(data) if internal else config.max_message_bytes
    each = "compact" in config.cleanup_policy
    batches: list[CheckedBatch] = []
    closed: list[_Closed] = []
    position = 0
    while position < len(data):
        fields = read_header_fields(data, position)
        base_offset, length, _, _, crc, attributes, last_delta, first_time, newest_time = fields[:9]
        size, producer_id, record_count = length + BATCH_OVERHEAD, fields[9], fields[12]
        if size > largest:
            raise MessageTooLarge(f"a batch of {size} bytes; max.message.bytes is {largest}")
        if size > len(data) - position:
            raise CorruptMessage(f"the batch at byte {position} is cut short: {size} bytes in {len(data)}")
        if crc32c(data[position + ATTRIBUTES_POSITION : position + size]) != crc:
            raise CorruptMessage(f"the batch at byte {position} does not have the checksum {crc:#010x}")
        header = None
        # Fast path: most batches satisfy all rules here, in a tenth of the time.
        if not (
            0 <= attributes <= _LAST_CODEC
            and record_count == last_delta + 1
            and record_count * _SMALLEST_RECORD <= size - HEADER_SIZE
            and base_offset == 0
            and producer_id < 0
            and now_ms - config.message_timestamp_before_max_ms <= first_time <= newest_time
            and newest_time <= now_ms + config.message_timestamp_after_max_ms
        ):
            header = read_header(data, position)
            _check_contents(header)
            if not internal:
                _check_sender(header)
                _check_times(header, data[position + HEADER_SIZE : position + size], config, now_ms)
        if not internal:
            if each or attributes & CODEC_BITS:
                records = data[position + HEADER_SIZE : position + size]
                closed.append(_Closed(records, Codec(attributes & CODEC_BITS), record_count))
            else:
                try:
                    most = record_count if record_count <= _SMALL_BATCH else _LOOKED_AT
                    check_records(
                        data, position + HEADER_SIZE, position + size, record_count, most, _LOOKED_AT_HEADERS,
                        numbered=False, keyed=False,
                    )  # fmt: skip
                except CorruptMessage as e:
                    # The checksum was right, so a retry would not help: not CorruptMessage.
                    raise InvalidRecord(str(e)) from None
        batches.append(CheckedBatch(size, record_count, record_count, newest_time, header))
        position += size
    if not batches:
        raise InvalidRecord("there is no record batch in the request")
    if not internal and len(batches) > 1 and any(b.header and b.header.producer_id >= 0 for b in batches):
        raise InvalidRecord("a batch of an idempotent producer must come alone")
    return batches, closed


def _open_all(closed: Sequence[_Closed], config: LogConfig, *, at_once: bool) -> None:
    left = most = max(MAX_DECOMPRESSED_BYTES, config.max_message_bytes)
    if at_once:
        for data, _, count in closed:
            if len(data) > _AT_ONCE_PACKED_BYTES or count > _AT_ONCE_RECORDS:
                raise TakesLong
        left = min(most, _AT_ONCE_BYTES)
    for each in closed:
        try:
            left -= _open_records(each, config, left, at_once=at_once)
        except MessageTooLarge:
            if at_once and most > _AT_ONCE_BYTES:
                raise TakesLong from None
            raise


def _open_records(closed: _Closed, config: LogConfig, max_bytes: int, *, at_once: bool) -> int:
    data, codec, count = closed
    try:
        block = bytes(decompress(codec, data, max_bytes) if codec else data)  # faster to read than a view
        most_headers = _LOOKED_AT_HEADERS if at_once else len(block)
        keyed = "compact" in config.cleanup_policy
        if not check_records(block, 0, len(block), count, count, most_headers, numbered=True, keyed=keyed):
            raise TakesLong
    except CorruptMessage as e:
        raise InvalidRecord(str(e)) from None  # as in `_check_headers`
    except MessageTooLarge as e:
        raise MessageTooLarge(
            f"{e}, the larger one of {MAX_DECOMPRESSED_BYTES} and max.message.bytes; send smaller batches"
        ) from None
    return len(block) if codec else 0


def _check_contents(header: BatchHeader) -> None:
    if header.record_count < 1:
        raise InvalidRecord("a record batch without records")
    if header.record_count != header.last_offset_delta + 1:
        raise InvalidRecord(
            f"{header.record_count} records with a last offset delta of {header.last_offset_delta}"
        )
    floor = header.record_count * _SMALLEST_RECORD if header.attributes & CODEC_BITS == 0 else 1
    if header.size - HEADER_SIZE < floor:
        raise InvalidRecord(f"{header.record_count} records cannot be in {header.size - HEADER_SIZE} bytes")
    if header.attributes & CODEC_BITS > _LAST_CODEC:
        _ = header.codec  # raises UnsupportedCompression


def _check_sender(header: BatchHeader) -> None:
    if header.base_offset != 0:
        raise InvalidRecord(f"the base offset of a batch to append must be 0, not {header.base_offset}")
    if header.is_control:
        raise InvalidRecord("clients may not write control records")
    if header.is_transactional and header.producer_id < 0:
        raise InvalidRecord("a transactional batch without a producer id")
    if header.producer_id >= 0 and (header.base_sequence < 0 or header.producer_epoch < 0):
        raise InvalidRecord(
            f"producer {header.producer_id}: epoch {header.producer_epoch}, sequence {header.base_sequence}"
        )


def _check_times(header: BatchHeader, records: memoryview, config: LogConfig, now_ms: int) -> None:
    if header.timestamp_type is TimestampType.LOG_APPEND_TIME:
        raise InvalidTimestamp("a producer may not set the log append time")
    allowed = TimeBounds(config, now_ms)
    try:
        allowed.check(header.base_timestamp)
        allowed.check(header.max_timestamp)
    except InvalidTimestamp as e:
        if header.record_count <= _AT_ONCE_RECORDS:
            e.records = dict(islice(_wrong_times(header, records, allowed), MOST_NAMED))
        raise


def _wrong_times(header: BatchHeader, records: memoryview, allowed: TimeBounds) -> Iterator[tuple[int, str]]:
    """What is wrong with the time of each record that is to blame; ends before a record that is malformed."""
    try:
        block = decompress(header.codec, records, _AT_ONCE_BYTES) if header.codec else records
        times = read_times(
            block, header.record_count, base_offset=0, last_offset_delta=header.last_offset_delta,
            base_timestamp=header.base_timestamp,
        )  # fmt: skip
        for number, (timestamp, _) in enumerate(times):
            try:
                allowed.check(timestamp)
            except InvalidTimestamp as e:
                yield number, str(e)
    except (CorruptMessage, MessageTooLarge):
        return


def takes_long(data: memoryview, config: LogConfig) -> bool:
    """Whether ``data`` has many or compressed messages to be read one by one."""
    if config.magic in (None, MAGIC) and (
        len(data) <= legacy.MAGIC_POSITION or data[legacy.MAGIC_POSITION] == MAGIC
    ):
        if len(data) < HEADER_SIZE:
            return False
        compressed = data[ATTRIBUTES_POSITION + 1] & CODEC_BITS != 0
        return compressed or (len(data) > _MANY_KEYS_BYTES and "compact" in config.cleanup_policy)
    if len(data) > SHORT_SET_BYTES:
        return True
    try:
        return any(codec_at(data, frame.position) for frame in frames(data, start_offset=-(1 << 63)))
    except KafkaError:
        return False  # `check_entries` reports the error


def check_entries(
    data: memoryview, config: LogConfig, now_ms: int, *, internal: bool, at_once: bool = False
) -> Checked:
    """Check ``data``; returns it and its entries, in the topic's format unless ``internal``."""
    magic = magic_at(data, 0) if len(data) else MAGIC
    if at_once and (magic != MAGIC or config.magic not in (None, MAGIC)) and takes_long(data, config):
        raise TakesLong
    if magic == MAGIC:
        batches = check_batches(data, config, now_ms, internal=internal, at_once=at_once)
    else:
        batches = check_sets(data, config, now_ms, internal=internal)
    wanted = config.magic
    if wanted is None or wanted == magic or internal:
        return data, batches
    check_count(sum(batch.record_count for batch in batches))
    return _converted(data, wanted, config, now_ms)


def number_entries(
    data: memoryview,
    batches: list[CheckedBatch],
    base_offset: int,
    log_append_time_ms: int | None,
    leader_epoch: int,
) -> Checked:
    """Number the entries from ``base_offset``, in place except compressed v0. Raises as `number_sets`."""
    if batches[0].magic != MAGIC:
        return number_sets(data, batches, base_offset, log_append_time_ms)
    position = 0
    for batch in batches:
        assign(
            data, position,
            base_offset=base_offset, leader_epoch=leader_epoch, log_append_time=log_append_time_ms,
        )  # fmt: skip
        base_offset += batch.offset_count
        position += batch.size
    if log_append_time_ms is not None:
        batches = [batch._replace(max_timestamp=log_append_time_ms) for batch in batches]
    return data, batches


def _converted(data: memoryview, magic: int, config: LogConfig, now_ms: int) -> Checked:
    largest = config.max_message_bytes
    piece_bytes = max(1, min(PIECE_BYTES, largest))
    joined = bytearray()  # writable: numbering changes it in place

    for piece in for_topic(data, magic, max_bytes=MAX_DECOMPRESSED_BYTES, piece_bytes=piece_bytes):
        joined.extend(piece.data)
    made = memoryview(joined)
    if magic == MAGIC:
        checked = check_batches(made, config, now_ms, internal=True)
    else:
        checked = check_sets(made, config, now_ms, internal=True)
    batches = [
        batch._replace(
            rewritten=True, inner=None if batch.inner is None else batch.inner._replace(largest=largest)
        )
        for batch in checked
    ]
    for batch in batches:
        if batch.size > largest:
            raise MessageTooLarge(
                f"in message format v{magic} it has {batch.size} bytes; max.message.bytes is {largest}"
            )
    return made, batches


# --- message sets of 0.7, v0 and v1

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
    magic = legacy.read_entry(data).magic
    while position < len(data):
        check_count(count + 1)
        header = legacy.read_entry(data, position)
        if header.magic != magic:
            raise InvalidRecord(f"an entry of format v{header.magic} after one of v{magic} in one request")
        if header.size > largest:
            raise MessageTooLarge(f"an entry of {header.size} bytes; max.message.bytes is {largest}")
        legacy.verify_entry(data, position, header)
        if allowed is not None:
            allowed.check_type(header)
        if header.is_compressed:
            block = legacy.inner_set(data, position, header, left)
            left -= len(block)
            checked = _check_wrapper(block, header, allowed, largest, count, needs_key=needs_key)
            batches.append(checked)
        else:
            _check_key(legacy.key_and_value(data, position, header)[0], count, needed=needs_key)
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
            header = legacy.read_entry(data, position)
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
    wrapper: legacy.EntryHeader,
    allowed: TimeBounds | None,
    largest: int,
    count_before: int,
    *,
    needs_key: bool,
) -> CheckedBatch:
    """Check a compressed set's messages; a v1 set whose offsets count from 0 needs no rewriting."""
    count, end, newest, in_order = 0, 0, NO_TIMESTAMP, wrapper.magic == 1
    for position, header in legacy.inner_entries(block, wrapper):
        check_count(count_before + count + 1)
        if header.magic != wrapper.magic:
            raise InvalidRecord(
                f"a message of format v{header.magic} in a compressed set of v{wrapper.magic}"
            )
        legacy.verify_entry(block, position, header)
        _check_key(legacy.key_and_value(block, position, header)[0], count_before + count, needed=needs_key)
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
        legacy.assign_entry(data, position, offset=offset, timestamp=log_append_time_ms, timestamp_type=kind)
    elif batch.magic and legacy.read_entry(data, position).timestamp != batch.max_timestamp:
        # Some producers do not write a set's largest inner time.
        legacy.assign_entry(data, position, offset=offset, timestamp=batch.max_timestamp)
    else:
        legacy.assign_offset(data, position, offset)


def _rewritten(
    wrapper: legacy.EntryHeader,
    batch: CheckedBatch,
    inner: Unnumbered,
    base_offset: int,
    log_append_time_ms: int | None,
) -> bytes:
    """The compressed set with consecutive offsets: absolute in v0, counted from 0 in v1."""
    block = bytearray(inner.block)
    legacy.assign_in_order(block, 0 if batch.magic else base_offset)
    kind = TimestampType.CREATE_TIME if log_append_time_ms is None else TimestampType.LOG_APPEND_TIME
    made = legacy.wrap_set(
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

    def check_type(self, header: legacy.EntryHeader) -> None:
        if header.magic and header.attributes & legacy.LOG_APPEND_TIME_BIT:
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
    _now_ms: int,
    /,
    *,
    internal: bool,
    at_once: bool = False,  # noqa: ARG001
) -> Checked:
    """The whole entries of ``data`` as one batch, possibly empty. ``internal`` lifts the size limit. Messages
    of 0.7 have no time, and their listener never appends ``at_once``.
    """
    largest = len(data) if internal else config.max_message_bytes
    found = check_produced(data, max_message_bytes=largest, max_bytes=MAX_DECOMPRESSED_BYTES)
    batch = CheckedBatch(found.size, found.message_count, found.size, NO_TIMESTAMP, None)
    return data[: found.size], [batch]
