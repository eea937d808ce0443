"""The five codecs of Kafka's record sets, decompressed within a limit.

A block's claimed size is checked against the limit before allocating. Without a claim the output grows in
steps to at most ``max_bytes`` plus one step. Libraries are imported on first use.

* **gzip**: consecutive members (RFC 1952). isal if installed, else zlib.
* **snappy**: a bare block, as librdkafka and sarama write, or xerial framing, as the JVM writes:
  ``82 'SNAPPY' 00``, version:4, compatible version:4, then blocks of ``length:4 block``, big-endian.
* **lz4**: the LZ4 frame format with independent blocks, which the JVM's reader requires. Message sets of 0.8
  to 0.10 need another header, which lz4 libraries do not write: before 0.10 (format v0) the header checksum
  also covers the frame's magic number, and readers reject frames with a content size.
* **zstd**: frames, often without a content size.

Source for lz4: KIP-57; Kafka 0.9 ``message/KafkaLZ4BlockInputStream.java``; lz4 frame format 1.6, "Frame
Descriptor"; the xxHash specification, "XXH32".
"""

from __future__ import annotations

import struct
import sys
import threading
import zlib
from collections.abc import Callable, Iterator
from enum import IntEnum
from importlib import import_module
from typing import Any

from pyspark_kafkalog.errors import CorruptMessage, InvalidConfig, MessageTooLarge, UnsupportedCompression
from pyspark_kafkalog.formats.base import Buffer, read_uvarint

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = struct.Struct(">8sii")
_XERIAL_VERSION = 1
_XERIAL_BLOCK_BYTES = 32 * 1024  # block size of the xerial library; readers accept any
_SNAPPY_MAX_RATIO = 22  # a snappy element of n bytes yields at most 22 n: a copy of three bytes yields 64
_SNAPPY_COPIED_BYTES = 16 * 1024
"""Up to this size python-snappy is faster than our own buffer, although it briefly holds a block twice."""

_GZIP_WBITS = 31
_MEMBER_INPUT_BYTES = 4096  # input step from the second gzip member on: the library copies all unused input
_LZ4_MAX_RATIO = 255  # an lz4 byte yields at most 255: each 255 adds as much to a match's length
_STEP_RATIO = 8
_MAX_STEP_BYTES = 1 << 20
"""First output step for lz4 without a content size: `_STEP_RATIO` times the input, at most this."""

_ZSTD_LEVEL = 3
_ZSTD_RLE_BLOCK = 1


