"""CRC-32 for the compiled kernels: that of zip, which guards the messages of Kafka before 0.11.

Sixteen bytes at a step by sixteen tables: 39 ns for 100 bytes, where eight tables took 48. Where the
processor multiplies polynomials, they are left with what `kernel_folding` makes of all but the last bytes.
Places are addresses, as in `intrinsics`, and nothing is checked.
"""

from __future__ import annotations

from typing import Any

import llvmlite.binding as llvm
import numba
import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from pyspark_kafkalog.columnar.intrinsics import get8, get32, read64

# ruff: noqa: ARG001  (numba calls what makes the code with all that it knows)


_CRC_32 = 0x104C11DB7
"""The polynomial, its highest term first."""

_INT8, _INT32, _INT64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)
_BLOCK = ir.VectorType(_INT64, 2)
_BLOCK_BITS = 128


def can_fold() -> bool:
    """Whether code is compiled for this very processor, and it multiplies polynomials."""
    config: Any = numba.config
    if config.CPU_NAME is not None or config.CPU_FEATURES is not None:
        return False
    try:
        return bool(llvm.get_host_cpu_features().get("pclmul"))
    except RuntimeError:  # LLVM does not know this processor's features
        return False


def _power(exponent: int) -> int:
    """x to this power modulo the CRC's polynomial, in the order of bits that CRC-32 has."""
    found = 1
    for _ in range(exponent):
        found <<= 1
        if found >> 32:
            found ^= _CRC_32
    return int(f"{found:032b}"[::-1], 2) << 1


def _constant(kind: Any, value: Any) -> Any:
    return ir.Constant(kind, value)


def _multipliers(bits: int) -> Any:
    """What the two halves of a block are multiplied by to stand so many bits further on."""
    return _constant(_BLOCK, [_constant(_INT64, _power(bits + 32)), _constant(_INT64, _power(bits - 32))])


def _folded(builder: Any, block: Any, bits: int, onto: Any) -> Any:
    """``block`` brought so many bits further on and added to what stands there."""
    signature = ir.FunctionType(_BLOCK, [_BLOCK, _BLOCK, _INT8])
    multiply: Any = cgutils.get_or_insert_function(builder.module, signature, "llvm.x86.pclmulqdq")
    by = _multipliers(bits)
    low, high = (builder.call(multiply, [block, by, _constant(_INT8, halves)]) for halves in (0x00, 0x11))
    return builder.xor(builder.xor(low, high), onto)


