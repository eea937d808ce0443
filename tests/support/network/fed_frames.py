"""Bytes given to a `FrameReader` as a socket gives them."""

from __future__ import annotations

from contextlib import suppress

from pyspark_kafkalog.errors import FrameTooLarge
from pyspark_kafkalog.protocol.exchange import FrameReader


def feed(reader: FrameReader, data: bytes | bytearray | memoryview) -> list[bytearray]:
    """The frames that are complete now; each read takes as much as fits.

    Complete frames before one that is too large are returned first: then the next call raises.
    """
    rest, got = memoryview(data), []
    while rest and reader.failure is None:
        room = reader.buffer()
        assert len(room) > 0
        count = min(len(room), len(rest))
        room[:count] = rest[:count]
        del room  # what is lent out cannot change its length
        rest = rest[count:]
        with suppress(FrameTooLarge):
            got += reader.received(count)
    if reader.failure is not None and not got:
        raise reader.failure
    return got
