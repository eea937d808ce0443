"""The broker's properties (``server.properties``), including topic defaults, with Kafka's names. Pure.

Defaults are Kafka's unless the doc says otherwise. As there are no replicas, logs are flushed by time, and
the offsets topic has one partition.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from kafkalog_broker.config.endpoint import (
    KAFKA07,
    PROTOCOLS,
    Endpoint,
    endpoints,
    parse_endpoints,
    parse_protocol_map,
    protocol_map,
    reachable_endpoints,
)
from kafkalog_broker.config.listener_config import MECHANISMS, ListenerProperties
from kafkalog_broker.config.topic_config import LogConfig, topic_default
from pyspark_kafkalog.config.definition import (
    INT_MAX,
    LONG_MAX,
    Check,
    Config,
    between,
    configuration,
    describe,
    not_empty,
    not_negative,
    one_of,
    parse_layers,
    positive,
    positive_int,
    prop,
    prop_of,
    system_or_positive_int,
    unlimited_or_not_negative,
    unlisted,
)
from pyspark_kafkalog.config.properties import load_properties
from pyspark_kafkalog.config.zookeeper_config import ZooKeeperConfig
from pyspark_kafkalog.errors import InvalidConfig

__all__ = ["DYNAMIC", "BrokerConfig", "LogConfig"]

_MINUTE_MS = 60_000
_HOUR_MS = 60 * _MINUTE_MS


_of_zookeeper = partial(prop_of, ZooKeeperConfig)
_AUTHORIZERS = ("StandardAuthorizer", "AclAuthorizer", "SimpleAclAuthorizer")


def _is_principal(text: str) -> bool:
    kind, _, name = text.partition(":")
    return bool(kind) and bool(name)


def _is_limit(word: str) -> bool:
    host, _, count = word.rpartition(":")
    return bool(host) and count.isascii() and count.isdigit()


@configuration
class BrokerConfig(Config):
    """All properties of ``server.properties``."""

    # fmt: off
    node_id: int = prop(
        "node.id", 0, int, aliases=("broker.id", "brokerid"), check=between(0, INT_MAX),
        section="The broker and its listener",
        doc="Id of this broker. Data directories of another broker are refused.")
    listeners: str = prop(
        "listeners", "PLAINTEXT://127.0.0.1:9092", check=endpoints,
        doc="Addresses to listen on, by the listeners' names. PLAINTEXT, SSL, SASL_PLAINTEXT and SASL_SSL "
            "speak today's protocol, KAFKA07 that of Kafka 0.7.")
    listener_security_protocol_map: str | None = prop(
        "listener.security.protocol.map", None, check=protocol_map,
        doc="Protocols of listeners not named after one, such as CLIENT:SASL_SSL,INTERNAL:PLAINTEXT.")
    advertised_listeners: str | None = prop(
        "advertised.listeners", None, check=reachable_endpoints,
        doc="Addresses that clients of each listener connect to, if they differ from listeners.")
    inter_broker_listener_name: str | None = prop(
        "inter.broker.listener.name", None,
        doc="Listener, of the same name on each broker, on which brokers call each other for transactions. "
            "By default the one with security.inter.broker.protocol, else PLAINTEXT, else the first.")
    security_inter_broker_protocol: str | None = prop(
        "security.inter.broker.protocol", None, check=one_of(*PROTOCOLS[:-1]),
        doc="Protocol of that listener; not together with inter.broker.listener.name.")
    sasl_mechanism_inter_broker_protocol: str | None = prop(
        "sasl.mechanism.inter.broker.protocol", None, check=one_of("GSSAPI", *MECHANISMS),
        doc="Mechanism with which brokers log in to each other, PLAIN or SCRAM (Kafka: GSSAPI), using "
            "username and password of the listener's sasl.jaas.config for it. By default the listener's "
            "only one.")
    num_network_threads: int = prop(
        "num.network.threads", 1, int, aliases=("num.threads",), check=between(1, 64), unit="threads",
        doc="Threads that read, handle and answer requests (Kafka: 3). More than one slows small requests "
            "down: they share one Python interpreter.")
    num_io_threads: int = prop(
        "num.io.threads", 3, int, check=between(1, 64), unit="threads",
        doc="Threads of all listeners for requests that take long: old message formats, thousands of "
            "partitions, ZooKeeper (Kafka: 8, for all requests). Network threads handle the others.")
    socket_request_max_bytes: int = prop(
        "socket.request.max.bytes", 100 << 20, int, aliases=("max.socket.request.bytes",), check=positive_int,
        unit="bytes", doc="Largest request; a larger one closes the connection before memory is allocated.")
    queued_max_request_bytes: int = prop(
        "queued.max.request.bytes", 256 << 20, int, unit="bytes",
        check=Check(f"1 to {LONG_MAX}, or -1 for no limit", lambda v: v == -1 or v >= 1),
        doc="Memory for requests being received or handled, of all connections (Kafka: no limit); at least "
            "socket.request.max.bytes. A request that does not fit waits unread. A quarter is kept for "
            "those of up to 2 MiB; those up to 4 KiB do not count.")
    request_receive_timeout_ms: int = prop(
        "request.receive.timeout.ms", 60_000, int, check=positive_int, unit="ms",
        doc="Time limit from a request's first byte to its last; then the connection is closed (not in "
            "Kafka).")
    socket_send_buffer_bytes: int = prop(
        "socket.send.buffer.bytes", -1, int, aliases=("socket.send.buffer",), check=system_or_positive_int,
        unit="bytes", doc="SO_SNDBUF of connections (Kafka: 102400).")
    socket_receive_buffer_bytes: int = prop(
        "socket.receive.buffer.bytes", -1, int, aliases=("socket.receive.buffer",),
        check=system_or_positive_int, unit="bytes", doc="SO_RCVBUF of connections (Kafka: 102400).")
    socket_listen_backlog_size: int = prop(
        "socket.listen.backlog.size", 1024, int, check=positive_int, unit="connections",
        doc="Connections waiting to be accepted (Kafka: 50). A client that finds the queue full retries a "
            "second later.")
    max_connections: int | None = prop(
        "max.connections", None, int, check=positive_int, unit="connections",
        doc="Open connections of a listener; further ones are closed at once (Kafka: no limit). By default "
            "an equal share of ulimit -n, less log.open.files.max and a reserve of 64.")
    max_connections_per_ip: int = prop(
        "max.connections.per.ip", INT_MAX, int, check=between(0, INT_MAX), unit="connections",
        doc="Open connections of a client address on all listeners; further ones are closed at once.")
    max_connections_per_ip_overrides: tuple[str, ...] = prop(
        "max.connections.per.ip.overrides", (), tuple,
        check=Check("HOST:COUNT, several with commas between", lambda words: all(map(_is_limit, words))),
        doc="The same for single addresses or host names, resolved at start: "
            "10.0.0.7:100,[::1]:50,gateway.example.org:2000.")
    connections_max_idle_ms: int = prop(
        "connections.max.idle.ms", 600_000, int, unit="ms",
        check=Check(f"1 to {LONG_MAX}, or -1 for no limit", lambda v: v == -1 or v >= 1),
        doc="Time without a byte after which a connection is closed, unless a request is being handled. "
            "While an answer is sent only its bytes count.")
    fetch_max_bytes: int = prop(
        "fetch.max.bytes", 55 << 20, int, check=between(1024, INT_MAX), unit="bytes",
        doc="Data in one fetch response, whatever the consumer requests. A larger first batch is sent "
            "anyway.")
    max_incremental_fetch_session_cache_slots: int = prop(
        "max.incremental.fetch.session.cache.slots", 1000, int, check=between(0, INT_MAX), unit="sessions",
        doc="Fetch sessions kept: a client of one names only what has changed. Without a free one it names "
            "all in each request.")

    num_partitions: int = prop(
        "num.partitions", 1, int, check=between(1, 10_000), unit="partitions", section="Topics",
        doc="Partitions of a new topic, if no number is given.")
    auto_create_topics_enable: bool = prop(
        "auto.create.topics.enable", True, bool,
        doc="Create a missing topic when a client requests its metadata and allows it, or produces to it "
            "with 0.7's protocol.")
    delete_topic_enable: bool = prop("delete.topic.enable", True, bool, doc="Whether topics may be deleted.")
    default_replication_factor: int = prop(
        "default.replication.factor", 1, int, check=between(1, 1), unit="replicas",
        doc="Copies of each partition; this broker keeps one.")
    min_insync_replicas: int = topic_default("min_insync_replicas")

    log_dirs: tuple[str, ...] = prop(
        "log.dirs", ("kafkalog-data",), tuple, aliases=("log.dir",), section="The log",
        check=Check("one or more different directories, separated by commas",
                    lambda words: len(words) > 0 and len(set(words)) == len(words)),
        doc="Data directories, relative to the working directory. A new partition goes to the one with the "
            "fewest partitions.")
    log_segment_bytes: int = topic_default("segment_bytes", aliases=("log.file.size",))
    log_roll_ms: int | None = prop(
        "log.roll.ms", None, int, check=positive, unit="ms",
        doc="Age at which a new segment file is started; not set: log.roll.hours.")
    log_roll_hours: int = prop(
        "log.roll.hours", 168, int, check=positive_int, unit="hours", doc="The same in hours.")
    log_open_files_max: int = prop(
        "log.open.files.max", 512, int, check=between(16, 1 << 20), unit="files",
        doc="Segment files kept open; above that the least recently used are closed (Kafka: all stay open).")
    log_index_interval_bytes: int = topic_default("index_interval_bytes")
    log_index_size_max_bytes: int = topic_default("segment_index_bytes")
    message_max_bytes: int = topic_default("max_message_bytes", aliases=("max.message.size",))
    log_message_timestamp_type: str = topic_default("message_timestamp_type")
    log_message_timestamp_before_max_ms: int = topic_default("message_timestamp_before_max_ms")
    log_message_timestamp_after_max_ms: int = topic_default("message_timestamp_after_max_ms")
    log_message_format_version: str = topic_default("message_format_version")
    compression_type: str = topic_default("compression_type")

    log_flush_interval_messages: int = topic_default(
        "flush_messages", aliases=("log.flush.interval",), section="Flush: what a power cut may lose")
    log_flush_interval_ms: int = topic_default("flush_ms", aliases=("log.default.flush.interval.ms",))
    log_flush_scheduler_interval_ms: int = prop(
        "log.flush.scheduler.interval.ms", 1000, int, aliases=("log.default.flush.scheduler.interval.ms",),
        check=positive, unit="ms", doc="How often log.flush.interval.ms is checked.")

    metrics_listener: str | None = prop(
        "metrics.listener", None, check=not_empty, section="Metrics and status page", unit="host:port",
        doc="Address, such as 127.0.0.1:9308, for Prometheus metrics (/metrics), a health check (/health) "
            "and a status page (/) over HTTP, without a login.")

    log_retention_hours: int = prop(
        "log.retention.hours", 168, int, check=unlimited_or_not_negative, unit="hours",
        section="Retention: what is deleted, and when",
        doc="Age of its newest record at which a segment is deleted.")
    log_retention_minutes: int | None = prop(
        "log.retention.minutes", None, int, check=unlimited_or_not_negative, unit="minutes",
        doc="The same in minutes; takes precedence over hours.")
    log_retention_ms: int | None = prop(
        "log.retention.ms", None, int, check=unlimited_or_not_negative, unit="ms",
        doc="The same in milliseconds; takes precedence over both.")
    log_retention_bytes: int = topic_default("retention_bytes", aliases=("log.retention.size",))
    log_retention_policy: str | None = prop(
        "log.retention.policy", None, check=not_empty,
        doc="Your own class (module:Class) that decides what is deleted instead of age and size, in topics "
            "whose cleanup.policy includes delete.")
    log_retention_check_interval_ms: int = prop(
        "log.retention.check.interval.ms", 300_000, int, check=positive, unit="ms",
        doc="How often old segments are looked for.")
    log_cleanup_policy: tuple[str, ...] = topic_default("cleanup_policy")
    log_cleaner_enable: bool = prop(
        "log.cleaner.enable", True, bool, section="The log cleaner: topics with cleanup.policy=compact",
        doc="Clean compacted topics. false: consumer offsets grow without limit, too.")
    log_cleaner_backoff_ms: int = prop(
        "log.cleaner.backoff.ms", 15_000, int, check=not_negative, unit="ms",
        doc="How long the cleaner waits when no log needs cleaning.")
    log_cleaner_dedupe_buffer_size: int = prop(
        "log.cleaner.dedupe.buffer.size", 128 << 20, int, check=between(1 << 20, LONG_MAX), unit="bytes",
        doc="Memory for the keys of a log's dirty part, about 160 bytes each. If they do not fit, it is "
            "cleaned in several rounds.")
    log_cleaner_io_max_bytes_per_second: float = prop(
        "log.cleaner.io.max.bytes.per.second", 1.7976931348623157e308, float, unit="bytes",
        check=Check("above 0", lambda v: v > 0),
        doc="Most bytes that the cleaner reads and writes per second.")
    log_cleaner_min_cleanable_ratio: float = topic_default("min_cleanable_dirty_ratio")
    log_cleaner_delete_retention_ms: int = topic_default("delete_retention_ms")
    log_cleaner_min_compaction_lag_ms: int = topic_default("min_compaction_lag_ms")
    log_cleaner_max_compaction_lag_ms: int = topic_default("max_compaction_lag_ms")

    log_missing_segments: str = prop(
        "log.missing.segments", "fail", check=one_of("fail", "truncate"),
        doc="What to do at start with a partition with missing data on disk (not in Kafka). fail: it is "
            "offline, clients get KAFKA_STORAGE_ERROR. truncate: its log begins after the missing data; "
            "earlier segments are moved to the directory stray.")
    log_segment_delete_delay_ms: int = topic_default("file_delete_delay_ms")

    offsets_topic_num_partitions: int | None = prop(
        "offsets.topic.num.partitions", None, int, check=between(1, 10_000), unit="partitions",
        section="Consumer groups and producers",
        doc="Partitions of the offsets topic when it is created. Not set: 50 with zookeeper.connect, so "
            "that brokers share the groups; else 1 (Kafka: 50).")
    offsets_retention_minutes: int = prop(
        "offsets.retention.minutes", 10_080, int, check=positive_int, unit="minutes",
        doc="How long offsets are kept after the group's last member has left; without members, and for "
            "topics without a subscriber, after their commit.")
    offsets_retention_check_interval_ms: int = prop(
        "offsets.retention.check.interval.ms", 600_000, int, check=positive, unit="ms",
        doc="How often expired offsets are looked for.")
    offset_metadata_max_bytes: int = prop(
        "offset.metadata.max.bytes", 4096, int, check=between(0, INT_MAX), unit="bytes",
        doc="Longest metadata text that may be committed with an offset.")
    group_min_session_timeout_ms: int = prop(
        "group.min.session.timeout.ms", 6000, int, check=positive_int, unit="ms",
        doc="Shortest session.timeout.ms that a member may request.")
    group_max_session_timeout_ms: int = prop(
        "group.max.session.timeout.ms", 30 * _MINUTE_MS, int, check=positive_int, unit="ms",
        doc="Longest session.timeout.ms that a member may request.")
    group_initial_rebalance_delay_ms: int = prop(
        "group.initial.rebalance.delay.ms", 3000, int, check=between(0, INT_MAX), unit="ms",
        doc="How long an empty group waits for more members after the first has joined. start_broker() sets "
            "0.")
    group_max_size: int = prop(
        "group.max.size", INT_MAX, int, check=positive_int, unit="members", doc="Most members of a group.")
    group_coordinator_rebalance_protocols: tuple[str, ...] = prop(
        "group.coordinator.rebalance.protocols", ("classic", "consumer"), tuple,
        check=Check("classic, or classic,consumer",
                    lambda words: "classic" in words and {*words} <= {"classic", "consumer"}),
        doc="Group protocols that members may use; consumer is the newer one, with group.protocol=consumer.")
    group_consumer_session_timeout_ms: int = prop(
        "group.consumer.session.timeout.ms", 45_000, int, check=positive_int, unit="ms",
        doc="Newer protocol: time without a heartbeat after which a member is removed.")
    group_consumer_heartbeat_interval_ms: int = prop(
        "group.consumer.heartbeat.interval.ms", 5000, int, check=positive_int, unit="ms",
        doc="Newer protocol: time between two heartbeats of a member.")
    group_consumer_max_size: int = prop(
        "group.consumer.max.size", INT_MAX, int, check=positive_int, unit="members",
        doc="Newer protocol: most members of a group.")
    group_consumer_regex_refresh_interval_ms: int = prop(
        "group.consumer.regex.refresh.interval.ms", 600_000, int, check=between(10_000, INT_MAX), unit="ms",
        doc="Newer protocol: time after which a group's regular expressions are matched again even if no "
            "topic has changed, because ACLs may have.")
    group_consumer_assignors: tuple[str, ...] = prop(
        "group.consumer.assignors", ("uniform", "range"), tuple,
        check=Check("uniform, range or both, separated by a comma",
                    lambda words: 0 < len(words) == len({*words}) and {*words} <= {"uniform", "range"}),
        doc="Newer protocol: assignors that members may request; the first is the default.")
    group_consumer_migration_policy: str = prop(
        "group.consumer.migration.policy", "bidirectional", str,
        check=Check("bidirectional, upgrade, downgrade or disabled",
                    lambda word: word.lower() in ("bidirectional", "upgrade", "downgrade", "disabled")),
        doc="Whether a classic group becomes one of the newer protocol when such a member joins (upgrade),"
            " and classic again when the last such member leaves (downgrade).")
    producer_id_expiration_ms: int = prop(
        "producer.id.expiration.ms", 86_400_000, int, check=positive_int, unit="ms",
        doc="How long an idle idempotent producer is remembered.")
    producer_id_expiration_check_interval_ms: int = prop(
        "producer.id.expiration.check.interval.ms", 600_000, int, check=positive_int, unit="ms",
        doc="How often expired producers are looked for.")

    transaction_state_log_num_partitions: int | None = prop(
        "transaction.state.log.num.partitions", None, int, check=between(1, 10_000), unit="partitions",
        section="Transactions",
        doc="Partitions of the transactions' topic when it is created. Not set: 50 with zookeeper.connect, "
            "else 1 (Kafka: 50).")
    transaction_state_log_segment_bytes: int = prop(
        "transaction.state.log.segment.bytes", 100 << 20, int, check=between(14, INT_MAX), unit="bytes",
        doc="Segment size of that topic when it is created.")
    transaction_max_timeout_ms: int = prop(
        "transaction.max.timeout.ms", 900_000, int, check=positive_int, unit="ms",
        doc="Largest transaction.timeout.ms of a producer: how long it may hold up readers of committed "
            "data.")
    transaction_abort_interval_ms: int = prop(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms", 10_000, int, check=positive_int,
        unit="ms", doc="How often transactions past their timeout are looked for.")
    transactional_id_expiration_ms: int = prop(
        "transactional.id.expiration.ms", 604_800_000, int, check=positive_int, unit="ms",
        doc="How long an unused transactional id is remembered.")
    transaction_remove_interval_ms: int = prop(
        "transaction.remove.expired.transaction.cleanup.interval.ms", 3_600_000, int, check=positive_int,
        unit="ms", doc="How often expired transactional ids are looked for.")
    transaction_flush_before_end: bool = prop(
        "transaction.flush.before.end", False, bool,
        doc="Force a transaction's records and its commit or abort to disk before any partition shows it as "
            "ended, and its end markers before the answer: a power cut then cannot leave half of it. false: "
            "as in Kafka, each partition follows its flush settings.")

    authorizer_class_name: str | None = prop(
        "authorizer.class.name", None, section="Authorization", check=Check(
            "StandardAuthorizer or AclAuthorizer, with or without a package",
            lambda name: name.rpartition(".")[2] in ("", *_AUTHORIZERS),
        ),
        doc="Turns ACLs on; both names mean the same. Without it every client may do everything.")
    super_users: str | None = prop(
        "super.users", None, check=Check(
            "principals separated by semicolons, as User:admin;User:CN=broker,O=Lab",
            lambda text: all(map(_is_principal, filter(None, map(str.strip, text.split(";"))))),
        ),
        doc="Users who may do everything, whatever ACLs say.")
    allow_everyone_if_no_acl_found: bool = prop(
        "allow.everyone.if.no.acl.found", False, bool,
        doc="Allow everybody everything on a topic, group or other resource without ACLs.")

    zookeeper_connect: str | None = _of_zookeeper("zookeeper_connect")
    zookeeper_session_timeout_ms: int = _of_zookeeper("zookeeper_session_timeout_ms")
    zookeeper_connection_timeout_ms: int = _of_zookeeper("zookeeper_connection_timeout_ms")
    zookeeper_prefix: str = _of_zookeeper("zookeeper_prefix")
    zookeeper_prefix_07: str = _of_zookeeper("zookeeper_prefix_07")
    zookeeper_ssl_client_enable: bool = _of_zookeeper("zookeeper_ssl_client_enable")
    zookeeper_client_cnxn_socket: str | None = _of_zookeeper("zookeeper_client_cnxn_socket")
    zookeeper_ssl_truststore_location: str | None = _of_zookeeper("zookeeper_ssl_truststore_location")
    zookeeper_ssl_truststore_password: str | None = _of_zookeeper("zookeeper_ssl_truststore_password")
    zookeeper_ssl_truststore_type: str | None = _of_zookeeper("zookeeper_ssl_truststore_type")
    zookeeper_ssl_keystore_location: str | None = _of_zookeeper("zookeeper_ssl_keystore_location")
    zookeeper_ssl_keystore_password: str | None = _of_zookeeper("zookeeper_ssl_keystore_password")
    zookeeper_ssl_keystore_type: str | None = _of_zookeeper("zookeeper_ssl_keystore_type")
    zookeeper_ssl_endpoint_identification_algorithm: str = _of_zookeeper(
        "zookeeper_ssl_endpoint_identification_algorithm")
    zookeeper_ssl_protocol: str | None = _of_zookeeper("zookeeper_ssl_protocol")
    zookeeper_ssl_enabled_protocols: tuple[str, ...] = _of_zookeeper("zookeeper_ssl_enabled_protocols")
    zookeeper_ssl_cipher_suites: tuple[str, ...] = _of_zookeeper("zookeeper_ssl_cipher_suites")
    zookeeper_ssl_crl_enable: bool = _of_zookeeper("zookeeper_ssl_crl_enable")
    zookeeper_ssl_ocsp_enable: bool = _of_zookeeper("zookeeper_ssl_ocsp_enable")
    zookeeper_sasl_jaas_config: str | None = _of_zookeeper("zookeeper_sasl_jaas_config")
    zookeeper_set_acl: bool = _of_zookeeper("zookeeper_set_acl")
    zookeeper_allow_unprotected_credentials: bool = prop(
        "zookeeper.allow.unprotected.credentials", False, bool,
        doc="Keep users' SCRAM credentials in a ZooKeeper where others can read or change them. false: they "
            "are there only with zookeeper.ssl.client.enable and zookeeper.set.acl, otherwise in each "
            "broker's security.json.")
    # fmt: on

    listener_properties: ListenerProperties = unlisted(ListenerProperties())
    """The listeners' TLS and login properties."""

    @classmethod
    def load(cls, path: Path | str | None, overrides: Mapping[str, str] | None = None) -> BrokerConfig:
        """Load a properties file, or the defaults; ``overrides`` take precedence. Raises `InvalidConfig`."""
        properties = load_properties(path) if path is not None else {}
        layers = [(str(path), properties), ("--override", overrides or {})]
        texts = {name: text for _, given in layers for name, text in given.items()}
        own = [
            (source, {name: text for name, text in given.items() if not ListenerProperties.takes(name)})
            for source, given in layers
        ]
        listeners = ListenerProperties({n: text for n, text in texts.items() if ListenerProperties.takes(n)})
        config = replace(parse_layers(cls, own), listener_properties=listeners)
        listeners.warn_of_unknown(tuple(each.name for each in config.endpoints))
        return config

    def __post_init__(self) -> None:
        super().__post_init__()
        if 0 <= self.queued_max_request_bytes < self.socket_request_max_bytes:
            raise InvalidConfig(
                f"queued.max.request.bytes={self.queued_max_request_bytes} is less than"
                f" socket.request.max.bytes={self.socket_request_max_bytes}: raise it, or lower the other"
            )
        self._check_listeners()

    def _check_listeners(self) -> None:
        protocols = self.protocols
        for each in self.endpoints:
            if each.name not in protocols:
                raise InvalidConfig(
                    f"listeners={each}: {each.name} is not a protocol; say in listener.security.protocol.map "
                    f"what it speaks ({each.name}:SASL_SSL), or use one of {', '.join(PROTOCOLS)}"
                )
        listening = {each.name: protocols[each.name] for each in self.endpoints}
        if list(listening.values()).count(KAFKA07) > 1:
            raise InvalidConfig(f"listeners={self.listeners}: only one listener can speak {KAFKA07}")
        for given in parse_endpoints(self.advertised_listeners) if self.advertised_listeners else ():
            if given.name not in listening:
                raise InvalidConfig(f"advertised.listeners={given}: listeners has none of {given.name}")
        name, protocol = self.inter_broker_listener_name, self.security_inter_broker_protocol
        if name is not None and protocol is not None:
            raise InvalidConfig(
                "inter.broker.listener.name and security.inter.broker.protocol are both given; give one"
            )
        if name is not None and name.upper() not in listening:
            raise InvalidConfig(f"inter.broker.listener.name={name}: listeners has none of {name}")
        if protocol is not None and protocol not in listening.values():
            raise InvalidConfig(f"security.inter.broker.protocol={protocol}: no listener speaks it")

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        return parse_endpoints(self.listeners)

    @property
    def protocols(self) -> dict[str, str]:
        return parse_protocol_map(self.listener_security_protocol_map or "")

    @property
    def inter_broker_listener(self) -> Endpoint | None:
        """Listener for other brokers; None without one of the current protocol."""
        protocols = self.protocols
        name, protocol = self.inter_broker_listener_name, self.security_inter_broker_protocol or "PLAINTEXT"
        own = [each for each in self.endpoints if protocols[each.name] != KAFKA07]
        if name is not None:
            return next((each for each in own if each.name == name.upper()), None)
        return next((each for each in own if protocols[each.name] == protocol), own[0] if own else None)

    @property
    def shares_credentials(self) -> bool:
        zookeeper = self.zookeeper
        return zookeeper.zookeeper_connect is not None and (
            zookeeper.protects_credentials or self.zookeeper_allow_unprotected_credentials
        )

    def address_limits(self) -> tuple[int | None, dict[str, int]]:
        overrides = (word.rpartition(":") for word in self.max_connections_per_ip_overrides)
        limit = self.max_connections_per_ip
        return (None if limit == INT_MAX else limit), {host: int(count) for host, _, count in overrides}

    def advertised_endpoint(self, listening: Endpoint, bound_port: int, machine_name: str) -> Endpoint:
        """A listener's client address: ``bound_port`` replaces port 0, ``machine_name`` a wildcard."""
        named = parse_endpoints(self.advertised_listeners) if self.advertised_listeners else ()
        found = next((each for each in named if each.name == listening.name), listening)
        host = machine_name if found.every_interface else found.host
        return found._replace(host=host, port=found.port or bound_port)

    @property
    def zookeeper(self) -> ZooKeeperConfig:
        shared = {item.field for item in describe(ZooKeeperConfig)}
        own = (item.field for item in describe(type(self)))
        return ZooKeeperConfig(**{field: getattr(self, field) for field in own if field in shared})

    def directories(self) -> tuple[Path, ...]:
        return tuple(Path(word).expanduser() for word in self.log_dirs)

    def log_defaults(self) -> LogConfig:
        ours = {item.name: item for item in describe(BrokerConfig)}
        inherited = [item for item in describe(LogConfig) if item.inherits]
        values = {item.field: getattr(self, ours[item.inherits].field) for item in inherited}
        if self.log_roll_ms is None:
            values["segment_ms"] = self.log_roll_hours * _HOUR_MS
        if self.log_retention_ms is None:
            minutes, hours = self.log_retention_minutes, self.log_retention_hours
            count, unit_ms = (hours, _HOUR_MS) if minutes is None else (minutes, _MINUTE_MS)
            values["retention_ms"] = -1 if count < 0 else min(count * unit_ms, LONG_MAX)
        return LogConfig(**values)


_OF_THE_CLEANER = {
    "log.cleaner.backoff.ms", "log.cleaner.dedupe.buffer.size", "log.cleaner.io.max.bytes.per.second",
}  # fmt: skip

DYNAMIC = (
    frozenset(item.inherits for item in describe(LogConfig)) - {"", "log.message.format.version"}
) | _OF_THE_CLEANER
"""Properties that can be changed at runtime. Source: Kafka 3.9 ``DynamicLogConfig.ReconfigurableConfigs`` and
``LogCleaner.ReconfigurableConfigs``."""
