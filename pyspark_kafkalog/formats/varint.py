"""Variable-length integers: seven bits per byte, lowest first; the high bit is set while more follow.

Requests use *unsigned* ones (compact lengths, tagged fields). Records use signed ones, *zigzag* coded so that
small negative numbers stay short: 0, -1, 1, -2 become 0, 1, 2, 3. A ``varint`` holds 32 bits in up to five
bytes, a ``varlong`` 64 bits in up to ten. Source: Kafka protocol guide, "Protocol Primitive Types".

Readers take ``(buffer, position)`` and return ``(value, position after it)``.
"""

from __future__ import annotations

from pyspark_kafkalog.errors import CorruptMessage, InvalidRecord

Buffer = bytes | bytearray | memoryview

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