class Codec(IntEnum):
    """Compression of a record set; the numbers are bits 0-2 of its attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4

    @classmethod
    def named(cls, text: str) -> Codec:
        """The codec of this name, as in ``compression.type``. Raises `InvalidConfig`."""
        try:
            return cls[text.strip().upper()]
        except KeyError:
            allowed = ", ".join(codec.name.lower() for codec in cls)
            raise InvalidConfig(f"unknown compression {text!r}; allowed: {allowed}") from None

    @classmethod
    def of(cls, number: int) -> Codec:
        try:
            return cls(number)
        except ValueError:
            raise UnsupportedCompression(f"compression codec {number} is unknown: Kafka has 0 to 4") from None


_LIBRARIES = {
    Codec.SNAPPY: ("snappy", "python-snappy"), Codec.LZ4: ("lz4.frame", "lz4"),
    Codec.ZSTD: ("zstandard", "zstandard"),
}  # fmt: skip
"""Module and package of each codec that needs one."""
LEVELS = {Codec.GZIP: range(1, 10), Codec.LZ4: range(17), Codec.ZSTD: range(1, 23)}
"""Levels allowed by each codec; the others have none."""


def compress(codec: Codec, data: Buffer, level: int | None = None) -> bytes:
    """``data`` compressed as one record set's block; snappy in xerial framing.

    ``level`` None is the library's default; for gzip isal's, over ten times faster than zlib's with slightly
    larger results, whereas any level selects zlib. Raises `InvalidConfig` for a level that the codec lacks.
    """
    if level is not None and level not in LEVELS.get(codec, ()):
        allowed = LEVELS.get(codec)
        span = f"allowed: {allowed[0]} to {allowed[-1]}" if allowed else "it has no levels"
        raise InvalidConfig(f"compression level {level} for {codec.name.lower()}; {span}")
    if codec is Codec.NONE:
        return bytes(data)
    return _COMPRESS[codec](data, level)


def decompress(codec: Codec, data: Buffer, max_bytes: int) -> bytes | memoryview:
    """The decompressed ``data``, at most ``max_bytes``; for codec NONE a view of it."""
    if codec is Codec.NONE:
        if len(data) > max_bytes:
            raise _too_large(codec, max_bytes)
        return memoryview(data)
    return _DECOMPRESS[codec](data, max_bytes)


def _too_large(codec: Codec, max_bytes: int, claimed: int | None = None) -> MessageTooLarge:
    size = f"{claimed} bytes" if claimed is not None else f"more than {max_bytes} bytes"
    return MessageTooLarge(f"{codec.name.lower()} data decompresses to {size}; limit is {max_bytes}")


def _corrupt(codec: Codec, why: object) -> CorruptMessage:
    return CorruptMessage(f"{codec.name.lower()} data is corrupt: {why}")


def _library(codec: Codec) -> Any:
    module, package = _LIBRARIES[codec]
    try:
        return sys.modules.get(module) or import_module(module)  # import_module takes a microsecond
    except ImportError:
        raise UnsupportedCompression(
            f"{codec.name.lower()} needs the package {package}, which is not installed"
        ) from None


def _gzip_library() -> tuple[Any, tuple[Any, ...]]:
    try:
        from isal import isal_zlib
    except ImportError:
        return zlib, (zlib.error,)
    return isal_zlib, (isal_zlib.error, zlib.error)


def _gzip_compress(data: Buffer, level: int | None) -> bytes:
    if level is None:
        library, _ = _gzip_library()
        packer = library.compressobj(wbits=_GZIP_WBITS)
    else:
        packer = zlib.compressobj(level, wbits=_GZIP_WBITS)
    return bytes(packer.compress(data) + packer.flush())


def _gzip_decompress(data: Buffer, max_bytes: int) -> bytes | memoryview:
    library, errors = _gzip_library()
    try:
        member = library.decompressobj(_GZIP_WBITS)
        out = member.decompress(data, max_bytes + 1)
        if len(out) > max_bytes:
            raise _too_large(Codec.GZIP, max_bytes)
        if not member.eof:
            raise _corrupt(Codec.GZIP, "the data is cut short")
        if not member.unused_data:
            return bytes(out)
        rest = memoryview(data)[len(data) - len(member.unused_data) :]
        return _gzip_members(library, bytearray(out), rest, max_bytes)
    except errors as e:
        raise _corrupt(Codec.GZIP, e) from None


def _gzip_members(library: Any, out: bytearray, rest: memoryview, max_bytes: int) -> memoryview:
    while rest:
        member = library.decompressobj(_GZIP_WBITS)
        while not member.eof:
            if not rest:
                raise _corrupt(Codec.GZIP, "the data is cut short")
            given = rest[:_MEMBER_INPUT_BYTES]
            out += member.decompress(given, max_bytes + 1 - len(out))
            if len(out) > max_bytes:
                raise _too_large(Codec.GZIP, max_bytes)
            rest = rest[len(given) - len(member.unused_data) :]
    return memoryview(out)


def _snappy_compress(data: Buffer, level: int | None) -> bytes:  # noqa: ARG001  (snappy has no levels)
    block = _library(Codec.SNAPPY).compress
    view = memoryview(data)
    parts = [_XERIAL_HEADER.pack(_XERIAL_MAGIC, _XERIAL_VERSION, _XERIAL_VERSION)]
    for start in range(0, len(view), _XERIAL_BLOCK_BYTES):
        packed = block(view[start : start + _XERIAL_BLOCK_BYTES])
        parts += (len(packed).to_bytes(4, "big"), packed)
    return b"".join(parts)


def _snappy_decompress(data: Buffer, max_bytes: int) -> bytes | memoryview:
    library = _library(Codec.SNAPPY)
    view = memoryview(data)
    blocks = _xerial_blocks(view) if view[:8] == _XERIAL_MAGIC else [view]
    sizes = [_snappy_claim(block) for block in blocks]
    total = sum(sizes)
    if total > max_bytes:
        raise _too_large(Codec.SNAPPY, max_bytes, total)
    if len(blocks) > 1 or total > _SNAPPY_COPIED_BYTES:
        return _snappy_blocks(blocks, sizes)
    try:
        return bytes(library.uncompress(blocks[0])) if blocks else b""
    except library.UncompressError as e:
        raise _corrupt(Codec.SNAPPY, e.__cause__) from None


def _snappy_blocks(blocks: list[memoryview], sizes: list[int]) -> memoryview:
    import cramjam

    out = memoryview(bytearray(sum(sizes)))
    pos = 0
    try:
        for block, size in zip(blocks, sizes, strict=True):
            if cramjam.snappy.decompress_raw_into(block, out[pos : pos + size]) != size:
                raise _corrupt(Codec.SNAPPY, "a block is shorter than it claims")
            pos += size
    except cramjam.DecompressionError as e:
        raise _corrupt(Codec.SNAPPY, e) from None
    return out


def _snappy_claim(block: memoryview) -> int:
    """A block's claimed size, refused if its length cannot yield that much."""
    size, pos = read_uvarint(block, 0)
    if size > _SNAPPY_MAX_RATIO * (len(block) - pos):
        raise _corrupt(Codec.SNAPPY, f"a block of {len(block)} bytes claims {size}")
    return size


