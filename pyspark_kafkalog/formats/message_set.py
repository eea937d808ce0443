"""Entries since Kafka 0.8 in a fetch response or a segment: any format; the last may be cut.

All formats begin with ``offset:8 length:4`` and have their magic at byte 16, so one walk serves logs with
several formats after an upgrade.

No CRC covers an entry's offset, which the broker sets. Readers check it against `ExpectedOffsets`. Gaps are
legal after compaction; an offset damaged into a mere gap shows only in the whole log: see ``verify-log``.
After a corrupt entry `next_sound` finds the next one: whole, with a correct checksum and expected offsets,
and followed by higher ones.
"""

from __future__ import annotations

import heapq
import re
import struct
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from pyspark_kafkalog.errors import CorruptMessage, KafkaError, MessageTooLarge
from pyspark_kafkalog.formats.base import Buffer, Frame, MessageFormat
from pyspark_kafkalog.formats.batch import (
    BATCH_OVERHEAD,
    CONTROL_BIT,
    MAGIC,
    TRANSACTIONAL_BIT,
    ControlType,
    V2Format,
    control_type,
    decode_records,
    magic_at,
    read_header,
)
from pyspark_kafkalog.formats.batch import codec_at as batch_codec_at
from pyspark_kafkalog.formats.compression import Codec
from pyspark_kafkalog.formats.legacy import MIN_ENTRY_BYTES, LegacyFormat, messages
from pyspark_kafkalog.formats.legacy import codec_at as entry_codec_at
from pyspark_kafkalog.types import Record

NO_WATERMARK = (1 << 63) - 1  # above every offset, for responses without a high watermark
_LENGTH_POSITION = 8
_MIN_LENGTH = 14  # of the smallest entry of any format: a v0 message without key and value
LOWEST = -(1 << 63)
_ENTRY = struct.Struct(">qi4xb6xi")  # offset, length, magic, and a v2 batch's last offset delta
_SHORTEST = struct.Struct(">qi")
_LEGACY = LegacyFormat()
_FORMATS: tuple[MessageFormat, ...] = (_LEGACY, _LEGACY, V2Format())

MAX_BATCH_BYTES = 128 << 20  # limit for a decompressed batch; no client sends batches near it
_OFFSET_BYTES = 8
_MAY_BEGIN = re.compile(
    # Offset, plausible length, checksum or epoch, magic; then v2's checksum or the attributes.
    rb"(?=[\x00-\x7f][\x00-\xff]{7}(?!\x00\x00\x00[\x00-\x0d])[\x00-\x7f][\x00-\xff]{3}"
    rb"[\x00-\xff]{4}(?:\x02|[\x00\x01][\x00-\x0f]))"
)


class ExpectedOffsets(NamedTuple):
    """Bounds for the next entry: first offset at least ``lowest``, last offset in ``[asked, below)``.

    ``lowest`` follows the previous entry, 0 if unknown: a range's first entry may begin before the requested
    offset.
    """

    lowest: int = 0
    asked: int = 0
    below: int = NO_WATERMARK

    @classmethod
    def of_answer(cls, offset: int, high_watermark: int, *, follows: bool = False) -> ExpectedOffsets:
        """Bounds for a fetch's first entry; ``follows``: an entry ended at ``offset``."""
        return cls(offset if follows else 0, offset, high_watermark if high_watermark >= 0 else NO_WATERMARK)

    def has(self, first: int, last: int) -> bool:
        return self.lowest <= first and self.asked <= last < self.below

    def after(self, last: int) -> ExpectedOffsets:
        return ExpectedOffsets(last + 1, self.asked, self.below)

    def check_next(self, data: Buffer, pos: int) -> None:
        """Refuse an offset that is too low in the entry at ``pos``, if that much of it is there.

        An offset beyond the range's end is after a gap or damaged; if damaged, the next entry's is lower.
        """
        offset = next_offset_at(data, pos)
        if offset is not None and offset < self.lowest:
            raise self.refuse(offset, offset)

    def refuse(self, first: int, last: int) -> CorruptMessage:
        return CorruptMessage(
            f"an entry claims offsets {first} to {last}: {self._why(first, last)}. No checksum covers an "
            "entry's offset: this one or that of the entry before was damaged in the log or in transit"
        )

    def _why(self, first: int, last: int) -> str:
        if first < 0:
            return "offsets are not negative"
        if first < self.lowest:
            return f"the entry before ends at {self.lowest - 1}, so expected is {self.lowest} or more"
        if last < self.asked:
            return f"offset {self.asked} was asked for, which the first entry must reach"
        return f"all offsets must be below the high watermark {self.below}"


