"""Finds the next entry that checks out behind one that does not, in bytes of Kafka 0.8 onwards. Pure.

An entry checks out when it is whole, its checksum is right, its offsets are where they may be, and what comes
after it, as far as that is there, has higher ones.
"""

from __future__ import annotations

import re
from itertools import islice

from pyspark_kafkalog.errors import CorruptMessage, KafkaError, MessageTooLarge
from pyspark_kafkalog.formats.base import Frame
from pyspark_kafkalog.formats.legacy import messages
from pyspark_kafkalog.formats.legacy_entry import MIN_ENTRY_BYTES
from pyspark_kafkalog.formats.message_set import ENTRIES
from pyspark_kafkalog.formats.placement import Place

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
