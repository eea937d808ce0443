"""Walks what a fetch answers and a segment holds: frames one after the other, the last perhaps cut short.

Entries of Kafka 0.8 and later share their first bytes, ``offset:8 length:4``, and tell their format at byte
16: so one walk serves logs that an upgrade has left with several formats. Nobody else looks at that byte.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from pyspark_kafkalog.errors import CorruptMessage, KafkaError, MessageTooLarge
from pyspark_kafkalog.formats.base import Frame, MessageFormat
from pyspark_kafkalog.formats.batch import BATCH_OVERHEAD, MAGIC, V2Format
from pyspark_kafkalog.formats.batch import codec_at as batch_codec_at
from pyspark_kafkalog.formats.compression import Codec
from pyspark_kafkalog.formats.legacy import MIN_ENTRY_BYTES, LegacyFormat, messages
from pyspark_kafkalog.formats.legacy import codec_at as entry_codec_at
from pyspark_kafkalog.formats.varint import Buffer
from pyspark_kafkalog.types import Record

NO_WATERMARK = (1 << 63) - 1
"""Below this is every offset: for an answer that names no high watermark."""


class Place(NamedTuple):
    """What the next entry's offsets must be: ``lowest`` or more, the last of them ``asked`` or more and less
    than ``below``.

    ``lowest`` is the offset after the entry before, 0 where none is known: the first entry of a range may
    begin before the offset asked for. By itself this asks for no more than that offsets rise from 0 on.
    """

    lowest: int = 0
    asked: int = 0
    below: int = NO_WATERMARK

    @classmethod
    def of_answer(cls, offset: int, high_watermark: int, *, follows: bool = False) -> Place:
        """The place of the first entry of an answer to a fetch at ``offset``.

        ``high_watermark`` is -1 where there is none. ``follows``: the entry before ended at ``offset``.
        """
        return cls(offset if follows else 0, offset, high_watermark if high_watermark >= 0 else NO_WATERMARK)

    def has(self, first: int, last: int) -> bool:
        """Whether an entry with offsets ``first`` to ``last`` may come next."""
        return self.lowest <= first and self.asked <= last < self.below

    def after(self, last: int) -> Place:
        """The place of the entry that comes after one that ends with ``last``."""
        return Place(last + 1, self.asked, self.below)

    def refuse(self, first: int, last: int) -> CorruptMessage:
        """The error that says why an entry with these offsets may not come next."""
        return CorruptMessage(
            f"an entry claims offsets {first} to {last}, {self._why(first, last)}. No checksum covers an "
            "entry's offset: it was damaged in the log or on its way, or the entry before was"
        )

    def _why(self, first: int, last: int) -> str:
        if first < 0:
            return "and none is negative"
        if first < self.lowest:
            return f"and the entry before ends at {self.lowest - 1}; expected is {self.lowest} or more"
        if last < self.asked:
            return f"and offset {self.asked} was asked for, which the first entry reaches"
        return f"and the high watermark is {self.below}, which all offsets are below"


_LENGTH_POSITION = 8
_MAGIC_POSITION = 16
_MIN_LENGTH = 14
"""What follows the length in the smallest entry of any format: a v0 message without key and value."""

_LOWEST = -(1 << 63)

_ENTRY = struct.Struct(">qi4xb6xi")
"""Offset, length, magic and, in a v2 batch, the last offset's delta."""

_SHORTEST = struct.Struct(">qi")

_LEGACY = LegacyFormat()
_FORMATS: tuple[MessageFormat, ...] = (_LEGACY, _LEGACY, V2Format())
"""By magic."""


