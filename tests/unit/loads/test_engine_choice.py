"""Who writes a table's files: tasks, unless something needs Spark's writers; contradictions are errors."""

from __future__ import annotations

from typing import Any

import pytest

from pyspark_kafkalog.errors import InvalidConfig
from pyspark_kafkalog.loads.load import tasks_write

SPARK: Any = object()


@pytest.mark.parametrize(
    ("engine", "of_spark", "by_tasks"),
    [
        (None, [], True),
        (None, ["df="], False),
        ("spark", [], False),
        ("tasks", [], True),
        ("spark", ["x"], False),
    ],
)
def test_tasks_write_unless_spark_must(engine: str | None, of_spark: list[str], by_tasks: bool) -> None:
    assert tasks_write(engine, of_spark, [], SPARK) is by_tasks


@pytest.mark.parametrize(
    ("engine", "of_spark", "of_tasks", "said"),
    [
        ("jvm", [], [], "engine is 'jvm'; it must be 'tasks' or 'spark'"),
        (
            "tasks",
            ["df=", "mergeSchema"],
            [],
            "engine='tasks' contradicts df=, mergeSchema, which need Spark's w",
        ),
        (
            "spark",
            [],
            ["transform="],
            "transform= is for tasks that write, and engine='spark' for Spark's writers",
        ),
        (
            None,
            ["format=orc"],
            ["transform="],
            "transform= is for tasks that write, and format=orc for Spark's",
        ),
    ],
)
def test_contradictions_are_named(
    engine: str | None, of_spark: list[str], of_tasks: list[str], said: str
) -> None:
    with pytest.raises(InvalidConfig, match=said):
        tasks_write(engine, of_spark, of_tasks, SPARK)


@pytest.mark.parametrize("of_spark", [["df="], ["format=orc"]])
def test_without_spark_its_writers_are_refused(of_spark: list[str]) -> None:
    assert tasks_write(None, [], ["transform="], None)
    with pytest.raises(InvalidConfig, match=f"{of_spark[0]} needs Spark, and this load has none"):
        tasks_write(None, of_spark, [], None)
