"""What a log knew of its producers at one offset, so that not all of it need be replayed.

``producers.snapshot``: version:1 = 1, offset:8, crc32c:4 of the rest and of the fields before, then what the
guard dumped. It is a shortcut: when it is missing or damaged the log itself is read.
"""

from __future__ import annotations

import struct
from pathlib import Path

from broker.log.filesystem import FileSystem, read_file, replace_file
from pyspark_kafkalog.formats.checksum import crc32c

SNAPSHOT_NAME = "producers.snapshot"

_HEAD = struct.Struct(">bq")
_CRC = struct.Struct(">I")
_VERSION = 1


def write_snapshot(files: FileSystem, directory: Path, offset: int, dump: bytes) -> None:
    """Write down what was known of everything before ``offset``. Raises `OSError`."""
    head = _HEAD.pack(_VERSION, offset)
    crc = _CRC.pack(crc32c(dump, crc32c(head)))
    replace_file(files, directory / SNAPSHOT_NAME, head + crc + dump, durable=False)


def read_snapshot(files: FileSystem, directory: Path) -> tuple[int, bytes] | None:
    """The offset and what was dumped there; None when there is no whole snapshot. Raises `OSError`."""
    try:
        data = read_file(files, directory / SNAPSHOT_NAME)
    except FileNotFoundError:
        return None
    body = _HEAD.size + _CRC.size
    if len(data) < body:
        return None
    version, offset = _HEAD.unpack_from(data)
    (crc,) = _CRC.unpack_from(data, _HEAD.size)
    dump = data[body:]
    if version != _VERSION or crc32c(dump, crc32c(data[: _HEAD.size])) != crc:
        return None
    return offset, dump
