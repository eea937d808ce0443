from __future__ import annotations

import gzip
import random
import struct
import sys
import tracemalloc
import zlib
from collections.abc import Iterator

import cramjam
import lz4.frame
import pytest
import snappy
import zstandard

from pyspark_kafkalog.errors import CorruptMessage, InvalidConfig, MessageTooLarge, UnsupportedCompression
from pyspark_kafkalog.formats.compression import Codec, compress, decompress

COMPRESSED = [codec for codec in Codec if codec is not Codec.NONE]
every_codec = pytest.mark.parametrize("codec", COMPRESSED, ids=lambda codec: codec.name.lower())

_random = random.Random(7)
NOISE = _random.randbytes(100_000)
TEXT = b"".join(b'{"id": %d, "name": "flight %d"}' % (i, i % 17) for i in range(9000))
PROSE = b" ".join(
    _random.choice([b"log", b"topic", b"partition", b"offset", b"segment"]) for _ in range(9000)
)
SAMPLES = [b"", b"a", b"abc" * 10, TEXT, NOISE, bytes(3 << 20), NOISE[:3000] * 400]
LIMIT = 1 << 20
BOMB = bytes(64 << 20)
"""Decompressed, 64 times the limit."""


def xerial(*blocks: bytes, version: int = 1) -> bytes:
    out = b"\x82SNAPPY\x00" + struct.pack(">ii", version, version)
    return out + b"".join(struct.pack(">i", len(b)) + b for b in blocks)


def streamed_zstd(data: bytes) -> bytes:
    packer = zstandard.ZstdCompressor(write_content_size=False).compressobj()
    return packer.compress(data) + packer.flush()


def bombs() -> Iterator[tuple[str, Codec, bytes]]:
    yield "gzip", Codec.GZIP, gzip.compress(BOMB)
    yield "gzip of many members", Codec.GZIP, gzip.compress(bytes(1 << 16)) * 64
    yield "bare snappy", Codec.SNAPPY, snappy.compress(BOMB)
    yield "xerial snappy", Codec.SNAPPY, xerial(*[snappy.compress(bytes(1 << 19))] * 64)
    yield "snappy that claims 4 GiB", Codec.SNAPPY, b"\xff\xff\xff\xff\x0f" + bytes(100)
    yield "lz4", Codec.LZ4, lz4.frame.compress(BOMB)
    yield "lz4 without its size", Codec.LZ4, lz4.frame.compress(BOMB, store_size=False)
    yield "lz4 of many frames", Codec.LZ4, lz4.frame.compress(bytes(1 << 16), store_size=False) * 64
    yield "zstd", Codec.ZSTD, zstandard.compress(BOMB)
    yield "zstd without its size", Codec.ZSTD, streamed_zstd(BOMB)
    yield "zstd of many frames", Codec.ZSTD, streamed_zstd(bytes(1 << 16)) * 64


BOMBS = list(bombs())


@pytest.mark.parametrize(("codec", "data"), [b[1:] for b in BOMBS], ids=[b[0] for b in BOMBS])
def test_a_bomb_takes_no_more_memory_than_the_limit_and_a_step(codec: Codec, data: bytes) -> None:
    # (What the codecs' libraries take from Python's allocator is counted; that is where all output goes.)
    tracemalloc.start()
    try:
        with pytest.raises((MessageTooLarge, CorruptMessage), match=r"limit is 1048576|claims"):
            decompress(codec, data, LIMIT)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * LIMIT


def test_a_snappy_claim_is_refused_before_memory_is_taken() -> None:
    # 2 GiB claimed within the limit, by a hundred bytes that cannot hold so much.
    tracemalloc.start()
    try:
        with pytest.raises(CorruptMessage, match="claims 2147483647"):
            decompress(Codec.SNAPPY, b"\xff\xff\xff\xff\x07" + bytes(100), 1 << 31)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100_000


def test_the_densest_snappy_is_within_the_ratio_we_believe() -> None:
    assert decompress(Codec.SNAPPY, snappy.compress(BOMB), len(BOMB)) == BOMB


def test_an_lz4_claim_is_refused_before_memory_is_taken() -> None:
    honest = bytearray(lz4.frame.compress(b"abc"))
    honest[6:14] = struct.pack("<Q", 1 << 30)
    honest[14] = lz4_header_checksum(bytes(honest[4:14]))
    with pytest.raises(CorruptMessage, match="claims 1073741824"):
        decompress(Codec.LZ4, bytes(honest), 1 << 31)


