"""Moved to `pyspark_kafkalog.classic.mirror.mirror`; imports of this path still work, with a warning."""

from warnings import warn

from pyspark_kafkalog.classic.mirror.mirror import Mirror

__all__ = ["Mirror"]

warn(
    "pyspark_kafkalog.consumer.mirror has moved: import pyspark_kafkalog.classic.mirror.mirror",
    DeprecationWarning,
    stacklevel=2,
)
