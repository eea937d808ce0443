"""Loads whose ledger and files lie in a store that Spark's own writers reach: the whole path, from the first
load over one that died to a compaction and gc."""

from __future__ import annotations

from typing import Any

import pytest

import pyspark_kafkalog as kafkalog
from pyspark_kafkalog.client.admin import NewTopic, create_topics
from tests.peers.conftest import SparkAtAzure
from tests.support.ledger.s3_server import BUCKET
from tests.support.spark.spark_environments import SparkProcess


class Nightly:
    """A load below ``root``, by a driver of its own that reaches it; its table has directories of ``by``."""

    def __init__(self, driver: SparkProcess, root: str, servers: str, topic: str, by: list[str]) -> None:
        self._driver, self._root, self.by = driver, root, by
        self._options = {"kafka.bootstrap.servers": servers, "subscribe": topic}
        self._servers, self._topic = servers, topic
        create_topics(servers, [NewTopic(topic, 2)])

    def produce(self, *values: int) -> None:
        with kafkalog.Producer({"bootstrap.servers": self._servers}) as producer:
            for value in values:
                producer.send(self._topic, str(value).encode(), partition=value // 2 % 2)

    def load(self, job: str = "nightly") -> dict[str, Any]:
        return self.call(job, by=self.by, options=self._options)

    def call(self, job: str, **given: Any) -> dict[str, Any]:
        found = self._driver.call(f"tests.support.loads.store_jobs:{job}", root=self._root, **given)
        return dict(found or {})


@pytest.fixture(params=["s3a", "abfs", "hdfs"])
def nightly(request: pytest.FixtureRequest, own_broker: Any, topic_name: str) -> Nightly:
    store, by = request.param, ["partition"]
    if store == "hdfs":
        driver, top = request.getfixturevalue("plain_spark"), request.getfixturevalue("hdfs").url
    elif store == "abfs":
        driver, top = request.getfixturevalue("abfs")
        by = []  # ABFS commits no task with two directories at Azurite, which lists directories before files
    else:
        driver, top = request.getfixturevalue("s3a"), f"s3a://{BUCKET}"
    root = f"{top}/{topic_name} table"  # with a space, as paths have them
    return Nightly(driver, root, own_broker.bootstrap_servers, topic_name, by)


def state(*loads: tuple[int, list[int]], dead: tuple[int, list[int]]) -> dict[str, Any]:
    """What readers should see: the values of each load."""
    rows = [[load, n] for load, values in loads for n in values]
    return {
        "rows": rows,
        "listed": sorted(n for _, n in rows),
        "dead": [[dead[0], n] for n in dead[1]],
        "findings": [],
    }


def test_a_nightly_load_with_all_that_befalls_it(nightly: Nightly) -> None:
    nightly.produce(*range(10))
    after_one = state((1, [1, 3, 5, 7, 9]), dead=(1, [0, 2, 4, 6, 8]))
    assert nightly.load() == {"number": 1, **after_one}
    assert nightly.load() == {"number": None, **after_one}

    nightly.produce(11, 13)
    nightly.load("died")
    after_two = state((1, [1, 3, 5, 7, 9]), (2, [11, 13]), dead=(1, [0, 2, 4, 6, 8]))
    assert nightly.load() == {"number": 2, **after_two}

    # Of each load one file for each partition: four become one in each directory.
    assert nightly.call("compacted") == {"number": 3, "files": 2 if nightly.by else 1, **after_two}
    cleaned = nightly.call("cleaned")
    assert cleaned.pop("unlisted") >= 2  # those of the load that died, and Spark's markers beside them
    assert cleaned == {"replaced": 4, **after_two}
    nightly.produce(15)
    assert nightly.load()["rows"] == [*after_two["rows"], [4, 15]]


def test_what_an_aborted_load_leaves_at_s3_goes(s3a: SparkProcess, own_broker: Any, topic_name: str) -> None:
    """S3A marks the directory that it has emptied."""
    root = f"s3a://{BUCKET}/{topic_name} table"
    nightly = Nightly(s3a, root, own_broker.bootstrap_servers, topic_name, [])
    nightly.produce(*range(6))
    assert nightly.load("aborted") == {"directories": ["load=00000001/kl_run"]}
    assert nightly.load()["number"] == 1
    assert nightly.call("directories") == {"directories": ["load=00000001/kl_run"]}
    assert nightly.call("cleaned")["unlisted"] == 0
    assert nightly.call("directories") == {"directories": []}


def test_what_marks_a_directory_is_not_a_file_of_the_load(
    abfs: SparkAtAzure, own_broker: Any, topic_name: str
) -> None:
    """ABFS marks each by an empty blob."""
    root = f"{abfs.url}/{topic_name}"
    nightly = Nightly(abfs.process, root, own_broker.bootstrap_servers, topic_name, ["partition"])
    nightly.produce(*range(6))
    assert nightly.load() == {"number": 1, **state((1, [1, 3, 5]), dead=(1, [0, 2, 4]))}
    assert nightly.call("cleaned")["unlisted"] == 0
