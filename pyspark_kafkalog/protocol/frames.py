"""Splits a byte stream into frames, ``size:int32`` and that many bytes; for brokers and clients."""

from __future__ import annotations

from pyspark_kafkalog.errors import FrameTooLarge

SIZE_BYTES = 4

_STAGE_BYTES = 4096

_WHOLE_BYTES = 256 << 10
"""Largest frame that is received together with its size, if the previous one had the same size."""


class FrameReader:
    """Splits received bytes into frames. *Not thread-safe: one per connection, used by its reading thread.*

    Receive into `buffer`; `received` returns the completed frames without their size, each in its own memory.
    An invalid size raises `FrameTooLarge` after the complete frames before it were returned.

    Memory follows the bytes received, never the claimed size: it begins at 4 KiB and doubles. After a large
    frame the next one gets that much at once, which saves copies. Up to `_WHOLE_BYTES` it includes the next
    frame's size, so a producer's full batches need one system call each and no copy.
    """

    def __init__(self, max_frame_bytes: int) -> None:
        self.max_frame_bytes = max_frame_bytes
        """Largest allowed frame; a change applies to sizes that have not arrived yet."""
        self._stage = memoryview(bytearray(_STAGE_BYTES))
        self._staged = 0  # bytes in the stage that belong to no frame yet
        self._size = 0
        self._body: bytearray | None = None
        """The current frame, if its known size exceeds what is staged; or see `_whole`."""
        self._filled = 0
        self._trusted = _STAGE_BYTES
        self._spare: bytearray | None = None
        self._whole = False  # whether ``_body`` begins with its size, assumed to equal the last frame's
        self.failure: FrameTooLarge | None = None  # why no frame can follow, or None

    @property
    def claimed(self) -> int:
        body = self._body
        if body is None:
            return 0
        if not self._whole:
            return self._size
        return len(body) - SIZE_BYTES if self._filled >= SIZE_BYTES else 0

    @property
    def partial(self) -> bool:
        return bool(self._staged if self._body is None else self._filled or not self._whole)

    def buffer(self, *, whole: bool = True) -> memoryview:
        """Memory for the next bytes; release it, then call `received`. ``whole``: for an expected frame."""
        if self.failure is not None:
            raise self.failure
        body = self._body
        if body is None:
            if not whole or self._staged or not _STAGE_BYTES < self._trusted <= _WHOLE_BYTES:
                return self._stage[self._staged :]
            self._body = body = bytearray(SIZE_BYTES + self._trusted)
            self._whole, self._filled = True, 0
            return memoryview(body)
        if self._filled == len(body):
            grown = self._grown(len(body))
            grown[: self._filled] = body
            self._body = body = grown
        return memoryview(body)[self._filled :]

    def rest(self) -> None:
        """Free unused memory while no data is expected."""
        if self._whole and not self._filled:
            self._body, self._whole = None, False

    def recycle(self, frame: bytearray) -> None:
        """Reuse a frame's memory once no view is left: fresh memory doubles the cost of 4 MiB."""
        self._spare = frame

    def received(self, count: int) -> list[bytearray]:
        """The frames completed by ``count`` more bytes; the caller owns them."""
        frames = self._take(count) if self.failure is None else []
        if self.failure is not None and not frames:
            raise self.failure
        return frames

    def _take(self, count: int) -> list[bytearray]:
        """As `received`, but stores an invalid size in `failure`."""
        if self._body is None:
            self._staged += count
            return self._cut_stage()
        self._filled += count
        if self._whole:
            return self._take_whole(self._body)
        if self._filled < self._size:
            return []
        frame, self._body = self._body, None
        self._trusted = max(_STAGE_BYTES, self._size)
        return [frame]

    def _take_whole(self, body: bytearray) -> list[bytearray]:
        """The frame in ``body`` if it is as long as the last one; otherwise split as usual."""
        filled = self._filled
        if filled < SIZE_BYTES:
            return []
        size = int.from_bytes(body[:SIZE_BYTES], "big", signed=True)
        if size == len(body) - SIZE_BYTES and filled < len(body):
            return []
        self._body, self._whole = None, False
        if size != len(body) - SIZE_BYTES:
            self._trusted = max(_STAGE_BYTES, min(size, self._trusted))
            return self._cut(memoryview(body)[:filled])
        try:
            del body[:SIZE_BYTES]  # copies nothing: a bytearray stores its start offset
        except BufferError:
            body = body[SIZE_BYTES:]  # the caller still holds a view from `buffer`
        return [body]

    def _cut(self, data: memoryview) -> list[bytearray]:
        frames: list[bytearray] = []
        while data and self.failure is None:
            room = self._stage[self._staged :] if self._body is None else self.buffer()
            count = min(len(room), len(data))
            room[:count] = data[:count]
            data = data[count:]
            del room  # a bytearray with views cannot be resized
            frames += self._take(count)
        return frames

    def _cut_stage(self) -> list[bytearray]:
        frames: list[bytearray] = []
        stage, end, pos = self._stage, self._staged, 0
        while end - pos >= SIZE_BYTES:
            size = int.from_bytes(stage[pos : pos + SIZE_BYTES], "big", signed=True)
            if not 0 <= size <= self.max_frame_bytes:
                limit = self.max_frame_bytes
                self.failure = FrameTooLarge(f"frame of {size} bytes; the limit is {limit}", size)
                return frames
            start = pos + SIZE_BYTES
            if end - start < size:
                # Only the bytes that arrived; `buffer` enlarges it.
                self._body = bytearray(stage[start:end])
                self._size, self._filled, self._staged = size, end - start, 0
                return frames
            frames.append(bytearray(stage[start : start + size]))
            pos = start + size
        rest = end - pos
        if pos and rest:
            stage[:rest] = bytes(stage[pos:end])
        self._staged = rest
        return frames

    def _grown(self, length: int) -> bytearray:
        if length > _STAGE_BYTES:
            return bytearray(min(self._size, 2 * length))
        # Recycled memory is already allocated: using all of it does not trust the claimed size.
        there = self._spare.__alloc__() - 1 if self._spare is not None else 0
        return self._memory(min(self._size, max(self._trusted, 2 * length, there)))

    def _memory(self, size: int) -> bytearray:
        spare, self._spare = self._spare, None
        if spare is None or not size // 2 < len(spare) < 2 * size:
            return bytearray(size)
        try:
            spare.append(spare.pop())  # raises BufferError while a view of it exists
            if len(spare) > size:
                del spare[size:]
            else:
                spare.extend(bytes(size - len(spare)))
        except BufferError:
            return bytearray(size)
        return spare
