"""Spark's Python daemon, but its workers start with their imports done and do not wait for their input.

Set ``spark.python.daemon.module=pyspark_kafkalog.datasource.worker_daemon``. Spark's own daemon has imported
little, so each new worker, and a ``LIMIT`` or an idle minute ends one, imports PySpark, Arrow and this
package. The imports here start at most one thread, of Arrow's allocator, which is fork-safe.

Spark sends a task in two small writes. Its TCP socket holds the second back until the first is acknowledged,
which the worker's system delays by 40 ms. So the workers acknowledge as they read.
"""

from __future__ import annotations

import gc
import io
import os
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from importlib import import_module
from typing import Any

PRELOADED = (
    "encodings.idna",
    "pyarrow",
    "pyspark.daemon",
    "pyspark.worker",
    "pyspark.sql.datasource_internal",
    "pyspark.sql.worker.plan_data_source_read",
    "pyspark_kafkalog._version",
    "pyspark_kafkalog.datasource.source",
    "pyspark_kafkalog.datasource.batch.batch_reader",
    "pyspark_kafkalog.datasource.reading.kafka07",
    "pyspark_kafkalog.datasource.reading.kafka",
    "pyspark_kafkalog.columnar.decoder",
)

ACKNOWLEDGING = ("pyspark.worker", "pyspark.sql.worker.plan_data_source_read")
"""Modules whose ``main`` a worker runs, with its socket as two files."""
_BUFFER_BYTES = 1 << 16


class AcknowledgedInput(io.RawIOBase):
    """*Not thread-safe.* A worker's input, which is acknowledged as soon as it is read."""

    def __init__(self, source: io.BufferedReader, connection: socket.socket) -> None:
        super().__init__()
        self._source, self._connection = source, connection

    def readable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._source.fileno()

    def readinto(self, buffer: Any) -> int:
        count = self._source.readinto1(buffer)
        # Applies to data received so far only, and fails at the end of a connection.
        with suppress(OSError):
            self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        return count


def acknowledging(main: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    @wraps(main)
    def run(infile: io.BufferedReader, outfile: Any) -> None:
        with socket.socket(fileno=os.dup(infile.fileno())) as connection:
            if connection.family == socket.AF_UNIX:
                main(infile, outfile)
            else:
                main(io.BufferedReader(AcknowledgedInput(infile, connection), _BUFFER_BYTES), outfile)

    return run


def acknowledge() -> None:
    """Let the workers acknowledge Spark's writes; only Linux can."""
    if hasattr(socket, "TCP_QUICKACK"):
        for name in ACKNOWLEDGING:
            with suppress(ImportError):
                module: Any = import_module(name)
                module.main = acknowledging(module.main)


def preload() -> None:
    """Import everything, so that workers find it done and share the memory."""
    for name in PRELOADED:
        # Another version of PySpark may have its modules elsewhere; its workers import them then.
        with suppress(ImportError):
            import_module(name)
    _forget_finders()
    # Objects that the collector does not visit stay in memory shared with the workers.
    gc.freeze()


def _forget_finders() -> None:
    """Let Python forget how it finds modules in Spark's ZIP file, or each worker's finders, one for each of
    some twenty packages, read its directory again (CPython 3.11): 0.2 s of processor time for nothing.
    """
    import pyspark

    archive = getattr(getattr(pyspark, "__loader__", None), "archive", None)
    if archive is not None:
        for place, finder in list(sys.path_importer_cache.items()):
            if getattr(finder, "archive", None) == archive:
                del sys.path_importer_cache[place]


if __name__ == "__main__":
    acknowledge()
    preload()
    from pyspark.daemon import manager

    manager()
