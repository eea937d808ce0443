"""The properties of `Consumer`: its group, its polls, its offsets."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_kafkalog.config.client_config import ConsumerConfig
from pyspark_kafkalog.config.definition import INT_MAX, Check, between, not_empty, one_of, positive_int, prop
from pyspark_kafkalog.errors import InvalidConfig

CLASSIC, CONSUMER = "classic", "consumer"

EARLIEST, LATEST, NONE = "earliest", "latest", "none"

RANGE, ROUNDROBIN, STICKY, COOPERATIVE = "range", "roundrobin", "sticky", "cooperative-sticky"
"""How the members of a classic group share partitions."""

_JAVA = "org.apache.kafka.clients.consumer."
_STRATEGIES = {
    RANGE: RANGE, f"{_JAVA}RangeAssignor": RANGE,
    ROUNDROBIN: ROUNDROBIN, f"{_JAVA}RoundRobinAssignor": ROUNDROBIN,
    STICKY: STICKY, f"{_JAVA}StickyAssignor": STICKY,
    COOPERATIVE: COOPERATIVE, f"{_JAVA}CooperativeStickyAssignor": COOPERATIVE,
}  # fmt: skip

_strategies = Check(
    f"one or more of {', '.join(_STRATEGIES[name] for name in list(_STRATEGIES)[::2])}",
    lambda names: len(names) > 0 and all(name in _STRATEGIES for name in names),
)


@dataclass(frozen=True)
class GroupConsumerConfig(ConsumerConfig):
    group_id: str | None = prop(
        "group.id", None, str, check=not_empty, section="The group",
        doc="Consumers with the same group share the partitions of their topics. Not set: only assign(), "
            "and nothing is committed.",
    )  # fmt: skip
    group_instance_id: str | None = prop(
        "group.instance.id", None, str, check=not_empty,
        doc="Name of a static member, different for each: restarted within session.timeout.ms it keeps its "
            "partitions without a rebalance.",
    )  # fmt: skip
    group_protocol: str = prop(
        "group.protocol", CLASSIC, str, check=one_of(CLASSIC, CONSUMER),
        doc="classic: the members assign the partitions. consumer: the broker does (KIP-848; Kafka 4.0 or "
            "later, and the bundled broker). A group has members of one protocol.",
    )  # fmt: skip
    partition_assignment_strategy: tuple[str, ...] = prop(
        "partition.assignment.strategy", (RANGE, COOPERATIVE), tuple, check=_strategies,
        doc="How a classic group assigns partitions, the preferred first; members need one in common. "
            "range: neighbouring partitions of each topic; roundrobin: in turn; sticky: evenly, with few "
            "moves; cooperative-sticky: also reads unmoved partitions during a rebalance, if all listed are "
            "cooperative. Java's class names are accepted.",
    )  # fmt: skip
    group_remote_assignor: str | None = prop(
        "group.remote.assignor", None, str, check=not_empty,
        doc="With group.protocol=consumer: the broker's assignor, uniform or range. Not set: the broker "
            "chooses.",
    )  # fmt: skip
    session_timeout_ms: int = prop(
        "session.timeout.ms", 45_000, int, check=positive_int, unit="ms",
        doc="Time without a heartbeat after which the broker removes the member; with "
            "group.protocol=consumer set at the broker.",
    )  # fmt: skip
    heartbeat_interval_ms: int = prop(
        "heartbeat.interval.ms", 3_000, int, check=positive_int, unit="ms",
        doc="Time between heartbeats, below session.timeout.ms, usually a third of it; with "
            "group.protocol=consumer set at the broker.",
    )  # fmt: skip
    max_poll_interval_ms: int = prop(
        "max.poll.interval.ms", 300_000, int, check=positive_int, unit="ms",
        doc="Time without a poll() after which the consumer leaves the group, giving up its partitions. It "
            "joins again with the next poll().",
    )  # fmt: skip
    max_poll_records: int = prop(
        "max.poll.records", 500, int, check=positive_int, unit="records",
        doc="Most records that one poll() returns.",
    )  # fmt: skip
    auto_offset_reset: str = prop(
        "auto.offset.reset", LATEST, str, check=one_of(EARLIEST, LATEST, NONE), section="Offsets",
        doc="Where to start if the group's offset is missing or not in the log: the log's start, its end, "
            "or (none) an error.",
    )  # fmt: skip
    enable_auto_commit: bool = prop(
        "enable.auto.commit", True, bool,
        doc="Commit positions in poll(), before partitions are revoked, and in close(). A record is "
            "committed only after a later poll(), which shows that it was processed.",
    )  # fmt: skip
    auto_commit_interval_ms: int = prop(
        "auto.commit.interval.ms", 5_000, int, check=between(0, INT_MAX), unit="ms",
        doc="Time between two automatic commits.",
    )  # fmt: skip
    default_api_timeout_ms: int = prop(
        "default.api.timeout.ms", 60_000, int, check=positive_int, unit="ms",
        doc="Time limit of commits and look-ups, including retries.",
    )  # fmt: skip
    exclude_internal_topics: bool = prop(
        "exclude.internal.topics", True, bool,
        doc="Leave topics such as __consumer_offsets out of patterns.",
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.group_protocol == CLASSIC and self.heartbeat_interval_ms >= self.session_timeout_ms:
            raise InvalidConfig(
                f"heartbeat.interval.ms={self.heartbeat_interval_ms} is not allowed; allowed: below "
                f"session.timeout.ms, here {self.session_timeout_ms}"
            )
        if self.group_instance_id is not None and self.group_id is None:
            raise InvalidConfig("group.instance.id needs group.id, which is not set")

    @property
    def strategies(self) -> tuple[str, ...]:
        """`partition_assignment_strategy` by protocol names."""
        return tuple(dict.fromkeys(_STRATEGIES[name] for name in self.partition_assignment_strategy))