def lz4_header_checksum(descriptor: bytes) -> int:
    """The header checksum, found by asking the library which byte it accepts."""
    for guess in range(256):
        try:
            lz4.frame.get_frame_info(b"\x04\x22\x4d\x18" + descriptor + bytes([guess]) + bytes(8))
        except RuntimeError:
            continue
        return guess
    raise LookupError(descriptor.hex())


@pytest.mark.parametrize(
    ("codec", "packed"),
    [
        (Codec.SNAPPY, snappy.compress(TEXT[:500])),
        (Codec.LZ4, lz4.frame.compress(TEXT[:500], store_size=False)),
        (Codec.LZ4, lz4.frame.compress(TEXT[:500], content_checksum=True, block_checksum=True)),
        (Codec.ZSTD, streamed_zstd(TEXT[:500])),
        (Codec.ZSTD, zstandard.ZstdCompressor(write_checksum=True).compress(TEXT[:500])),
    ],
    ids=["bare snappy", "lz4 without size", "lz4 with checksums", "zstd without size", "zstd with checksum"],
)
def test_other_shapes_of_a_codec_are_read_and_their_cuts_are_corrupt(codec: Codec, packed: bytes) -> None:
    assert decompress(codec, packed, 500) == TEXT[:500]
    for end in range(len(packed)):
        with pytest.raises(CorruptMessage):
            decompress(codec, packed[:end], LIMIT)


@every_codec
def test_bytes_after_the_end_are_corrupt(codec: Codec) -> None:
    for tail in (b"\0", b"garbage that is no frame"):
        with pytest.raises(CorruptMessage):
            decompress(codec, compress(codec, b"abc") + tail, LIMIT)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD], ids=lambda codec: codec.name.lower())
@pytest.mark.parametrize("parts", [(b"one", b"two"), (b"", b"x", b""), (TEXT, NOISE, TEXT)], ids=len)
def test_members_one_after_the_other_are_read_as_one(codec: Codec, parts: tuple[bytes, ...]) -> None:
    whole = b"".join(parts)
    packed = b"".join(compress(codec, part) for part in parts)
    assert decompress(codec, packed, len(whole)) == whole
    with pytest.raises(MessageTooLarge):
        decompress(codec, packed, len(whole) - 1)


def test_ten_thousand_gzip_members_do_not_take_quadratic_time() -> None:
    packed = gzip.compress(b"") * 10_000 + gzip.compress(b"end")
    assert decompress(Codec.GZIP, packed, LIMIT) == b"end"


def test_output_in_steps_is_the_same_as_at_once() -> None:
    # Without a size in its header, lz4 of this ratio needs many steps, zstd many blocks.
    for data in (bytes(20 << 20), NOISE[:3000] * 4000):
        packed = lz4.frame.compress(data, store_size=False, block_linked=False)
        assert decompress(Codec.LZ4, packed, len(data)) == data
        assert decompress(Codec.LZ4, lz4.frame.compress(data, store_size=False), len(data)) == data
        assert decompress(Codec.ZSTD, streamed_zstd(data), len(data)) == data


def test_snappy_is_written_in_xerial_blocks_of_32_kib() -> None:
    packed = compress(Codec.SNAPPY, TEXT)
    assert packed[:16] == xerial()
    pos, blocks = 16, []
    while pos < len(packed):
        (length,) = struct.unpack_from(">i", packed, pos)
        blocks.append(snappy.uncompress(packed[pos + 4 : pos + 4 + length]))
        pos += 4 + length
    assert b"".join(blocks) == TEXT
    assert {len(block) for block in blocks[:-1]} == {32 * 1024}


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "cut short"),
        (b"\x82SNAPPY\x00", "header is cut short"),
        (xerial(version=2), "version 2"),
        (xerial() + b"\0\0", "0 are left"),
        (xerial() + struct.pack(">i", -1), "block of -1 bytes"),
        (xerial() + struct.pack(">i", 0), "block of 0 bytes"),
        (xerial() + struct.pack(">i", 5) + b"abcd", "block of 5 bytes where 4 are left"),
        (xerial(b"\x05\x00a"), "corrupt"),
        (b"\x05\x10abc", "corrupt"),
        (b"\x80\x80\x08" + bytes(10_000), "corrupt"),
        (xerial(b"\x01\x00a", b"\x05\x00a"), "corrupt"),
    ],
)
def test_impossible_snappy_says_what_is_wrong(data: bytes, why: str) -> None:
    with pytest.raises(CorruptMessage, match=why):
        decompress(Codec.SNAPPY, data, LIMIT)


