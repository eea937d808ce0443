"""Walks a fetch answer batch by batch and yields the blocks of records that a reader may see: everything that
is per batch (end, checksum, decompression, transactions, offset range). The engines do the work per record.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from pyspark_kafkalog.columnar.column_types import (
    Answer,
    BatchRun,
    Block,
    BlockTable,
    ColumnLimits,
    Cursor,
    Engine,
    Kind,
    Status,
    Stopped,
    Walk,
    WalkPosition,
    Walks,
)
from pyspark_kafkalog.columnar.message_walk import WalkedBlocks, step, walk_messages
from pyspark_kafkalog.columnar.message_walk import records as message_records
from pyspark_kafkalog.errors import CorruptMessage, InvalidTimestamp, KafkaError
from pyspark_kafkalog.formats.base import crc32c
from pyspark_kafkalog.formats.batch import (
    ATTRIBUTES_POSITION,
    BATCH_OVERHEAD,
    CODEC_BITS,
    CONTROL_BIT,
    HEADER_SIZE,
    LOG_APPEND_TIME_BIT,
    MAGIC,
    read_header,
    read_header_fields,
    verify_crc,
)
from pyspark_kafkalog.formats.compression import Codec, decompress
from pyspark_kafkalog.formats.message_set import AbortedTransactions, ExpectedOffsets, frames
from pyspark_kafkalog.formats.record import MIN_RECORD_BYTES, parse_records
from pyspark_kafkalog.types import Record

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


class PlainWalks:
    """The walks in plain Python. *Thread-safe: no state.* `BatchWalk` then examines each batch itself."""

    def walk_batches(
        self, _data: memoryview, _place: WalkPosition, _limits: ColumnLimits, _suspects: Collection[int]
    ) -> BatchRun:
        return _ONE_BY_ONE

    def walk_messages(self, data: memoryview, start: int, stop: int, below: int) -> Walk:
        return walk_messages(data, start, stop, below)


_ONE_BY_ONE = BatchRun(Status.ODD)


def _fits(block: Block, kind: Kind, records: int, size: int, limits: ColumnLimits) -> bool:
    return (
        block.kind is kind
        and records + block.record_count <= limits.records
        and size + block.end - block.start <= limits.data_bytes
    )


class BatchWalk:
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

    def groups(self, engine: Engine, limits: ColumnLimits) -> Iterator[Sequence[Block]]:
        """As many blocks as fit one record batch: an engine's call costs about 20 us. The next entry's offset
        is read first, which may show that a group's offsets are damaged.
        """
        group: list[Block] | BlockTable = []
        records = size = 0
        for found in self._found(engine, limits):
            more: Sequence[Block] = found if isinstance(found, BlockTable) else (found,)
            first = more[0]
            if group and _fits(first, group[0].kind, records, size, limits):
                # Rare: a table usually ends because no more fits.
                group = list(group)
            elif isinstance(found, BlockTable):
                if group:
                    yield group
                group, records, size = found, found.record_count, found.data_bytes
                continue
            for block in more:
                if group and not _fits(block, group[0].kind, records, size, limits):
                    yield group
                    group, records, size = [], 0, 0
                assert isinstance(group, list)
                group.append(block)
                records += block.record_count
                size += block.end - block.start
        if group:
            yield group

    def took(self, blocks: Sequence[Block], cursor: Cursor, stopped: Stopped) -> int | None:
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

    def blocks(self) -> Iterator[Block]:
        """Blocks one by one, in plain Python; take the next before passing rows on: see `groups`."""
        for found in self._found(PlainWalks(), ColumnLimits(0, 0, 0)):
            assert isinstance(found, Block)
            yield found

    def verified_blocks(self) -> Iterator[Block]:
        """As `blocks`, each after the next entry's offset was checked, which may show damage to its own."""
        held = None
        for block in self.blocks():
            if held is not None:
                yield held
            held = block
        if held is not None:
            yield held

    def _found(self, walks: Walks, limits: ColumnLimits) -> Iterator[Block | BlockTable]:
        """Blocks with wanted records. After the range's end only the next entry's offset is read."""
        place = WalkPosition(0, *self._expected, self.next_offset, self._end)
        try:
            while place.at < self._end and self._room > 0:
                suspects = self._aborted.producers() if self._aborted else ()
                run = walks.walk_batches(self._data, place, limits, suspects)
                if run.codec and run.blocks:
                    yield from self._decompressed(run.blocks, run.codec, limits)
                    if self._room <= 0:
                        return
                self.next_offset = place.at
                if run.blocks and not run.codec:
                    yield run.blocks
                if run.status is not Status.ODD:
                    continue
                size = self._whole_batch(place.position)
                if size is None:
                    break
                if size == _MESSAGES:
                    step = self._step(walks, place)
                    self.next_offset = place.at
                    yield from step.blocks
                    if step.position is None:
                        return
                elif (block := self._look_at(place, size)) is not None:
                    self.next_offset = place.at
                    yield block
            self.next_offset = place.at
            ExpectedOffsets(place.lowest).check_next(self._data, place.position)
        except KafkaError as e:
            raise type(e)(f"{self._log}, reading on from offset {self.next_offset}: {e}") from e

    def _step(self, walks: Walks, place: WalkPosition) -> WalkedBlocks:
        expected = ExpectedOffsets(place.lowest, place.asked, place.below)
        most = self._max_batch_bytes
        found = step(self._data, place.position, walks, expected, place.at, self._end, most)
        self._room -= found.decompressed_bytes
        place.at, place.lowest = found.next_offset, found.lowest
        place.position = place.position if found.position is None else found.position
        return found

    def _look_at(self, place: WalkPosition, size: int) -> Block | None:
        """The batch of ``size`` bytes at ``place``, which moves; None if none of it is wanted."""
        data, pos, at = self._data, place.position, place.at
        # A batch object would cost as much as the checksum of 16 KiB.
        (base, _, _, _, crc, attributes, last_delta, base_time, max_time, producer_id, _, _, count
         ) = read_header_fields(data, pos)  # fmt: skip
        last = base + last_delta
        if base < place.lowest or last < place.asked or last >= place.below:
            raise ExpectedOffsets(place.lowest, place.asked, place.below).refuse(base, last)
        if base >= self._end:
            # A gap up to the range's end, or a damaged offset; in that case the next entry's is lower.
            place.position, place.lowest, place.at = pos + size, last + 1, base
            return None
        # Verify before believing anything, also for a batch that is then skipped.
        if crc32c(data[pos + ATTRIBUTES_POSITION : pos + size]) != crc:
            verify_crc(data, pos, read_header(data, pos))
        visible = self._visible(pos, attributes, producer_id, last)
        block = None
        if visible and last >= at and (count or size > HEADER_SIZE):
            where = self._records(pos + HEADER_SIZE, pos + size, count, attributes & CODEC_BITS)
            low, high = max(0, at - base), min(last_delta + 1, self._end - base)
            append_time = attributes & LOG_APPEND_TIME_BIT
            time = max_time if append_time else base_time
            block = Block(*where, count, last_delta, low, high, base, time, append_time >> 3)
        place.position, place.lowest, place.at = pos + size, last + 1, max(at, last + 1)
        return block

    def _decompressed(self, packed: BlockTable, codec: int, limits: ColumnLimits) -> Iterator[BlockTable]:
        """Decompress into buffers of one record batch each, without a Python object per block."""
        first = records = size = 0
        parts: list[bytes | memoryview] = []
        ends: list[int] = []
        for number, (start, end, count) in enumerate(packed.spans()):
            try:
                buffer, begin, stop = self._records(start, end, count, codec)
            except KafkaError:
                self.next_offset = max(self.next_offset, packed[number].base_offset)
                raise
            part = buffer[begin:stop]
            if parts and (records + count > limits.records or size + len(part) > limits.data_bytes):
                yield packed[first:number].unpacked(parts, ends)
                first, records, size, parts, ends = number, 0, 0, [], []
            parts.append(part)
            records += count
            size += len(part)
            ends.append(size)
            if self._room <= 0:
                break
        table = packed[first : first + len(parts)].unpacked(parts, ends)
        self.next_offset = table[-1].base_offset + table[-1].last_delta + 1
        yield table

    def _records(self, start: int, end: int, count: int, codec: int) -> tuple[memoryview, int, int]:
        buffer = self._data
        if codec and start < end:
            buffer = memoryview(decompress(Codec.of(codec), buffer[start:end], self._max_batch_bytes))
            start, end = 0, len(buffer)
            self._room -= end
        if count * MIN_RECORD_BYTES > end - start:
            raise CorruptMessage(f"{count} records cannot be in {end - start} bytes")
        return buffer, start, end

    def _whole_batch(self, pos: int) -> int | None:
        """Size of the batch at ``pos``; `_MESSAGES` for v0 and v1; None if the answer ends or cuts it."""
        data, left = self._data, len(self._data) - pos
        if left < BATCH_OVERHEAD:
            return None
        length = int.from_bytes(data[pos + _LENGTH_POSITION : pos + BATCH_OVERHEAD], "big", signed=True)
        if left > _MAGIC_POSITION and data[pos + _MAGIC_POSITION] < MAGIC:
            return _MESSAGES
        if length < _MIN_LENGTH:
            # Not a valid format: `frames` raises the error.
            next(frames(data[pos:]), None)
            return None
        size = BATCH_OVERHEAD + length
        return size if size <= left else None

    def _visible(self, pos: int, attributes: int, producer_id: int, last_offset: int) -> bool:
        if self._aborted is None or producer_id < 0:
            return not attributes & CONTROL_BIT
        return not self._aborted.hides(
            self._data, pos, attributes, producer_id, last_offset, self._max_batch_bytes
        )


def block_records(block: Block) -> list[Record]:
    if block.kind is Kind.MESSAGES:
        return message_records(block)
    records = parse_records(
        bytes(block.buffer[block.start : block.end]),
        block.record_count,
        base_offset=block.base_offset,
        last_offset_delta=block.last_delta,
        base_timestamp=block.timestamp,
        append_timestamp=block.timestamp if block.append_time else None,
    )
    low, high = block.base_offset + block.low, block.base_offset + block.high
    if records and low <= records[0].offset and records[-1].offset < high:
        return records
    return [record for record in records if low <= record.offset < high]
