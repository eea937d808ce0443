"""How a look-up is asked again after a passing failure: ``fetchOffset.numRetries`` and its interval."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from pyspark_kafkalog.clock import Clock
from pyspark_kafkalog.errors import KafkaError

if TYPE_CHECKING:
    from pyspark_kafkalog.datasource.options import SourceOptions

log = logging.getLogger(__name__)
T = TypeVar("T")


def again(ask: Callable[[], T], reconnect: Callable[[], object], options: SourceOptions, clock: Clock) -> T:
    """What ``ask`` gives, asked as often as the options allow; ``reconnect`` is called in between.

    Raises:
        KafkaError: the last failure, or one that will not pass.
    """
    failures = 0
    while True:
        try:
            return ask()
        except KafkaError as e:
            failures += 1
            if failures > options.offset_retries or not e.retriable:
                raise
            log.warning("look-up failed (%d of %d): %s", failures, options.offset_retries, e)
        clock.sleep(options.offset_retry_interval_ms / 1000)
        reconnect()
