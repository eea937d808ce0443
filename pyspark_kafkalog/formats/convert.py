"""Messages of one generation told in the format of another: an entry of 0.7 as a record batch v2. Pure.

The batch takes up the offsets that the entry does, one for each of its bytes: its base offset is the entry's
position, its last offset delta the entry's size less one. So whoever follows offsets as v2 has them follows
positions in 0.7's log. The messages have the first of these offsets, one each. They have no key and no time.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from pyspark_kafkalog.errors import CorruptMessage, InvalidRecord
from pyspark_kafkalog.formats.batch import seal_batch
from pyspark_kafkalog.formats.compression import Codec, compress
from pyspark_kafkalog.formats.record import encode_record
from pyspark_kafkalog.formats.v07 import entry_header, payloads_in_steps
from pyspark_kafkalog.formats.varint import Buffer
from pyspark_kafkalog.steps import Steps, finished
from pyspark_kafkalog.types import NO_TIMESTAMP, NewRecord

_AT_ONCE_BYTES = 1 << 17
"""More is compressed as a job."""


class ConvertedEntry(NamedTuple):
    """A record batch, the number of its records, and their bytes before compression."""

    batch: bytes
    message_count: int
    block_bytes: int


def batch_of_entry(entry: Buffer, offset: int, *, max_bytes: int, leader_epoch: int = -1) -> ConvertedEntry:
    """`batch_of_entry_in_steps`, all of them here and now. Raises the same."""
    return finished(batch_of_entry_in_steps(entry, offset, max_bytes=max_bytes, leader_epoch=leader_epoch))


def batch_of_entry_in_steps(
    entry: Buffer, offset: int, *, max_bytes: int, leader_epoch: int = -1
) -> Steps[ConvertedEntry]:
    """The batch that says what the ``entry``, one whole and no more, says at ``offset``.

    The entry may decompress to ``max_bytes``, all levels together. What was compressed is so again, in gzip,
    which every client can read: an answer would be some ten times as long without, and it costs little beside
    making the records. An entry without messages becomes a batch without records.

    Raises:
        CorruptMessage: it is not one whole entry, or one of its messages cannot be read.
        MessageTooLarge: it decompresses to more than ``max_bytes``.
        InvalidRecord: it holds more messages than bytes, so there is not an offset for each.
        UnsupportedCompression: the codec's library is not installed.
    """
    size = len(entry)
    found = entry_header(entry, 0)
    if found is None or found[1] != size:
        raise CorruptMessage(f"{size} bytes at offset {offset} are not one whole entry")
    block, count = bytearray(), 0

    def take(payload: memoryview) -> None:
        nonlocal block, count
        if count == size:
            raise InvalidRecord(
                f"the entry at offset {offset} has {size} bytes and more messages than that: record batches"
                " need an offset for each"
            )
        # Bytes and not objects are kept: there may be a million of them.
        block += encode_record(NewRecord(bytes(payload), None, NO_TIMESTAMP), NO_TIMESTAMP, count)
        count += 1

    yield from payloads_in_steps(entry, take, max_bytes=max_bytes)
    codec = Codec.GZIP if found[2] is not Codec.NONE and count else Codec.NONE
    packed: bytes
    if codec is Codec.NONE or len(block) <= _AT_ONCE_BYTES:
        packed = compress(codec, bytes(block))
    else:
        packed = yield partial(compress, codec, block)
    batch = seal_batch(
        packed,
        base_offset=offset,
        leader_epoch=leader_epoch,
        attributes=codec,
        last_offset_delta=size - 1,
        base_timestamp=NO_TIMESTAMP,
        max_timestamp=NO_TIMESTAMP,
        record_count=count,
    )
    return ConvertedEntry(batch, count, len(block))