class MixedFormat:
    """Logs since Kafka 0.8 as a `MessageFormat`: v0, v1 and v2 entries in any order."""

    min_frame_size = MIN_ENTRY_BYTES

    def frame_at(self, buf: memoryview, pos: int, offset: int) -> Frame | None:
        if len(buf) - pos < MIN_ENTRY_BYTES:
            return None
        return _format_at(buf, pos).frame_at(buf, pos, offset)

    def verify(self, buf: memoryview, frame: Frame) -> None:
        _format_at(buf, frame.position).verify(buf, frame)

    def records(self, buf: memoryview, frame: Frame, *, max_bytes: int) -> Iterator[Record]:
        return _format_at(buf, frame.position).records(buf, frame, max_bytes=max_bytes)

    def times(self, buf: memoryview, frame: Frame, *, max_bytes: int) -> Iterator[tuple[int, int]]:
        return _format_at(buf, frame.position).times(buf, frame, max_bytes=max_bytes)


ENTRIES = MixedFormat()


def codec_at(buf: Buffer, pos: int) -> Codec:
    return (batch_codec_at if magic_at(buf, pos) == MAGIC else entry_codec_at)(buf, pos)


def _format_at(buf: Buffer, pos: int) -> MessageFormat:
    return _FORMATS[magic_at(buf, pos)]


def frames(buf: Buffer, *, start_offset: int = 0) -> Iterator[Frame]:
    """The whole frames in ``buf`` that may hold offsets from ``start_offset`` on, unchecked."""
    view = memoryview(buf)
    pos = 0
    while len(view) - pos >= BATCH_OVERHEAD:
        length = int.from_bytes(view[pos + _LENGTH_POSITION : pos + BATCH_OVERHEAD], "big", signed=True)
        if length < _MIN_LENGTH:
            raise CorruptMessage(f"impossible entry length {length} at byte {pos}")
        if length > len(view) - pos - BATCH_OVERHEAD:
            return
        frame = ENTRIES.frame_at(view, pos, start_offset)
        if frame is None:
            raise CorruptMessage(f"impossible batch length {length} at byte {pos}")
        if frame.next_offset > start_offset:
            yield frame
        pos = frame.end


def records(buf: Buffer, *, start_offset: int, max_bytes: int) -> Iterator[Record]:
    """The records in ``buf`` from ``start_offset`` on, checksums verified, control records skipped."""
    for _, found in coded_records(buf, start_offset=start_offset, max_bytes=max_bytes):
        yield from found


def coded_records(
    buf: Buffer,
    *,
    start_offset: int,
    max_bytes: int,
    expected: ExpectedOffsets = ExpectedOffsets(),  # noqa: B008
    aborted: AbortedTransactions | None = None,
) -> Iterator[tuple[Codec, Iterator[Record]]]:
    """`records` by frame with its codec. ``expected`` is for the first; ``aborted`` are left out."""
    view = memoryview(buf)
    for frame in frames(view, start_offset=LOWEST):
        first, last = frame.first_offset, frame.last_offset
        if not expected.has(first, last):
            raise expected.refuse(first, last)
        if _is_wanted(view, frame, aborted, max_bytes) and last >= start_offset:
            found = ENTRIES.records(view, frame, max_bytes=max_bytes)
            if not frame.first_is_known:
                found = _after(expected, found)
            yield (
                codec_at(view, frame.position),
                (record for record in found if record.offset >= start_offset),
            )
        expected = expected.after(last)


def _is_wanted(view: memoryview, frame: Frame, aborted: AbortedTransactions | None, max_bytes: int) -> bool:
    pos = frame.position
    if aborted is None or magic_at(view, pos) != MAGIC:
        return True
    header = read_header(view, pos)
    return not aborted.hides(view, pos, header.attributes, header.producer_id, frame.last_offset, max_bytes)


def _after(expected: ExpectedOffsets, found: Iterator[Record]) -> Iterator[Record]:
    """Check a compressed set's first offset, unknown until it is opened."""
    for record in found:
        if record.offset < expected.lowest:
            raise expected.refuse(record.offset, record.offset)
        yield record


class AbortedTransactions:
    """The aborted transactions of one fetch answer. *Not thread-safe: belongs to one answer.*

    Every answer lists all aborted transactions that overlap it, so nothing is kept between answers. Source:
    Kafka protocol guide, Fetch, ``aborted_transactions``.
    """

    def __init__(self, listed: Sequence[tuple[int, int]]) -> None:
        self._upcoming = [(first_offset, producer_id) for producer_id, first_offset in listed]
        heapq.heapify(self._upcoming)
        self._aborted: set[int] = set()

    def advance(self, last_offset: int) -> None:
        """Start the transactions that begin at or before ``last_offset``."""
        while self._upcoming and self._upcoming[0][0] <= last_offset:
            self._aborted.add(heapq.heappop(self._upcoming)[1])

    def end(self, producer_id: int) -> None:
        self._aborted.discard(producer_id)

    def __contains__(self, producer_id: int) -> bool:
        return producer_id in self._aborted

    def hides(
        self, data: Buffer, pos: int, attributes: int, producer_id: int, last_offset: int, max_bytes: int
    ) -> bool:
        """Whether to hide the next batch, at ``pos``: a control batch or one of an aborted transaction."""
        if producer_id < 0:
            return bool(attributes & CONTROL_BIT)
        self.advance(last_offset)
        if attributes & CONTROL_BIT:
            records = decode_records(data, pos, read_header(data, pos), max_bytes, check_crc=False)
            if records and control_type(records[0]) is ControlType.ABORT:
                self.end(producer_id)
            return True
        return bool(attributes & TRANSACTIONAL_BIT) and producer_id in self

    def producers(self) -> set[int]:
        return self._aborted.union(producer_id for _, producer_id in self._upcoming)


