"""Loads whose ledger is in an object store, with a real session: driver and tasks both reach it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pyspark_kafkalog.loads import output_files
from pyspark_kafkalog.stores import object_clients
from pyspark_kafkalog.stores.locations import open_store
from tests.support.datasource.spark_topics import Topic
from tests.support.ledger.s3_server import BUCKET, KEYS, s3_server
from tests.support.loads.file_lake import NAME, Lake
from tests.support.spark.spark_environments import s3a_configs


class CloudLake(Lake):
    """A table at a path, and its ledger in a bucket."""

    @property
    def offsets(self) -> Any:
        return f"s3a://{BUCKET}/{self.topic.name}"


@pytest.fixture
def lake(
    spark: Any,
    server: Any,
    new_topic: Callable[..., Topic],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[CloudLake]:
    topic = new_topic(partitions=2)
    topic.add(*range(10), partition=0)
    topic.add(*range(10, 15), partition=1)
    with s3_server() as port:
        monkeypatch.setattr(spark.sparkContext, "environment", {**spark.sparkContext.environment})
        monkeypatch.setattr(object_clients, "_given", {})  # this bucket's settings are this test's alone
        session = spark.newSession()
        for name, value in s3a_configs(port).items():
            session.conf.set(name, value)
        yield CloudLake(session, server.bootstrap_servers, topic, tmp_path)


def test_a_load_with_its_ledger_in_a_bucket_goes_on_where_the_last_one_ended(lake: CloudLake) -> None:
    first = lake.run()
    assert (first.number, first.mode, first.records) == (1, "dir", 15)
    lake.topic.add(15, 16, partition=1)
    with lake.load() as left:
        left.df.collect()
        plan = left.df._jdf.queryExecution().toString()
        left.keep()  # a plan with receipts, which the next load compares its own with
    second = lake.run()
    assert (second.number, second.records) == (2, 2)
    lake.assert_published([(1, n) for n in range(15)] + [(2, 15), (2, 16)])
    assert lake.ledger.verify() == []
    assert output_files.verify_outputs(lake.ledger.lineage()) == []
    assert output_files.ledger_of(lake.table).location == f"s3a://{BUCKET}/{lake.topic.name}/{NAME}"
    (claim,) = lake.table.glob("_kafkalog*")
    store = open_store(lake.offsets)
    kept = [store.read(f"{NAME}/{name}") for name in ("load.json", "HEAD.json", "plans/00000002.json")]
    assert all(kept)
    assert KEYS["AWS_SECRET_ACCESS_KEY"] not in f"{plan} {claim.read_text()} {kept}"