def _xerial_blocks(view: memoryview) -> list[memoryview]:
    if len(view) < _XERIAL_HEADER.size:
        raise _corrupt(Codec.SNAPPY, "the xerial header is cut short")
    _, _, compatible = _XERIAL_HEADER.unpack_from(view)
    if compatible != _XERIAL_VERSION:
        raise _corrupt(Codec.SNAPPY, f"unknown xerial framing version {compatible}")
    blocks: list[memoryview] = []
    pos = _XERIAL_HEADER.size
    while pos < len(view):
        length = int.from_bytes(view[pos : pos + 4], "big", signed=True)
        pos += 4
        if pos > len(view) or not 0 < length <= len(view) - pos:
            raise _corrupt(
                Codec.SNAPPY, f"a xerial block of {length} bytes where {max(0, len(view) - pos)} are left"
            )
        blocks.append(view[pos : pos + length])
        pos += length
    return blocks


def _lz4_compress(data: Buffer, level: int | None) -> bytes:
    packed = _library(Codec.LZ4).compress(data, compression_level=level or 0, block_linked=False)
    return bytes(packed)


def _lz4_decompress(data: Buffer, max_bytes: int) -> bytes | memoryview:
    library = _library(Codec.LZ4)
    view = memoryview(data)
    out = bytearray()
    pos = 0
    try:
        step = _lz4_claim(library, view, max_bytes) or min(_STEP_RATIO * len(view), _MAX_STEP_BYTES)
        context = library.create_decompression_context()
        while True:
            # One byte over the limit proves an excess.
            size = min(step, max_bytes - len(out)) + 1
            chunk, used, ended = library.decompress_chunk(context, view[pos:], max_length=size)
            pos += used
            if len(out) + len(chunk) > max_bytes:
                raise _too_large(Codec.LZ4, max_bytes)
            if ended and pos == len(view):
                return memoryview(out + chunk) if out else bytes(chunk)
            out += chunk
            if ended:
                context = library.create_decompression_context()
            elif not used and not chunk:
                raise _corrupt(Codec.LZ4, "the data is cut short")
            step = min(2 * step, _MAX_STEP_BYTES)
    except RuntimeError as e:
        raise _corrupt(Codec.LZ4, e) from None


def _lz4_claim(library: Any, view: memoryview, max_bytes: int) -> int:
    size = int(library.get_frame_info(view)["content_size"])
    if size > max_bytes:
        raise _too_large(Codec.LZ4, max_bytes, size)
    if size > _LZ4_MAX_RATIO * len(view):
        raise _corrupt(Codec.LZ4, f"a frame of {len(view)} bytes claims {size}")
    return size


