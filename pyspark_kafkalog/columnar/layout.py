"""Where things stand in the three arrays of numbers that the compiled kernel is given.

One row of the *table* for each block, the *layout* of the arena, and the *state* that one call leaves for
the next over the same arena.
"""

from __future__ import annotations

# Fields of the table of blocks, one row each: those of `engine.Block` behind its buffer.
BLOCK_FIELDS = 9
(
    BLOCK_START,
    BLOCK_END,
    BLOCK_COUNT,
    BLOCK_LAST_DELTA,
    BLOCK_LOW,
    BLOCK_HIGH,
    BLOCK_BASE_OFFSET,
    BLOCK_TIMESTAMP,
    BLOCK_APPEND_TIME,
) = range(BLOCK_FIELDS)

# The layout: where in the arena each region begins, in bytes, or -1 where its column is not wanted; then
# the room there is for rows, bytes and headers, and how many records one call may look at.
LAYOUT_FIELDS = 20
(
    OFFSETS,
    TIMESTAMPS,
    TIMESTAMP_TYPES,
    KEY_STARTS,
    KEY_VALID,
    KEY_DATA,
    VALUE_STARTS,
    VALUE_VALID,
    VALUE_DATA,
    HEADER_STARTS,
    HEADER_VALID,
    NAME_STARTS,
    NAME_DATA,
    CONTENT_STARTS,
    CONTENT_VALID,
    CONTENT_DATA,
    CAPACITY_ROWS,
    CAPACITY_BYTES,
    CAPACITY_HEADERS,
    CAPACITY_RECORDS,
) = range(LAYOUT_FIELDS)

# The state: where a call goes on and stops, what the arena holds, and what was wrong.
STATE_FIELDS = 19
(
    AT_BLOCK,
    AT_POSITION,
    AT_RECORD,
    PREVIOUS_DELTA,
    ROWS,
    RECORDS,
    DATA_BYTES,
    KEY_BYTES,
    KEY_NULLS,
    VALUE_BYTES,
    VALUE_NULLS,
    HEADERS,
    HEADER_NULLS,
    NAME_BYTES,
    CONTENT_BYTES,
    CONTENT_NULLS,
    NAMES_NOT_ASCII,
    NUMBER,
    NEED,
) = range(STATE_FIELDS)
