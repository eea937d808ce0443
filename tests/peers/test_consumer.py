"""`Consumer` and the commands in groups of Apache Kafka 4.1, in both protocols.

The same at the bundled broker: tests/broker/client/test_consumer.py, cli/test_kafkalog_cli_coordinators.py.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.client.consumer_cases import QUICK_GROUPS, ConsumerCases
from tests.support.client.group_command_cases import GroupCommandCases
from tests.support.client.transaction_command_cases import TransactionCommandCases
from tests.support.foreign.apache_kafka import ApacheKafka, fetch
from tests.support.foreign.fetched import NotAvailable


@pytest.fixture(scope="module")
def group_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheKafka]:
    try:
        jars = fetch("4.1.1")
    except NotAvailable as e:
        pytest.skip(f"Apache Kafka is not here: {e}")
    settings = {name.replace(".", "_"): value for name, value in QUICK_GROUPS.items()}
    # Apache Kafka has limits for these; the bundled broker has none.
    settings |= {
        "group_consumer_min_session_timeout_ms": "500",
        "group_consumer_min_heartbeat_interval_ms": "100",
    }
    kafka = ApacheKafka(jars, tmp_path_factory.mktemp("kafka-groups"), **settings)
    try:
        yield kafka.start()
    finally:
        kafka.stop()


class TestAtApacheKafka(ConsumerCases, GroupCommandCases, TransactionCommandCases):
    @pytest.fixture
    def servers(self, group_kafka: ApacheKafka) -> str:
        return group_kafka.bootstrap_servers
