"""What Spark says of a table that is not there, and of one that cannot be looked at."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.errors import AnalysisException

from pyspark_kafkalog.loads.lake_table import DeltaTable


class Refusing:
    """Stands for a session that answers each statement with an error of this condition."""

    def __init__(self, condition: str) -> None:
        self._error = AnalysisException("it is not", errorClass=condition, messageParameters={})

    def sql(self, statement: str) -> Any:
        assert statement.startswith("DESCRIBE DETAIL")
        raise self._error


@pytest.mark.parametrize(
    "condition",
    [
        "TABLE_OR_VIEW_NOT_FOUND",
        "DELTA_MISSING_DELTA_TABLE",
        "DELTA_TABLE_NOT_FOUND",
        "DELTA_PATH_DOES_NOT_EXIST",
    ],
)
def test_a_table_that_is_not_there_has_no_loads(condition: str) -> None:
    session: Any = Refusing(condition)
    assert DeltaTable("/lake/flights")._commits(session) == []


@pytest.mark.parametrize("condition", ["REQUIRES_SINGLE_PART_NAMESPACE", "DELTA_LOG_FILE_NOT_FOUND"])
def test_a_table_that_cannot_be_looked_at_is_not_taken_for_missing(condition: str) -> None:
    session: Any = Refusing(condition)
    with pytest.raises(AnalysisException):
        DeltaTable("/lake/flights")._commits(session)