class MixedFormat:
    """What logs since Kafka 0.8 hold, entries of v0, v1 and v2 in any order, as one `MessageFormat`."""

    min_frame_size = MIN_ENTRY_BYTES

    def frame_at(self, buf: memoryview, pos: int, offset: int) -> Frame | None:
        """The entry that begins at ``pos``; None while its header is incomplete."""
        if len(buf) - pos < MIN_ENTRY_BYTES:
            return None
        return _format_at(buf, pos).frame_at(buf, pos, offset)

    def verify(self, buf: memoryview, frame: Frame) -> None:
        """Check the entry's checksum, CRC-32 or CRC-32C; the whole entry must be in ``buf``."""
        _format_at(buf, frame.position).verify(buf, frame)

    def records(self, buf: memoryview, frame: Frame, *, max_bytes: int) -> Iterator[Record]:
        """The entry's records, after its checksum; none of a control batch."""
        return _format_at(buf, frame.position).records(buf, frame, max_bytes=max_bytes)

    def times(self, buf: memoryview, frame: Frame, *, max_bytes: int) -> Iterator[tuple[int, int]]:
        """Timestamp and offset of the entry's records, after its checksum; none of a control batch."""
        return _format_at(buf, frame.position).times(buf, frame, max_bytes=max_bytes)


ENTRIES = MixedFormat()


def magic_at(buf: Buffer, pos: int) -> int:
    """The format of the entry at ``pos``: 0, 1 or 2.

    Raises:
        CorruptMessage: it is another, or is cut off.
    """
    if len(buf) - pos <= _MAGIC_POSITION:
        raise CorruptMessage(f"the entry at byte {pos} is cut short: {len(buf) - pos} bytes")
    magic = buf[pos + _MAGIC_POSITION]
    if magic > MAGIC:
        raise CorruptMessage(f"unknown magic {magic} of the entry at byte {pos}: Kafka has 0 to {MAGIC}")
    return magic


def codec_at(buf: Buffer, pos: int) -> Codec:
    """How the entry at ``pos``, whose header is whole, is compressed.

    Raises:
        CorruptMessage: it has another magic.
        UnsupportedCompression: by a codec that its format does not have.
    """
    return (batch_codec_at if magic_at(buf, pos) == MAGIC else entry_codec_at)(buf, pos)


def _format_at(buf: Buffer, pos: int) -> MessageFormat:
    return _FORMATS[magic_at(buf, pos)]


def frames(buf: Buffer, *, start_offset: int = 0) -> Iterator[Frame]:
    """The whole frames in ``buf`` that hold or may hold something at ``start_offset`` or later.

    Ends before an incomplete frame, which is what a size limit leaves of the last one. Checksums are not
    looked at.

    Raises:
        CorruptMessage: no frame can begin with these bytes.
    """
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
    """The records in ``buf`` from ``start_offset`` on, checksums verified, control records left out.

    Each frame may decompress to at most ``max_bytes``.

    Raises:
        CorruptMessage: a checksum, length, count or offset is wrong.
        MessageTooLarge: decompressed, a frame has more than ``max_bytes``.
        UnsupportedCompression: a codec is unknown, or its library not installed.
    """
    for _, found in coded_records(buf, start_offset=start_offset, max_bytes=max_bytes):
        yield from found


def coded_records(
    buf: Buffer,
    *,
    start_offset: int,
    max_bytes: int,
    place: Place = Place(),  # noqa: B008
) -> Iterator[tuple[Codec, Iterator[Record]]]:
    """The same frame by frame: how each is compressed, and its records. Raises as `records`.

    ``place`` is what the offsets of the first frame must be.
    """
    view = memoryview(buf)
    for frame in frames(view, start_offset=_LOWEST):
        first, last = frame.first_offset, frame.last_offset
        if not place.has(first, last):
            raise place.refuse(first, last)
        if last >= start_offset:
            found = ENTRIES.records(view, frame, max_bytes=max_bytes)
            if not frame.first_is_known:
                found = _after(place, found)
            yield (
                codec_at(view, frame.position),
                (record for record in found if record.offset >= start_offset),
            )
        place = place.after(last)


def _after(place: Place, found: Iterator[Record]) -> Iterator[Record]:
    """The records of a compressed set, whose first offset is not known before it is opened."""
    for record in found:
        if record.offset < place.lowest:
            raise place.refuse(record.offset, record.offset)
        yield record


