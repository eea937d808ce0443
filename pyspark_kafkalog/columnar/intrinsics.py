"""What the compiled kernels need and numba lacks: memory by address, and the two CRCs of Kafka's formats.

Kernels use addresses instead of arrays: numba counts references whenever an array is passed to a function,
which took five sixths of the time (77 against 13 ns for a record of 100 bytes). Nothing here checks bounds:
whoever computes an address does.

CRC-32 guards messages before 0.11, CRC-32C the batches since. Tables, 16 bytes a step, take 48 ns for 128
bytes; folding by carry-less multiplication leaves only the last bytes to tables: 8 ns, or 4 with the CRC-32C
instruction. v1 messages with values of 100 (1000) bytes decode in 40 (214) ns with it and 70 (540) without,
those of 0.7 in 20 (112) and 40 (435). Source: V. Gopal and others, "Fast CRC Computation for Generic
Polynomials Using PCLMULQDQ Instruction", Intel 2009.
"""

# mypy: disallow-untyped-defs=False, disallow-untyped-calls=False

from __future__ import annotations

from typing import Any

import llvmlite.binding as llvm
import numba
import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

# ruff: noqa: ARG001  (numba prescribes these signatures)


def _pointer(builder: Any, address: Any, bits: int) -> Any:
    return builder.inttoptr(address, ir.IntType(bits).as_pointer())


def _address(typingctx: Any, array: Any) -> Any:

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        return builder.ptrtoint(data, ir.IntType(64))

    return types.int64(array), codegen


