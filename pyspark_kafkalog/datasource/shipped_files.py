"""Files of a job (``--files``, ``addFile``): Spark puts them into a directory of each executor.

Importing this module lets `security.references` find them, in the driver and in tasks.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark_kafkalog.security.references import look_also


def shipped_file(name: str) -> str | None:
    """The path of a shipped file of this base name; None without a Spark context."""
    if "pyspark" not in sys.modules:
        return None
    from pyspark import SparkFiles  # here, because command lines import this module without Spark

    try:
        root = SparkFiles.getRootDirectory()
    except (AssertionError, AttributeError):
        return None
    return str(Path(root) / name) if root else None


look_also(shipped_file)