def _loaded(builder: Any, address: Any, blocks_on: int = 0) -> Any:
    """The block at an address, or so many blocks behind it."""
    place = builder.add(address, _constant(_INT64, blocks_on * _BLOCK_BITS // 8))
    return builder.load(builder.inttoptr(place, _BLOCK.as_pointer()), align=1)


def _fold(typingctx: Any, address: Any, blocks: Any, crc: Any) -> Any:
    """The ``blocks`` blocks of sixteen bytes at an address, two or more, as one of the same remainder, in two
    64-bit numbers. ``crc`` is added to their beginning.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        start, count, crc = args
        two, half = _constant(_INT64, 2), _constant(_INT32, 0)
        begin = builder.insert_element(_constant(_BLOCK, [_constant(_INT64, 0)] * 2), crc, half)
        variable: Any = cgutils.alloca_once_value
        rows = [
            variable(builder, builder.xor(_loaded(builder, start), begin)),
            variable(builder, _loaded(builder, start, 1)),
        ]
        place = variable(builder, builder.add(start, _constant(_INT64, 32)))
        left = variable(builder, builder.sub(count, two))
        test, body, done = (builder.append_basic_block(name) for name in ("fold.test", "fold", "folded"))
        builder.branch(test)
        builder.position_at_end(test)
        builder.cbranch(builder.icmp_signed(">=", builder.load(left), two), body, done)
        builder.position_at_end(body)
        at = builder.load(place)
        for number, row in enumerate(rows):
            following = _loaded(builder, at, number)
            builder.store(_folded(builder, builder.load(row), 2 * _BLOCK_BITS, following), row)
        builder.store(builder.add(at, _constant(_INT64, 32)), place)
        builder.store(builder.sub(builder.load(left), two), left)
        builder.branch(test)
        builder.position_at_end(done)
        first, second = (builder.load(row) for row in rows)
        builder.store(_folded(builder, first, _BLOCK_BITS, second), rows[0])
        with builder.if_then(builder.icmp_signed(">", builder.load(left), _constant(_INT64, 0))):
            last = _loaded(builder, builder.load(place))
            builder.store(_folded(builder, builder.load(rows[0]), _BLOCK_BITS, last), rows[0])
        found = builder.load(rows[0])
        halves = [builder.extract_element(found, _constant(_INT32, place)) for place in (0, 1)]
        return context.make_tuple(builder, signature.return_type, halves)

    pair: Any = types.UniTuple(types.int64, 2)
    return pair(types.int64, types.int64, types.int64), codegen


fold: Any = intrinsic(_fold)


# mypy: disallow-untyped-defs=False, disallow-untyped-calls=False


_ALL_BITS = 0xFFFFFFFF

_inlined = njit(nogil=True, forceinline=True)


def _crc_tables():
    """Table t says what a byte does to a CRC-32 that t further bytes follow. Polynomial 0xEDB88320."""
    first = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (0xEDB88320 if crc & 1 else 0)
        first.append(crc)
    tables = [first]
    for _ in range(15):
        tables.append([crc >> 8 ^ first[crc & 0xFF] for crc in tables[-1]])
    return np.array(tables, np.uint32).ravel()


CRC_TABLES = _crc_tables()
"""What each `crc32` is to be given the address of."""


@_inlined
def _eight(tables, low, word):
    """What the eight bytes in ``word`` do to a CRC-32 that ``low`` further tables' bytes follow."""
    crc = get32(tables, (low + 7) * 256 + (word & 255))
    crc ^= get32(tables, (low + 6) * 256 + (word >> 8 & 255))
    crc ^= get32(tables, (low + 5) * 256 + (word >> 16 & 255))
    crc ^= get32(tables, (low + 4) * 256 + (word >> 24 & 255))
    crc ^= get32(tables, (low + 3) * 256 + (word >> 32 & 255))
    crc ^= get32(tables, (low + 2) * 256 + (word >> 40 & 255))
    crc ^= get32(tables, (low + 1) * 256 + (word >> 48 & 255))
    return crc ^ get32(tables, low * 256 + (word >> 56 & 255))


@_inlined
def _crc32_of_few(tables, pos, end, crc):
    """CRC-32 of what stands between two places, behind bytes whose own is ``crc``; both not yet inverted."""
    while end - pos >= 16:
        crc = _eight(tables, 8, read64(pos) ^ crc) ^ _eight(tables, 0, read64(pos + 8))
        pos += 16
    if end - pos >= 8:
        crc = _eight(tables, 0, read64(pos) ^ crc)
        pos += 8
    while pos < end:
        crc = crc >> 8 ^ get32(tables, (crc ^ get8(pos)) & 255)
        pos += 1
    return crc


@_inlined
def crc32_by_tables(tables, pos, size):
    """CRC-32 of ``size`` bytes at ``pos``."""
    return _crc32_of_few(tables, pos, pos + size, np.int64(_ALL_BITS)) ^ _ALL_BITS


@_inlined
def crc32_by_folding(tables, pos, size):
    """The same where `kernel_folding.can_fold`."""
    crc, end = np.int64(_ALL_BITS), pos + size
    if size >= 32:
        low, high = fold(pos, size >> 4, crc)
        crc = _eight(tables, 8, low) ^ _eight(tables, 0, high)
        pos += size & ~15
    return _crc32_of_few(tables, pos, end, crc) ^ _ALL_BITS


crc32 = crc32_by_folding if can_fold() else crc32_by_tables
