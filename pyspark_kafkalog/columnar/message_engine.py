"""What the two engines have in common for messages of v0 and v1: the walk that comes before their columns.

A `Walk` goes over plain messages that follow each other and verifies each. What it went over is an
`engine.Block`, whose messages an engine turns into columns as it does a v2 batch's records. Where it stops,
`message_blocks` goes on: it opens a compressed set, and has `formats` say what is wrong with a message.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

OWN_KIND = 2
"""`engine.Block.append_time` where each message says itself who set its time."""

NO_KIND = -1
"""The kind of a v0 message's time, which is none: what Spark's connector has in ``timestampType``. The other
kinds are those of `types.TimestampType`."""

# What the compiled walk leaves in its array of numbers: a `Walk` but for why it ended.
WALK_FIELDS = 4
END, COUNT, FIRST_OFFSET, LAST_OFFSET = range(WALK_FIELDS)


class Stop(IntEnum):
    """Why a walk ended before the next entry."""

    DONE = 0
    """It begins where the walk was to end, or there is none."""
    CUT = 1
    """It is incomplete."""
    OTHER = 2
    """Its magic is neither 0 nor 1."""
    COMPRESSED = 3
    """It is a set; its checksum was not looked at."""
    BEYOND = 4
    """Its offset is not below the one asked for; its checksum was not looked at."""
    NOT_RISING = 5
    """Its offset is not above the one before."""
    FAULT = 6
    """It is wrong."""


class Walk(NamedTuple):
    """``message_count`` verified messages that end at byte ``end``, and why the walk ended there.

    Their offsets rise from the first to the last; both are -1 where there is no message.
    """

    stop: Stop
    end: int
    message_count: int
    first_offset: int
    last_offset: int
