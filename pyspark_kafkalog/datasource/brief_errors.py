"""What Spark shows of our errors: their text and one frame, where the text says all there is to know."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from pyspark_kafkalog.errors import KafkaError

logger = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")


def briefly(method: Callable[P, R]) -> Callable[P, R]:
    """``method``, which Spark calls in the driver, with a `KafkaError` raised from here, without a cause.

    Spark prints the traceback of what a data source raises, causes included, and a wrong option would stand
    near the end of dozens of lines. The whole one is logged at debug level.
    """

    @wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(*args, **kwargs)
        except KafkaError as e:
            logger.debug("%s failed", method.__qualname__, exc_info=True)
            error = e.with_traceback(None)
        error.__context__ = None
        raise error from None

    return call
