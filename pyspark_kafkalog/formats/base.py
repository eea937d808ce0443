"""What a log needs from a message format, so that it does not depend on the generation it holds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

from pyspark_kafkalog.types import Record


class Frame(NamedTuple):
    """One entry of a log without its content: a 0.7 message, a v0/v1 entry or a v2 batch.

    ``position`` and ``size`` are bytes; ``next_offset`` is where the next frame's records may begin.
    ``max_timestamp`` is in milliseconds, -1 if the format has none. ``first_is_known`` is False for a
    compressed v0 or v1 set: ``first_offset`` is then that of its last message, because only decompression
    gives the first.
    """

    position: int
    size: int
    first_offset: int
    last_offset: int
    next_offset: int
    max_timestamp: int
    first_is_known: bool = True

    @property
    def end(self) -> int:
        return self.position + self.size


class MessageFormat(Protocol):
    """Bytes to frames to records; the table of generations. Implementations are pure and hold no state."""

    min_frame_size: int
    """The size of the smallest frame."""

    def frame_at(self, buf: memoryview, pos: int, offset: int) -> Frame | None:
        """The frame that begins at ``pos``; None while its header is incomplete.

        ``buf`` need only hold the header; ``frame.end`` may be beyond its end. ``offset`` is the frame's
        offset for 0.7, whose bytes hold none; the other formats ignore it.
        """
        ...

    def verify(self, buf: memoryview, frame: Frame) -> None:
        """Check the frame's CRC; the whole frame must be in ``buf``."""
        ...

    def records(self, buf: memoryview, frame: Frame, *, max_bytes: int) -> Iterator[Record]:
        """The records in the frame, control records left out, decompressing at most ``max_bytes``."""
        ...

    def times(self, buf: memoryview, frame: Frame, *, max_bytes: int) -> Iterator[tuple[int, int]]:
        """Timestamp and offset of each record that `records` would give, without creating it."""
        ...
