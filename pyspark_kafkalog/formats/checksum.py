"""The two checksums of Kafka's formats, each from the fastest library that is installed.

CRC-32C (Castagnoli) is that of v2 batches, CRC-32 (as in zip) that of older messages. The ``crc32c`` package
uses the processor's own instruction and is installed where it has wheels: Linux on x86_64, aarch64 and
riscv64, macOS, Windows. Elsewhere ``crcmod`` is used, which runs anywhere and is some fifty times
slower; tests also compare with it.
"""

from __future__ import annotations

from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from typing import Protocol, cast

from pyspark_kafkalog.formats.varint import Buffer


class _Checksum(Protocol):
    def __call__(self, data: Buffer, value: int = 0, /) -> int:
        """The checksum of ``data``, unsigned; ``value`` is the checksum of what went before it."""
        ...


CRC32C_IMPLEMENTATION: str
"""``crc32c`` or ``crcmod``: which package computes `crc32c` here."""

CRC32_IMPLEMENTATION: str
"""``isal`` or ``zlib``: which library computes `crc32` here."""


def _portable_crc32c() -> _Checksum:
    """CRC-32C by crcmod: polynomial 0x1EDC6F41, reflected, all bits inverted before and after."""
    import crcmod

    return cast(_Checksum, crcmod.mkCrcFun(0x11EDC6F41, initCrc=0, rev=True, xorOut=0xFFFFFFFF))


def _hardware_crc32c() -> _Checksum:
    """The function of the ``crc32c`` package, from its extension module: the package itself imports argparse,
    40 ms of a new Spark worker's time.
    """
    package = find_spec("crc32c")
    spec = package and PathFinder.find_spec("_crc32c", package.submodule_search_locations)
    if spec is None or spec.loader is None:
        raise ImportError("crc32c is not installed")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return cast(_Checksum, module.crc32c)


crc32c: _Checksum
"""CRC-32C. Not wrapped in a function of ours: it is called for every batch."""
try:
    crc32c = _hardware_crc32c()
    CRC32C_IMPLEMENTATION = "crc32c"
except ImportError:
    crc32c = _portable_crc32c()
    CRC32C_IMPLEMENTATION = "crcmod"

crc32: _Checksum
"""CRC-32."""
try:
    from isal.isal_zlib import crc32 as _isal_crc32

    crc32 = _isal_crc32
    CRC32_IMPLEMENTATION = "isal"
except ImportError:
    from zlib import crc32 as _zlib_crc32

    crc32 = _zlib_crc32
    CRC32_IMPLEMENTATION = "zlib"
