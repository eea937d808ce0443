"""Logs for clients that do not know messages v1 or record batches v2. Entries they can read are sent from
the file; if an answer would begin with a newer one, entries are converted in Python and in memory,
within the request's `Allowance`.
"""

from __future__ import annotations

from collections.abc import Iterator

from kafkalog_broker.log.family import MAX_DECOMPRESSED_BYTES
from kafkalog_broker.log.file_slice import MemorySlice
from kafkalog_broker.metrics import Metrics
from kafkalog_broker.server.log_access import Allowance, Entries, ReadableLog
from pyspark_kafkalog.errors import KafkaError
from pyspark_kafkalog.formats.convert import Piece, for_reader, readable_until
from pyspark_kafkalog.formats.message_set import ENTRIES

_WALK_BYTES = 16 << 10

_READ_BYTES = 128 << 10

_PIECE_BYTES, _SMALL_PIECE_BYTES = 64 << 10, 4 << 10
"""Converted at a time. The small size is for partitions whose allowance the others have used up: these
clients list their partitions in the same order each time, and the last ones must not starve.
"""

_MESSAGE_COST_BYTES = 128
"""Least cost of a message: it takes some us, however short it is (benchmarks/old_fetch.py)."""

_NEWEST_MAGIC = (0, 0, 1, 1)
"""What a client can read, by the Fetch version below `BATCHES_SINCE`."""

BATCHES_SINCE = len(_NEWEST_MAGIC)


class OlderReader:
    """*Not thread-safe: one request's.* An answer is a part of the file, or all converted."""

    def __init__(self, log: ReadableLog, version: int, allowance: Allowance, metrics: Metrics) -> None:
        self._log = log
        self._magic = _NEWEST_MAGIC[version]
        self._allowance = allowance
        self._metrics = metrics

    def read(
        self, offset: int, max_bytes: int, *, at_least_one: bool, committed_only: bool = False
    ) -> Entries:
        """As `ReadableLog.read`. Converted data may end within an entry, as is usual for these clients."""
        piece = self._log.read(offset, max_bytes, at_least_one=at_least_one, committed_only=committed_only)
        if not len(piece) or (piece.newest_magic is not None and piece.newest_magic <= self._magic):
            return piece
        try:
            end, ends_there = _readable(piece, self._magic)
            piece.learn(self._magic, end)
            if not ends_there:
                return piece
            if end:
                piece.cut(end)
                self._allowance.tell_of_more()
                return piece
        except BaseException:
            piece.close()
            raise
        piece.close()
        if self._allowance.exhausted:
            self._allowance.tell_of_more()
            return MemorySlice(b"", self._magic)
        made = self._made(offset, max_bytes, at_least_one)
        return MemorySlice(made, self._magic)

    def _made(self, offset: int, max_bytes: int, at_least_one: bool) -> bytes:
        found: list[bytes] = []
        wanted, size = max(max_bytes, int(at_least_one)), 0
        piece_bytes = _SMALL_PIECE_BYTES if self._allowance.spent else _PIECE_BYTES
        try:
            for piece in self._pieces(offset, piece_bytes):
                self._allowance.take(
                    max(len(piece.data), piece.block_bytes, piece.message_count * _MESSAGE_COST_BYTES)
                )
                if piece.message_count:
                    self._metrics.converted_messages.inc(piece.message_count)
                    self._metrics.converted_bytes.inc(len(piece.data))
                # Continue until something is found, whatever it costs: with nothing, the client would just
                # ask again. Pieces without data are skipped quickly.
                if piece.data:
                    found.append(bytes(piece.data))
                    size += len(piece.data)
                    if size >= wanted or self._allowance.spent:
                        break
        except KafkaError:
            if not found:
                raise
            # Return the entries before it; the client gets the error with its next request.
        made = b"".join(found)
        if size <= max_bytes:
            return made
        first = ENTRIES.frame_at(memoryview(made), 0, offset)
        if first is not None and first.size > max_bytes:
            return made[: first.size] if at_least_one else b""
        return made[:max_bytes]

    def _pieces(self, offset: int, piece_bytes: int) -> Iterator[Piece]:
        while data := self._read_from(offset):
            for piece in for_reader(
                data,
                self._magic,
                start_offset=offset,
                max_bytes=MAX_DECOMPRESSED_BYTES,
                piece_bytes=piece_bytes,
            ):
                offset = piece.next_offset
                yield piece

    def _read_from(self, offset: int) -> bytes:
        region = self._log.read(offset, _READ_BYTES, at_least_one=True)
        try:
            return region.read()
        finally:
            region.close()


def _readable(piece: Entries, newest_magic: int) -> tuple[int, bool]:
    """How much of ``piece`` the client can read, and whether an entry follows that it cannot."""
    position = 0
    while position < len(piece):
        passed, ends_there = readable_until(piece.read_at(position, _WALK_BYTES), 0, newest_magic)
        if ends_there:
            return position + passed, True
        if not passed:
            break  # not an entry: the client finds that out itself, as everywhere
        position += passed
    return len(piece), False