@pytest.mark.parametrize("block", [b"\x03\x00\x00", b"\x07\x00\x00", b"\x06\x00\x00"])
def test_a_zstd_frame_of_impossible_blocks_is_corrupt(block: bytes) -> None:
    # A run without its byte, a last block and one before it of the kind that is reserved.
    data = bytes.fromhex("28b52ffd0058") + block
    with pytest.raises(CorruptMessage):
        decompress(Codec.ZSTD, data, LIMIT)


def test_lz4_frames_have_independent_blocks_as_the_jvm_demands() -> None:
    assert lz4.frame.get_frame_info(compress(Codec.LZ4, TEXT))["block_linked"] is False


def test_codec_none_is_the_data_itself_within_the_limit() -> None:
    data = bytearray(b"abc")
    view = decompress(Codec.NONE, data, 3)
    assert isinstance(view, memoryview)
    assert view.obj is data
    assert compress(Codec.NONE, data) == b"abc"
    with pytest.raises(MessageTooLarge, match="limit is 2"):
        decompress(Codec.NONE, data, 2)


@pytest.mark.parametrize(("codec", "level"), [(Codec.GZIP, 9), (Codec.LZ4, 12), (Codec.ZSTD, 19)])
def test_a_higher_level_makes_it_smaller(codec: Codec, level: int) -> None:
    packed = compress(codec, PROSE, level)
    assert len(packed) < len(compress(codec, PROSE))
    assert decompress(codec, packed, len(PROSE)) == PROSE


@pytest.mark.parametrize(
    ("codec", "level", "allowed"),
    [
        (Codec.GZIP, 0, "1 to 9"),
        (Codec.GZIP, 10, "1 to 9"),
        (Codec.LZ4, 17, "0 to 16"),
        (Codec.ZSTD, 23, "1 to 22"),
        (Codec.SNAPPY, 1, "no levels"),
        (Codec.NONE, 1, "no levels"),
    ],
)
def test_a_level_outside_its_range_is_refused_with_the_range(codec: Codec, level: int, allowed: str) -> None:
    with pytest.raises(InvalidConfig, match=allowed):
        compress(codec, b"abc", level)


def test_codecs_are_found_by_the_names_of_the_configuration() -> None:
    assert [Codec.named(name) for name in ("none", "gzip", "snappy", "lz4", " ZSTD ")] == list(Codec)
    with pytest.raises(InvalidConfig, match="'brotli'; allowed: none, gzip, snappy, lz4, zstd"):
        Codec.named("brotli")


def test_a_codec_number_that_kafka_does_not_have_is_unsupported() -> None:
    assert Codec.of(4) is Codec.ZSTD
    with pytest.raises(UnsupportedCompression, match="codec 5"):
        Codec.of(5)


@pytest.mark.parametrize(
    ("codec", "module", "package"),
    [
        (Codec.SNAPPY, "snappy", "python-snappy"),
        (Codec.LZ4, "lz4.frame", "lz4"),
        (Codec.ZSTD, "zstandard", "zstandard"),
    ],
)
def test_a_missing_library_is_named(
    codec: Codec, module: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = compress(codec, b"abc")
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UnsupportedCompression, match=f"{package}, which is not installed"):
        decompress(codec, packed, LIMIT)
    with pytest.raises(UnsupportedCompression, match=package):
        compress(codec, b"abc")


def test_gzip_works_without_isal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "isal", None)
    assert zlib.decompress(compress(Codec.GZIP, TEXT), 31) == TEXT
    packed = gzip.compress(TEXT) + gzip.compress(b"more")
    assert decompress(Codec.GZIP, packed, LIMIT) == TEXT + b"more"
    with pytest.raises(MessageTooLarge):
        decompress(Codec.GZIP, gzip.compress(BOMB), LIMIT)
    with pytest.raises(CorruptMessage):
        decompress(Codec.GZIP, packed[:-1], LIMIT)
    with pytest.raises(CorruptMessage):
        decompress(Codec.GZIP, b"\x1f\x8b\x08 not gzip", LIMIT)


def test_other_libraries_read_what_we_compress() -> None:
    for data in SAMPLES:
        assert gzip.decompress(compress(Codec.GZIP, data)) == data
        assert lz4.frame.decompress(compress(Codec.LZ4, data)) == data
        assert zstandard.decompress(compress(Codec.ZSTD, data)) == data
        assert bytes(cramjam.lz4.decompress(compress(Codec.LZ4, data))) == data
