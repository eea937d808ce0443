"""The interface of a message format, which keeps logs independent of their generation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

from pyspark_kafkalog.types import Record


class Frame(NamedTuple):
    """One entry of a log without its content: a 0.7 message, a v0/v1 entry or a v2 batch.

    ``position`` and ``size`` are bytes; ``next_offset`` is where the next frame's records may begin.
    ``max_timestamp`` is in milliseconds, -1 if the format has none. For a compressed v0 or v1 set
    ``first_is_known`` is False and ``first_offset`` its last message's: only decompression gives the first.
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
    """Bytes to frames to records, one implementation per generation. Pure and stateless."""

    min_frame_size: int

    def frame_at(self, buf: memoryview, pos: int, offset: int) -> Frame | None:
        """The frame at ``pos``, perhaps beyond ``buf``'s end; None while its header is incomplete. Only 0.7,
        whose bytes hold no offset, uses ``offset``.
        """
        ...

    def verify(self, buf: memoryview, frame: Frame) -> None:
        """Check the frame's CRC; the whole frame must be in ``buf``."""
        ...

    def records(self, buf: memoryview, frame: Frame, *, max_bytes: int) -> Iterator[Record]:
        """The frame's records without control records, decompressing at most ``max_bytes``."""
        ...

    def times(self, buf: memoryview, frame: Frame, *, max_bytes: int) -> Iterator[tuple[int, int]]:
        """Timestamp and offset of each record that `records` yields, without creating it."""
        ...
