"""A load whose Spark runs a Python without the package."""

from __future__ import annotations

from typing import Any

import pytest

from pyspark_kafkalog.errors import LoadError
from pyspark_kafkalog.loads.load import load_frame


class Reader:
    """A reader of Spark's that fails."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def load(self) -> Any:
        raise self._error


def test_a_source_that_spark_does_not_find_is_explained() -> None:
    missing = RuntimeError("o33.load: [DATA_SOURCE_NOT_FOUND] Failed to find the data source: kafkalog.")
    with pytest.raises(LoadError, match=r'os\.environ\.setdefault."PYSPARK_PYTHON", sys') as raised:
        load_frame(Reader(missing))  # type: ignore[arg-type]
    assert raised.value.__suppress_context__


def test_other_errors_of_spark_are_left_as_they_are() -> None:
    with pytest.raises(RuntimeError, match="another"):
        load_frame(Reader(RuntimeError("another")))  # type: ignore[arg-type]
