"""An arena for the compiled kernels in which it shows what they write where they should not."""

from __future__ import annotations

import numpy as np

from pyspark_kafkalog.columnar import kernel_columns as k

_CANARY = 0xA5
_GAP = 40
"""Bytes between the arena's regions that nothing may touch."""

_DATA = (k.KEY_DATA, k.VALUE_DATA, k.NAME_DATA, k.CONTENT_DATA)


class Arena:
    """What a kernel is given beside its blocks: bytes, their layout with all columns, and an empty state."""

    def __init__(self, rows: int, size: int, headers: int) -> None:
        self.lengths = _regions(rows, size, headers)
        """Region to its length in bytes."""
        self.layout = np.full(k.LAYOUT_FIELDS, -1, np.int64)
        at = _GAP
        for region, length in self.lengths.items():
            self.layout[region] = at
            at += length + _GAP
        self.layout[k.CAPACITY_ROWS :] = (rows, size, headers, 1000)
        self.bytes = np.full(at, _CANARY, np.uint8)
        self.state = np.zeros(k.STATE_FIELDS, np.int64)
        self.state[k.PREVIOUS_DELTA] = -1

    def outside_is_untouched(self) -> bool:
        """Whether the bytes that belong to no region are as they were."""
        mask = np.ones(len(self.bytes), bool)
        for region, length in self.lengths.items():
            mask[self.layout[region] : self.layout[region] + length] = False
        return set(self.bytes[mask].tolist()) == {_CANARY}


def _regions(rows: int, size: int, headers: int) -> dict[int, int]:
    lengths = dict.fromkeys((k.OFFSETS, k.TIMESTAMPS), 8 * rows)
    lengths |= dict.fromkeys((k.KEY_STARTS, k.VALUE_STARTS, k.HEADER_STARTS), 4 * (rows + 1))
    lengths |= dict.fromkeys((k.KEY_VALID, k.VALUE_VALID, k.HEADER_VALID), (rows + 7) // 8)
    lengths |= dict.fromkeys((k.NAME_STARTS, k.CONTENT_STARTS), 4 * (headers + 1))
    lengths |= dict.fromkeys(_DATA, size)
    lengths |= dict.fromkeys((k.TIMESTAMP_TYPES, k.INNER_INDEXES), 4 * rows)
    return lengths | {k.CONTENT_VALID: (headers + 7) // 8}
