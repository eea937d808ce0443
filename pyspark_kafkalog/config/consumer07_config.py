"""Properties of `ConsumerConnector` and of Spark's reads from Kafka 0.7."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_kafkalog.config.client07_config import (
    PROTOCOL_07,
    PROTOCOL_08,
    BrokerAddress,
    Client07Config,
    numbered_broker_list,
    parse_broker_list,
)
from pyspark_kafkalog.config.client_config import ConsumerConfig
from pyspark_kafkalog.config.definition import (
    INT_MAX,
    Check,
    between,
    one_of,
    positive_int,
    prop,
    prop_of,
)
from pyspark_kafkalog.config.zookeeper_config import ZooKeeperConfig, znode_name
from pyspark_kafkalog.errors import InvalidConfig
from pyspark_kafkalog.types import IsolationLevel

ZOOKEEPER, KAFKA = "zookeeper", "kafka"

SMALLEST, LARGEST, NONE = "smallest", "largest", "none"
"""Where to start if the group has no valid offset."""

_no_limit_or_ms = Check(f"0 to {INT_MAX}, or -1 to wait without limit", lambda value: -1 <= value <= INT_MAX)


@dataclass(frozen=True)
class SimpleConsumerConfig(Client07Config):
    isolation_level: str = prop_of(ConsumerConfig, "isolation_level")

    @property
    def isolation(self) -> IsolationLevel:
        return IsolationLevel[self.isolation_level.upper()]


@dataclass(frozen=True)
class ConnectorConfig(ZooKeeperConfig, SimpleConsumerConfig):
    group_id: str = prop(
        "groupid", "group1", str, aliases=("group.id",), check=znode_name, section="The group",
        doc="Consumers with the same group share the partitions: each message goes to one of them.",
    )  # fmt: skip
    consumer_id: str | None = prop(
        "consumerid", None, str, aliases=("consumer.id",), check=znode_name,
        doc="Name of this consumer in the group; not set: host name, time and a random number.",
    )  # fmt: skip
    rebalance_retries_max: int = prop(
        "rebalance.retries.max", 4, int, check=positive_int, unit="attempts",
        doc="Attempts to own partitions before an error is logged. It keeps trying (0.7 gave up), because "
            "owners may release them slowly.",
    )  # fmt: skip
    rebalance_backoff_ms: int = prop(
        "rebalance.backoff.ms", 2_000, int, aliases=("zookeeper.sync.time.ms", "zk.synctime.ms"),
        check=positive_int, unit="ms",
        doc="Longest wait between these attempts; it ends when the owner releases the partitions.",
    )  # fmt: skip
    fetch_size: int = prop(
        "fetch.size", 1 << 20, int, aliases=("fetch.message.max.bytes",), check=positive_int, unit="bytes",
        section="Fetching",
        doc="Data of one partition in one response; doubled for a larger message, up to max.message.size.",
    )  # fmt: skip
    queued_chunks_max: int = prop(
        "queuedchunks.max", 10, int, aliases=("queued.max.message.chunks",), check=positive_int,
        unit="answers",
        doc="Responses of fetch.size queued for each stream; fetching pauses while the queue is full.",
    )  # fmt: skip
    fetcher_backoff_ms: int = prop(
        "fetcher.backoff.ms", 1_000, int, aliases=("backoff.increment.ms",), check=positive_int, unit="ms",
        doc="Wait before the next fetch from a broker that had nothing new.",
    )  # fmt: skip
    auto_offset_reset: str = prop(
        "autooffset.reset", SMALLEST, str, aliases=("auto.offset.reset",),
        check=one_of(SMALLEST, LARGEST, NONE),
        doc="Where to start if the group's offset is missing or not in the log: the log's start, its end, "
            "or (none) an error for the stream.",
    )  # fmt: skip
    consumer_timeout_ms: int = prop(
        "consumer.timeout.ms", -1, int, check=_no_limit_or_ms, unit="ms",
        doc="Time without a message after which a stream raises ConsumerTimeout.",
    )  # fmt: skip
    auto_commit: bool = prop(
        "autocommit.enable", True, bool, aliases=("auto.commit.enable",), section="Offsets",
        doc="Commit periodically, before partitions are released, and at the end.",
    )  # fmt: skip
    auto_commit_interval_ms: int = prop(
        "autocommit.interval.ms", 10_000, int, aliases=("auto.commit.interval.ms",), check=positive_int,
        unit="ms", doc="Time between two automatic commits.",
    )  # fmt: skip
    offsets_storage: str = prop(
        "offsets.storage", ZOOKEEPER, str, check=one_of(ZOOKEEPER, KAFKA),
        doc="Where offsets are stored. kafka: in the brokers' __consumer_offsets; not with protocol=0.7.",
    )  # fmt: skip
    dual_commit: bool = prop(
        "dual.commit.enabled", False, bool,
        doc="Commit to both ZooKeeper and Kafka and start at the larger offset, to migrate between them; "
            "not with protocol=0.7. (Later brokers' consumers: true.)",
    )  # fmt: skip
    offsets_timeout_ms: int = prop(
        "offsets.channel.socket.timeout.ms", 10_000, int, check=between(1, INT_MAX), unit="ms",
        doc="Time limit for a commit to Kafka or a look-up there, including retries.",
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.zookeeper_connect is None:
            raise InvalidConfig(
                "zookeeper.connect is missing: consumers of a group coordinate through ZooKeeper"
            )
        if self.protocol == PROTOCOL_07:
            if self.offsets_storage == KAFKA:
                raise InvalidConfig(
                    f"offsets.storage={KAFKA} is not allowed with protocol={PROTOCOL_07}, whose brokers "
                    f"store no offsets; allowed: {ZOOKEEPER}, or protocol={PROTOCOL_08}"
                )
            if self.dual_commit:
                raise InvalidConfig(
                    f"dual.commit.enabled=true is not allowed with protocol={PROTOCOL_07}, whose brokers "
                    f"store no offsets; allowed: false, or protocol={PROTOCOL_08}"
                )

    @property
    def connect(self) -> str:
        return self.zookeeper_connect or ""


@dataclass(frozen=True)
class Source07Config(ZooKeeperConfig, SimpleConsumerConfig):
    """A Spark read from Kafka 0.7; needs either ``zookeeper.connect`` or ``broker.list``."""

    protocol: str = prop(
        "protocol", PROTOCOL_07, str, check=one_of(PROTOCOL_07), doc="Wire protocol."
    )  # fmt: skip
    # Offsets are stored by broker id, which must not depend on the position in the list.
    broker_list: str | None = prop(
        "broker.list", None, str, check=numbered_broker_list, doc="Brokers to read from, without ZooKeeper."
    )  # fmt: skip
    fetch_size: int = prop_of(ConnectorConfig, "fetch_size")

    @property
    def brokers(self) -> tuple[BrokerAddress, ...]:
        return parse_broker_list(self.broker_list) if self.broker_list else ()

    @property
    def place(self) -> str:
        """Where the brokers come from, for messages."""
        if self.zookeeper_connect:
            return f"zookeeper.connect={self.zookeeper_connect}"
        return f"broker.list={self.broker_list}"
