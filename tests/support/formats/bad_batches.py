"""Record batches v2 under a right checksum whose records are not right, and who refuses them.

Each by hand, since no encoder writes them; what Apache Kafka 3.9 answers was seen there, and
``tests/peers/test_refused_batches.py`` asks it again.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.formats.base import varint_bytes, varlong_bytes
from pyspark_kafkalog.formats.batch import seal_batch
from pyspark_kafkalog.formats.compression import Codec, compress

NONE, INVALID, TOO_LARGE = ErrorCode.NONE, ErrorCode.INVALID_RECORD, ErrorCode.MESSAGE_TOO_LARGE
UNKNOWN = ErrorCode.UNKNOWN_SERVER_ERROR

MANY = 40
"""Records of a batch of which not all are looked at unless it is compressed."""


@dataclass(frozen=True, slots=True)
class Case:
    """A block of records, the count that its header claims, and the answers to it: to the batch as it is, and
    to the batch with the block compressed.
    """

    block: bytes
    count: int
    plain: ErrorCode
    compressed: ErrorCode
    kafka_plain: ErrorCode
    kafka_compressed: ErrorCode
    compacted: bool = False


def record(
    delta: int = 0,
    *,
    value: bytes | None = b"value",
    key: bytes | None = b"key",
    length: int | None = None,
    key_length: int | None = None,
    value_length: int | None = None,
    headers: bytes = b"\0",
) -> bytes:
    """One record, with lengths that need not be true."""
    body = b"\0" + varlong_bytes(0) + varint_bytes(delta)
    for field, claimed in ((key, key_length), (value, value_length)):
        true = -1 if field is None else len(field)
        body += varint_bytes(true if claimed is None else claimed) + (field or b"")
    body += headers
    return varint_bytes(len(body) if length is None else length) + body


def records(count: int, start: int = 0) -> bytes:
    """So many good records."""
    return b"".join(record(delta) for delta in range(start, start + count))


def sealed(block: bytes, count: int, codec: Codec, *, timestamp: int, ready: bool = False) -> bytes:
    """The batch of a block; ``ready`` where it is compressed already, or only said to be."""
    return seal_batch(
        block if ready else compress(codec, block),
        attributes=codec, last_offset_delta=count - 1, base_timestamp=timestamp, max_timestamp=timestamp,
        record_count=count,
    )  # fmt: skip


def _last(*, count: int = 3, **fields: object) -> bytes:
    """Good records, but for the last one."""
    return records(count - 1) + record(count - 1, **fields)  # type: ignore[arg-type]


def _middle(**fields: object) -> bytes:
    """Good records, but for one in the middle of many, which is beyond those looked at if not compressed."""
    return records(30) + record(30, **fields) + records(MANY - 31, 31)  # type: ignore[arg-type]


def _refused(block: bytes, count: int) -> Case:
    return Case(block, count, INVALID, INVALID, INVALID, INVALID)


def _stricter(block: bytes, count: int) -> Case:
    """Refused here, and by Kafka as long as it is not compressed."""
    return Case(block, count, INVALID, INVALID, INVALID, NONE)


def _accepted(block: bytes, count: int) -> Case:
    return Case(block, count, NONE, NONE, NONE, NONE)


def _unseen(block: bytes, count: int) -> Case:
    """Of what is not compressed only the first records are read here."""
    return Case(block, count, NONE, INVALID, INVALID, INVALID)


def _deltas(block: bytes, count: int) -> Case:
    """Offset deltas that Kafka looks at in compressed batches only; its answer is an exception of its own."""
    return Case(block, count, NONE, INVALID, NONE, UNKNOWN)


def _header(name_length: int, value_length: int) -> bytes:
    return varint_bytes(1) + varint_bytes(name_length) + varint_bytes(value_length)


CASES = {
    "good ones": Case(records(3), 3, NONE, NONE, NONE, NONE),
    "many good ones": Case(records(MANY), MANY, NONE, NONE, NONE, NONE),
    "nothing at all": _refused(b"", 1),
    "text": _refused(b"no records at all, only a text that is long enough to hold some", 3),
    "2,000,000 records in 8 bytes": _refused(record()[:8], 2_000_000),
    "one record more in the count": _refused(records(3), 4),
    "one record less in the count": _refused(records(3), 2),
    "bytes after the last record": _refused(records(3) + b"\0\0\0", 3),
    "a last record cut short": _refused(records(3)[:-2], 3),
    "a length of one too many": _stricter(records(1) + record(1, length=16) + record(2), 3),
    "a length of one too few": _stricter(records(1) + record(1, length=13) + record(2), 3),
    "a negative length": _stricter(records(1) + record(1, length=-5) + record(2), 3),
    "a length of 0": _stricter(_last(length=0), 3),
    "a length of 2 GiB": _stricter(_last(length=2**31 - 1), 3),
    "a value beyond its record": _refused(_last(value_length=50), 3),
    "a value that leaves bytes": _refused(_last(value_length=3), 3),
    "a key that takes the value's length": _refused(_last(key_length=4), 3),
    "a key after the length -2": _refused(_last(key_length=-2), 3),
    "lengths of -2 for a null key and value": _accepted(
        _last(key=None, value=None, key_length=-2, value_length=-2), 3
    ),
    "a negative count of headers": _refused(_last(headers=varint_bytes(-1)), 3),
    "a million headers": _refused(_last(headers=varint_bytes(1_000_000)), 3),
    "2^31-1 headers in the first record": _refused(record(headers=varint_bytes(2**31 - 1)) + record(1), 2),
    "a header without a name": _refused(_last(headers=_header(-1, 0)), 3),
    "a header whose name leaves its record": _refused(_last(headers=_header(40, 0)), 3),
    "a header value of length -2": _accepted(_last(headers=_header(0, -2)), 3),
    "a key beyond its record, first of many": _refused(
        record(key_length=100) + records(MANY - 1, 1), MANY
    ),
    "offset deltas from 1 on": _deltas(records(3, 1), 3),
    "offset deltas that stay 0": _deltas(record() * 3, 3),
    "a last offset delta beyond the batch": _deltas(records(2) + record(7), 3),
    "an offset delta that is there twice": _deltas(records(1) + record(0) + record(2), 3),
    "a negative offset delta": _deltas(record(-1) + record(1) + record(2), 3),
    "no key in a compacted topic": Case(
        records(1) + record(1, key=None) + record(2), 3, INVALID, INVALID, INVALID, INVALID, compacted=True
    ),
    "a key of length -2 in a compacted topic": Case(
        _last(key=None, key_length=-2), 3, INVALID, INVALID, INVALID, INVALID, compacted=True
    ),
    "offset deltas from 1 on in a compacted topic": Case(
        records(3, 1), 3, INVALID, INVALID, NONE, UNKNOWN, compacted=True
    ),
    # What is left to readers: docs/formats.md says so.
    "a length of one too many in the middle": Case(_middle(length=16), MANY, NONE, INVALID, INVALID, NONE),
    "a value beyond its record in the middle": _unseen(_middle(value_length=50), MANY),
    "2^31-1 headers in the middle": _unseen(_middle(headers=varint_bytes(2**31 - 1)), MANY),
}  # fmt: skip

BLOCKS = ("text", "text after a true beginning", "the end cut off", "rubbish after the end")


def damaged(what: str, codec: Codec, timestamp: int) -> bytes:
    """A batch of 100 records whose block, one of `BLOCKS`, is not what its codec writes."""
    packed = compress(codec, records(100))
    block = {
        BLOCKS[0]: b"no block at all, only a text that is long enough to hold some",
        BLOCKS[1]: packed[:12] + b"no block from here on, only a text that is long enough",
        BLOCKS[2]: packed[:-6],
        BLOCKS[3]: packed + b"rubbish after the end",
    }[what]
    return sealed(block, 100, codec, timestamp=timestamp, ready=True)


KAFKA_TAKES = {(BLOCKS[3], Codec.GZIP), (BLOCKS[3], Codec.LZ4)}
"""What Kafka does not refuse of `damaged` with `UNKNOWN`: it reads as far as it must."""


def unfolding(size: int, count: int, timestamp: int) -> bytes:
    """A batch in zstd of one record with a value of ``size`` zeros; its header claims ``count`` of them."""
    return sealed(record(value=bytes(size)), count, Codec.ZSTD, timestamp=timestamp)
