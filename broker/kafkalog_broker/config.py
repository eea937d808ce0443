"""The broker's properties (``server.properties``): those of a topic with it. Kafka's names; pure.

Defaults are Kafka's unless the doc says otherwise. Ours differ where Kafka counts on replicas that one
broker does not have: the log is flushed by time, and the offsets topic has one partition.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from kafkalog_broker.endpoint import (
    KAFKA07,
    PROTOCOLS,
    Endpoint,
    endpoints,
    parse_endpoints,
    parse_protocol_map,
    protocol_map,
    reachable_endpoints,
)
from kafkalog_broker.listener_config import MECHANISMS, ListenerProperties
from kafkalog_broker.topic_config import (
    AS_PRODUCED,
    LogConfig,
    compression_types,
    either_timestamp_type,
    format_versions,
    policies,
)
from pyspark_kafkalog.config.definition import (
    INT_MAX,
    LONG_MAX,
    Check,
    Config,
    between,
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
from pyspark_kafkalog.config.zookeeper import ZooKeeperConfig
from pyspark_kafkalog.errors import InvalidConfig

__all__ = ["DYNAMIC", "BrokerConfig", "LogConfig"]

_MINUTE_MS = 60_000
_HOUR_MS = 60 * _MINUTE_MS


_AUTHORIZERS = ("StandardAuthorizer", "AclAuthorizer", "SimpleAclAuthorizer")


def _is_principal(text: str) -> bool:
    kind, _, name = text.partition(":")
    return bool(kind) and bool(name)


def _is_limit(word: str) -> bool:
    host, _, count = word.rpartition(":")
    return bool(host) and count.isascii() and count.isdigit()


@dataclass(frozen=True)
class BrokerConfig(Config):
    """Everything that ``server.properties`` may say."""

    node_id: int = prop(
        "node.id", 0, int, aliases=("broker.id", "brokerid"), check=between(0, INT_MAX),
        section="The broker and its listener",
        doc="Number of this broker, kept in its data directories: a directory of another broker is refused.",
    )  # fmt: skip
    listeners: str = prop(
        "listeners", "PLAINTEXT://127.0.0.1:9092", str, check=endpoints,
        doc="Where the broker listens, by the listeners' names. PLAINTEXT, SSL, SASL_PLAINTEXT and SASL_SSL "
            "speak today's protocol, KAFKA07 that of Kafka 0.7.",
    )  # fmt: skip
    listener_security_protocol_map: str | None = prop(
        "listener.security.protocol.map", None, str, check=protocol_map,
        doc="What listeners with names of their own speak: CLIENT:SASL_SSL,INTERNAL:PLAINTEXT. A listener "
            "whose name is a protocol speaks that.",
    )  # fmt: skip
    advertised_listeners: str | None = prop(
        "advertised.listeners", None, str, check=reachable_endpoints,
        doc="Addresses that clients of each listener connect to, if they differ from those the broker "
            "listens on.",
    )  # fmt: skip
    inter_broker_listener_name: str | None = prop(
        "inter.broker.listener.name", None, str,
        doc="The listener, of the same name at each broker of a cluster, at which they call each other for "
            "transactions. By default that of security.inter.broker.protocol, or PLAINTEXT, or the first.",
    )  # fmt: skip
    security_inter_broker_protocol: str | None = prop(
        "security.inter.broker.protocol", None, str, check=one_of(*PROTOCOLS[:-1]),
        doc="The same by its protocol; not together with inter.broker.listener.name.",
    )  # fmt: skip
    sasl_mechanism_inter_broker_protocol: str | None = prop(
        "sasl.mechanism.inter.broker.protocol", None, str, check=one_of("GSSAPI", *MECHANISMS),
        doc="How brokers log in at each other, with username and password of the listener's "
            "sasl.jaas.config for this mechanism: PLAIN or a SCRAM one (Kafka: GSSAPI). By default the "
            "listener's only one.",
    )  # fmt: skip
    num_network_threads: int = prop(
        "num.network.threads", 1, int, aliases=("num.threads",), check=between(1, 64), unit="threads",
        doc="Threads that read, handle and answer requests (Kafka: 3). "
            "More than one slows small requests down: they share one interpreter.",
    )  # fmt: skip
    num_io_threads: int = prop(
        "num.io.threads", 3, int, check=between(1, 64), unit="threads",
        doc="Threads of all listeners for requests that take long: old message formats, thousands of "
            "partitions, ZooKeeper (Kafka: 8, for all requests). Network threads handle the others.",
    )  # fmt: skip
    socket_request_max_bytes: int = prop(
        "socket.request.max.bytes", 100 << 20, int, aliases=("max.socket.request.bytes",), check=positive_int,
        unit="bytes", doc="Largest request; a larger one closes the connection before memory is taken.",
    )  # fmt: skip
    queued_max_request_bytes: int = prop(
        "queued.max.request.bytes", 256 << 20, int, unit="bytes",
        check=Check(f"1 to {LONG_MAX}, or -1 for no limit", lambda v: v == -1 or v >= 1),
        doc="Memory of all connections for requests that come in or are in hand, at least "
            "socket.request.max.bytes (Kafka: no limit). Each is reserved whole before it is read; those "
            "that do not fit wait unread. A quarter is kept for requests of at most 2 MiB; those up to "
            "4 KiB do not count.",
    )  # fmt: skip
    request_receive_timeout_ms: int = prop(
        "request.receive.timeout.ms", 60_000, int, check=positive_int, unit="ms",
        doc="A request that is not whole this long after its first byte closes its connection (ours). "
            "Clients give up after 30 to 60 s themselves.",
    )  # fmt: skip
    socket_send_buffer_bytes: int = prop(
        "socket.send.buffer.bytes", -1, int, aliases=("socket.send.buffer",), check=system_or_positive_int,
        unit="bytes", doc="SO_SNDBUF of connections (Kafka: 102400). Left alone, the system tunes it.",
    )  # fmt: skip
    socket_receive_buffer_bytes: int = prop(
        "socket.receive.buffer.bytes", -1, int, aliases=("socket.receive.buffer",),
        check=system_or_positive_int, unit="bytes",
        doc="SO_RCVBUF of connections (Kafka: 102400). Left alone, the system tunes it.",
    )  # fmt: skip
    socket_listen_backlog_size: int = prop(
        "socket.listen.backlog.size", 1024, int, check=positive_int, unit="connections",
        doc="Connections that the system keeps until they are accepted (Kafka: 50). "
            "When a burst of clients fills it, the rest try again a second later.",
    )  # fmt: skip
    max_connections: int = prop(
        "max.connections", INT_MAX, int, check=positive_int, unit="connections",
        doc="Open connections of one listener above which new ones are closed at once.",
    )  # fmt: skip
    max_connections_per_ip: int = prop(
        "max.connections.per.ip", INT_MAX, int, check=between(0, INT_MAX), unit="connections",
        doc="Open connections of one address, on all listeners, above which new ones are closed at once.",
    )  # fmt: skip
    max_connections_per_ip_overrides: tuple[str, ...] = prop(
        "max.connections.per.ip.overrides", (), tuple,
        check=Check("HOST:COUNT, several with commas between", lambda words: all(map(_is_limit, words))),
        doc="The same for single addresses, or names that are looked up at the start: "
            "10.0.0.7:100,127.0.0.1:1000,[::1]:50,gateway.example.org:2000.",
    )  # fmt: skip
    connections_max_idle_ms: int = prop(
        "connections.max.idle.ms", 600_000, int, unit="ms",
        check=Check(f"1 to {LONG_MAX}, or -1 for no limit", lambda v: v == -1 or v >= 1),
        doc="Connections on which no byte has moved for this long are closed, unless a request is in hand. "
            "While an answer is sent only its bytes count.",
    )  # fmt: skip
    fetch_max_bytes: int = prop(
        "fetch.max.bytes", 55 << 20, int, check=between(1024, INT_MAX), unit="bytes",
        doc="Data in one fetch answer, whatever the consumer asks for. "
            "A first batch that is larger is sent all the same.",
    )  # fmt: skip

    num_partitions: int = prop(
        "num.partitions", 1, int, check=between(1, 10_000), unit="partitions", section="Topics",
        doc="Partitions of a topic that is created without saying how many.",
    )  # fmt: skip
    auto_create_topics_enable: bool = prop(
        "auto.create.topics.enable", True, bool,
        doc="Create a topic when a client asks for its metadata and allows it, or produces to it with 0.7's "
            "protocol.",
    )  # fmt: skip
    delete_topic_enable: bool = prop("delete.topic.enable", True, bool, doc="Whether topics may be deleted.")
    default_replication_factor: int = prop(
        "default.replication.factor", 1, int, check=between(1, 1), unit="replicas",
        doc="Copies of each partition. This broker keeps one.",
    )  # fmt: skip
    min_insync_replicas: int = prop(
        "min.insync.replicas", 1, int, check=between(1, 1), unit="replicas",
        doc="Copies that must have a message before acks=all is answered. There is one.",
    )  # fmt: skip

    log_dirs: tuple[str, ...] = prop(
        "log.dirs", ("kafkalog-data",), tuple, aliases=("log.dir",), section="The log",
        check=Check("one or more different directories, separated by commas",
                    lambda words: len(words) > 0 and len(set(words)) == len(words)),
        doc="Data directories. A relative one is relative to where the broker is started. "
            "A new partition goes to the directory with the fewest.",
    )  # fmt: skip
    log_segment_bytes: int = prop(
        "log.segment.bytes", 1 << 30, int, aliases=("log.file.size",), check=positive_int, unit="bytes",
        doc="Size at which a new segment file is begun.",
    )  # fmt: skip
    log_roll_ms: int | None = prop(
        "log.roll.ms", None, int, check=positive, unit="ms",
        doc="Age at which a new segment file is begun; not set means log.roll.hours.",
    )  # fmt: skip
    log_roll_hours: int = prop(
        "log.roll.hours", 168, int, check=positive_int, unit="hours", doc="The same in hours."
    )
    log_open_files_max: int = prop(
        "log.open.files.max", 512, int, check=between(16, 1 << 20), unit="files",
        doc="Segment files that are kept open; beyond that those not used for longest are closed "
            "(ours; Kafka keeps all open).",
    )  # fmt: skip
    log_index_interval_bytes: int = prop(
        "log.index.interval.bytes", 4096, int, check=between(0, INT_MAX), unit="bytes",
        doc="Data between two entries of the offset index.",
    )  # fmt: skip
    log_index_size_max_bytes: int = prop(
        "log.index.size.max.bytes", 10 << 20, int, check=between(4, INT_MAX), unit="bytes",
        doc="Size of a segment's index at which a new segment is begun.",
    )  # fmt: skip
    message_max_bytes: int = prop(
        "message.max.bytes", 1_048_588, int, aliases=("max.message.size",), check=between(0, INT_MAX),
        unit="bytes", doc="Largest record batch that is accepted, as it is sent; in 0.7 the largest payload.",
    )  # fmt: skip
    log_message_timestamp_type: str = prop(
        "log.message.timestamp.type", "CreateTime", str, check=either_timestamp_type,
        doc="Whose time a record carries: its producer's, or the broker's when it is appended.",
    )  # fmt: skip
    log_message_timestamp_before_max_ms: int = prop(
        "log.message.timestamp.before.max.ms", LONG_MAX, int, check=not_negative, unit="ms",
        doc="How far a record's timestamp may be before the broker's clock.",
    )  # fmt: skip
    log_message_timestamp_after_max_ms: int = prop(
        "log.message.timestamp.after.max.ms", _HOUR_MS, int, check=not_negative, unit="ms",
        doc="How far a record's timestamp may be after the broker's clock.",
    )  # fmt: skip
    log_message_format_version: str = prop(
        "log.message.format.version", AS_PRODUCED, str, check=format_versions,
        doc="Format in which messages are stored, as a version of Kafka: 0.8 and 0.9 mean v0, 0.10 v1, later "
            "ones v2. What comes in another one is converted. By default it stays as it came (Kafka: v2).",
    )  # fmt: skip
    compression_type: str = prop(
        "compression.type", "producer", str, check=compression_types,
        doc="Kept and shown. Batches are stored as their producer compressed them, whatever this says.",
    )  # fmt: skip

    log_flush_interval_messages: int = prop(
        "log.flush.interval.messages", LONG_MAX, int, aliases=("log.flush.interval",), check=positive,
        unit="messages", section="Flush: what a power cut may lose",
        doc="Messages after which a partition is forced to disk. 1 forces each append before its answer.",
    )  # fmt: skip
    log_flush_interval_ms: int = prop(
        "log.flush.interval.ms", 3000, int, aliases=("log.default.flush.interval.ms",), check=not_negative,
        unit="ms",
        doc="Age of unflushed data at which a partition is forced to disk "
            "(Kafka leaves it to the system and to replicas; 3000 was 0.7's default).",
    )  # fmt: skip
    log_flush_scheduler_interval_ms: int = prop(
        "log.flush.scheduler.interval.ms", 1000, int, aliases=("log.default.flush.scheduler.interval.ms",),
        check=positive, unit="ms", doc="How often partitions are looked at for log.flush.interval.ms.",
    )  # fmt: skip

    metrics_listener: str | None = prop(
        "metrics.listener", None, str, check=not_empty,
        section="Metrics and status page", unit="host:port",
        doc="Where to serve Prometheus metrics (/metrics), a health check (/health) and a status page (/) "
            "over HTTP, for example 127.0.0.1:9308. There is no login.",
    )  # fmt: skip

    log_retention_hours: int = prop(
        "log.retention.hours", 168, int, check=unlimited_or_not_negative, unit="hours",
        section="Retention: what is deleted, and when",
        doc="Age of its newest record at which a segment is deleted.",
    )  # fmt: skip
    log_retention_minutes: int | None = prop(
        "log.retention.minutes", None, int, check=unlimited_or_not_negative, unit="minutes",
        doc="The same in minutes; goes before hours.",
    )  # fmt: skip
    log_retention_ms: int | None = prop(
        "log.retention.ms", None, int, check=unlimited_or_not_negative, unit="ms",
        doc="The same in milliseconds; goes before minutes and hours.",
    )  # fmt: skip
    log_retention_bytes: int = prop(
        "log.retention.bytes", -1, int, aliases=("log.retention.size",), check=unlimited_or_not_negative,
        unit="bytes", doc="Size of a partition above which its oldest segments are deleted.",
    )  # fmt: skip
    log_retention_policy: str | None = prop(
        "log.retention.policy", None, str, check=not_empty,
        doc="Class of your own that decides what is deleted, as module:Class, instead of age and size; it is "
            "asked for topics whose cleanup.policy has delete.",
    )  # fmt: skip
    log_retention_check_interval_ms: int = prop(
        "log.retention.check.interval.ms", 300_000, int, check=positive, unit="ms",
        doc="How often old segments are looked for.",
    )  # fmt: skip
    log_cleanup_policy: tuple[str, ...] = prop(
        "log.cleanup.policy", ("delete",), tuple, check=policies,
        doc="How old data goes: whole segments by age and size (delete), all but the last record of each key "
            "(compact), or both.",
    )  # fmt: skip
    log_cleaner_enable: bool = prop(
        "log.cleaner.enable", True, bool, section="The log cleaner: topics with cleanup.policy=compact",
        doc="Whether compacted topics are cleaned. Without it consumer offsets grow for ever, too.",
    )  # fmt: skip
    log_cleaner_backoff_ms: int = prop(
        "log.cleaner.backoff.ms", 15_000, int, check=not_negative, unit="ms",
        doc="How long the cleaner rests when no log is to be cleaned.",
    )  # fmt: skip
    log_cleaner_dedupe_buffer_size: int = prop(
        "log.cleaner.dedupe.buffer.size", 128 << 20, int, check=between(1 << 20, LONG_MAX), unit="bytes",
        doc="Memory for the keys of the dirty part of a log while it is cleaned, some 160 bytes a key. Where "
            "it does not do, the log is cleaned in several rounds.",
    )  # fmt: skip
    log_cleaner_io_max_bytes_per_second: float = prop(
        "log.cleaner.io.max.bytes.per.second", 1.7976931348623157e308, float, unit="bytes",
        check=Check("above 0", lambda v: v > 0), doc="What the cleaner reads and writes in a second at most.",
    )  # fmt: skip
    log_cleaner_min_cleanable_ratio: float = prop(
        "log.cleaner.min.cleanable.ratio", 0.5, float, check=Check("0 to 1", lambda v: 0 <= v <= 1),
        doc="Share of a log that must be dirty for it to be cleaned.",
    )  # fmt: skip
    log_cleaner_delete_retention_ms: int = prop(
        "log.cleaner.delete.retention.ms", 86_400_000, int, check=not_negative, unit="ms",
        doc="How long a tombstone stays after the first cleaning that has seen it.",
    )  # fmt: skip
    log_cleaner_min_compaction_lag_ms: int = prop(
        "log.cleaner.min.compaction.lag.ms", 0, int, check=not_negative, unit="ms",
        doc="Age up to which records are not compacted.",
    )  # fmt: skip
    log_cleaner_max_compaction_lag_ms: int = prop(
        "log.cleaner.max.compaction.lag.ms", LONG_MAX, int, check=positive, unit="ms",
        doc="Age at which records are compacted, however small the dirty share of their log is.",
    )  # fmt: skip

    log_missing_segments: str = prop(
        "log.missing.segments", "fail", str, check=one_of("fail", "truncate"),
        doc="What a start does about a partition whose data is missing on the disk. fail: that partition is "
            "offline, and its clients get KAFKA_STORAGE_ERROR. truncate: its log begins after what is "
            "missing, and the segments before that are moved to its directory stray (ours).",
    )  # fmt: skip
    log_segment_delete_delay_ms: int = prop(
        "log.segment.delete.delay.ms", 60_000, int, check=not_negative, unit="ms",
        doc="How long a deleted segment's files stay, for reads that are under way.",
    )  # fmt: skip

    offsets_topic_num_partitions: int | None = prop(
        "offsets.topic.num.partitions", None, int, check=between(1, 10_000), unit="partitions",
        section="Consumer groups and producers",
        doc="Partitions of the offsets topic, when it is first created; not set means 50, as in Kafka, with "
            "zookeeper.connect, so that brokers share the groups, and 1 without.",
    )  # fmt: skip
    offsets_retention_minutes: int = prop(
        "offsets.retention.minutes", 10_080, int, check=positive_int, unit="minutes",
        doc="How long offsets are kept after the last member has left; without members after their commit, "
            "as those of topics that no member subscribes to.",
    )  # fmt: skip
    offsets_retention_check_interval_ms: int = prop(
        "offsets.retention.check.interval.ms", 600_000, int, check=positive, unit="ms",
        doc="How often expired offsets are looked for.",
    )  # fmt: skip
    offset_metadata_max_bytes: int = prop(
        "offset.metadata.max.bytes", 4096, int, check=between(0, INT_MAX), unit="bytes",
        doc="Longest text that may be committed with an offset.",
    )  # fmt: skip
    group_min_session_timeout_ms: int = prop(
        "group.min.session.timeout.ms", 6000, int, check=positive_int, unit="ms",
        doc="Shortest session.timeout.ms that a member of a group may ask for.",
    )  # fmt: skip
    group_max_session_timeout_ms: int = prop(
        "group.max.session.timeout.ms", 30 * _MINUTE_MS, int, check=positive_int, unit="ms",
        doc="Longest session.timeout.ms that a member of a group may ask for.",
    )  # fmt: skip
    group_initial_rebalance_delay_ms: int = prop(
        "group.initial.rebalance.delay.ms", 3000, int, check=between(0, INT_MAX), unit="ms",
        doc="How long an empty group waits for more members after the first has joined. start_broker sets 0.",
    )  # fmt: skip
    group_max_size: int = prop(
        "group.max.size", INT_MAX, int, check=positive_int, unit="members",
        doc="Most members of a group.",
    )  # fmt: skip
    group_coordinator_rebalance_protocols: tuple[str, ...] = prop(
        "group.coordinator.rebalance.protocols", ("classic", "consumer"), tuple,
        check=Check("classic, or classic,consumer",
                    lambda words: "classic" in words and {*words} <= {"classic", "consumer"}),
        doc="Protocols that members of groups may use; consumer is the newer one (group.protocol=consumer).",
    )  # fmt: skip
    group_consumer_session_timeout_ms: int = prop(
        "group.consumer.session.timeout.ms", 45_000, int, check=positive_int, unit="ms",
        doc="How long a member of the newer protocol may be silent before it is removed.",
    )  # fmt: skip
    group_consumer_heartbeat_interval_ms: int = prop(
        "group.consumer.heartbeat.interval.ms", 5000, int, check=positive_int, unit="ms",
        doc="How often members of the newer protocol are asked to send a heartbeat.",
    )  # fmt: skip
    group_consumer_max_size: int = prop(
        "group.consumer.max.size", INT_MAX, int, check=positive_int, unit="members",
        doc="Most members of a group of the newer protocol.",
    )  # fmt: skip
    group_consumer_assignors: tuple[str, ...] = prop(
        "group.consumer.assignors", ("uniform", "range"), tuple,
        check=Check("uniform, range or both, separated by a comma",
                    lambda words: 0 < len(words) == len({*words}) and {*words} <= {"uniform", "range"}),
        doc="Assignors that members of the newer protocol may ask for; the first is used if none is.",
    )  # fmt: skip
    producer_id_expiration_ms: int = prop(
        "producer.id.expiration.ms", 86_400_000, int, check=positive_int, unit="ms",
        doc="How long an idempotent producer that sends nothing is remembered.",
    )  # fmt: skip
    producer_id_expiration_check_interval_ms: int = prop(
        "producer.id.expiration.check.interval.ms", 600_000, int, check=positive_int, unit="ms",
        doc="How often forgotten producers are looked for.",
    )  # fmt: skip

    transaction_state_log_num_partitions: int | None = prop(
        "transaction.state.log.num.partitions", None, int, check=between(1, 10_000), unit="partitions",
        section="Transactions",
        doc="Partitions of the transactions' topic, when it is first created; not set means 50, as in Kafka, "
            "with zookeeper.connect, and 1 without.",
    )  # fmt: skip
    transaction_state_log_segment_bytes: int = prop(
        "transaction.state.log.segment.bytes", 100 << 20, int, check=between(14, INT_MAX), unit="bytes",
        doc="Size of a segment of the transactions' topic, when it is first created.",
    )  # fmt: skip
    transaction_max_timeout_ms: int = prop(
        "transaction.max.timeout.ms", 900_000, int, check=positive_int, unit="ms",
        doc="Largest transaction.timeout.ms of a producer: for so long one may keep readers of "
            "committed data waiting.",
    )  # fmt: skip
    transaction_abort_interval_ms: int = prop(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms", 10_000, int, check=positive_int,
        unit="ms", doc="How often transactions are looked for that have been open for too long.",
    )  # fmt: skip
    transactional_id_expiration_ms: int = prop(
        "transactional.id.expiration.ms", 604_800_000, int, check=positive_int, unit="ms",
        doc="How long a transactional id that is not used is remembered.",
    )  # fmt: skip
    transaction_remove_interval_ms: int = prop(
        "transaction.remove.expired.transaction.cleanup.interval.ms", 3_600_000, int, check=positive_int,
        unit="ms", doc="How often unused transactional ids are looked for.",
    )  # fmt: skip
    transaction_flush_before_end: bool = prop(
        "transaction.flush.before.end", False, bool,
        doc="Whether a transaction's records and its commit or abort are forced to disk before any partition "
            "shows it as ended, and the ends themselves before the answer. Then not even a power cut leaves "
            "half of a transaction; without, the flush settings hold for each partition by itself, as in "
            "Kafka.",
    )  # fmt: skip

    authorizer_class_name: str | None = prop(
        "authorizer.class.name", None, str, section="Authorization", check=Check(
            "StandardAuthorizer or AclAuthorizer, with or without a package",
            lambda name: name.rpartition(".")[2] in ("", *_AUTHORIZERS),
        ),
        doc="Turns ACLs on. Kafka's two names mean the same here. Without it every client may do everything.",
    )  # fmt: skip
    super_users: str | None = prop(
        "super.users", None, str, check=Check(
            "principals separated by semicolons, as User:admin;User:CN=broker,O=Lab",
            lambda text: all(map(_is_principal, filter(None, map(str.strip, text.split(";"))))),
        ),
        doc="Who may do everything, whatever ACLs say: User:admin;User:CN=broker,O=Lab.",
    )  # fmt: skip
    allow_everyone_if_no_acl_found: bool = prop(
        "allow.everyone.if.no.acl.found", False, bool,
        doc="Whether everybody may do everything with a topic, group or other resource that no ACL is about.",
    )  # fmt: skip

    zookeeper_connect: str | None = prop_of(ZooKeeperConfig, "zookeeper_connect")
    zookeeper_session_timeout_ms: int = prop_of(ZooKeeperConfig, "zookeeper_session_timeout_ms")
    zookeeper_connection_timeout_ms: int = prop_of(ZooKeeperConfig, "zookeeper_connection_timeout_ms")
    zookeeper_prefix: str = prop_of(ZooKeeperConfig, "zookeeper_prefix")
    zookeeper_prefix_07: str = prop_of(ZooKeeperConfig, "zookeeper_prefix_07")
    zookeeper_ssl_client_enable: bool = prop_of(ZooKeeperConfig, "zookeeper_ssl_client_enable")
    zookeeper_client_cnxn_socket: str | None = prop_of(ZooKeeperConfig, "zookeeper_client_cnxn_socket")
    zookeeper_ssl_truststore_location: str | None = prop_of(
        ZooKeeperConfig, "zookeeper_ssl_truststore_location"
    )
    zookeeper_ssl_truststore_password: str | None = prop_of(
        ZooKeeperConfig, "zookeeper_ssl_truststore_password"
    )
    zookeeper_ssl_truststore_type: str | None = prop_of(ZooKeeperConfig, "zookeeper_ssl_truststore_type")
    zookeeper_ssl_keystore_location: str | None = prop_of(ZooKeeperConfig, "zookeeper_ssl_keystore_location")
    zookeeper_ssl_keystore_password: str | None = prop_of(ZooKeeperConfig, "zookeeper_ssl_keystore_password")
    zookeeper_ssl_keystore_type: str | None = prop_of(ZooKeeperConfig, "zookeeper_ssl_keystore_type")
    zookeeper_ssl_endpoint_identification_algorithm: str = prop_of(
        ZooKeeperConfig, "zookeeper_ssl_endpoint_identification_algorithm"
    )
    zookeeper_ssl_protocol: str | None = prop_of(ZooKeeperConfig, "zookeeper_ssl_protocol")
    zookeeper_ssl_enabled_protocols: tuple[str, ...] = prop_of(
        ZooKeeperConfig, "zookeeper_ssl_enabled_protocols"
    )
    zookeeper_ssl_cipher_suites: tuple[str, ...] = prop_of(ZooKeeperConfig, "zookeeper_ssl_cipher_suites")
    zookeeper_ssl_crl_enable: bool = prop_of(ZooKeeperConfig, "zookeeper_ssl_crl_enable")
    zookeeper_ssl_ocsp_enable: bool = prop_of(ZooKeeperConfig, "zookeeper_ssl_ocsp_enable")
    zookeeper_sasl_jaas_config: str | None = prop_of(ZooKeeperConfig, "zookeeper_sasl_jaas_config")
    zookeeper_set_acl: bool = prop_of(ZooKeeperConfig, "zookeeper_set_acl")
    zookeeper_allow_unprotected_credentials: bool = prop(
        "zookeeper.allow.unprotected.credentials", False, bool,
        doc="Whether users' SCRAM credentials are kept in a ZooKeeper that others can read or change. By "
            "default they are there with zookeeper.ssl.client.enable and zookeeper.set.acl only, and else in "
            "each broker's security.json.",
    )  # fmt: skip

    listener_properties: ListenerProperties = unlisted(ListenerProperties())
    """What was given of TLS and login."""

    @classmethod
    def load(cls, path: Path | str | None, overrides: Mapping[str, str] | None = None) -> BrokerConfig:
        """From a properties file, or from the defaults alone; ``overrides`` go before both.
        Raises `InvalidConfig`: the file cannot be read, or a value is not allowed.
        """
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
                    f"listeners={each}: {each.name} is no protocol; say in listener.security.protocol.map "
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
        """Where to listen, each name at most once."""
        return parse_endpoints(self.listeners)

    @property
    def protocols(self) -> dict[str, str]:
        """What listeners of each name speak."""
        return parse_protocol_map(self.listener_security_protocol_map or "")

    @property
    def inter_broker_listener(self) -> Endpoint | None:
        """Where other brokers call; None without a listener of today's wire."""
        protocols = self.protocols
        name, protocol = self.inter_broker_listener_name, self.security_inter_broker_protocol or "PLAINTEXT"
        own = [each for each in self.endpoints if protocols[each.name] != KAFKA07]
        if name is not None:
            return next((each for each in own if each.name == name.upper()), None)
        return next((each for each in own if protocols[each.name] == protocol), own[0] if own else None)

    @property
    def shares_credentials(self) -> bool:
        """Whether users are kept in ZooKeeper."""
        zookeeper = self.zookeeper
        return zookeeper.zookeeper_connect is not None and (
            zookeeper.protects_credentials or self.zookeeper_allow_unprotected_credentials
        )

    def address_limits(self) -> tuple[int | None, dict[str, int]]:
        """Most connections of one address, None without a limit; and those of single addresses."""
        overrides = (word.rpartition(":") for word in self.max_connections_per_ip_overrides)
        limit = self.max_connections_per_ip
        return (None if limit == INT_MAX else limit), {host: int(count) for host, _, count in overrides}

    def advertised_endpoint(self, listening: Endpoint, bound_port: int, machine_name: str) -> Endpoint:
        """The address for clients of one listener: ``bound_port`` replaces port 0, ``machine_name`` every
        interface.
        """
        named = parse_endpoints(self.advertised_listeners) if self.advertised_listeners else ()
        found = next((each for each in named if each.name == listening.name), listening)
        host = machine_name if found.every_interface else found.host
        return found._replace(host=host, port=found.port or bound_port)

    @property
    def zookeeper(self) -> ZooKeeperConfig:
        """The properties that brokers share with clients."""
        shared = {item.field for item in describe(ZooKeeperConfig)}
        own = (item.field for item in describe(type(self)))
        return ZooKeeperConfig(**{field: getattr(self, field) for field in own if field in shared})

    def directories(self) -> tuple[Path, ...]:
        """`log_dirs` as paths."""
        return tuple(Path(word).expanduser() for word in self.log_dirs)

    def log_defaults(self) -> LogConfig:
        """What a topic that sets nothing gets."""
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


DYNAMIC = frozenset(item.inherits for item in describe(LogConfig)) - {"", "log.message.format.version"}
"""The broker's properties that can be changed while it runs: the defaults of its topics.
Source: Kafka 3.9 ``DynamicLogConfig.ReconfigurableConfigs``.
"""
