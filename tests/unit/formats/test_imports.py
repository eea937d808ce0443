from __future__ import annotations

import os
import subprocess
import sys

SCRIPT = """
import sys
import pyspark_kafkalog.formats.message_set
heavy = {"numpy", "pyarrow", "pandas", "pyspark", "numba", "lz4", "zstandard", "cramjam", "snappy", "crcmod"}
sys.stdout.write(" ".join(sorted(heavy & set(sys.modules))))
"""


def test_the_formats_import_nothing_heavy_and_no_codec_before_it_is_used() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.getcwd()},  # noqa: PTH109
        check=True,
    )
    assert done.stdout == ""
