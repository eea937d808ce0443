"""Properties of today's clients: addresses, time limits and retries; fetches, groups and offsets."""

from __future__ import annotations

from collections.abc import Collection
from typing import ClassVar

from pyspark_kafkalog.config.definition import (
    INT_MAX,
    Check,
    Config,
    between,
    configuration,
    not_empty,
    not_negative,
    one_of,
    parsed_by,
    positive,
    positive_int,
    prop,
    system_or_positive_int,
    unlisted,
)
from pyspark_kafkalog.config.security_config import MECHANISMS, ProvidersConfig, SaslConfig, TlsConfig
from pyspark_kafkalog.errors import InvalidConfig
from pyspark_kafkalog.protocol.exchange import RELEASES, release_of
from pyspark_kafkalog.types import IsolationLevel, parse_addresses

_old_release = Check(
    f"one of {', '.join(RELEASES)}, with or without a patch level (0.8.2.2)",
    lambda text: release_of(text) is not None,
)


def check_release(asks: bool, release: str | None) -> None:
    if not asks and release is None:
        raise InvalidConfig(
            "api.version.request=false needs broker.version.fallback, the brokers' release; "
            f"allowed: {_old_release.allowed}"
        )


_protocol = one_of("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")

addresses = Check("host:port, separated by commas", parsed_by(parse_addresses))
_brokers = addresses._replace(allowed=f"{addresses.allowed}, such as localhost:9092")


@configuration
class ConnectionConfig(Config):
    bootstrap_servers: str = prop(
        "bootstrap.servers", kind=str, check=_brokers, section="Connections",
        doc="Brokers for the first connection; the others are found through them.",
    )  # fmt: skip
    client_id: str = prop(
        "client.id", "kafkalog", check=not_empty, doc="Client name in every request, for the broker's logs.",
    )  # fmt: skip
    request_timeout_ms: int = prop(
        "request.timeout.ms", 30_000, int, check=positive_int, unit="ms",
        doc="Time limit for the response to a request.",
    )  # fmt: skip
    connection_setup_timeout_ms: int = prop(
        "socket.connection.setup.timeout.ms", 10_000, int, check=positive, unit="ms",
        doc="Time limit for opening a connection.",
    )  # fmt: skip
    retries: int = prop(
        "retries", INT_MAX, int, check=between(0, INT_MAX), unit="attempts",
        doc="Retries of a request after retriable errors; time limits end them first.",
    )  # fmt: skip
    retry_backoff_ms: int = prop(
        "retry.backoff.ms", 100, int, check=not_negative, unit="ms",
        doc="Wait before the first retry; doubled for each further one.",
    )  # fmt: skip
    retry_backoff_max_ms: int = prop(
        "retry.backoff.max.ms", 1_000, int, check=not_negative, unit="ms",
        doc="Longest wait between two retries.",
    )  # fmt: skip
    metadata_max_age_ms: int = prop(
        "metadata.max.age.ms", 300_000, int, check=not_negative, unit="ms",
        doc="Age at which the metadata of topics is refreshed.",
    )  # fmt: skip
    send_buffer_bytes: int = prop(
        "send.buffer.bytes", -1, int, check=system_or_positive_int, unit="bytes",
        doc="Socket send buffer (SO_SNDBUF).",
    )  # fmt: skip
    receive_buffer_bytes: int = prop(
        "receive.buffer.bytes", -1, int, check=system_or_positive_int, unit="bytes",
        doc="Socket receive buffer (SO_RCVBUF).",
    )  # fmt: skip
    max_response_bytes: int = prop(
        "receive.message.max.bytes", 256 << 20, int, check=between(1 << 10, INT_MAX), unit="bytes",
        doc="Largest response; a larger one closes the connection before memory is allocated.",
    )  # fmt: skip
    api_version_request: bool = prop(
        "api.version.request", True, bool,
        doc="Request each broker's API versions. false: use broker.version.fallback (brokers before 0.10 "
            "log the request as an error, 0.9 never answers it).",
    )  # fmt: skip
    broker_version_fallback: str | None = prop(
        "broker.version.fallback", None, check=_old_release,
        doc="Release of brokers before Kafka 0.10, if they close the connection on that request or do not "
            "answer within a quarter of socket.connection.setup.timeout.ms.",
    )  # fmt: skip
    security_protocol: str = prop(
        "security.protocol", "PLAINTEXT", check=_protocol,
        doc="Protection of connections: SSL and SASL_SSL use TLS, SASL_PLAINTEXT and SASL_SSL a login.",
    )  # fmt: skip


