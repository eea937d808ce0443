"""Where the entries of a fetch answer may lie: what their checksums do not cover. Pure.

A broker sets an entry's offset after its producer has summed it up, so no CRC covers it, in v0, v1 and v2
alike. A reader therefore compares it with what it knows: the entry before, the offset it asked for, and the
high watermark that the answer names. Gaps are legal, compaction leaves them; so an offset that was damaged
and still leaves nothing but a gap can be found only where the whole log is: see ``verify-log``.
"""

from __future__ import annotations

from typing import NamedTuple

from pyspark_kafkalog.errors import CorruptMessage

NO_WATERMARK = (1 << 63) - 1
"""Below this is every offset: for an answer that names no high watermark."""


class Place(NamedTuple):
    """What the next entry's offsets must be: ``lowest`` or more, the last of them ``asked`` or more and less
    than ``below``.

    ``lowest`` is the offset after the entry before, 0 where none is known: the first entry of a range may
    begin before the offset asked for. By itself this asks for no more than that offsets rise from 0 on.
    """

    lowest: int = 0
    asked: int = 0
    below: int = NO_WATERMARK

    @classmethod
    def of_answer(cls, offset: int, high_watermark: int, *, follows: bool = False) -> Place:
        """The place of the first entry of an answer to a fetch at ``offset``.

        ``high_watermark`` is -1 where there is none. ``follows``: the entry before ended at ``offset``.
        """
        return cls(offset if follows else 0, offset, high_watermark if high_watermark >= 0 else NO_WATERMARK)

    def has(self, first: int, last: int) -> bool:
        """Whether an entry with offsets ``first`` to ``last`` may come next."""
        return self.lowest <= first and self.asked <= last < self.below

    def after(self, last: int) -> Place:
        """The place of the entry that comes after one that ends with ``last``."""
        return Place(last + 1, self.asked, self.below)

    def refuse(self, first: int, last: int) -> CorruptMessage:
        """The error that says why an entry with these offsets may not come next."""
        return CorruptMessage(
            f"an entry claims offsets {first} to {last}, {self._why(first, last)}. No checksum covers an "
            "entry's offset: it was damaged in the log or on its way, or the entry before was"
        )

    def _why(self, first: int, last: int) -> str:
        if first < 0:
            return "and none is negative"
        if first < self.lowest:
            return f"and the entry before ends at {self.lowest - 1}; expected is {self.lowest} or more"
        if last < self.asked:
            return f"and offset {self.asked} was asked for, which the first entry reaches"
        return f"and the high watermark is {self.below}, which all offsets are below"
