"""Filters are pushed where the probe says that they may be, and the defect that keeps them off is shown."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import pyspark_kafkalog as kafkalog
from docs.pushdown_leak import scans
from pyspark_kafkalog.datasource.pushdown_probe import PUSHDOWN_CONF, find_leak
from tests.support.spark_topics import Topic


@pytest.fixture
def own_conf(spark: Any) -> Iterator[None]:
    """The session's setting is put back."""
    yield
    spark.conf.unset(PUSHDOWN_CONF)


@pytest.mark.usefixtures("own_conf")
def test_the_probe_says_what_the_reproducer_shows(spark: Any) -> None:
    # Which of the two it is depends on the Spark that runs; that they agree does not.
    wrong = [query for query, got, right in scans(spark) if got != right]
    spark.conf.unset(PUSHDOWN_CONF)
    leak = find_leak(spark)
    assert bool(leak) == bool(wrong)
    assert spark.conf.get(PUSHDOWN_CONF, "false") == "false"
    # One load() for each scan is right everywhere.
    assert not any("a load() for each" in query for query in wrong)
    if leak:
        with pytest.raises(kafkalog.PushdownLeaks, match=r"does not keep pushed filters apart: counting"):
            kafkalog.enable_pushdown(spark)
        assert spark.conf.get(PUSHDOWN_CONF, "false") == "false"
    else:
        kafkalog.enable_pushdown(spark)
        assert spark.conf.get(PUSHDOWN_CONF) == "true"


@pytest.mark.usefixtures("own_conf")
def test_a_filter_spares_tasks_and_rows(
    spark: Any, new_topic: Callable[..., Topic], load: Callable[..., Any]
) -> None:
    topic = new_topic(partitions=3)
    for partition in range(3):
        topic.add(*range(10), partition=partition)
    spark.conf.set(PUSHDOWN_CONF, "true")

    def query() -> Any:
        # One load() for each scan: see docs/pushdown.md.
        frame = load(subscribe=topic.name, pushFilters="true", columns="partition,offset")
        return frame.where("partition = 2 and offset between 3 and 5")

    assert query().rdd.getNumPartitions() == 1
    assert sorted(tuple(row) for row in query().collect()) == [(2, 3), (2, 4), (2, 5)]


def test_without_the_setting_spark_refuses_to_push(
    new_topic: Callable[..., Topic], load: Callable[..., Any]
) -> None:
    topic = new_topic()
    with pytest.raises(Exception, match="DATA_SOURCE_PUSHDOWN_DISABLED"):
        load(subscribe=topic.name, pushFilters="true").count()
