"""Reading and writing memory by address, for the compiled kernel alone.

In the kernel places are addresses and not arrays: numba counts references whenever an array is handed to a
function, and that counting took five sixths of the time (77 against 13 ns for a record of 100 bytes).
Nothing here checks anything. Who computes an address has compared it with the end of what it points into.
"""

# ruff: noqa: ARG001  (numba calls all of these with all that it knows)
from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic


def _pointer(builder: Any, address: Any, bits: int) -> Any:
    return builder.inttoptr(address, ir.IntType(bits).as_pointer())


def _address(typingctx: Any, array: Any) -> Any:
    """Where an array's first byte is."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        return builder.ptrtoint(data, ir.IntType(64))

    return types.int64(array), codegen


def _get8(typingctx: Any, address: Any) -> Any:
    """The byte at an address, as a number."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.zext(builder.load(_pointer(builder, args[0], 8)), ir.IntType(64))

    return types.int64(types.int64), codegen


def _read32(typingctx: Any, address: Any) -> Any:
    """The four bytes at an address, wherever it is, as an unsigned number."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.zext(builder.load(_pointer(builder, args[0], 32), align=1), ir.IntType(64))

    return types.int64(types.int64), codegen


def _read64(typingctx: Any, address: Any) -> Any:
    """The eight bytes at an address, wherever it is, as a number; the first is the lowest on the machines
    that numba knows.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load(_pointer(builder, args[0], 64), align=1)

    return types.int64(types.int64), codegen


def _get32(typingctx: Any, base: Any, index: Any) -> Any:
    """Number ``index`` of the unsigned 32-bit numbers at ``base``."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = builder.gep(_pointer(builder, args[0], 32), [args[1]])
        return builder.zext(builder.load(place), ir.IntType(64))

    return types.int64(types.int64, types.int64), codegen


def _get64(typingctx: Any, base: Any, index: Any) -> Any:
    """Number ``index`` of the 64-bit numbers at ``base``."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load(builder.gep(_pointer(builder, args[0], 64), [args[1]]))

    return types.int64(types.int64, types.int64), codegen


def _putter(bits: int) -> Any:
    """Makes the function that writes number ``index`` of the numbers of so many bits at ``base``."""

    def put(typingctx: Any, base: Any, index: Any, value: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            place = builder.gep(_pointer(builder, args[0], bits), [args[1]])
            value = args[2] if bits == 64 else builder.trunc(args[2], ir.IntType(bits))
            builder.store(value, place)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, types.int64), codegen

    return intrinsic(put)


def _copy(typingctx: Any, to: Any, of: Any, size: Any) -> Any:
    """``memcpy`` between addresses."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        target, source = (_pointer(builder, address, 8) for address in args[:2])
        cgutils.raw_memcpy(builder, target, source, args[2], 1)  # type: ignore[no-untyped-call]
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen


address: Any = intrinsic(_address)
copy: Any = intrinsic(_copy)
get8: Any = intrinsic(_get8)
get32: Any = intrinsic(_get32)
get64: Any = intrinsic(_get64)
read32: Any = intrinsic(_read32)
read64: Any = intrinsic(_read64)
put8: Any = _putter(8)
put32: Any = _putter(32)
put64: Any = _putter(64)
