"""What a Spark read of Kafka 0.7 can be told: where its brokers are, and how they are asked."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_kafkalog.config.client07 import (
    PROTOCOL_07,
    BrokerAddress,
    Client07Config,
    numbered_broker_list,
    parse_broker_list,
)
from pyspark_kafkalog.config.connector import ConnectorConfig
from pyspark_kafkalog.config.definition import one_of, prop, prop_of
from pyspark_kafkalog.config.zookeeper import ZooKeeperConfig


@dataclass(frozen=True)
class Source07Config(ZooKeeperConfig, Client07Config):
    """Brokers come from ZooKeeper, or from ``broker.list``: one of the two is set."""

    protocol: str = prop(
        "protocol", PROTOCOL_07, str, check=one_of(PROTOCOL_07), doc="The wire to speak."
    )  # fmt: skip
    # Positions are kept by the id: one that comes from the place in the list would change with the list.
    broker_list: str | None = prop(
        "broker.list", None, str, check=numbered_broker_list, doc="Brokers to read from, without ZooKeeper."
    )  # fmt: skip
    fetch_size: int = prop_of(ConnectorConfig, "fetch_size")

    @property
    def brokers(self) -> tuple[BrokerAddress, ...]:
        """Those of ``broker.list``; none where ZooKeeper knows them."""
        return parse_broker_list(self.broker_list) if self.broker_list else ()

    @property
    def place(self) -> str:
        """Where the topics are looked for, in words for messages."""
        if self.zookeeper_connect:
            return f"zookeeper.connect={self.zookeeper_connect}"
        return f"broker.list={self.broker_list}"
