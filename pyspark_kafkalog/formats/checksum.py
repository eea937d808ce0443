"""Kafka's two checksums, each from the fastest installed library.

v2 batches use CRC-32C (Castagnoli), older messages CRC-32 (as in zip). The ``crc32c`` package uses the
processor's instruction; its wheels cover Linux on x86_64, aarch64 and riscv64, macOS and Windows. Elsewhere
``crcmod`` is used, about fifty times slower; tests compare with it.
"""

from __future__ import annotations

from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from typing import Protocol, cast

from pyspark_kafkalog.formats.varint import Buffer


class _Checksum(Protocol):
    def __call__(self, data: Buffer, value: int = 0, /) -> int:
        """The unsigned checksum of ``data``; ``value`` is the checksum of preceding bytes."""
        ...


CRC32C_IMPLEMENTATION: str
"""``crc32c`` or ``crcmod``: the package behind `crc32c`."""

CRC32_IMPLEMENTATION: str
"""``isal`` or ``zlib``: the library behind `crc32`."""


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


crc32c: _Checksum
"""CRC-32C. Without a wrapper, because it is called for every batch."""
try:
    crc32c = _hardware_crc32c()
    CRC32C_IMPLEMENTATION = "crc32c"
except ImportError:
    crc32c = _portable_crc32c()
    CRC32C_IMPLEMENTATION = "crcmod"

crc32: _Checksum
try:
    from isal.isal_zlib import crc32 as _isal_crc32

    crc32 = _isal_crc32
    CRC32_IMPLEMENTATION = "isal"
except ImportError:
    from zlib import crc32 as _zlib_crc32

    crc32 = _zlib_crc32
    CRC32_IMPLEMENTATION = "zlib"
