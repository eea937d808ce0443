"""The header of an lz4 frame as Kafka's clients of 0.8 to 0.10 need it, which lz4 libraries do not write.

* Before 0.10 Kafka took the header's checksum byte over the frame's magic number and the descriptor, and not
  over the descriptor alone as the lz4 frame format says. In message format v0 the wrong byte is the one that
  its readers expect. Since v1 it is right.
* Its readers of that time cannot read a frame that tells its content's size.

Source: KIP-57; Kafka 0.9 ``message/KafkaLZ4BlockInputStream.java``; lz4 frame format 1.6, "Frame Descriptor";
the xxHash specification, "XXH32".
"""

from __future__ import annotations

from pyspark_kafkalog.formats.varint import Buffer

_FRAME_MAGIC = b"\x04\x22\x4d\x18"
_FLAGS_POSITION = 4
_SIZE_POSITION = 6
_SIZE_BYTES = 8
_DICTIONARY_ID_BYTES = 4
_CONTENT_SIZE_BIT = 0x08
_DICTIONARY_ID_BIT = 0x01

_PRIME_1, _PRIME_2, _PRIME_3, _PRIME_4, _PRIME_5 = (
    0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D, 0x27D4EB2F, 0x165667B1,
)  # fmt: skip
_MASK = 0xFFFFFFFF


def for_message_set(frame: bytes, magic: int) -> bytes:
    """The ``frame`` of an lz4 library as a message set of format ``magic`` holds it."""
    out = bytearray(frame)
    if out[_FLAGS_POSITION] & _CONTENT_SIZE_BIT:
        out[_FLAGS_POSITION] &= ~_CONTENT_SIZE_BIT
        del out[_SIZE_POSITION : _SIZE_POSITION + _SIZE_BYTES]
    _sum_header(out, 0 if magic == 0 else _FLAGS_POSITION)
    return bytes(out)


def with_right_checksum(frame: Buffer) -> bytes:
    """The same frame with the checksum byte that lz4 libraries want, whatever it was.

    What does not begin as a frame is given back as it is: the library says what is wrong with it.
    """
    out = bytearray(frame)
    if len(out) > _FLAGS_POSITION and out.startswith(_FRAME_MAGIC):
        _sum_header(out, _FLAGS_POSITION)
    return bytes(out)


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


def _sum_header(frame: bytearray, start: int) -> None:
    """Set the checksum byte, over the bytes from ``start`` to the descriptor's end."""
    flags = frame[_FLAGS_POSITION]
    end = _SIZE_POSITION
    if flags & _CONTENT_SIZE_BIT:
        end += _SIZE_BYTES
    if flags & _DICTIONARY_ID_BIT:
        end += _DICTIONARY_ID_BYTES
    if end < len(frame):
        frame[end] = xxh32(frame[start:end]) >> 8 & 0xFF


def _word(data: Buffer, pos: int) -> int:
    return int.from_bytes(data[pos : pos + 4], "little")


def _rotated(value: int, bits: int) -> int:
    value &= _MASK
    return (value << bits | value >> 32 - bits) & _MASK
