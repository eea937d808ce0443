"""A client of 0.8.1 keeps its groups' offsets in ZooKeeper, through a broker that has one."""

from __future__ import annotations

from kafkalog_broker.embedded import start_broker
from pyspark_kafkalog import NewTopic, create_topics
from pyspark_kafkalog.zookeeper.paths import JsonLayout
from pyspark_kafkalog.zookeeper.registries import read_group_offset, write_group_offset
from pyspark_kafkalog.zookeeper.session import ZooKeeperSession
from tests.support.foreign.foreign_face import messages
from tests.support.foreign.old_clients import as_told, kafka_python


def test_what_it_commits_is_where_consumers_of_its_time_look(zookeeper_connect: str) -> None:
    client = kafka_python(0, 8, 1)
    sent = [m._replace(headers=()) for m in messages(10)]
    with (
        start_broker({"zookeeper.connect": zookeeper_connect}) as broker,
        ZooKeeperSession(zookeeper_connect) as session,
    ):
        servers = broker.bootstrap_servers
        create_topics(servers, [NewTopic("t", 2)])
        assert client.produce(servers, "t", 1, sent, "gzip", idempotent=False) == list(range(10))
        assert client.consume(servers, "t", 1, 3, 7) == as_told(sent, 0)[3:]
        assert client.committed(servers, "g", "t", 1) is None
        client.commit(servers, "g", "t", 1, 7)
        assert read_group_offset(session, JsonLayout(), "g", "t", "1") == 7
        write_group_offset(session, JsonLayout(), "g", "t", "1", 9)
        assert client.committed(servers, "g", "t", 1) == 9
        assert kafka_python(0, 8, 2).committed(servers, "g", "t", 1) is None, "in Kafka there is nothing"
