"""What is known of the message formats in one segment, without looking at its bytes again."""

from __future__ import annotations

from pyspark_kafkalog.formats.batch import MAGIC


class KnownFormats:
    """*Thread-safe for reading and `learn`; `appended` is called under the log's lock.*

    All is known of a segment that was begun in this run. Of an older one it is learned by who walks over its
    entries, from its beginning on: so each is walked over once, however many read it.
    """

    __slots__ = ("_bounds", "_newest")

    def __init__(self, size_bytes: int) -> None:
        """The segment has so many bytes of which nothing is known."""
        self._newest: int | None = None if size_bytes else 0
        self._bounds = [0] * MAGIC
        # By magic: the position before which no entry is of a later format. A race costs another walk.

    def appended(self, magic: int) -> None:
        """An entry is about to be written; before its bytes can be read."""
        if self._newest is not None and magic > self._newest:
            self._newest = magic

    def learn(self, magic: int, start: int, end: int) -> None:
        """No entry in bytes ``[start, end)`` is of a later format than ``magic``."""
        if magic < MAGIC and start <= self._bounds[magic] < end:
            self._bounds[magic] = end

    def newest_before(self, end: int) -> int | None:
        """A format than which no entry before byte ``end`` is later; None where none is known."""
        if self._newest is not None:
            return self._newest
        return next((magic for magic, known in enumerate(self._bounds) if known >= end), None)
