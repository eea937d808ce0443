"""Java's producer of Kafka 4 at the bundled broker uses transactions of version 2, which that announces."""

from __future__ import annotations

import pytest

from kafkalog_broker.embedded import EmbeddedBroker
from pyspark_kafkalog import NewTopic, create_topics
from pyspark_kafkalog.protocol.api.transactions import DescribeTransactionsRequest
from tests.peers.test_transactions import ours
from tests.support.foreign.apache_kafka import fetch, run_tool
from tests.support.protocol.raw_client import RawClient

RECORDS = 20_000


@pytest.mark.parametrize(("version", "most_epochs"), [("4.1.1", 1000), (None, 0)], ids=["4.1", "3.9"])
def test_each_transaction_has_an_epoch_where_the_client_knows_of_that(
    own_broker: EmbeddedBroker, topic_name: str, version: str | None, most_epochs: int
) -> None:
    servers = own_broker.bootstrap_servers
    create_topics(servers, [NewTopic(topic_name, 2)])
    run_tool(
        fetch(version), "org.apache.kafka.tools.ProducerPerformance", "--topic", topic_name,
        "--num-records", str(RECORDS), "--record-size", "100", "--throughput", str(RECORDS),
        "--transactional-id", topic_name, "--transaction-duration-ms", "100",
        "--producer-props", f"bootstrap.servers={servers}",
    )  # fmt: skip
    with RawClient(own_broker.port) as client:
        (state,) = client.ask(DescribeTransactionsRequest((topic_name,))).transaction_states
    assert state.transaction_state == "CompleteCommit"
    assert min(1, most_epochs) <= state.producer_epoch <= most_epochs
    assert sum(len(ours(servers, topic_name, number)) for number in range(2)) == RECORDS
