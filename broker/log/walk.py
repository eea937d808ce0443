"""Walks the frames of a segment file, reading no more of it than it must."""

from __future__ import annotations

from collections.abc import Iterator

from broker.log.filesystem import File
from pyspark_kafkalog.errors import CorruptMessage
from pyspark_kafkalog.formats.base import Frame, MessageFormat

CHUNK_BYTES = 8 << 10
"""One read for a look-up: an index interval (4 KiB) and the header behind it."""

SCAN_BYTES = 256 << 10
"""One read when a whole segment is walked."""

MESSAGES_PER_BYTE = 40
"""The most that a byte of a compressed set of v0 or v1 can hold: gzip makes at most 1032 bytes of one, and
the smallest message has 26.
"""


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
        position = origin + frame.end
        if position > end:
            raise CorruptMessage(f"the frame at byte {origin + frame.position} ends beyond byte {end}")
        yield moved(frame, origin + frame.position)
        offset = frame.next_offset


def read_frame(file: File, frame: Frame) -> memoryview:
    """All bytes of a frame that `walk_frames` found.

    Raises:
        CorruptMessage: the file ends before the frame does.
    """
    data = file.read_at(frame.position, frame.size)
    if len(data) != frame.size:
        raise CorruptMessage(f"the frame at byte {frame.position} is cut short")
    return memoryview(data)


def moved(frame: Frame, position: int) -> Frame:
    """The same frame, seen in a buffer or file where it begins at ``position``."""
    return Frame(position, *frame[1:])  # _replace takes four times as long
