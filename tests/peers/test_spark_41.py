"""PySpark 4.1, the oldest that we work with, in a driver of its own, beside Spark's connector.

Loads run in it too: test_warehouses.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.datasource.both_connectors import OURS, THEIRS, ParityTopic
from tests.support.foreign.apache_kafka import ApacheKafka
from tests.support.foreign.fetched import NotAvailable
from tests.support.foreign.foreign_face import messages
from tests.support.spark.spark_environments import OLDEST, SparkProcess, connector_jars, older_pyspark

Call = Callable[..., Any]


@pytest.fixture(scope="module")
def call(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Call]:
    """Has the driver call one of `spark_41_jobs`."""
    try:
        pyspark, jars = older_pyspark(), connector_jars(OLDEST)
    except NotAvailable as e:
        pytest.skip(f"PySpark {OLDEST} is not here: {e}")
    process = SparkProcess(tmp_path_factory.mktemp("spark-41") / "driver.log", pyspark, jars)
    assert process.call("tests.support.spark.spark_41_jobs:version") == [OLDEST, OLDEST]
    yield lambda name, **arguments: process.call(f"tests.support.spark.spark_41_jobs:{name}", **arguments)
    process.close()


@pytest.fixture
def topic(apache_kafka: ApacheKafka, topic_name: str) -> ParityTopic:
    """Sixty records in partition 0, ten in 1."""
    topic = ParityTopic.make(apache_kafka.bootstrap_servers, topic_name, 2)
    sent = messages(70)
    topic.add(0, sent[:60], "zstd")
    topic.add(1, sent[60:])
    return topic


def test_a_batch_is_that_of_sparks_connector(call: Call, topic: ParityTopic) -> None:
    options = {"subscribe": topic.name, "includeHeaders": "true", "minPartitions": "6"}
    theirs, ours = (
        call("batch", source=source, servers=topic.servers, options=options) for source in (THEIRS, OURS)
    )
    assert ours == theirs
    assert sum(map(len, ours)) == 70


def test_a_stream_has_the_batches_of_sparks_connector(call: Call, topic: ParityTopic, tmp_path: Path) -> None:
    """Without a limit, for 4.1 knows none of Python sources: each run is one batch."""
    options = {"subscribe": topic.name, "startingOffsets": "earliest"}
    for count in (70, 7):
        theirs, ours = (
            call(
                "stream",
                source=source,
                servers=topic.servers,
                checkpoint=str(tmp_path / source),
                options=options,
            )
            for source in (THEIRS, OURS)
        )
        assert ours == theirs
        assert sum(map(len, ours)) == count
        topic.add(1, messages(7))


def test_both_sinks_write_the_same(call: Call, apache_kafka: ApacheKafka, topic_name: str) -> None:
    servers = apache_kafka.bootstrap_servers
    found = []
    for source in (THEIRS, OURS):
        to = ParityTopic.make(servers, f"{topic_name}-{source}", 3)
        call("write", source=source, servers=servers, topic=to.name, count=50)
        options = {"subscribe": to.name, "columns": "key,value,partition,offset"}
        found.append(call("keyed", servers=servers, options=options))
    assert found[0] == found[1]
    assert len(found[0]) == 50
