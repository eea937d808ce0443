"""Variable-length integers: seven bits to a byte, lowest first, the high bit set while more follow.

*Unsigned* ones stand in requests (compact lengths, tagged fields). Those in records are signed and
*zigzag* coded first, so that small negative numbers stay short: 0, -1, 1, -2 become 0, 1, 2, 3.
A ``varint`` holds 32 bits in at most five bytes, a ``varlong`` 64 bits in at most ten.
Source: Kafka protocol guide, "Protocol Primitive Types".

Readers take ``(buffer, position)`` and give ``(value, position after it)``.
"""

from __future__ import annotations

from pyspark_kafkalog.errors import CorruptMessage, InvalidRecord

Buffer = bytes | bytearray | memoryview

_MAX_UINT32 = (1 << 32) - 1
_MAX_UINT64 = (1 << 64) - 1


def _read(buf: Buffer, pos: int, largest: int) -> tuple[int, int]:
    """The unsigned number at ``pos``, which may not be above ``largest`` nor longer than that needs."""
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
    """The unsigned 32-bit number at ``pos`` and the position after it.

    Raises:
        CorruptMessage: it is cut short, or does not fit five bytes and 32 bits.
    """
    return _read(buf, pos, _MAX_UINT32)


def read_uvarlong(buf: Buffer, pos: int) -> tuple[int, int]:
    """The unsigned 64-bit number at ``pos`` and the position after it: a varlong before its zigzag is undone.

    Raises:
        CorruptMessage: it is cut short, or does not fit ten bytes and 64 bits.
    """
    return _read(buf, pos, _MAX_UINT64)


def read_varint(buf: Buffer, pos: int) -> tuple[int, int]:
    """The signed (zigzag) 32-bit number at ``pos`` and the position after it.

    Raises:
        CorruptMessage: it is cut short, or does not fit five bytes and 32 bits.
    """
    value, pos = _read(buf, pos, _MAX_UINT32)
    return (value >> 1) ^ -(value & 1), pos


def read_varlong(buf: Buffer, pos: int) -> tuple[int, int]:
    """The signed (zigzag) 64-bit number at ``pos`` and the position after it.

    Raises:
        CorruptMessage: it is cut short, or does not fit ten bytes and 64 bits.
    """
    value, pos = _read(buf, pos, _MAX_UINT64)
    return (value >> 1) ^ -(value & 1), pos


def write_uvarint(out: bytearray, value: int) -> None:
    """Append an unsigned number of at most 32 bits.

    Raises:
        InvalidRecord: ``value`` is outside [0, 2**32).
    """
    if not 0 <= value <= _MAX_UINT32:
        raise InvalidRecord(f"{value} does not fit an unsigned varint of 32 bits")
    out += _encode(value)


def varint_bytes(value: int) -> bytes:
    """``value`` as a varint.

    Raises:
        InvalidRecord: ``value`` is outside [-2**31, 2**31).
    """
    if not -(1 << 31) <= value < 1 << 31:
        raise InvalidRecord(f"{value} does not fit a varint of 32 bits")
    return _encode(value << 1 if value >= 0 else ~value << 1 | 1)


def varlong_bytes(value: int) -> bytes:
    """``value`` as a varlong.

    Raises:
        InvalidRecord: ``value`` is outside [-2**63, 2**63).
    """
    if not -(1 << 63) <= value < 1 << 63:
        raise InvalidRecord(f"{value} does not fit a varlong of 64 bits")
    return _encode(value << 1 if value >= 0 else ~value << 1 | 1)


def _encode(value: int) -> bytes:
    """The bytes of a number that is not negative."""
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