def next_offset_after(data: memoryview, offset: int, expected: ExpectedOffsets = ExpectedOffsets()) -> int:  # noqa: B008
    """Where fetchers continue after the whole entries in ``data``; never raises: ends at an invalid one."""
    end, position = len(data), 0
    lowest, asked, below = expected
    while end - position >= _ENTRY.size:
        base, length, magic, last_offset_delta = _ENTRY.unpack_from(data, position)
        position += BATCH_OVERHEAD + length
        if length < _MIN_LENGTH or position > end:
            break
        last = base + last_offset_delta if magic == MAGIC else base
        if base < lowest or last < asked or last >= below:
            break
        lowest = last + 1
    else:
        if end - position == BATCH_OVERHEAD + _MIN_LENGTH:
            # A v0 message without key and value, the only entry shorter than `_ENTRY`.
            base, length = _SHORTEST.unpack_from(data, position)
            if length == _MIN_LENGTH and ExpectedOffsets(lowest, asked, below).has(base, base):
                lowest = base + 1
    return max(offset, lowest)


def first_entry_is_whole(data: memoryview) -> bool:
    """Whether the first entry in ``data`` is whole or invalid; False if more bytes are needed."""
    if len(data) < BATCH_OVERHEAD:
        return False
    length = int.from_bytes(data[_LENGTH_POSITION:BATCH_OVERHEAD], "big", signed=True)
    return length < _MIN_LENGTH or length <= len(data) - BATCH_OVERHEAD


# --- after a corrupt entry


def entry_at(data: memoryview, pos: int) -> Frame | None:
    """The unverified entry at ``pos``; None if it is invalid or not whole."""
    try:
        frame = ENTRIES.frame_at(data, pos, 0)
    except CorruptMessage:
        return None
    if frame is None or frame.size < MIN_ENTRY_BYTES or frame.end > len(data):
        return None
    return frame


def is_sound(data: memoryview, frame: Frame, expected: ExpectedOffsets) -> bool:
    """Whether the checksum is correct and the offsets fit ``expected`` and the next entry. If the next one
    begins below ``expected.lowest``, that entry is the damaged one.
    """
    if not expected.has(frame.first_offset, frame.last_offset):
        return False
    following = first_offset_at(data, frame.end)
    if following is not None and expected.lowest <= following <= frame.last_offset:
        return False
    try:
        ENTRIES.verify(data, frame)
        if not frame.first_is_known:
            # The checksum covers the offsets inside a compressed set, not the set's own.
            for _ in messages(data, frame.position, max_bytes=MAX_BATCH_BYTES):
                pass
    except (CorruptMessage, MessageTooLarge):
        return False
    return True


def next_offset_at(data: Buffer, pos: int) -> int | None:
    """The offset field of the entry at ``pos``; None beyond ``data``."""
    if len(data) - pos < _OFFSET_BYTES:
        return None
    return int.from_bytes(data[pos : pos + _OFFSET_BYTES], "big", signed=True)


def first_offset_at(data: memoryview, pos: int) -> int | None:
    """First offset of the entry at ``pos``, the offset field if it is cut; None beyond ``data``."""
    frame = entry_at(data, pos)
    return next_offset_at(data, pos) if frame is None else first_offset(data, frame)


def next_sound(data: memoryview, pos: int, expected: ExpectedOffsets) -> Frame | None:
    """The first sound entry after the one at ``pos``: by lengths, else by searching the bytes."""
    at, frame = pos, entry_at(data, pos)
    while frame is not None:
        at = frame.end
        frame = entry_at(data, at)
        if frame is not None and is_sound(data, frame, expected):
            return frame
    offset = next_offset_at(data, at)
    if at > pos and (at == len(data) or (offset is not None and expected.has(offset, offset))):
        return None  # the lengths lead to the end, or to an entry cut there
    for found in _MAY_BEGIN.finditer(data, pos + 1):
        frame = entry_at(data, found.start())
        if frame is not None and is_sound(data, frame, expected):
            return frame
    return None


def first_offset(data: memoryview, frame: Frame) -> int:
    """First offset of a sound entry; opens a compressed v0 or v1 set."""
    if frame.first_is_known:
        return frame.first_offset
    try:
        for message in islice(messages(data, frame.position, max_bytes=MAX_BATCH_BYTES), 1):
            return message.offset
    except KafkaError:
        pass  # its reader reports the error
    return frame.first_offset