_OF_KAFKAS_CLIENTS = frozenset(
    """
acks allow.auto.create.topics auto.commit.interval.ms auto.include.jmx.reporter auto.offset.reset batch.size
bootstrap.controllers buffer.memory check.crcs client.dns.lookup client.rack compression.gzip.level
compression.lz4.level compression.type compression.zstd.level connections.max.idle.ms default.api.timeout.ms
delivery.timeout.ms enable.auto.commit enable.idempotence enable.metrics.push exclude.internal.topics
fetch.max.bytes fetch.max.wait.ms fetch.min.bytes group.id group.instance.id group.protocol
group.remote.assignor heartbeat.interval.ms interceptor.classes isolation.level key.deserializer
key.serializer linger.ms max.block.ms max.in.flight.requests.per.connection max.partition.fetch.bytes
max.poll.interval.ms max.poll.records max.request.size metadata.max.idle.ms
metadata.recovery.rebootstrap.trigger.ms metadata.recovery.strategy metric.reporters metrics.num.samples
metrics.recording.level metrics.sample.window.ms partition.assignment.strategy
partitioner.adaptive.partitioning.enable partitioner.availability.timeout.ms partitioner.class
partitioner.ignore.keys reconnect.backoff.max.ms reconnect.backoff.ms sasl.kerberos.kinit.cmd
sasl.kerberos.min.time.before.relogin sasl.kerberos.ticket.renew.jitter
sasl.kerberos.ticket.renew.window.factor sasl.login.class sasl.login.connect.timeout.ms
sasl.login.read.timeout.ms sasl.login.refresh.buffer.seconds sasl.login.refresh.min.period.seconds
sasl.login.refresh.window.factor sasl.login.refresh.window.jitter sasl.login.retry.backoff.max.ms
sasl.login.retry.backoff.ms sasl.oauthbearer.assertion.algorithm sasl.oauthbearer.assertion.claim.aud
sasl.oauthbearer.assertion.claim.exp.seconds sasl.oauthbearer.assertion.claim.iss
sasl.oauthbearer.assertion.claim.jti.include sasl.oauthbearer.assertion.claim.nbf.seconds
sasl.oauthbearer.assertion.claim.sub sasl.oauthbearer.assertion.file
sasl.oauthbearer.assertion.private.key.file sasl.oauthbearer.assertion.private.key.passphrase
sasl.oauthbearer.assertion.template.file sasl.oauthbearer.clock.skew.seconds
sasl.oauthbearer.expected.audience sasl.oauthbearer.expected.issuer
sasl.oauthbearer.jwks.endpoint.refresh.ms sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms
sasl.oauthbearer.jwks.endpoint.retry.backoff.ms sasl.oauthbearer.jwks.endpoint.url
sasl.oauthbearer.jwt.validator.class sasl.oauthbearer.scope.claim.name sasl.oauthbearer.sub.claim.name
security.providers session.timeout.ms share.acknowledgement.mode socket.connection.setup.timeout.max.ms
ssl.engine.factory.class ssl.keymanager.algorithm ssl.provider ssl.secure.random.implementation
ssl.trustmanager.algorithm transaction.timeout.ms transaction.two.phase.commit.enable transactional.id
value.deserializer value.serializer
""".split()
)
"""Properties of Kafka's clients, 3.9 to 4.1, that not all clients here have."""


