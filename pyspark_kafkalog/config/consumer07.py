"""What a consumer of a group can be told; the first generation's names and defaults."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_kafkalog.config.client07 import (
    PROTOCOL_07,
    PROTOCOL_08,
    BrokerAddress,
    Client07Config,
    numbered_broker_list,
    parse_broker_list,
)
from pyspark_kafkalog.config.definition import (
    INT_MAX,
    Check,
    between,
    one_of,
    positive_int,
    prop,
    prop_of,
)
from pyspark_kafkalog.config.zookeeper import ZooKeeperConfig, znode_name
from pyspark_kafkalog.errors import InvalidConfig

ZOOKEEPER, KAFKA = "zookeeper", "kafka"
"""Where a group's offsets are kept."""

SMALLEST, LARGEST, NONE = "smallest", "largest", "none"
"""Where a partition is begun of which the group has no offset that the log holds."""

_no_limit_or_ms = Check(f"0 to {INT_MAX}, or -1 to wait for ever", lambda value: -1 <= value <= INT_MAX)


@dataclass(frozen=True)
class ConnectorConfig(ZooKeeperConfig, Client07Config):
    """The properties of `ConsumerConnector`."""

    group_id: str = prop(
        "groupid", "group1", str, aliases=("group.id",), check=znode_name, section="The group",
        doc="Consumers with the same name share the partitions, and each message is for one of them.",
    )  # fmt: skip
    consumer_id: str | None = prop(
        "consumerid", None, str, aliases=("consumer.id",), check=znode_name,
        doc="What tells this consumer from the others; not set: host name, time and a random number.",
    )  # fmt: skip
    rebalance_retries_max: int = prop(
        "rebalance.retries.max", 4, int, check=positive_int, unit="attempts",
        doc="Attempts to take over partitions before an error is logged. Others may be slow to let go: it "
            "is tried on (0.7 gave up).",
    )  # fmt: skip
    rebalance_backoff_ms: int = prop(
        "rebalance.backoff.ms", 2_000, int, aliases=("zookeeper.sync.time.ms", "zk.synctime.ms"),
        check=positive_int, unit="ms",
        doc="Wait between these attempts, at most: it ends when the owner lets go. 0.7 takes zk.synctime.ms.",
    )  # fmt: skip
    fetch_size: int = prop(
        "fetch.size", 1 << 20, int, aliases=("fetch.message.max.bytes",), check=positive_int, unit="bytes",
        section="Fetching",
        doc="Data of one partition in one answer; doubled for a larger message, up to max.message.size.",
    )  # fmt: skip
    queued_chunks_max: int = prop(
        "queuedchunks.max", 10, int, aliases=("queued.max.message.chunks",), check=positive_int,
        unit="answers",
        doc="Answers of fetch.size that wait in each stream; while they do, no more is fetched for it.",
    )  # fmt: skip
    fetcher_backoff_ms: int = prop(
        "fetcher.backoff.ms", 1_000, int, aliases=("backoff.increment.ms",), check=positive_int, unit="ms",
        doc="Wait before a broker is asked again that had nothing new.",
    )  # fmt: skip
    auto_offset_reset: str = prop(
        "autooffset.reset", SMALLEST, str, aliases=("auto.offset.reset",),
        check=one_of(SMALLEST, LARGEST, NONE),
        doc="Where to begin when the group has no offset, or one that the log does not hold: its start, its "
            "end, or (none) an error for the stream.",
    )  # fmt: skip
    consumer_timeout_ms: int = prop(
        "consumer.timeout.ms", -1, int, check=_no_limit_or_ms, unit="ms",
        doc="Time without a message after which a stream raises ConsumerTimeout.",
    )  # fmt: skip
    auto_commit: bool = prop(
        "autocommit.enable", True, bool, aliases=("auto.commit.enable",), section="Offsets",
        doc="Commit now and then, before partitions are handed over, and in the end.",
    )  # fmt: skip
    auto_commit_interval_ms: int = prop(
        "autocommit.interval.ms", 10_000, int, aliases=("auto.commit.interval.ms",), check=positive_int,
        unit="ms", doc="How often.",
    )  # fmt: skip
    offsets_storage: str = prop(
        "offsets.storage", ZOOKEEPER, str, check=one_of(ZOOKEEPER, KAFKA),
        doc="Where offsets are kept. kafka: in __consumer_offsets of the brokers; not with protocol=0.7.",
    )  # fmt: skip
    dual_commit: bool = prop(
        "dual.commit.enabled", False, bool,
        doc="Commit to ZooKeeper and to Kafka, whichever offsets.storage names, and begin at the larger of "
            "both offsets: for the way from one to the other. Not with protocol=0.7. (Later brokers' "
            "consumers: true unless told.)",
    )  # fmt: skip
    offsets_timeout_ms: int = prop(
        "offsets.channel.socket.timeout.ms", 10_000, int, check=between(1, INT_MAX), unit="ms",
        doc="Time that one commit to Kafka, or one look-up there, may take, its repetitions included.",
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.zookeeper_connect is None:
            raise InvalidConfig("zookeeper.connect is missing: consumers of a group meet in ZooKeeper")
        if self.protocol == PROTOCOL_07:
            if self.offsets_storage == KAFKA:
                raise InvalidConfig(
                    f"offsets.storage={KAFKA} is not allowed with protocol={PROTOCOL_07}, whose brokers keep "
                    f"no offsets; allowed: {ZOOKEEPER}, or protocol={PROTOCOL_08}"
                )
            if self.dual_commit:
                raise InvalidConfig(
                    f"dual.commit.enabled=true is not allowed with protocol={PROTOCOL_07}, whose brokers "
                    f"keep no offsets; allowed: false, or protocol={PROTOCOL_08}"
                )

    @property
    def connect(self) -> str:
        """`zookeeper_connect`, which is always given here."""
        return self.zookeeper_connect or ""


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
