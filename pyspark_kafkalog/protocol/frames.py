"""Cuts a byte stream into frames: ``size:int32`` and so many bytes of body, in every generation.

Both sides of a connection use it: requests in the broker, answers in the clients.
"""

from __future__ import annotations

from pyspark_kafkalog.errors import FrameTooLarge

SIZE_BYTES = 4
"""Length of the size that stands before every frame."""

_STAGE_BYTES = 4096


class FrameReader:
    """*Not thread-safe: one per connection, used by the thread that reads it.* Does no I/O.

    Bytes go in either through `buffer` and `received` (for ``recv_into``, without a copy of large
    frames) or through `feed`. Frames come out whole, without their size, in memory of their own.

    Memory follows the bytes that came and never the size that was claimed: a frame's memory begins
    at 4 KiB and doubles as it fills; a connection that has already delivered a frame of some
    length is given as much for the next one at once, which saves those copies where all are large.
    """

    def __init__(self, max_frame_bytes: int) -> None:
        self._max = max_frame_bytes
        self._stage = memoryview(bytearray(_STAGE_BYTES))
        self._staged = 0
        """Bytes at the start of the stage that belong to no frame yet."""
        self._size = 0
        self._body: bytearray | None = None
        """The frame in hand, once its size is known and it is longer than what is staged."""
        self._filled = 0
        self._trusted = _STAGE_BYTES
        self._failure: FrameTooLarge | None = None

    def buffer(self) -> memoryview:
        """Where the next bytes are to be put; never empty. Tell `received` how many came.

        Raises:
            FrameTooLarge: the frame after those already given out cannot be accepted.
        """
        if self._failure is not None:
            raise self._failure
        if self._body is None:
            return self._stage[self._staged :]
        if self._filled == len(self._body):
            grown = bytearray(min(self._size, 2 * len(self._body)))
            grown[: self._filled] = self._body
            self._body = grown
        return memoryview(self._body)[self._filled :]

    def received(self, count: int) -> list[bytearray]:
        """The frames that are complete now that ``count`` bytes stand in `buffer`.

        Each is the caller's own, and writable.

        Raises:
            FrameTooLarge: a size is negative or above the limit. Complete frames before it are
                given out first: then the next call of any method raises.
        """
        frames = self._take(count) if self._failure is None else []
        if self._failure is not None and not frames:
            raise self._failure
        return frames

    def feed(self, data: bytes | bytearray | memoryview) -> list[bytearray]:
        """Take ``data`` by copying; the frames that are complete now.

        Raises:
            FrameTooLarge: as in `received`.
        """
        frames: list[bytearray] = []
        left = memoryview(data)
        while left and self._failure is None:
            room = self.buffer()
            count = min(len(room), len(left))
            room[:count] = left[:count]
            left = left[count:]
            frames += self._take(count)
        if self._failure is not None and not frames:
            raise self._failure
        return frames

    def _take(self, count: int) -> list[bytearray]:
        """The frames completed by ``count`` more bytes; a size that cannot be is kept as `_failure`."""
        if self._body is None:
            self._staged += count
            return self._cut_stage()
        self._filled += count
        if self._filled < self._size:
            return []
        frame, self._body = self._body, None
        self._trusted = max(_STAGE_BYTES, self._size)
        return [frame]

    def _cut_stage(self) -> list[bytearray]:
        """Take the whole frames out of the stage; begin the body of one that needs more."""
        frames: list[bytearray] = []
        stage, end, pos = self._stage, self._staged, 0
        while end - pos >= SIZE_BYTES:
            size = int.from_bytes(stage[pos : pos + SIZE_BYTES], "big", signed=True)
            if not 0 <= size <= self._max:
                self._failure = FrameTooLarge(f"frame of {size} bytes; the limit is {self._max}")
                return frames
            start = pos + SIZE_BYTES
            if end - start < size:
                self._begin_body(size, stage[start:end])
                self._staged = 0
                return frames
            frames.append(bytearray(stage[start : start + size]))
            pos = start + size
        rest = end - pos
        if pos and rest:
            stage[:rest] = bytes(stage[pos:end])
        self._staged = rest
        return frames

    def _begin_body(self, size: int, start: memoryview) -> None:
        """Give a frame of ``size`` bytes, of which ``start`` is here, memory of its own."""
        self._body = bytearray(min(size, self._trusted))
        self._body[: len(start)] = start
        self._size, self._filled = size, len(start)