def next_offset_after(data: memoryview, offset: int, place: Place = Place()) -> int:  # noqa: B008
    """Where reading goes on after the whole entries in ``data``; ``offset`` when there is none.

    One read per entry, of any magic, and nothing is made of it: for a fetcher, which must know where to go on
    before anybody decodes. A v2 batch ends its last offset's delta after its offset, an older entry is named
    by its last. Never raises: what cannot be an entry, or not at its ``place``, ends the walk, and is the
    decoder's to find.
    """
    end, position = len(data), 0
    lowest, asked, below = place
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
            # A v0 message without key and value, the only entry shorter than what is read of the others.
            base, length = _SHORTEST.unpack_from(data, position)
            if length == _MIN_LENGTH and Place(lowest, asked, below).has(base, base):
                lowest = base + 1
    return max(offset, lowest)


def begins_whole(data: memoryview) -> bool:
    """Whether the first entry in ``data`` is whole, or can be none; False where more bytes would tell."""
    if len(data) < BATCH_OVERHEAD:
        return False
    length = int.from_bytes(data[_LENGTH_POSITION:BATCH_OVERHEAD], "big", signed=True)
    return length < _MIN_LENGTH or length <= len(data) - BATCH_OVERHEAD


MAX_BATCH_BYTES = 128 << 20
"""What one batch may decompress to: no client sends batches near it."""

_OFFSET_BYTES = 8

_MAY_BEGIN = re.compile(
    # Offset, a length that an entry may have, checksum or epoch, magic; then v2's checksum or the attributes.
    rb"(?=[\x00-\x7f][\x00-\xff]{7}(?!\x00\x00\x00[\x00-\x0d])[\x00-\x7f][\x00-\xff]{3}"
    rb"[\x00-\xff]{4}(?:\x02|[\x00\x01][\x00-\x0f]))"
)


def entry_at(data: memoryview, pos: int) -> Frame | None:
    """The entry at ``pos``, whatever its checksum; None where none can begin, or it is not whole."""
    try:
        frame = ENTRIES.frame_at(data, pos, 0)
    except CorruptMessage:
        return None
    if frame is None or frame.size < MIN_ENTRY_BYTES or frame.end > len(data):
        return None
    return frame


def checks_out(data: memoryview, frame: Frame, place: Place) -> bool:
    """Whether an entry's checksum is right, and its offsets fit ``place`` and what follows."""
    if not place.has(frame.first_offset, frame.last_offset):
        return False
    following = next_offset_at(data, frame.end)
    if following is not None and following <= frame.last_offset:
        return False
    try:
        ENTRIES.verify(data, frame)
        if not frame.first_is_known:
            # The offsets within a compressed set are covered by its checksum, the set's own is not.
            for _ in messages(data, frame.position, max_bytes=MAX_BATCH_BYTES):
                pass
    except (CorruptMessage, MessageTooLarge):
        return False
    return True


def next_offset_at(data: memoryview, pos: int) -> int | None:
    """The offset of the entry at ``pos``, or what stands for it; None where that is not there."""
    if len(data) - pos < _OFFSET_BYTES:
        return None
    return int.from_bytes(data[pos : pos + _OFFSET_BYTES], "big", signed=True)


def next_sound(data: memoryview, pos: int, place: Place) -> Frame | None:
    """The first entry behind the one at ``pos`` that checks out; None where there is none in ``data``.

    First by the lengths of entries, which are most often right. Only where they lead astray are the bytes
    looked through: what was the content of a damaged entry may then be taken for an entry.
    """
    at, frame = pos, entry_at(data, pos)
    while frame is not None:
        at = frame.end
        frame = entry_at(data, at)
        if frame is not None and checks_out(data, frame, place):
            return frame
    offset = next_offset_at(data, at)
    if at > pos and (at == len(data) or (offset is not None and place.has(offset, offset))):
        return None  # the lengths lead to the end, or to an entry that is cut short there
    for found in _MAY_BEGIN.finditer(data, pos + 1):
        frame = entry_at(data, found.start())
        if frame is not None and checks_out(data, frame, place):
            return frame
    return None


def first_offset(data: memoryview, frame: Frame) -> int:
    """The first offset of an entry that checks out. A compressed set of v0 or v1 is opened for it."""
    if frame.first_is_known:
        return frame.first_offset
    try:
        for message in islice(messages(data, frame.position, max_bytes=MAX_BATCH_BYTES), 1):
            return message.offset
    except KafkaError:
        pass  # whoever reads it finds that
    return frame.first_offset
