from __future__ import annotations

import os
import random
import subprocess
import sys
import textwrap
import zlib
from collections.abc import Callable

import crc32c as crc32c_package
import crcmod.predefined
import pytest

from pyspark_kafkalog.formats import checksum

CHECK = b"123456789"
"""The input whose checksums every catalogue of CRCs lists."""

_random = random.Random(20)
SAMPLES = [b"", b"\0", CHECK, *(_random.randbytes(n) for n in (1, 7, 8, 9, 63, 64, 65, 1000, 65537))]


def test_the_check_values_are_those_of_the_catalogue() -> None:
    assert checksum.crc32c(CHECK) == 0xE3069283
    assert checksum.crc32(CHECK) == 0xCBF43926


@pytest.mark.parametrize("data", SAMPLES, ids=len)
def test_crcmod_and_the_crc32c_package_agree(data: bytes) -> None:
    portable: Callable[[bytes], int] = crcmod.predefined.mkPredefinedCrcFun("crc-32c")
    assert checksum.crc32c(data) == portable(data) == crc32c_package.crc32c(data)
    assert checksum._portable_crc32c()(data, 0) == portable(data)


@pytest.mark.parametrize("data", SAMPLES, ids=len)
def test_crc_32_is_that_of_zlib(data: bytes) -> None:
    assert checksum.crc32(data) == zlib.crc32(data)


@pytest.mark.parametrize("function", [checksum.crc32c, checksum.crc32, checksum._portable_crc32c()])
def test_a_checksum_goes_on_from_an_earlier_one(function: Callable[..., int]) -> None:
    data = SAMPLES[-1]
    for cut in (0, 1, 61, 4096, len(data)):
        assert function(data[cut:], function(data[:cut], 0)) == function(data, 0)


@pytest.mark.parametrize("function", [checksum.crc32c, checksum.crc32, checksum._portable_crc32c()])
def test_any_buffer_will_do(function: Callable[..., int]) -> None:
    data = SAMPLES[-1]
    assert function(memoryview(data)[5:-5], 0) == function(data[5:-5], 0)
    assert function(bytearray(data), 0) == function(data, 0)


def test_the_fast_libraries_are_used_where_they_are_installed() -> None:
    assert checksum.CRC32C_IMPLEMENTATION == "crc32c"
    assert checksum.CRC32_IMPLEMENTATION == "isal"


def test_without_them_the_portable_ones_give_the_same_and_batches_still_verify() -> None:
    script = """
        import sys
        sys.modules["crc32c"] = sys.modules["isal"] = None  # importing them raises ImportError
        from pyspark_kafkalog.formats import checksum
        from pyspark_kafkalog.formats.batch import encode_batch, read_header, verify_crc
        from pyspark_kafkalog.types import NewRecord

        assert checksum.CRC32C_IMPLEMENTATION == "crcmod", checksum.CRC32C_IMPLEMENTATION
        assert checksum.CRC32_IMPLEMENTATION == "zlib", checksum.CRC32_IMPLEMENTATION
        assert checksum.crc32c(b"123456789") == 0xE3069283
        assert checksum.crc32c(memoryview(b"56789"), checksum.crc32c(b"1234")) == 0xE3069283
        assert checksum.crc32(b"123456789") == 0xCBF43926
        batch = encode_batch([NewRecord(b"value", b"key", 1)])
        verify_crc(batch, 0, read_header(batch))
        sys.stdout.write(batch.hex())
    """
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.getcwd()},  # noqa: PTH109
        check=False,
    )
    assert done.stderr == ""
    from pyspark_kafkalog.formats.batch import encode_batch
    from pyspark_kafkalog.types import NewRecord

    assert done.stdout == encode_batch([NewRecord(b"value", b"key", 1)]).hex()
