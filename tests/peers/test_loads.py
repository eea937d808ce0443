"""Loads of topics that Apache Kafka keeps: its transactions and topic ids, and offsets that its tools see."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import pyspark_kafkalog as kafkalog
from pyspark_kafkalog import NewTopic, create_partitions, create_topics, delete_topics
from pyspark_kafkalog.client.discovery import Cluster
from pyspark_kafkalog.config.client import ClientConfig
from pyspark_kafkalog.errors import TopicRecreated
from pyspark_kafkalog.ledger.ledger import Ledger
from pyspark_kafkalog.loads import output_files
from tests.support.foreign.apache_kafka import ApacheKafka
from tests.support.spark.frame_rows import assert_rows
from tests.support.until import until

NAME = "events"
WAIT_SECONDS = 30.0
NOTHING = -1001
"""librdkafka's word for an offset that nobody committed."""


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
        return self.ledger.verify() == [] and output_files.verify_outputs(self.ledger.lineage()) == []


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


def partition_count(lake: Lake) -> int:
    cluster = Cluster(ClientConfig(bootstrap_servers=lake.servers))
    try:
        return len(cluster.metadata([lake.topic], refresh=True).topics[lake.topic].partitions)
    finally:
        cluster.close()


def test_the_second_load_has_what_came_since_and_new_partitions_whole(lake: Lake) -> None:
    assert lake.run().records == 3
    lake.add("d")
    lake.add("e", partition=1)
    create_partitions(lake.servers, {lake.topic: 3})
    until(lambda: partition_count(lake) == 3)
    lake.add("f", "g", partition=2)
    second = lake.run()
    assert (second.number, second.records) == (2, 4)
    plan = lake.ledger.plan(2)
    assert [(p.start, p.end, p.reason) for p in plan.partitions] == [
        (3, 4, ""), (0, 1, ""), (0, 2, "new partition")
    ]  # fmt: skip
    assert {p.topic_id for p in plan.partitions} != {""}
    assert plan.partitions[0].address == lake.servers
    assert_rows(
        kafkalog.read_load(lake.spark, lake.root / "table").select("load", "partition", "value"),
        "load int, partition int, value binary",
        [(1, 0, b"a"), (1, 0, b"b"), (1, 0, b"c"), (2, 0, b"d"), (2, 1, b"e"), (2, 2, b"f"), (2, 2, b"g")],
    )
    with lake.load() as third:
        assert third.is_empty
    assert lake.is_sound()


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


def committed(lake: Lake, group: str) -> list[int]:
    """What the group has committed in partitions 0 and 1, as librdkafka is told."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": lake.servers, "group.id": group})
    try:
        asked = [TopicPartition(lake.topic, 0), TopicPartition(lake.topic, 1)]
        return [found.offset for found in consumer.committed(asked, timeout=WAIT_SECONDS)]
    finally:
        consumer.close()


def test_after_a_commit_and_not_before_the_group_has_the_next_offsets(lake: Lake) -> None:
    group = f"watch-{lake.topic}"
    with lake.load(**{"kafka.group.id": group}) as load:
        load.write_parquet(lake.root / "table")
        assert committed(lake, group) == [NOTHING, NOTHING]
    assert committed(lake, group) == [3, 0]
    lake.add("d", "e")
    lake.run(**{"kafka.group.id": group})
    assert committed(lake, group) == [5, 0]


def test_a_first_load_begins_where_a_foreign_consumer_committed(lake: Lake) -> None:
    from confluent_kafka import Consumer, TopicPartition

    group = f"old-{lake.topic}"
    consumer = Consumer({"bootstrap.servers": lake.servers, "group.id": group})
    consumer.commit(offsets=[TopicPartition(lake.topic, 0, 2)], asynchronous=False)
    told = {"startingOffsets": "group", "kafka.group.id": group}
    assert lake.run(**told).records == 1
    # Now the ledger counts, whatever the group says.
    consumer.commit(offsets=[TopicPartition(lake.topic, 0, 0)], asynchronous=False)
    lake.add("d")
    assert lake.run(**told).records == 1
    assert [row[2] for row in lake.published()] == [b"c", b"d"]
    consumer.close()
    assert committed(lake, group) == [4, 0]


def test_a_stage_read_commits_with_its_last_task_and_tells_the_group(lake: Lake) -> None:
    group = f"stage-{lake.topic}"
    lake.add("d", partition=1)

    def new(commit: str) -> Any:
        ours = {"loadName": NAME, "offsetsPath": str(lake.root / "offsets"), "commitOffsets": commit}
        options = lake.options(**ours, **{"kafka.group.id": group})
        return lake.spark.read.format("kafkalog").options(**options).load()

    assert new("none").count() == 4
    assert not lake.ledger.known()
    new("group").write.parquet(str(lake.root / "files"))
    assert lake.spark.read.parquet(str(lake.root / "files")).count() == 4
    head = lake.ledger.head()
    assert head is not None
    assert (head.number, head.mode, head.records) == (1, "stage", 4)
    assert committed(lake, group) == [3, 1]
    assert new("group").count() == 0
    lake.add("e")
    assert [bytes(row.value) for row in new("group").collect()] == [b"e"]
    assert lake.ledger.head_number() == 2
    assert lake.ledger.verify() == []
