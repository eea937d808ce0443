from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import zlib
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import crcmod.predefined
import pytest

from pyspark_kafkalog.formats import base
from pyspark_kafkalog.formats.batch import read_header
from pyspark_kafkalog.formats.message_set import frames
from tests.support.formats.vectors import vectors

CHECK = b"123456789"
"""The input whose checksums every catalogue of CRCs lists."""

_random = random.Random(20)
SAMPLES = [b"", b"\0", CHECK, *(_random.randbytes(n) for n in (1, 7, 8, 9, 63, 64, 65, 1000, 65537))]


def test_the_check_values_are_those_of_the_catalogue() -> None:
    assert base.crc32c(CHECK) == 0xE3069283
    assert base.crc32(CHECK) == 0xCBF43926


@pytest.mark.parametrize("data", SAMPLES, ids=len)
def test_crcmod_and_the_crc32c_package_agree(data: bytes) -> None:
    package = pytest.importorskip("crc32c")
    portable: Callable[[bytes], int] = crcmod.predefined.mkPredefinedCrcFun("crc-32c")
    assert base.crc32c(data) == portable(data) == package.crc32c(data)
    assert base._portable_crc32c()(data, 0) == portable(data)


@pytest.mark.parametrize("data", SAMPLES, ids=len)
def test_crc_32_is_that_of_zlib(data: bytes) -> None:
    assert base.crc32(data) == zlib.crc32(data)


@pytest.mark.parametrize("function", [base.crc32c, base.crc32, base._portable_crc32c()])
def test_a_checksum_continues_from_an_earlier_one(function: Callable[..., int]) -> None:
    data = SAMPLES[-1]
    for cut in (0, 1, 61, 4096, len(data)):
        assert function(data[cut:], function(data[:cut], 0)) == function(data, 0)


@pytest.mark.parametrize("function", [base.crc32c, base.crc32, base._portable_crc32c()])
def test_any_buffer_will_do(function: Callable[..., int]) -> None:
    data = SAMPLES[-1]
    assert function(memoryview(data)[5:-5], 0) == function(data[5:-5], 0)
    assert function(bytearray(data), 0) == function(data, 0)


def libraries() -> list[str]:
    """The packages of both functions."""
    return [f.__module__.lstrip("_").partition(".")[0] for f in (base.crc32c, base.crc32)]


def test_the_fast_libraries_are_used_where_they_are_installed() -> None:
    installed = ["crc32c" if find_spec("crc32c") else "crcmod", "isal" if find_spec("isal") else "zlib"]
    assert libraries() == installed


# Run with a function of this file's, in a process that cannot import the fast packages.
WITHOUT_FAST_PACKAGES = """
import json, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"crc32c", "_crc32c", "isal"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
"""


def checksums() -> dict[str, Any]:
    """Of random data whole and in pieces, and of each batch that foreign clients sent."""
    whole = [[base.crc32c(data), base.crc32(data)] for data in SAMPLES]
    pieces = []
    for data in SAMPLES:
        crc = old_crc = 0
        for start in range(0, len(data), 61):
            crc = base.crc32c(memoryview(data)[start : start + 61], crc)
            old_crc = base.crc32(bytearray(data[start : start + 61]), old_crc)
        pieces.append([crc, old_crc])
    sent = {}
    for v in vectors("v2-"):
        for frame in frames(v.data):
            covered = memoryview(v.data)[frame.position + 21 : frame.end]
            sent[f"{v.file} {frame.position}"] = [
                base.crc32c(covered),
                read_header(v.data, frame.position).crc,
            ]
    return {"whole": whole, "pieces": pieces, "sent": sent}


def portable(call: str) -> Any:
    """What the call gives in a process without the fast packages."""
    script = f"""{WITHOUT_FAST_PACKAGES}
from pathlib import Path
from pyspark_kafkalog.formats import base
from {__name__} import checksums, libraries

assert libraries() == ["crcmod", "zlib"]
json.dump({call}, sys.stdout)
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True, text=True, env={**os.environ, "PYTHONPATH": os.getcwd()}, check=False,  # noqa: PTH109
    )  # fmt: skip
    assert done.stderr == ""
    return json.loads(done.stdout)


def test_without_the_fast_packages_checksums_are_the_same() -> None:
    found = portable("checksums()")
    assert found == checksums()
    assert found["whole"][SAMPLES.index(CHECK)] == [0xE3069283, 0xCBF43926]
    assert found["pieces"] == found["whole"]
    assert len(found["sent"]) > 20
    assert all(computed == stated for computed, stated in found["sent"].values())
