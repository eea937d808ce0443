"""Rows that a DataFrame of Spark must have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from chispa import assert_df_equality


def assert_rows(frame: Any, schema: str, rows: Sequence[Any]) -> None:
    """Exactly these rows and types, in any order; the difference is shown as a table."""
    expected = frame.sparkSession.createDataFrame(rows, schema)
    assert_df_equality(frame, expected, ignore_row_order=True, ignore_nullable=True)
