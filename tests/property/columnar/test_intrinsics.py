"""The compiled checksums, by tables and by folding, are that of the library."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_kafkalog.columnar import intrinsics
from pyspark_kafkalog.columnar.intrinsics import CRC32_TABLES, CRC32C_TABLES, address, can_fold
from pyspark_kafkalog.formats.base import crc32, crc32c


def compiled(way: Any, tables: Any) -> Any:
    """The checksum of a part of an array."""

    @numba.njit  # type: ignore[untyped-decorator]
    def checksum(source: Any, start: Any, size: Any) -> Any:
        return way(address(tables), address(source) + start, size)

    return checksum


CRC32 = [compiled(intrinsics.crc_by_tables, CRC32_TABLES)]
CRC32C = [compiled(intrinsics.crc_by_tables, CRC32C_TABLES)]
if can_fold():
    CRC32.append(compiled(intrinsics.crc32_by_folding, CRC32_TABLES))
    CRC32C.append(compiled(intrinsics.crc32c_by_folding, CRC32C_TABLES))


@given(st.binary(max_size=300), st.integers(0, 40))
def test_every_way_gives_the_checksum_of_the_library(data: bytes, start: int) -> None:
    source = np.frombuffer(b"\xa5" * start + data + b"\xa5", np.uint8)
    assert {checksum(source, start, len(data)) for checksum in CRC32} == {crc32(data)}
    assert {checksum(source, start, len(data)) for checksum in CRC32C} == {crc32c(data)}


def test_every_length_has_its_checksum() -> None:
    data = bytes(i * i % 251 for i in range(700))
    source = np.frombuffer(data, np.uint8)
    for size in range(len(data)):
        assert {checksum(source, 0, size) for checksum in CRC32} == {crc32(data[:size])}
        assert {checksum(source, 0, size) for checksum in CRC32C} == {crc32c(data[:size])}


def test_code_that_is_not_for_this_processor_does_not_fold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numba.config, "CPU_NAME", "generic")
    assert not can_fold()
