"""Walks the frames of a segment file, reading no more of it than it must."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from broker.disk.filesystem import File
from pyspark_kafkalog.errors import CorruptMessage
from pyspark_kafkalog.formats.base import Frame, MessageFormat

CHUNK_BYTES = 8 << 10
"""One read for a look-up: an index interval (4 KiB) and the header after it."""

SCAN_BYTES = 256 << 10
"""One read when a whole segment is walked."""

MESSAGES_PER_BYTE = 40
"""The most that a byte of a compressed set of v0 or v1 can hold: gzip makes at most 1032 bytes of one, and
the smallest message has 26.
"""


LAST_OFFSET = (1 << 63) - 1
"""No offset is above it."""


def walk_frames(
    file: File, fmt: MessageFormat, start: int, end: int, offset: int, *, chunk_bytes: int = CHUNK_BYTES
) -> Iterator[Frame]:
    """The frames in bytes ``[start, end)`` of the file, by their headers alone.

    ``start`` is where a frame begins, and ``offset`` is what it has where offsets count bytes; where they
    count records the frames say it themselves. `Frame.position` counts from the
    beginning of the file.

    Raises:
        CorruptMessage: a header is impossible, or the last frame does not end at ``end``.
        OSError: the disk refused.
    """
    buf = memoryview(b"")
    origin = position = start  # of the buffer's first byte; of the next frame
    while position < end:
        frame = fmt.frame_at(buf, position - origin, offset) if position - origin <= len(buf) else None
        if frame is None:
            if end - position < fmt.min_frame_size:
                raise CorruptMessage(f"a frame at byte {position} is cut short at byte {end}")
            buf = memoryview(file.read_at(position, min(chunk_bytes, end - position)))
            origin = position
            frame = fmt.frame_at(buf, 0, offset)
            if frame is None:
                raise CorruptMessage(f"the file ends inside the header at byte {position}")
        position = origin + frame.position + frame.size
        if position > end:
            raise CorruptMessage(f"the frame at byte {origin + frame.position} ends beyond byte {end}")
        yield moved(frame, origin + frame.position)
        offset = frame.next_offset


def in_order(
    frames: Iterator[Frame],
    low: int,
    high: int,
    *,
    path: Path,
    gaps_allowed: bool,
    exact: bool = False,
    wanted: int = 0,
) -> Iterator[Frame]:
    """The same frames, each of which must be in offsets ``[low, high)`` and follow the one before it.

    No checksum covers an entry's offset. Unless ``gaps_allowed`` (a cleaner has been there) each begins where
    the one before it ends, and with ``exact`` the first one at ``low``; where a compressed set of v0 or v1
    begins only opening it would tell. A frame whose offset is wrong is passed over if the one it should have
    is below ``wanted``. ``path`` is for the errors.

    Raises `CorruptMessage`: an offset is wrong, or what ``frames`` raises.
    """
    follows = exact
    for frame in frames:
        first, last = frame.first_offset, frame.last_offset
        gap = first - low
        skips = gap > 0 and follows and not gaps_allowed and is_lost(frame, gap)
        if skips or gap < 0 or last < first or last >= high:
            should_be = low + last - first
            if not (follows and frame.first_is_known and low <= should_be < min(wanted, high)):
                raise CorruptMessage(
                    f"{path.name}, byte {frame.position}: offset {first} stands where offset {low} should be,"
                    f" below {high}"
                )
            low = should_be + 1
            continue
        yield frame
        low, follows = frame.next_offset, True


def is_lost(frame: Frame, gap: int) -> bool:
    """Whether it is certain that ``gap`` offsets are missing before the frame."""
    return frame.first_is_known or gap >= frame.size * MESSAGES_PER_BYTE


def read_frame(file: File, frame: Frame) -> memoryview:
    """All bytes of a frame that `walk_frames` found.
    Raises `CorruptMessage`: the file ends before the frame does.
    """
    data = file.read_at(frame.position, frame.size)
    if len(data) != frame.size:
        raise CorruptMessage(f"the frame at byte {frame.position} is cut short")
    return memoryview(data)


def moved(frame: Frame, position: int) -> Frame:
    """The same frame, seen in a buffer or file where it begins at ``position``."""
    return Frame(position, *frame[1:])  # _replace takes four times as long
