"""Loads of topics that Apache Kafka keeps: its transactions and topic ids."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import pyspark_kafkalog as kafkalog
from pyspark_kafkalog import NewTopic, create_topics, delete_topics
from pyspark_kafkalog.client.discovery import Cluster
from pyspark_kafkalog.config.client_config import ClientConfig
from pyspark_kafkalog.errors import TopicRecreated
from pyspark_kafkalog.ledger.ledger import Ledger
from pyspark_kafkalog.loads import verification
from tests.support.foreign.apache_kafka import ApacheKafka
from tests.support.until import until

NAME = "events"
WAIT_SECONDS = 30.0


@dataclass
class Lake:
    """One topic of Apache Kafka, the ledger of its loads, and their table."""

    spark: Any
    servers: str
    topic: str
    root: Path

    @property
    def ledger(self) -> Ledger:
        return Ledger.at(self.root / "offsets", NAME)

    def options(self, **options: object) -> dict[str, Any]:
        return {"kafka.bootstrap.servers": self.servers, "subscribe": self.topic, **options}

    def load(self, name: str = NAME, **options: object) -> kafkalog.Load:
        return kafkalog.load(self.spark, name=name, offsets=self.root / "offsets", **self.options(**options))

    def run(self, **options: object) -> kafkalog.Commit:
        """A whole load; returns its commit."""
        with self.load(**options) as load:
            load.write_parquet(self.root / "table")
        assert load.commit is not None
        return load.commit

    def published(self) -> list[tuple[int, int, bytes]]:
        """Load, partition and value of each row."""
        rows = kafkalog.read_load(self.spark, self.root / "table").collect()
        return sorted((row.load, row.partition, bytes(row.value)) for row in rows)

    def add(self, *values: str, partition: int = 0) -> None:
        config = {"bootstrap.servers": self.servers}
        with kafkalog.Producer(config) as out:
            for value in values:
                out.send(self.topic, value.encode(), partition=partition)

    def is_sound(self) -> bool:
        return self.ledger.verify() == [] and verification.verify_outputs(self.ledger.lineage()) == []


@pytest.fixture
def lake(spark: Any, apache_kafka: ApacheKafka, topic_name: str, tmp_path: Path) -> Lake:
    """A topic with two partitions, a to c in the first of them."""
    servers = apache_kafka.bootstrap_servers
    create_topics(servers, [NewTopic(topic_name, 2)])
    lake = Lake(spark, servers, topic_name, tmp_path)
    lake.add("a", "b", "c")
    return lake


def topic_id(lake: Lake) -> str:
    """The topic's id in hexadecimal; zeros while it is not there."""
    cluster = Cluster(ClientConfig(bootstrap_servers=lake.servers))
    try:
        return str(cluster.metadata([lake.topic], refresh=True).topics[lake.topic].topic_id.hex)
    finally:
        cluster.close()


@pytest.fixture
def transactions(lake: Lake) -> Iterator[Any]:
    """A transactional producer of librdkafka."""
    from confluent_kafka import Producer

    out = Producer({"bootstrap.servers": lake.servers, "transactional.id": lake.topic})
    out.init_transactions(WAIT_SECONDS)
    yield out
    out.flush(WAIT_SECONDS)


def test_committed_loads_go_past_markers_and_aborts_and_stop_at_an_open_transaction(
    lake: Lake, transactions: Any
) -> None:
    def write(*values: str) -> None:
        transactions.begin_transaction()
        for value in values:
            transactions.produce(lake.topic, value, partition=0)
        transactions.flush(WAIT_SECONDS)

    write("d", "e")  # 3 and 4, its marker at 5
    transactions.commit_transaction(WAIT_SECONDS)
    write("no", "no", "no")  # 6 to 8, its marker at 9
    transactions.abort_transaction(WAIT_SECONDS)
    write("f")  # 10, open
    level = {"kafka.isolation.level": "read_committed"}
    first = lake.run(minPartitions=3, **level)
    assert (first.records, first.positions[0].next) == (5, 10)
    receipts = lake.ledger.receipts(lake.ledger.plan(1))
    assert [r.next for r in receipts] == [r.end for r in receipts]
    assert len(receipts) > 2  # some of these ranges hold an abort and markers only

    with lake.load(**level) as nothing:
        assert nothing.is_empty
    transactions.commit_transaction(WAIT_SECONDS)  # its marker at 11
    second = lake.run(**level)
    assert (second.records, second.positions[0].next) == (1, 12)
    assert [row[2] for row in lake.published()] == [b"a", b"b", b"c", b"d", b"e", b"f"]
    assert lake.is_sound()


def test_a_recreated_topic_is_known_by_its_id_though_it_is_as_long_as_before(lake: Lake) -> None:
    lake.run()
    was = topic_id(lake)
    delete_topics(lake.servers, [lake.topic])
    until(lambda: topic_id(lake) == "0" * 32)
    create_topics(lake.servers, [NewTopic(lake.topic, 2)])
    until(lambda: topic_id(lake) not in ("0" * 32, was))
    lake.add("x", "y", "z", "new")
    with pytest.raises(TopicRecreated, match="onTopicRecreated=earliest"), lake.load():
        pass
    assert lake.ledger.head_number() == 1
    assert lake.ledger.pending() is None
    again = lake.run(onTopicRecreated="earliest")
    assert (again.number, again.records, again.positions[0].next) == (2, 4, 4)
    assert [value for load, _, value in lake.published() if load == 2] == [b"new", b"x", b"y", b"z"]
    assert lake.is_sound()
