"""Brokers of a cluster that log in at each other, over TLS, for a transaction of both."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import pyspark_kafkalog as kafkalog
from kafkalog_broker.embedded import EmbeddedCluster, start_cluster
from tests.support.network.certificates import Authority
from tests.support.until import until

JAAS = "PlainLoginModule required username={0} password={0} user_{0}={0} user_alice=alice;"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    made = Authority.made(tmp_path_factory.mktemp("certificates"))
    made.issue("server", "127.0.0.1")
    return made


@pytest.fixture(scope="module")
def cluster(authority: Authority) -> Iterator[EmbeddedCluster]:
    properties = {
        "listeners": "SASL_SSL://127.0.0.1:0",
        "security.inter.broker.protocol": "SASL_SSL",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_ssl.plain.sasl.jaas.config": JAAS.format("kafka"),
        "ssl.keystore.location": authority.directory / "server.pem",
        "ssl.truststore.location": authority.file,
        "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
        "super.users": "User:kafka;User:alice",
    }
    with start_cluster(2, properties) as running:
        yield running


def client(cluster: EmbeddedCluster, trust: Path) -> dict[str, object]:
    return {
        "bootstrap.servers": cluster.bootstrap_servers,
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": "PlainLoginModule required username=alice password=alice;",
        "ssl.truststore.location": str(trust),
    }


@pytest.mark.long("several brokers and their ZooKeeper")
def test_a_transaction_of_both(cluster: EmbeddedCluster, authority: Authority) -> None:
    login = client(cluster, authority.file)
    kafkalog.create_topics(login, [kafkalog.NewTopic("spread", 4)])
    for name in ("a", "b", "c", "d"):  # of which each broker coordinates some
        with kafkalog.Producer({**login, "transactional.id": name}) as producer:
            producer.init_transactions()
            for end in (producer.commit_transaction, producer.abort_transaction):
                producer.begin_transaction()
                value = f"{name} {end.__name__}".encode()
                sent = [producer.send("spread", value, partition=n) for n in range(4)]
                assert [each.result(20).partition for each in sent] == [0, 1, 2, 3]
                end()
    reading = {"group.id": "g", "auto.offset.reset": "earliest", "isolation.level": "read_committed"}
    found: list[tuple[int, bytes | None]] = []
    with kafkalog.Consumer({**login, **reading}) as consumer:
        consumer.subscribe(["spread"])
        until(lambda: found.extend((r.partition, r.value) for r in consumer.poll(1.0)) or len(found) == 16)
    wanted = [(n, f"{name} commit_transaction".encode()) for n in range(4) for name in ("a", "b", "c", "d")]
    assert sorted(found) == sorted(wanted)