def _reader(bits: int) -> Any:

    def read(typingctx: Any, address: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            value = builder.load(_pointer(builder, args[0], bits), align=1)
            return value if bits == 64 else builder.zext(value, ir.IntType(64))

        return types.int64(types.int64), codegen

    return intrinsic(read)


def _getter(bits: int) -> Any:

    def get(typingctx: Any, base: Any, index: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            value = builder.load(builder.gep(_pointer(builder, args[0], bits), [args[1]]))
            return value if bits == 64 else builder.zext(value, ir.IntType(64))

        return types.int64(types.int64, types.int64), codegen

    return intrinsic(get)


def _putter(bits: int) -> Any:

    def put(typingctx: Any, base: Any, index: Any, value: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            place = builder.gep(_pointer(builder, args[0], bits), [args[1]])
            value = args[2] if bits == 64 else builder.trunc(args[2], ir.IntType(bits))
            builder.store(value, place)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, types.int64), codegen

    return intrinsic(put)


def _copy(typingctx: Any, to: Any, of: Any, size: Any) -> Any:

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        target, source = (_pointer(builder, address, 8) for address in args[:2])
        cgutils.raw_memcpy(builder, target, source, args[2], 1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen


address: Any = intrinsic(_address)
copy: Any = intrinsic(_copy)
get8: Any = _reader(8)
get32: Any = _getter(32)
get64: Any = _getter(64)
read32: Any = _reader(32)
read64: Any = _reader(64)
put8: Any = _putter(8)
put32: Any = _putter(32)
put64: Any = _putter(64)


# --- CRCs by carry-less multiplication
#
# Sixteen bytes are a polynomial of 128 terms over GF(2). Multiplied by the right power of x and added to a
# later block, they leave the remainder unchanged, so a row of 16-byte blocks folds into one. Four rows at a
# time keep the processor busy.

# The polynomials, highest term first.
_CRC_32 = 0x104C11DB7
_CRC_32C = 0x11EDC6F41
_INT8, _INT32, _INT64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)
_BLOCK = ir.VectorType(_INT64, 2)
_BLOCK_BYTES = 16
_ROWS = 4
_LEAST_FOLDED_BYTES = _ROWS * _BLOCK_BYTES


def can_fold() -> bool:
    """Whether code is compiled for this processor, and it has PCLMULQDQ and SSE 4.2."""
    config: Any = numba.config
    if config.CPU_NAME is not None or config.CPU_FEATURES is not None:
        return False
    try:
        features = llvm.get_host_cpu_features()
        return bool(features.get("pclmul") and features.get("sse4.2"))
    except RuntimeError:  # LLVM does not know this processor's features
        return False


def _power(exponent: int, polynomial: int) -> int:
    """x to this power modulo ``polynomial``, in the bit order of both CRCs."""
    found = 1
    for _ in range(exponent):
        found <<= 1
        if found >> 32:
            found ^= polynomial
    return int(f"{found:032b}"[::-1], 2) << 1


def _pair(first: int, second: int) -> Any:
    return ir.Constant(_BLOCK, [ir.Constant(_INT64, first), ir.Constant(_INT64, second)])


def _loaded(builder: Any, address: Any, blocks_on: int = 0) -> Any:
    place = builder.add(address, ir.Constant(_INT64, blocks_on * _BLOCK_BYTES))
    return builder.load(builder.inttoptr(place, _BLOCK.as_pointer()), align=1)


def _folder(polynomial: int) -> Any:

    def folded(builder: Any, block: Any, blocks_on: int, onto: Any) -> Any:
        """``block`` moved ``blocks_on`` blocks ahead and added to ``onto``."""
        signature = ir.FunctionType(_BLOCK, [_BLOCK, _BLOCK, _INT8])
        multiply: Any = cgutils.get_or_insert_function(builder.module, signature, "llvm.x86.pclmulqdq")
        bits = 8 * blocks_on * _BLOCK_BYTES
        by = _pair(_power(bits + 32, polynomial), _power(bits - 32, polynomial))
        low, high = (builder.call(multiply, [block, by, ir.Constant(_INT8, half)]) for half in (0x00, 0x11))
        return builder.xor(builder.xor(low, high), onto)

    def fold(typingctx: Any, address: Any, blocks: Any, crc: Any) -> Any:
        """Fold four or more 16-byte blocks into one with the same remainder; ``crc`` begins them."""

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            start, count, crc = args
            number = ir.Constant(_INT64, _ROWS)
            begin = builder.insert_element(_pair(0, 0), crc, ir.Constant(_INT32, 0))
            variable: Any = cgutils.alloca_once_value
            rows = [variable(builder, _loaded(builder, start, row)) for row in range(_ROWS)]
            builder.store(builder.xor(builder.load(rows[0]), begin), rows[0])
            place = variable(builder, builder.add(start, ir.Constant(_INT64, _LEAST_FOLDED_BYTES)))
            left = variable(builder, builder.sub(count, number))
            test, body, done = (builder.append_basic_block(name) for name in ("fold.test", "fold", "folded"))
            builder.branch(test)
            builder.position_at_end(test)
            builder.cbranch(builder.icmp_signed(">=", builder.load(left), number), body, done)
            builder.position_at_end(body)
            at = builder.load(place)
            for row, held in enumerate(rows):
                following = _loaded(builder, at, row)
                builder.store(folded(builder, builder.load(held), _ROWS, following), held)
            builder.store(builder.add(at, ir.Constant(_INT64, _LEAST_FOLDED_BYTES)), place)
            builder.store(builder.sub(builder.load(left), number), left)
            builder.branch(test)
            builder.position_at_end(done)
            found = builder.load(rows[0])
            for held in rows[1:]:
                found = folded(builder, found, 1, builder.load(held))
            last = variable(builder, found)
            with cgutils.for_range(builder, builder.load(left)) as loop:
                following = _loaded(builder, builder.load(place))
                builder.store(folded(builder, builder.load(last), 1, following), last)
                builder.store(builder.add(builder.load(place), ir.Constant(_INT64, _BLOCK_BYTES)), place)
                del loop
            halves = [
                builder.extract_element(builder.load(last), ir.Constant(_INT32, half)) for half in (0, 1)
            ]
            return context.make_tuple(builder, signature.return_type, halves)

        pair: Any = types.UniTuple(types.int64, 2)
        return pair(types.int64, types.int64, types.int64), codegen

    return intrinsic(fold)


_fold_32: Any = _folder(_CRC_32)
_fold_32c: Any = _folder(_CRC_32C)


def _summer(bits: int) -> Any:

    def sum_bits(typingctx: Any, crc: Any, word: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            kind, held = ir.IntType(bits), ir.IntType(max(bits, 32))
            called = ir.FunctionType(held, [held, kind])
            name = f"llvm.x86.sse42.crc32.{held.width}.{bits}"
            instruction: Any = cgutils.get_or_insert_function(builder.module, called, name)
            crc, word = (
                value if to.width == 64 else builder.trunc(value, to)
                for value, to in zip(args, (held, kind), strict=True)
            )
            found = builder.call(instruction, [crc, word])
            return found if held.width == 64 else builder.zext(found, _INT64)

        return types.int64(types.int64, types.int64), codegen

    return intrinsic(sum_bits)


_sum64: Any = _summer(64)
_sum32: Any = _summer(32)
_sum8: Any = _summer(8)


# --- CRCs by tables

_ALL_BITS = 0xFFFFFFFF

_inlined = njit(nogil=True, forceinline=True)


def _crc_tables(polynomial):
    """Table t is the effect of a byte on a CRC followed by t more bytes."""
    reflected = int(f"{polynomial & _ALL_BITS:032b}"[::-1], 2)
    first = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (reflected if crc & 1 else 0)
        first.append(crc)
    tables = [first]
    for _ in range(15):
        tables.append([crc >> 8 ^ first[crc & 0xFF] for crc in tables[-1]])
    return np.array(tables, np.uint32).ravel()


CRC32_TABLES = _crc_tables(_CRC_32)  # pass its address to `crc32`
CRC32C_TABLES = _crc_tables(_CRC_32C)  # pass its address to `crc32c`


@_inlined
def _eight(tables, low, word):
    """The effect of ``word``'s eight bytes on a CRC, with ``low`` more bytes after them."""
    crc = get32(tables, (low + 7) * 256 + (word & 255))
    crc ^= get32(tables, (low + 6) * 256 + (word >> 8 & 255))
    crc ^= get32(tables, (low + 5) * 256 + (word >> 16 & 255))
    crc ^= get32(tables, (low + 4) * 256 + (word >> 24 & 255))
    crc ^= get32(tables, (low + 3) * 256 + (word >> 32 & 255))
    crc ^= get32(tables, (low + 2) * 256 + (word >> 40 & 255))
    crc ^= get32(tables, (low + 1) * 256 + (word >> 48 & 255))
    return crc ^ get32(tables, low * 256 + (word >> 56 & 255))


@_inlined
def _crc_of_few(tables, pos, end, crc):
    """Continue ``crc`` over the bytes from ``pos`` to ``end``; neither is inverted."""
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
def crc_by_tables(tables, pos, size):
    return _crc_of_few(tables, pos, pos + size, np.int64(_ALL_BITS)) ^ _ALL_BITS


@_inlined
def crc32_by_folding(tables, pos, size):
    crc, end = np.int64(_ALL_BITS), pos + size
    if size >= _LEAST_FOLDED_BYTES:
        low, high = _fold_32(pos, size >> 4, crc)
        crc = _eight(tables, 8, low) ^ _eight(tables, 0, high)
        pos += size & ~15
    return _crc_of_few(tables, pos, end, crc) ^ _ALL_BITS


@_inlined
def crc32c_by_folding(_, pos, size):
    """CRC-32C of ``size`` bytes at ``pos``; requires `can_fold`."""
    crc, end = np.int64(_ALL_BITS), pos + size
    if size >= _LEAST_FOLDED_BYTES:
        low, high = _fold_32c(pos, size >> 4, crc)
        crc = _sum64(_sum64(np.int64(0), low), high)
        pos += size & ~15
    while end - pos >= 8:
        crc = _sum64(crc, read64(pos))
        pos += 8
    if end - pos >= 4:
        crc = _sum32(crc, read32(pos))
        pos += 4
    while pos < end:
        crc = _sum8(crc, get8(pos))
        pos += 1
    return crc ^ _ALL_BITS


FOLDS = can_fold()
crc32 = crc32_by_folding if FOLDS else crc_by_tables
crc32c = crc32c_by_folding if FOLDS else crc_by_tables


@_inlined
def int32(pos):
    value = get8(pos) << 24 | get8(pos + 1) << 16 | get8(pos + 2) << 8 | get8(pos + 3)
    return value - ((value >> 31) << 32)


@_inlined
def int64(pos):
    return int32(pos) << 32 | int32(pos + 4) & _ALL_BITS
