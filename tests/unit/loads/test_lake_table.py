"""What Spark says of a table that is not there, and of one that cannot be looked at."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.errors import AnalysisException

from pyspark_kafkalog.loads.writers.spark_tables import SparkDeltaTable


class Refusing:
    """Stands for a session that answers each statement with an error of this condition."""

    def __init__(self, condition: str) -> None:
        self.session = self  # as of a load's work
        self._error = AnalysisException("it is not", errorClass=condition, messageParameters={})

    def sql(self, statement: str) -> Any:
        assert statement.startswith("DESCRIBE DETAIL")
        raise self._error


@pytest.mark.parametrize(
    ("condition", "is_missing"),
    [
        ("TABLE_OR_VIEW_NOT_FOUND", True), ("DELTA_MISSING_DELTA_TABLE", True),
        ("DELTA_TABLE_NOT_FOUND", True), ("DELTA_PATH_DOES_NOT_EXIST", True),
        ("REQUIRES_SINGLE_PART_NAMESPACE", False), ("DELTA_LOG_FILE_NOT_FOUND", False),
    ],
)  # fmt: skip
def test_only_a_table_that_is_not_there_has_no_loads(condition: str, is_missing: bool) -> None:
    session: Any = Refusing(condition)
    if is_missing:
        assert SparkDeltaTable("/lake/flights")._commits(session) == []
        return
    with pytest.raises(AnalysisException):
        SparkDeltaTable("/lake/flights")._commits(session)
