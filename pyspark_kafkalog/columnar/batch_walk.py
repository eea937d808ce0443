"""Walks one fetch answer, batch by batch, to the blocks of records that a reader may see.

Here is everything that is decided per batch: where the answer ends, checksums, decompression, control
batches, aborted transactions and the offsets asked for. What is decided per record is the engines' work.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pyspark_kafkalog.columnar.engine import (
    AbortedTransactions,
    Answer,
    Block,
    Cursor,
    Engine,
    Kind,
    Limits,
    MessageWalk,
    Status,
    Stopped,
)
from pyspark_kafkalog.columnar.message_walk import step
from pyspark_kafkalog.errors import CorruptMessage, InvalidTimestamp, KafkaError
from pyspark_kafkalog.formats.batch import (
    ATTRIBUTES_POSITION,
    BATCH_OVERHEAD,
    CODEC_BITS,
    CONTROL_BIT,
    HEADER_SIZE,
    LOG_APPEND_TIME_BIT,
    MAGIC,
    TRANSACTIONAL_BIT,
    ControlType,
    control_type,
    decode_records,
    read_header,
    read_header_fields,
    record_block,
    verify_crc,
)
from pyspark_kafkalog.formats.checksum import crc32c
from pyspark_kafkalog.formats.message_set import ExpectedOffsets, frames
from pyspark_kafkalog.formats.record import MIN_RECORD_BYTES

_LENGTH_POSITION = 8
_MAGIC_POSITION = 16
_MIN_LENGTH = HEADER_SIZE - BATCH_OVERHEAD
_MESSAGES = 0

_FAULTS = {
    Status.BAD_NUMBER: "a variable-length number is cut short or too long",
    Status.BAD_LENGTH: "its length {} does not fit its batch",
    Status.BAD_FIELD: "a length of {} does not fit the record",
    Status.BAD_HEADERS: "{} headers cannot be in the bytes left",
    Status.LEFT_OVER: "{} bytes are left over in it",
    Status.BAD_OFFSET: "its offset delta {} does not rise or leaves the batch",
    Status.TRAILING: "{} bytes follow the last record",
}
"""What is wrong with a record, in words."""


class BatchWalk:
    """See `engine.Walker`."""

    columns_go_on = False

    def __init__(self, answer: Answer) -> None:
        self._data, self._log, self._end = answer.data, answer.log, answer.end
        aborted = answer.aborted
        if not (aborted is None or isinstance(aborted, AbortedTransactions)):
            aborted = AbortedTransactions(aborted)
        self._aborted = aborted
        self._max_batch_bytes, self._room = answer.max_batch_bytes, answer.room
        self._expected = answer.expected
        self.next_offset = answer.start

    def groups(self, engine: Engine, limits: Limits) -> Iterator[list[Block]]:
        """As many blocks as fit one record batch; a larger one is alone.

        A call has a price of its own, some 20 us: one per batch would cost more than the records.
        """
        group: list[Block] = []
        records = size = 0
        kind = Kind.RECORDS
        for block in self.blocks(engine.walk):
            records += block.record_count
            size += block.end - block.start
            if records > limits.records or size > limits.data_bytes or block.kind is not kind:
                if group:
                    yield group
                group, records, size = [], block.record_count, block.end - block.start
                kind = block.kind
            group.append(block)
        if group:
            yield group

    def took(self, blocks: Sequence[Block], cursor: Cursor, stopped: Stopped) -> int | None:
        """See `engine.Walker`."""
        if stopped.status is Status.FULL:
            return None
        if stopped.status is not Status.DONE:
            raise self._fault(blocks[cursor.block], cursor.record, stopped)
        return blocks[-1].base_offset + blocks[-1].last_delta + 1

    def _fault(self, block: Block, record: int, stopped: Stopped) -> KafkaError:
        if stopped.status is Status.BAD_TIMESTAMP:
            time = block.timestamp if block.append_time == 1 else block.timestamp + stopped.number
            offset = block.base_offset + stopped.offset_delta
            return InvalidTimestamp(
                f"[KAFKA_MALFORMED_RECORD_TIMESTAMP] topic {self._log.topic}, partition"
                f" {self._log.partition}, offset {offset}: the record's timestamp of {time} ms does not fit"
                " 64 bits in microseconds. Kafka's timestamps are milliseconds since the epoch; perhaps the"
                " producer set it in another unit. SQLSTATE: 22008"
            )
        return CorruptMessage(
            f"{self._log}, record {record} of {block.record_count} in the batch at offset"
            f" {block.base_offset}: {_FAULTS[stopped.status].format(stopped.number)}"
        )

    def blocks(self, walk: MessageWalk) -> Iterator[Block]:
        """The blocks with records in the range asked for, in the answer's order; ``walk`` is an engine's.

        Of what comes after the range's end only the next entry's offset is looked at: nothing else in it can
        spoil the range. So it is with what comes after all that may be decompressed. A block is given out
        before the entry after it is looked at: whoever passes rows on takes the next block first, or the end.
        Raises what `engine.Walker.groups` does.
        """
        pos, data = 0, self._data
        at = self.next_offset
        lowest, asked, below = self._expected
        try:
            while at < self._end and self._room > 0 and (size := self._whole_batch(pos)) is not None:
                if size == _MESSAGES:
                    expected = ExpectedOffsets(lowest, asked, below)
                    found = step(data, pos, walk, expected, at, self._end, self._max_batch_bytes)
                    self._room -= found.decompressed_bytes
                    at = self.next_offset = found.next_offset
                    lowest = found.lowest
                    yield from found.blocks
                    if found.position is None:
                        return
                    pos = found.position
                    continue
                # A batch object would cost as much as the checksum of 16 KiB.
                (base, _, _, _, crc, attributes, last_delta, base_time, max_time, producer_id, _, _, count
                 ) = read_header_fields(data, pos)  # fmt: skip
                last = base + last_delta
                if base < lowest or last < asked or last >= below:
                    raise ExpectedOffsets(lowest, asked, below).refuse(base, last)
                lowest = last + 1
                if base >= self._end:
                    # A gap up to the end of the range, or a damaged offset: then what comes next is lower.
                    self._check_next(pos + size, lowest)
                    self.next_offset = base
                    return
                # The checksum comes before anything is believed, also of a batch that is then left out.
                if crc32c(data[pos + ATTRIBUTES_POSITION : pos + size]) != crc:
                    verify_crc(data, pos, read_header(data, pos))
                visible = self._visible(pos, attributes, producer_id, last)
                if visible and last >= at and (count or size > HEADER_SIZE):
                    append_time = attributes & LOG_APPEND_TIME_BIT
                    where = self._records(pos, size, count, attributes & CODEC_BITS)
                    low, high = max(0, at - base), min(last_delta + 1, self._end - base)
                    time = max_time if append_time else base_time
                    self.next_offset = lowest
                    yield Block(*where, count, last_delta, low, high, base, time, append_time >> 3)
                at = self.next_offset = max(at, lowest)
                pos += size
            self._check_next(pos, lowest)
        except KafkaError as e:
            raise type(e)(f"{self._log}, reading on from offset {at}: {e}") from e

    def _check_next(self, pos: int, lowest: int) -> None:
        """Compare the offset of the entry at ``pos``, if that much of it is there, with the entry before."""
        if len(self._data) - pos >= _LENGTH_POSITION:
            base = int.from_bytes(self._data[pos : pos + _LENGTH_POSITION], "big", signed=True)
            if base < lowest:
                raise ExpectedOffsets(lowest).refuse(base, base)

    def _whole_batch(self, pos: int) -> int | None:
        """Bytes of the batch at ``pos``, `_MESSAGES` where it is none but of v0 or v1; None where the answer
        ends or cuts it short.
        """
        data, left = self._data, len(self._data) - pos
        if left < BATCH_OVERHEAD:
            return None
        length = int.from_bytes(data[pos + _LENGTH_POSITION : pos + BATCH_OVERHEAD], "big", signed=True)
        if left > _MAGIC_POSITION and data[pos + _MAGIC_POSITION] < MAGIC:
            return _MESSAGES
        if length < _MIN_LENGTH:
            # No format at all: the walk over all of them knows what to say.
            next(frames(data[pos:]), None)
            return None
        size = BATCH_OVERHEAD + length
        return size if size <= left else None

    def _visible(self, pos: int, attributes: int, producer_id: int, last_offset: int) -> bool:
        """Whether the batch's records are for users: neither control records nor, if so asked, aborted
        ones.
        """
        if self._aborted is None or producer_id < 0:
            return not attributes & CONTROL_BIT
        self._aborted.advance(last_offset)
        if attributes & CONTROL_BIT:
            header = read_header(self._data, pos)
            records = decode_records(self._data, pos, header, self._max_batch_bytes, check_crc=False)
            if records and control_type(records[0]) is ControlType.ABORT:
                self._aborted.end(producer_id)
            return False
        return not (attributes & TRANSACTIONAL_BIT and producer_id in self._aborted)

    def _records(self, pos: int, size: int, count: int, codec: int) -> tuple[memoryview, int, int]:
        """Where the batch's records are once decompressed: buffer, start, end."""
        buffer, start, end = self._data, pos + HEADER_SIZE, pos + size
        if codec:
            buffer = record_block(self._data, pos, read_header(self._data, pos), self._max_batch_bytes)
            start, end = 0, len(buffer)
            self._room -= end
        if count * MIN_RECORD_BYTES > end - start:
            raise CorruptMessage(f"{count} records cannot be in {end - start} bytes")
        return buffer, start, end
