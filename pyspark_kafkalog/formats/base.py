"""What every generation of messages can do, so that a log never asks which one it holds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

from pyspark_kafkalog.types import Record


class Frame(NamedTuple):
    """One entry of a log seen from outside: a 0.7 message, a v0/v1 entry or a v2 batch.

    ``position`` and ``size`` are bytes; ``next_offset`` is where the next frame's records may begin.
    ``max_timestamp`` is in milliseconds, -1 where the format has none. ``first_is_known`` is False for a
    compressed v0 or v1 set: ``first_offset`` is that of its last message then, as decompression alone would
    tell the first one's.
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
        """Position of the first byte after this frame."""
        return self.position + self.size


class MessageFormat(Protocol):
    """Bytes to frames to records. Implementations are pure and hold no state."""

    min_frame_size: int
    """No frame has fewer bytes."""

    def frame_at(self, buf: memoryview, pos: int, offset: int) -> Frame | None:
        """The frame that begins at ``pos``; None while its header is incomplete.

        Only the header need be in ``buf``; ``frame.end`` may lie beyond it. ``offset`` is where the
        caller stands: 0.7's bytes hold no offset, the others ignore it.

        Raises:
            CorruptMessage: no frame can begin with these bytes.
        """
        ...

    def verify(self, buf: memoryview, frame: Frame) -> None:
        """Check the frame's CRC; the whole frame must be in ``buf``.

        Raises:
            CorruptMessage: the checksum differs.
        """
        ...

    def records(self, buf: memoryview, frame: Frame, *, max_bytes: int) -> Iterator[Record]:
        """The records in the frame, control records left out, decompressing at most ``max_bytes``.

        Raises:
            CorruptMessage: a record's lengths or count do not fit its frame.
            MessageTooLarge: decompressed, the frame is larger than ``max_bytes``.
        """
        ...

    def times(self, buf: memoryview, frame: Frame, *, max_bytes: int) -> Iterator[tuple[int, int]]:
        """Timestamp and offset of each record that `records` would give, without making it.

        Memory is what decompression yields, whatever the records hold. Raises as `records`.
        """
        ...
