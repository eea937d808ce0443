"""The messages of a fetch response: the sets of either wire, and how each is read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from pyspark_kafkalog.errors import KafkaError
from pyspark_kafkalog.formats import message_set, v07
from pyspark_kafkalog.formats.compression import Codec
from pyspark_kafkalog.formats.message_set import ExpectedOffsets
from pyspark_kafkalog.formats.v07 import MessageAndOffset, V07Format
from pyspark_kafkalog.types import Record, TopicPartition

_LENGTH_BYTES = 4
_BATCH_START_BYTES = 12


class SetReader(Protocol):
    """Reads one generation's bytes. Pure; ``offset`` is the requested one."""

    def messages(self, data: memoryview, offset: int, max_bytes: int) -> Iterator[MessageAndOffset]:
        """Payloads, each with the next offset."""
        ...

    def records(
        self, data: memoryview, offset: int, max_bytes: int
    ) -> Iterator[tuple[Codec, Iterator[Record]]]:
        """The messages with all fields of the generation, entry by entry: its codec, and its messages."""
        ...

    def end(self, data: memoryview, offset: int) -> int:
        """The offset after the whole entries in ``data``; ``offset`` if there is none."""
        ...

    def first_size(self, data: memoryview) -> int | None:
        """The first entry's claimed size in bytes; None while its length is incomplete."""
        ...


class V07Sets:
    """*Thread-safe: immutable.* Sets of 0.7: they begin at the requested offset."""

    def messages(self, data: memoryview, offset: int, max_bytes: int) -> Iterator[MessageAndOffset]:
        return v07.messages(data, offset, max_bytes=max_bytes)

    def records(
        self, data: memoryview, offset: int, max_bytes: int
    ) -> Iterator[tuple[Codec, Iterator[Record]]]:
        form, position = V07Format(), 0
        for entry in v07.entries(data, offset):
            frame = form.frame_at(data, position, entry.offset)
            if frame is None:
                return
            yield entry.codec, form.records(data, frame, max_bytes=max_bytes)
            position = entry.end

    def end(self, data: memoryview, offset: int) -> int:
        for entry in v07.entries(data, offset):
            offset = entry.next_offset
        return offset

    def first_size(self, data: memoryview) -> int | None:
        if len(data) < _LENGTH_BYTES:
            return None
        return _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES], "big", signed=True)


class BatchSets:
    """*Thread-safe: immutable.* Sets since 0.8: messages of v0 and v1 and record batches, in any
    order. The first entry may begin before the requested offset, and ends at or after it.

    Control records are skipped, so the next offset may be beyond the last message: see `end`. It stops
    before an entry with unexpected offsets, for which the other methods raise.
    """

    def __init__(self, high_watermark: int = -1) -> None:
        """``high_watermark`` is above all offsets; -1 if unknown."""
        self._high_watermark = high_watermark

    def messages(self, data: memoryview, offset: int, max_bytes: int) -> Iterator[MessageAndOffset]:
        for _, records in self.records(data, offset, max_bytes):
            for record in records:
                yield MessageAndOffset(memoryview(record.value or b""), record.next_offset)

    def records(
        self, data: memoryview, offset: int, max_bytes: int
    ) -> Iterator[tuple[Codec, Iterator[Record]]]:
        return message_set.coded_records(
            data, start_offset=offset, max_bytes=max_bytes, expected=self._expected(offset)
        )

    def end(self, data: memoryview, offset: int) -> int:
        return message_set.next_offset_after(data, offset, self._expected(offset))

    def _expected(self, offset: int) -> ExpectedOffsets:
        return ExpectedOffsets.of_answer(offset, self._high_watermark)

    def first_size(self, data: memoryview) -> int | None:
        if len(data) < _BATCH_START_BYTES:
            return None
        length = int.from_bytes(
            data[_BATCH_START_BYTES - _LENGTH_BYTES : _BATCH_START_BYTES], "big", signed=True
        )
        return _BATCH_START_BYTES + length


class MessageSet:
    """*Thread-safe: immutable.* One partition's part of a fetch response; may be iterated repeatedly.

    Iterating gives each payload with the offset to continue at. Within a compressed set
    of 0.7 that is the set's own offset for all messages but the last: a reader that stops there gets the
    whole set again. ``error`` is why there is nothing; iterating then raises it.

    Payloads are views of the response: keeping one keeps the whole response in memory.
    A null value of today's wire reads as empty here; `records` distinguishes them.
    """

    __slots__ = ("_max_bytes", "_reader", "data", "error", "offset", "tp")

    def __init__(
        self,
        tp: TopicPartition,
        offset: int,
        data: memoryview,
        reader: SetReader,
        *,
        max_bytes: int,
        error: KafkaError | None = None,
    ) -> None:
        self.tp, self.offset, self.data, self.error = tp, offset, data, error
        self._reader, self._max_bytes = reader, max_bytes

    @property
    def next_offset(self) -> int:
        """The offset after the whole entries, where the next fetch begins. It may be beyond the last message.
        No checksum is verified.
        """
        return self._reader.end(self.data, self.offset)

    def __iter__(self) -> Iterator[MessageAndOffset]:
        """The messages, checksums verified; a cut entry at the end is skipped.

        Raises:
            KafkaError: ``error``.
            CorruptMessage: a length, magic, codec or checksum is wrong, or compressed data is damaged.
            MessageTooLarge: a compressed set holds more than ``max.decompressed.bytes``.
        """
        if self.error is not None:
            raise self.error
        return self._reader.messages(self.data, self.offset, self._max_bytes)

    def records(self) -> Iterator[Record]:
        """The messages with offset, key, time and headers if the wire has them. Raises as iterating."""
        return (record for _, record in self.coded_records())

    def coded_records(self) -> Iterator[tuple[Codec, Record]]:
        """`records`, each with the codec of its entry."""
        if self.error is not None:
            raise self.error
        entries = self._reader.records(self.data, self.offset, self._max_bytes)
        return ((codec, record) for codec, found in entries for record in found)