@configuration
class ClientConfig(ProvidersConfig, TlsConfig, SaslConfig, ConnectionConfig):
    """Properties shared by producers, consumers and admin calls; Kafka's names and defaults."""

    meaningless: ClassVar[frozenset[str]] = _OF_KAFKAS_CLIENTS

    servers_option: str = unlisted("bootstrap.servers")
    """The user's name of `bootstrap_servers`, for errors; empty if it is not an option."""
    answered_before: bool = unlisted(False)
    """Whether the cluster responded to this job before; clients then wait longer for it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_release(self.api_version_request, self.broker_version_fallback)
        if self.security_protocol.startswith("SASL_") and not self.sasl_mechanism:
            raise InvalidConfig(
                f"security.protocol={self.security_protocol} needs sasl.mechanism; "
                f"allowed: {', '.join(MECHANISMS)}"
            )

    def option_name(self, name: str) -> str:
        """A property's name as the user writes it: Spark options begin with ``kafka.``."""
        prefix, found, rest = self.servers_option.partition("bootstrap.servers")
        return prefix + name if found and not rest else name

    @classmethod
    def check_names(cls, names: Collection[str], prefix: str = "") -> None:
        protected = sorted(name for name in names if name.startswith(("sasl.", "ssl.", "enable.ssl.")))
        if protected and "security.protocol" not in names:
            raise InvalidConfig(
                f"{', '.join(prefix + name for name in protected)}: {prefix}security.protocol is missing; "
                "by default connections are in plain text, without a login. Set it to SSL, SASL_SSL or "
                "SASL_PLAINTEXT, or, to have these properties ignored, to PLAINTEXT"
            )

    @property
    def fallback_release(self) -> str | None:
        """`broker_version_fallback` without its patch level, as in `RELEASES`."""
        return release_of(self.broker_version_fallback) if self.broker_version_fallback else None

    def bootstrap_addresses(self) -> tuple[tuple[str, int], ...]:
        return parse_addresses(self.bootstrap_servers)


@configuration
class ConsumerConfig(ClientConfig):
    fetch_min_bytes: int = prop(
        "fetch.min.bytes", 1, int, check=between(0, INT_MAX), unit="bytes", section="Fetching",
        doc="Data that the broker waits for before it answers a fetch, up to fetch.max.wait.ms.",
    )  # fmt: skip
    fetch_max_wait_ms: int = prop(
        "fetch.max.wait.ms", 500, int, check=between(0, INT_MAX), unit="ms",
        doc="Longest time that the broker waits for fetch.min.bytes.",
    )  # fmt: skip
    fetch_max_bytes: int = prop(
        "fetch.max.bytes", 50 << 20, int, check=positive_int, unit="bytes",
        doc="Data in one response. A larger first batch is sent anyway.",
    )  # fmt: skip
    max_partition_fetch_bytes: int = prop(
        "max.partition.fetch.bytes", 1 << 20, int, check=positive_int, unit="bytes",
        doc="Data of one partition in one response. A larger first batch is sent anyway.",
    )  # fmt: skip
    client_rack: str = prop(
        "client.rack", "",
        doc="Where this client is, as in the brokers' broker.rack: with a replica.selector.class the leader "
            "names a replica there to read from (KIP-392).",
    )  # fmt: skip
    isolation_level: str = prop(
        "isolation.level", "read_uncommitted", check=one_of("read_uncommitted", "read_committed"),
        section="Records", doc="Whether records of open and aborted transactions are read.",
    )  # fmt: skip

    @property
    def isolation(self) -> IsolationLevel:
        return IsolationLevel[self.isolation_level.upper()]


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


@configuration
class GroupConsumerConfig(ConsumerConfig):
    group_id: str | None = prop(
        "group.id", None, check=not_empty, section="The group",
        doc="Consumers with the same group share the partitions of their topics. Not set: only assign(), "
            "and nothing is committed.",
    )  # fmt: skip
    group_instance_id: str | None = prop(
        "group.instance.id", None, check=not_empty,
        doc="Name of a static member, different for each: restarted within session.timeout.ms it keeps its "
            "partitions without a rebalance.",
    )  # fmt: skip
    group_protocol: str = prop(
        "group.protocol", CLASSIC, check=one_of(CLASSIC, CONSUMER),
        doc="classic: the members assign the partitions. consumer: the broker does (KIP-848; Kafka 4.0 or "
            "later, and the bundled broker). A group can change member by member.",
    )  # fmt: skip
    partition_assignment_strategy: tuple[str, ...] = prop(
        "partition.assignment.strategy", (RANGE, COOPERATIVE), tuple, check=_strategies,
        doc="How a classic group assigns partitions, the preferred first; members need one in common. "
            "range: neighbouring partitions of each topic; roundrobin: in turn; sticky: evenly, with few "
            "moves; cooperative-sticky: also reads unmoved partitions during a rebalance, if all listed are "
            "cooperative. Java's class names are accepted.",
    )  # fmt: skip
    group_remote_assignor: str | None = prop(
        "group.remote.assignor", None, check=not_empty,
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
        "auto.offset.reset", LATEST, check=one_of(EARLIEST, LATEST, NONE), section="Offsets",
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
        "exclude.internal.topics", True, bool, doc="Leave topics such as __consumer_offsets out of patterns.",
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
        return tuple(dict.fromkeys(_STRATEGIES[name] for name in self.partition_assignment_strategy))
