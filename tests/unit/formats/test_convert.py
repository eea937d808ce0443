"""One entry of 0.7 as one record batch."""

from __future__ import annotations

import pytest

from pyspark_kafkalog.errors import CorruptMessage, InvalidRecord, MessageTooLarge
from pyspark_kafkalog.formats.batch import decode_records, read_header
from pyspark_kafkalog.formats.compression import Codec
from pyspark_kafkalog.formats.convert import batch_of_entry
from pyspark_kafkalog.types import NO_TIMESTAMP, TimestampType
from tests.support.formats.captures_07 import SEGMENTS, captured
from tests.support.protocol.wire07 import SNAPPY, entry, zipped

LIMIT = 1 << 20


def converted(data: bytes, offset: int = 100) -> list[tuple[int, int, bytes | None]]:
    """Offset, next offset and value of the records."""
    batch = batch_of_entry(data, offset, max_bytes=LIMIT).batch
    found = decode_records(batch, 0, read_header(batch), LIMIT)
    return [(record.offset, record.next_offset, record.value) for record in found]


@pytest.mark.parametrize("magic", [0, 1])
def test_a_message_is_a_batch_of_one_record_that_takes_up_the_bytes_of_its_entry(magic: int) -> None:
    data = entry(b"hello", magic=magic)
    batch, count, block_bytes = batch_of_entry(data, 100, max_bytes=LIMIT, leader_epoch=3)
    header = read_header(batch)
    assert (header.base_offset, header.last_offset_delta, header.record_count) == (100, len(data) - 1, 1)
    assert (header.partition_leader_epoch, header.attributes, header.producer_id) == (3, 0, -1)
    assert (count, block_bytes, header.size) == (1, len(batch) - 61, len(batch))
    (record,) = decode_records(batch, 0, header, LIMIT)
    assert (record.key, record.value, record.headers) == (None, b"hello", ())
    assert (record.timestamp, record.timestamp_type) == (NO_TIMESTAMP, TimestampType.CREATE_TIME)
    assert (record.offset, record.next_offset) == (100, 100 + len(data))


def test_what_was_compressed_is_compressed_again_so_that_every_client_can_read_it() -> None:
    segment = captured("broker-0.7.2-segment-sn-0")
    first = int.from_bytes(segment[:4], "big") + 4
    assert segment[5] & 3 == SNAPPY
    batch = batch_of_entry(segment[:first], 0, max_bytes=LIMIT).batch
    assert read_header(batch).codec is Codec.GZIP
    values = [
        payload.encode() for payload, offset, _, _ in SEGMENTS["broker-0.7.2-segment-sn-0"] if not offset
    ]
    assert [value for _, _, value in converted(segment[:first])] == values
    text = zipped(*[entry(b"the same words again, number %d" % i) for i in range(200)])
    batch, _, block_bytes = batch_of_entry(text, 0, max_bytes=LIMIT)
    assert len(batch) < block_bytes / 5


def test_as_many_messages_as_bytes_are_the_most() -> None:
    size = 0
    for count in range(40, 80):
        data = zipped(*[entry(b"", magic=0)] * count)
        size = len(data)
        if count <= size:
            assert [offset for offset, _, _ in converted(data, 0)] == list(range(count))
        else:
            with pytest.raises(InvalidRecord, match=f"offset 0 has {size} bytes and more messages than that"):
                converted(data, 0)
    assert 40 < size < 80


def test_what_cannot_be_read_is_refused() -> None:
    whole = entry(b"hello")
    for data in (whole[:-1], whole + b"\0", whole + whole, b"", whole[:4]):
        with pytest.raises(CorruptMessage, match="are not one whole entry"):
            converted(data)
    with pytest.raises(CorruptMessage, match="bad checksum"):
        converted(entry(b"hello", crc=1))
    with pytest.raises(CorruptMessage, match="in the compressed entry"):
        converted(zipped(entry(b"a"), entry(b"hello", crc=1)))
    with pytest.raises(MessageTooLarge):
        converted(zipped(entry(bytes(LIMIT))))
