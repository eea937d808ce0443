"""The text that says what a task has committed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_kafkalog.datasource.options.option_definitions import Unit
from pyspark_kafkalog.datasource.sink.sink_transactions import Mark, WrittenOtherwise


@given(st.text(max_size=200), st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1))
def test_a_mark_is_read_as_it_was_written(name: str, batch: int, rows: int) -> None:
    mark = Mark(Unit(name, batch), rows)
    assert Mark.parse(mark.text()) == mark
    assert len(mark.text()) < 4096


def test_the_text_of_a_mark_is_the_one_that_is_in_use() -> None:
    text = '{"v": 1, "unit": "cb4afb66", "batch": 7, "rows": 12}'
    assert Mark.parse(text) == Mark(Unit("cb4afb66", 7), 12)
    assert Mark(Unit("cb4afb66", 7), 12).text() == text


@pytest.mark.parametrize("text", ["", "7", "null", "{}", '{"v": 2, "unit": "a", "batch": 1, "rows": 1}'])
def test_what_another_program_committed_is_reported(text: str) -> None:
    with pytest.raises(WrittenOtherwise, match="must be this query's own"):
        Mark.parse(text)
