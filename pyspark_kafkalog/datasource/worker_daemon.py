"""Spark's Python daemon with the imports of its workers done: a new worker then has its first row sooner.

    spark.python.daemon.module=pyspark_kafkalog.datasource.worker_daemon

Spark forks its Python workers from a daemon that has imported little before; so each new one imports PySpark,
Arrow and this package for itself. New ones are common: a ``LIMIT`` ends the workers of its query, and so does
a minute without work. Spark's daemon leaves out what may start threads. What is imported here starts one at
most, of Arrow's allocator, which provides for being forked, as OpenBLAS does below NumPy.
"""

from __future__ import annotations

import gc
import sys
from contextlib import suppress
from importlib import import_module

PRELOADED = (
    "encodings.idna",
    "pyarrow",
    "pyspark.daemon",
    "pyspark.worker",
    "pyspark.sql.datasource_internal",
    "pyspark.sql.worker.plan_data_source_read",
    "pyspark_kafkalog.datasource.source",
    "pyspark_kafkalog.datasource.batch.batch_reader",
    "pyspark_kafkalog.datasource.reading.kafka07",
    "pyspark_kafkalog.datasource.reading.kafka",
    "pyspark_kafkalog.columnar.decoder",
)
"""What a reading task imports, and the codec for host names."""


def preload() -> None:
    """Import all of it, so that workers find it done and share the memory."""
    for name in PRELOADED:
        # Another version of PySpark may have its modules elsewhere; its workers import them then.
        with suppress(ImportError):
            import_module(name)
    _forget_finders()
    # Objects that the collector does not visit stay in memory shared with the workers.
    gc.freeze()


def _forget_finders() -> None:
    """Let Python forget how it finds modules in Spark's ZIP file; it remembers again at the next import.

    PySpark lies in that file on a worker's path, and there is a finder for each package imported so far, some
    twenty. A worker that starts lets all finders look again, and each of these then reads the directory of
    the file, two thousand entries (in CPython 3.11): 0.2 s of processor time for nothing.
    """
    import pyspark

    archive = getattr(getattr(pyspark, "__loader__", None), "archive", None)
    if archive is not None:
        for place, finder in list(sys.path_importer_cache.items()):
            if getattr(finder, "archive", None) == archive:
                del sys.path_importer_cache[place]


if __name__ == "__main__":
    preload()
    from pyspark.daemon import manager

    manager()