def _zstd_compress(data: Buffer, level: int | None) -> bytes:
    packer = _library(Codec.ZSTD).ZstdCompressor(level=_ZSTD_LEVEL if level is None else level)
    return bytes(packer.compress(data))


_of_thread = threading.local()


def _zstd_unpacker(library: Any) -> Any:
    """This thread's decompressor: creating one takes longer than decompressing a small batch."""
    try:
        return _of_thread.zstd_unpacker
    except AttributeError:
        unpacker = _of_thread.zstd_unpacker = library.ZstdDecompressor()
        return unpacker


def _zstd_decompress(data: Buffer, max_bytes: int) -> bytes | memoryview:
    library = _library(Codec.ZSTD)
    view = memoryview(data)
    unpacker = _zstd_unpacker(library)
    chunks: list[bytes] = []
    total = pos = 0
    try:
        while pos < len(view) or not chunks:
            frame = unpacker.decompressobj()
            for end in _zstd_blocks(library, view, pos, max_bytes - total):
                chunk = frame.decompress(view[pos:end])
                pos = end
                total += len(chunk)
                if total > max_bytes:
                    raise _too_large(Codec.ZSTD, max_bytes)
                chunks.append(chunk)
            if not frame.eof:
                raise _corrupt(Codec.ZSTD, "the data is cut short")
    except library.ZstdError as e:
        raise _corrupt(Codec.ZSTD, e) from None
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def _zstd_blocks(library: Any, view: memoryview, pos: int, limit: int) -> Iterator[int]:
    """Yield each block's end in the frame at ``pos``, at most 128 KiB of output apart (RFC 8878, 3.1.1)."""
    frame = library.get_frame_parameters(view[pos:])
    claimed = frame.content_size
    if limit < claimed != library.CONTENTSIZE_UNKNOWN:
        raise _too_large(Codec.ZSTD, limit, claimed)
    pos += library.frame_header_size(view[pos:])
    last = False
    while not last:
        if pos + 3 > len(view):
            raise _corrupt(Codec.ZSTD, "the data is cut short")
        header = int.from_bytes(view[pos : pos + 3], "little")
        last, kind, size = bool(header & 1), header >> 1 & 3, header >> 3
        pos += 3 + (1 if kind == _ZSTD_RLE_BLOCK else size)
        if last and frame.has_checksum:
            pos += 4
        if pos > len(view):
            raise _corrupt(Codec.ZSTD, "the data is cut short")
        yield pos


_COMPRESS: dict[Codec, Callable[[Buffer, int | None], bytes]] = {
    Codec.GZIP: _gzip_compress,
    Codec.SNAPPY: _snappy_compress,
    Codec.LZ4: _lz4_compress,
    Codec.ZSTD: _zstd_compress,
}

_DECOMPRESS: dict[Codec, Callable[[Buffer, int], bytes | memoryview]] = {
    Codec.GZIP: _gzip_decompress,
    Codec.SNAPPY: _snappy_decompress,
    Codec.LZ4: _lz4_decompress,
    Codec.ZSTD: _zstd_decompress,
}


# --- lz4 frames of message sets

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


def lz4_frame_for_message_set(frame: bytes, magic: int) -> bytes:
    """Rewrite an lz4 library's ``frame`` with the header that readers of format ``magic`` expect."""
    out = bytearray(frame)
    if out[_FLAGS_POSITION] & _CONTENT_SIZE_BIT:
        out[_FLAGS_POSITION] &= ~_CONTENT_SIZE_BIT
        del out[_SIZE_POSITION : _SIZE_POSITION + _SIZE_BYTES]
    _sum_header(out, 0 if magic == 0 else _FLAGS_POSITION)
    return bytes(out)


def lz4_frame_with_checksum(frame: Buffer) -> bytes:
    """The frame with the header checksum of the lz4 standard; other data is unchanged."""
    out = bytearray(frame)
    if len(out) > _FLAGS_POSITION and out.startswith(_FRAME_MAGIC):
        _sum_header(out, _FLAGS_POSITION)
    return bytes(out)


def xxh32(data: Buffer) -> int:
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
