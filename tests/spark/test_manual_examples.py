"""What README.md and docs/migration.md show is run as it stands there, but for addresses and paths."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import pyspark_kafkalog as kafkalog
from kafkalog_broker.embedded import EmbeddedBroker
from tests.support.datasource.spark_topics import Topic
from tests.support.spark.frame_rows import assert_rows

NewTopic = Callable[..., Topic]
Run = Callable[[str], dict[str, Any]]
ROOT = Path(__file__).parents[2]


@pytest.fixture
def topics(new_topic: NewTopic) -> dict[str, Topic]:
    """What the examples call flights, with eight records, and flights-copy."""
    found = {"flights": new_topic(partitions=2), "flights-copy": new_topic()}
    found["flights"].add(*range(5), partition=0)
    found["flights"].add(*range(3), partition=1)
    return found


@pytest.fixture
def run(spark: Any, server: EmbeddedBroker, topics: dict[str, Topic], tmp_path: Path) -> Run:
    """``run(page)``: each example of it after the other; the names that they left."""

    def execute(page: str) -> dict[str, Any]:
        names: dict[str, Any] = {"spark": spark}
        for code in re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL):
            here = code.replace("localhost:9092", server.bootstrap_servers).replace("/lake", str(tmp_path))
            for name, topic in topics.items():
                here = re.sub(rf'(option\("\w+", )"{name}"', rf'\1"{topic.name}"', here)
                here = here.replace(f'"subscribe": "{name}"', f'"subscribe": "{topic.name}"')
            exec(compile(here, page, "exec"), names)
            for query in spark.streams.active:
                query.processAllAvailable()
                query.stop()
        return names

    return execute


def copied(load: Callable[..., Any], topics: dict[str, Topic]) -> int:
    return int(load(subscribe=topics["flights-copy"].name).count())


def test_the_examples_of_the_front_page(
    spark: Any, run: Run, load: Callable[..., Any], topics: dict[str, Topic]
) -> None:
    topics["flights"].add(8)
    names = run("README.md")
    spark.streams.removeListener(names["listener"])
    assert names["df"].count() == names["load"].commit.records == 9
    assert copied(load, topics) == 9


@pytest.mark.long("Spark drivers of its own")
def test_what_the_front_page_says_of_databases(
    spark: Any, server: EmbeddedBroker, topics: dict[str, Topic], tmp_path: Path
) -> None:
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    (said,) = re.findall(r"`(load\.write_sql\([^`]*\))`", page)
    url = f"sqlite:///{tmp_path}/lake.db"
    options: dict[str, Any] = {
        "kafka.bootstrap.servers": server.bootstrap_servers, "subscribe": topics["flights"].name
    }  # fmt: skip
    with kafkalog.load(spark, name="flights", offsets=tmp_path / "_offsets", **options) as load:
        exec(compile(said.replace("postgresql://loader@db/lake", url), "README.md", "exec"), {"load": load})
    with closing(sqlite3.connect(tmp_path / "lake.db")) as database:
        assert database.execute("SELECT COUNT(*) FROM flights").fetchone() == (8,)
    assert kafkalog.audit_sql("flights", str(tmp_path / "_offsets"), url) == []


@pytest.mark.long("Spark drivers of its own")
def test_the_examples_of_the_way_from_sparks_connector(
    spark: Any, run: Run, load: Callable[..., Any], topics: dict[str, Topic], tmp_path: Path
) -> None:
    # A view of this name, as another test has made one, would come before the table.
    spark.catalog.dropTempView("flights")
    old = tmp_path / "_checkpoints" / "flights"
    (old / "commits").mkdir(parents=True)
    (old / "commits" / "0").write_text("v1\n{}")
    (old / "offsets").mkdir()
    (old / "offsets" / "0").write_text(f'v1\n{{}}\n{{"{topics["flights"].name}":{{"0":3,"1":3}}}}')
    try:
        names = run("docs/migration.md")
        assert names["df"].count() == 8
        written = spark.table("flights").select("partition", "offset")
        assert_rows(written, "partition int, offset bigint", [(0, 3), (0, 4)])
        assert copied(load, topics) == 8
    finally:
        spark.sql("DROP TABLE IF EXISTS flights")
