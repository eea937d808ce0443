"""What all formats share: the interface that keeps logs independent of their generation, variable-length
integers, and Kafka's two checksums, each from the fastest installed library.

v2 batches use CRC-32C (Castagnoli), older messages CRC-32 (as in zip). The ``crc32c`` package uses the
processor's instruction; where it has no wheel, ``crcmod`` is used, about fifty times slower.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from typing import NamedTuple, Protocol, cast

from pyspark_kafkalog.errors import CorruptMessage, InvalidRecord
from pyspark_kafkalog.types import Record

Buffer = bytes | bytearray | memoryview


class Frame(NamedTuple):
    """One entry of a log without its content: a 0.7 message, a v0/v1 entry or a v2 batch.

    ``position`` and ``size`` are bytes; ``next_offset`` is where the next frame's records may begin.
    ``max_timestamp`` is in milliseconds, -1 if the format has none. For a compressed v0 or v1 set
    ``first_is_known`` is False and ``first_offset`` its last message's: only decompression gives the first.
    """

    position: int
    size: int
    first_offset: int
    last_offset: int
    next_offset: int
    max_timestamp: int
    first_is_known: bool = True

    @property
    def end(self) -> int:
        return self.position + self.size


class MessageFormat(Protocol):
    """Bytes to frames to records, one implementation per generation. Pure and stateless."""

    min_frame_size: int

    def frame_at(self, buf: memoryview, pos: int, offset: int) -> Frame | None:
        """The frame at ``pos``, perhaps beyond ``buf``'s end; None while its header is incomplete. Only 0.7,
        whose bytes hold no offset, uses ``offset``.
        """

    def verify(self, buf: memoryview, frame: Frame) -> None:
        """Check the frame's CRC; the whole frame must be in ``buf``."""

    def records(self, buf: memoryview, frame: Frame, *, max_bytes: int) -> Iterator[Record]:
        """The frame's records without control records, decompressing at most ``max_bytes``."""

    def times(self, buf: memoryview, frame: Frame, *, max_bytes: int) -> Iterator[tuple[int, int]]:
        """Timestamp and offset of each record that `records` yields, without creating it."""


# --- variable-length integers: seven bits per byte, lowest first; the high bit is set while more follow
#
# Requests use *unsigned* ones (compact lengths, tagged fields). Records use signed ones, *zigzag* coded so
# that small negative numbers stay short: 0, -1, 1, -2 become 0, 1, 2, 3. A ``varint`` holds 32 bits in up to
# five bytes, a ``varlong`` 64 bits in up to ten. Readers take ``(buffer, position)`` and return ``(value,
# position after it)``. Source: Kafka protocol guide, "Protocol Primitive Types".

_MAX_UINT32 = (1 << 32) - 1
_MAX_UINT64 = (1 << 64) - 1


def _read(buf: Buffer, pos: int, largest: int) -> tuple[int, int]:
    """The unsigned number at ``pos``, at most ``largest``, in no more bytes than that needs."""
    value = shift = 0
    start, bits = pos, largest.bit_length()
    try:
        while True:
            byte = buf[pos]
            pos += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if shift >= bits:
                raise CorruptMessage(
                    f"variable-length integer at byte {start} is longer than {bits} bits need"
                )
    except IndexError:
        raise CorruptMessage(f"variable-length integer at byte {start} is cut short") from None
    if value > largest:
        raise CorruptMessage(f"variable-length integer at byte {start} does not fit {bits} bits")
    return value, pos


def read_uvarint(buf: Buffer, pos: int) -> tuple[int, int]:
    return _read(buf, pos, _MAX_UINT32)


def read_uvarlong(buf: Buffer, pos: int) -> tuple[int, int]:
    """An unsigned 64-bit number: a varlong before zigzag decoding."""
    return _read(buf, pos, _MAX_UINT64)


def read_varint(buf: Buffer, pos: int) -> tuple[int, int]:
    value, pos = _read(buf, pos, _MAX_UINT32)
    return (value >> 1) ^ -(value & 1), pos


def read_varlong(buf: Buffer, pos: int) -> tuple[int, int]:
    value, pos = _read(buf, pos, _MAX_UINT64)
    return (value >> 1) ^ -(value & 1), pos


def write_uvarint(out: bytearray, value: int) -> None:
    if not 0 <= value <= _MAX_UINT32:
        raise InvalidRecord(f"{value} does not fit an unsigned varint of 32 bits")
    out += _encode(value)


def varint_bytes(value: int) -> bytes:
    if not -(1 << 31) <= value < 1 << 31:
        raise InvalidRecord(f"{value} does not fit a varint of 32 bits")
    return _encode(value << 1 if value >= 0 else ~value << 1 | 1)


def varlong_bytes(value: int) -> bytes:
    if not -(1 << 63) <= value < 1 << 63:
        raise InvalidRecord(f"{value} does not fit a varlong of 64 bits")
    return _encode(value << 1 if value >= 0 else ~value << 1 | 1)


def _encode(value: int) -> bytes:
    if value < 0x80:
        return bytes((value,))
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


# --- checksums


class _Checksum(Protocol):
    def __call__(self, data: Buffer, value: int = 0, /) -> int:
        """The unsigned checksum of ``data``; ``value`` is the checksum of preceding bytes."""


def _portable_crc32c() -> _Checksum:
    """Polynomial 0x1EDC6F41, reflected, all bits inverted before and after."""
    import crcmod

    return cast(_Checksum, crcmod.mkCrcFun(0x11EDC6F41, initCrc=0, rev=True, xorOut=0xFFFFFFFF))


def _hardware_crc32c() -> _Checksum:
    """From the extension module: importing the package loads argparse, 40 ms of a Spark worker's start."""
    package = find_spec("crc32c")
    spec = package and PathFinder.find_spec("_crc32c", package.submodule_search_locations)
    if spec is None or spec.loader is None:
        raise ImportError("crc32c is not installed")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return cast(_Checksum, module.crc32c)


try:
    crc32c = _hardware_crc32c()  # without a wrapper, because it is called for every batch
except ImportError:
    crc32c = _portable_crc32c()

try:
    from isal.isal_zlib import crc32 as _crc32
except ImportError:
    from zlib import crc32 as _crc32
crc32: _Checksum = _crc32
