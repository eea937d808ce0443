"""A mirror whose source is Apache Kafka, which has no ZooKeeper: only what is committed, with all it has."""

from __future__ import annotations

from typing import Any

from pyspark_kafkalog.classic.mirror.mirror import Mirror
from pyspark_kafkalog.client.admin import NewTopic, create_topics
from pyspark_kafkalog.config.mirror import mirror_config
from pyspark_kafkalog.types import NewRecord
from tests.support.classic.mirroring import Side
from tests.support.until import until


def test_transactions_of_apache_kafka_are_mirrored_when_they_are_committed(
    servers: str, own_broker: Any, topic_name: str
) -> None:
    for cluster in (servers, own_broker.bootstrap_servers):
        create_topics(cluster, [NewTopic(topic_name, 1)])
    host, _, port = servers.partition(",")[0].rpartition(":")
    here, there = Side.at(host, int(port)), Side(own_broker, "", "0.8")
    record = NewRecord(None, b"gone", 1_700_000_000_000, (("h", b"1"), ("h", None)))
    here.write(topic_name, [record])
    given = {"sources": "main", "whitelist": topic_name, "offset.commit.interval.ms": 50}
    source = here.as_source_by_brokers("main", **{"group.id": topic_name})
    with here.transactions(topic_name) as producer:
        with Mirror(mirror_config(given | source | there.as_target(), source="test")) as mirror:
            mirror.start()
            until(lambda: len(there.read(topic_name)) == 4)
            (_, first), *others = there.read(topic_name)
            assert NewRecord(first.value, first.key, first.timestamp, first.headers) == record
            assert [one.value for _, one in others] == [b"0", b"1", b"4"]
        producer.commit_transaction()
    with Mirror(mirror_config(given | source | there.as_target(), source="test")) as mirror:
        mirror.start()
        until(lambda: there.values(topic_name) == [b"", b"0", b"1", b"4", b"5"])
