"""Entries of one message format told in another, v0, v1 and v2: for readers that know less than the log has,
and for topics that want one format. Pure, and a piece at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from pyspark_kafkalog.formats.varint import Buffer

PIECE_BYTES = 1 << 20


class Piece(NamedTuple):
    """Entries in the format that was asked for, and what they cost.

    ``next_offset`` is where reading goes on behind them. ``message_count`` messages were made anew, of
    ``block_bytes`` before compression; both are 0 where ``data`` is a view of what was given.
    """

    data: bytes | memoryview
    next_offset: int
    message_count: int
    block_bytes: int


def for_reader(
    buf: Buffer, magic: int, *, start_offset: int = 0, max_bytes: int, piece_bytes: int = PIECE_BYTES
) -> Iterator[Piece]:
    """The whole entries in ``buf`` for one who knows the formats up to ``magic``, offsets kept."""
    raise NotImplementedError


def for_topic(
    buf: Buffer, magic: int, *, base_offset: int = 0, max_bytes: int, piece_bytes: int = PIECE_BYTES
) -> Iterator[Piece]:
    """The entries in ``buf``, all of them in format ``magic``, numbered anew from ``base_offset`` on."""
    raise NotImplementedError


def renumbered(
    buf: Buffer, pos: int, base_offset: int, *, max_bytes: int, timestamp: int | None = None
) -> bytes:
    """The v0 or v1 wrapper at ``pos`` made anew, its messages numbered from ``base_offset`` on."""
    raise NotImplementedError
