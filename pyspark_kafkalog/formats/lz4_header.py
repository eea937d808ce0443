"""The checksum byte in the header of an lz4 frame, which message format v0 has wrong.

Kafka before 0.10 took it over the frame's magic number and the descriptor, and not over the descriptor alone
as the lz4 frame format says. Its readers expect that byte in v0, so writers of v0 must write it, and no
lz4 library reads it. Since v1 the byte is right.
Source: KIP-57; lz4 frame format 1.6, "Frame Descriptor"; the xxHash specification, "XXH32".
"""

from __future__ import annotations

from pyspark_kafkalog.formats.varint import Buffer

_FRAME_MAGIC = b"\x04\x22\x4d\x18"
_FLAGS_POSITION = 4
_CONTENT_SIZE_BIT = 0x08
_DICTIONARY_ID_BIT = 0x01

_PRIME_1, _PRIME_2, _PRIME_3, _PRIME_4, _PRIME_5 = (
    0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D, 0x27D4EB2F, 0x165667B1,
)  # fmt: skip
_MASK = 0xFFFFFFFF


def with_checksum_of_v0(frame: Buffer) -> bytes:
    """The same frame with the checksum byte that v0 has."""
    return _with_checksum_from(frame, 0)


def with_right_checksum(frame: Buffer) -> bytes:
    """The same frame with the checksum byte that lz4 libraries want, whatever it was.

    What does not begin as a frame is given back as it is: the library says what is wrong with it.
    """
    return _with_checksum_from(frame, _FLAGS_POSITION)


def xxh32(data: Buffer) -> int:
    """XXH32 of ``data`` with seed 0."""
    size, pos = len(data), 0
    total = _PRIME_5
    if size >= 16:
        lanes = [_PRIME_1 + _PRIME_2 & _MASK, _PRIME_2, 0, -_PRIME_1 & _MASK]
        while pos <= size - 16:
            for lane in range(4):
                mixed = lanes[lane] + _word(data, pos) * _PRIME_2
                lanes[lane] = _rotated(mixed, 13) * _PRIME_1 & _MASK
                pos += 4
        total = sum(_rotated(lane, turn) for lane, turn in zip(lanes, (1, 7, 12, 18), strict=True))
    total += size
    while pos <= size - 4:
        total = _rotated(total + _word(data, pos) * _PRIME_3, 17) * _PRIME_4
        pos += 4
    for byte in data[pos:]:
        total = _rotated(total + byte * _PRIME_5, 11) * _PRIME_1
    total &= _MASK
    total = (total ^ total >> 15) * _PRIME_2 & _MASK
    total = (total ^ total >> 13) * _PRIME_3 & _MASK
    return total ^ total >> 16


def _with_checksum_from(frame: Buffer, start: int) -> bytes:
    """``frame`` with a checksum byte over its bytes from ``start`` to the descriptor's end."""
    out = bytearray(frame)
    if len(out) <= _FLAGS_POSITION or out[:_FLAGS_POSITION] != _FRAME_MAGIC:
        return bytes(out)
    flags = out[_FLAGS_POSITION]
    end = (
        _FLAGS_POSITION
        + 2
        + (8 if flags & _CONTENT_SIZE_BIT else 0)
        + (4 if flags & _DICTIONARY_ID_BIT else 0)
    )
    if end < len(out):
        out[end] = xxh32(out[start:end]) >> 8 & 0xFF
    return bytes(out)


def _word(data: Buffer, pos: int) -> int:
    return int.from_bytes(data[pos : pos + 4], "little")


def _rotated(value: int, bits: int) -> int:
    value &= _MASK
    return (value << bits | value >> 32 - bits) & _MASK
