"""Files of a job (``--files``, ``addFile``): Spark puts them into a directory of each executor.

Importing this room is enough for `security.files` to find them, in the driver and in tasks.
"""

from __future__ import annotations

from pathlib import Path

from pyspark import SparkFiles

from pyspark_kafkalog.security.files import look_also


def shipped_file(name: str) -> str | None:
    """The path that a file of this base name would have; None where there is no Spark context."""
    try:
        root = SparkFiles.getRootDirectory()
    except (AssertionError, AttributeError):
        return None
    return str(Path(root) / name) if root else None


look_also(shipped_file)
