"""Parallel disk work on many logs: several syncs take hardly longer than one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from kafkalog_broker.log.log import Log
from pyspark_kafkalog.errors import KafkaError

_DISK_THREADS = 8
"""On ext4 4 threads sync small files 2.3 times as fast as one, 8 3.2 times, 16 hardly faster."""
_MANY_LOGS = 16
"""Fewer logs are flushed one after another."""

_T = TypeVar("_T")

_logger = logging.getLogger(__name__)


def for_each_log(logs: Sequence[Log], work: Callable[[Log], _T]) -> list[_T | None]:
    """Do disk work on each log, in parallel if many; None where it failed, which is logged."""

    def one(log: Log) -> _T | None:
        try:
            return work(log)
        except KafkaError as e:
            _logger.warning("%s", e)
            return None

    if len(logs) < _MANY_LOGS:
        return [one(log) for log in logs]
    with ThreadPoolExecutor(_DISK_THREADS, "kafkalog-disk") as threads:
        return list(threads.map(one, logs))
