"""What a fetch before version 10 may not see: batches in zstd."""

from __future__ import annotations

from broker.network.transmission import Region
from pyspark_kafkalog.errors import UnsupportedCompression
from pyspark_kafkalog.formats.batch import HEADER_SIZE, read_header
from pyspark_kafkalog.formats.compression import Codec
from pyspark_kafkalog.types import TopicPartition


def without_zstd(partition: TopicPartition, piece: Region) -> bytes:
    """The slice's bytes up to its first batch in zstd; the slice is closed.

    Reads the slice, at most the fetch's limit or one batch: only clients of 2018 and before ask so.

    Raises:
        UnsupportedCompression: the first batch is in zstd, so there is nothing that could be sent.
    """
    try:
        data = piece.read()
    finally:
        piece.close()
    view, pos = memoryview(data), 0
    while pos + HEADER_SIZE <= len(view):
        header = read_header(view, pos)
        if header.codec == Codec.ZSTD:
            if pos == 0:
                raise UnsupportedCompression(
                    f"{partition}: offset {header.base_offset} is in zstd, which needs Fetch 10 or later"
                )
            return bytes(view[:pos])
        pos += header.size
    return bytes(data)
