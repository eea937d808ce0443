"""Properties of Kafka 0.7's API, `classic`: of its clients, consumers (also Spark's reads) and producers.

Names are 0.7's, and so are defaults unless noted.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from typing import NamedTuple, TypeVar

from pyspark_kafkalog.config.client_config import ClientConfig, ConsumerConfig, check_release
from pyspark_kafkalog.config.definition import (
    INT_MAX,
    Check,
    Config,
    between,
    configuration,
    describe,
    not_empty,
    not_negative,
    one_of,
    parse,
    parsed_by,
    positive_int,
    prop,
    prop_of,
    system_or_positive_int,
)
from pyspark_kafkalog.config.security_config import ProvidersConfig, SaslConfig, TlsConfig
from pyspark_kafkalog.config.zookeeper_config import ZooKeeperConfig, znode_name
from pyspark_kafkalog.errors import InvalidConfig
from pyspark_kafkalog.formats.compression import Codec
from pyspark_kafkalog.formats.v07 import CODECS as CODECS_07
from pyspark_kafkalog.types import PROTOCOL_07, PROTOCOL_08, IsolationLevel, parse_address


class BrokerAddress(NamedTuple):
    id: int
    host: str
    port: int


def parse_broker_list(text: str, *, need_ids: bool = False) -> tuple[BrokerAddress, ...]:
    """Parse ``id:host:port,...``; without ids numbers from 0, unless ``need_ids``. Raises ValueError."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    found = []
    for place, part in enumerate(parts):
        first, colon, rest = part.partition(":")
        numbered = bool(colon) and first.isascii() and first.isdigit() and ":" in rest
        host, port = parse_address(rest if numbered else part)
        found.append((numbered, BrokerAddress(int(first) if numbered else place, host, port)))
    if len({numbered for numbered, _ in found}) > 1:
        raise ValueError(f"{text!r}: either all brokers have an id or none")
    if need_ids and not all(numbered for numbered, _ in found):
        raise ValueError(f"{text!r}: a broker has no id")
    brokers = tuple(broker for _, broker in found)
    if len({broker.id for broker in brokers}) < len(brokers):
        raise ValueError(f"{text!r}: a broker id is used twice")
    if not brokers:
        raise ValueError(f"{text!r} has no broker")
    return brokers


broker_list = Check("id:host:port, separated by commas", parsed_by(parse_broker_list))
numbered_broker_list = Check(
    "id:host:port, separated by commas, each with its own id",
    parsed_by(partial(parse_broker_list, need_ids=True)),
)


@configuration
class Connection07Config(Config):
    protocol: str = prop(
        "protocol", PROTOCOL_07, check=one_of(PROTOCOL_07, PROTOCOL_08), section="Connections",
        doc="Wire protocol: 0.7's, for a broker's KAFKA07 listener, or that since 0.8.",
    )  # fmt: skip
    client_id: str = prop(
        "clientid", "kafkalog", aliases=("client.id",),
        doc="Client name in requests on the wire since 0.8, for the broker's logs.",
    )  # fmt: skip
    connect_timeout_ms: int = prop(
        "connect.timeout.ms", 5_000, int, check=positive_int, unit="ms",
        doc="Time limit for opening a connection.",
    )  # fmt: skip
    socket_timeout_ms: int = prop(
        "socket.timeout.ms", 30_000, int, check=positive_int, unit="ms",
        doc="Time limit for one call, including a retry over a new connection.",
    )  # fmt: skip
    socket_buffer_bytes: int = prop(
        "socket.buffersize", -1, int, aliases=("buffer.size",), check=system_or_positive_int, unit="bytes",
        doc="Socket buffers (SO_SNDBUF, SO_RCVBUF).",
    )  # fmt: skip
    max_message_size: int = prop(
        "max.message.size", 1_000_000, int, check=positive_int, unit="bytes", section="Limits",
        doc="Largest payload of a message or compressed set. A larger one is not sent, because a 0.7 broker "
            "drops it silently; when reading, the buffer grows up to this size.",
    )  # fmt: skip
    max_decompressed_bytes: int = prop(
        "max.decompressed.bytes", 256 << 20, int, check=positive_int, unit="bytes",
        doc="Largest decompressed set, checked before memory is allocated.",
    )  # fmt: skip
    max_request_bytes: int = prop(
        "max.socket.request.bytes", 100 << 20, int, check=positive_int, unit="bytes",
        doc="Largest request; a 0.7 broker closes the connection after one above its own limit.",
    )  # fmt: skip
    max_response_bytes: int = prop_of(ClientConfig, "max_response_bytes")
    api_version_request: bool = prop_of(ClientConfig, "api_version_request")
    broker_version_fallback: str | None = prop_of(ClientConfig, "broker_version_fallback")
    security_protocol: str = prop_of(ClientConfig, "security_protocol")


@configuration
class Client07Config(ProvidersConfig, SaslConfig, TlsConfig, Connection07Config):
    """Properties of all clients of 0.7's API; TLS and logins need the protocol since 0.8."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_release(self.api_version_request, self.broker_version_fallback)
        if self.security_protocol == "PLAINTEXT":
            return
        if self.protocol == PROTOCOL_07:
            raise InvalidConfig(
                f"security.protocol={self.security_protocol} is not allowed with protocol={PROTOCOL_07}: it "
                f"has neither TLS nor SASL; allowed: PLAINTEXT, or protocol={PROTOCOL_08}"
            )
        self.for_todays_wire(("localhost", 9092))  # for its checks

    @classmethod
    def check_names(cls, names: Collection[str], prefix: str = "") -> None:
        ClientConfig.check_names(names, prefix)

    def for_todays_wire(self, *brokers: tuple[str, int]) -> ClientConfig:
        """The equivalent `ClientConfig` for the protocol since 0.8, for these hosts and ports."""
        where = ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in brokers)
        return ClientConfig(
            bootstrap_servers=where,
            servers_option="",
            client_id=self.client_id,
            request_timeout_ms=self.socket_timeout_ms,
            connection_setup_timeout_ms=self.connect_timeout_ms,
            send_buffer_bytes=self.socket_buffer_bytes,
            receive_buffer_bytes=self.socket_buffer_bytes,
            max_response_bytes=self.max_response_bytes,
            api_version_request=self.api_version_request,
            broker_version_fallback=self.broker_version_fallback,
            security_protocol=self.security_protocol,
            **{
                item.field: getattr(self, item.field)
                for secured in (TlsConfig, SaslConfig, ProvidersConfig)
                for item in describe(secured)
            },
        )


ZOOKEEPER, KAFKA = "zookeeper", "kafka"

RANGE, RANGE_BY_BROKER = "range", "range-by-broker"
SMALLEST, LARGEST, NONE = "smallest", "largest", "none"  # where to start if the group has no valid offset
_no_limit_or_ms = Check(f"0 to {INT_MAX}, or -1 to wait without limit", lambda value: -1 <= value <= INT_MAX)


@configuration
class SimpleConsumerConfig(Client07Config):
    isolation_level: str = prop_of(ConsumerConfig, "isolation_level")

    @property
    def isolation(self) -> IsolationLevel:
        return IsolationLevel[self.isolation_level.upper()]


@configuration
class ConnectorConfig(ZooKeeperConfig, SimpleConsumerConfig):
    group_id: str = prop(
        "groupid", "group1", aliases=("group.id",), check=znode_name, section="The group",
        doc="Consumers with the same group share the partitions: each message goes to one of them.",
    )  # fmt: skip
    consumer_id: str | None = prop(
        "consumerid", None, aliases=("consumer.id",), check=znode_name,
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
    assignment_strategy: str = prop(
        "partition.assignment.strategy", RANGE, check=one_of(RANGE, RANGE_BY_BROKER),
        doc="range-by-broker (not in Kafka): with protocol=0.8 consumers get ranges of a topic's partitions "
            "by leader, so that each reads from few brokers, once all consumers of the group have it. "
            "0.7's ranges are always so.",
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
        "autooffset.reset", SMALLEST, aliases=("auto.offset.reset",), check=one_of(SMALLEST, LARGEST, NONE),
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
        "offsets.storage", ZOOKEEPER, check=one_of(ZOOKEEPER, KAFKA),
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
            for wrong, given, allowed in (
                (self.offsets_storage == KAFKA, f"offsets.storage={KAFKA}", ZOOKEEPER),
                (self.dual_commit, "dual.commit.enabled=true", "false"),
            ):
                if wrong:
                    raise InvalidConfig(
                        f"{given} is not allowed with protocol={PROTOCOL_07}, whose brokers "
                        f"store no offsets; allowed: {allowed}, or protocol={PROTOCOL_08}"
                    )

    @property
    def connect(self) -> str:
        return self.zookeeper_connect or ""


@configuration
class Source07Config(ZooKeeperConfig, SimpleConsumerConfig):
    """A Spark read from Kafka 0.7; needs either ``zookeeper.connect`` or ``broker.list``."""

    protocol: str = prop("protocol", PROTOCOL_07, check=one_of(PROTOCOL_07), doc="Wire protocol.")
    # Offsets are stored by broker id, which must not depend on the position in the list.
    broker_list: str | None = prop(
        "broker.list", None, check=numbered_broker_list, doc="Brokers to read from, without ZooKeeper."
    )  # fmt: skip
    fetch_size: int = prop_of(ConnectorConfig, "fetch_size")

    @property
    def brokers(self) -> tuple[BrokerAddress, ...]:
        return parse_broker_list(self.broker_list) if self.broker_list else ()

    @property
    def place(self) -> str:
        if self.zookeeper_connect:
            return f"zookeeper.connect={self.zookeeper_connect}"
        return f"broker.list={self.broker_list}"


C = TypeVar("C", bound=Client07Config)

_CODECS = {str(int(codec)): codec for codec in Codec} | {codec.name.lower(): codec for codec in Codec}

handler_properties = Check(
    "name=value, separated by commas",
    lambda words: all("=" in word and not word.startswith("=") for word in words),
)


@configuration
class SyncProducerConfig(Client07Config):
    """A producer that sends to one broker."""

    required_acks: int = prop(
        "request.required.acks", 1, int, check=between(-1, 1), unit="brokers", section="Sending",
        doc="0: do not wait; if the broker refuses a send, a later one fails, and what was sent since is "
            "lost. 1: confirm each request, on 0.7's wire by an empty fetch after it. -1: wait for all "
            "replicas; the same as 1 on 0.7's wire, which has none.",
    )  # fmt: skip
    reconnect_interval: int = prop(
        "reconnect.interval", 30_000, int, check=positive_int, unit="requests",
        doc="Requests after which a new connection is opened, so that a load balancer can choose again.",
    )  # fmt: skip
    reconnect_time_interval_ms: int = prop(
        "reconnect.time.interval.ms", 10_000_000, int, check=between(-1, INT_MAX), unit="ms",
        doc="Time after which a new connection is opened; -1: never.",
    )  # fmt: skip
    message_magic: int = prop(
        "message.magic", 1, int, check=between(0, 1), unit="magic byte",
        doc="Magic byte of messages on 0.7's wire (not in Kafka; the Scala client wrote 1). 0 for consumers "
            "that support nothing else, such as brod; a compressed set has magic 1 around messages of this "
            "one.",
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.required_acks == 0 and self.protocol != PROTOCOL_07:
            raise InvalidConfig(
                f"request.required.acks=0 is not allowed; allowed with protocol={self.protocol}: 1 and -1"
            )


@configuration
class AsyncProducerConfig(SyncProducerConfig):
    """A producer that queues messages for one broker."""

    queue_time_ms: int = prop(
        "queue.time", 5_000, int, aliases=("queue.buffering.max.ms",), check=between(0, INT_MAX), unit="ms",
        section="The queue (producer.type=async)",
        doc="Time after which the queue is sent, even without a full batch.",
    )  # fmt: skip
    batch_size: int = prop(
        "batch.size", 200, int, aliases=("batch.num.messages",), check=positive_int, unit="events",
        doc="Events in a full batch, which is sent at once.",
    )  # fmt: skip
    queue_size: int = prop(
        "queue.size", 10_000, int, aliases=("queue.buffering.max.messages",), check=positive_int,
        unit="events", doc="Capacity of the queue.",
    )  # fmt: skip
    enqueue_timeout_ms: int = prop(
        "queue.enqueueTimeout.ms", 0, int, aliases=("queue.enqueue.timeout.ms",), check=between(-1, INT_MAX),
        unit="ms",
        doc="Wait for room in a full queue before an event is refused: 0 not at all, -1 without limit.",
    )  # fmt: skip
    num_retries: int = prop(
        "num.retries", 3, int, aliases=("message.send.max.retries",), check=between(0, INT_MAX),
        unit="attempts",
        doc="Retries of a batch after retriable errors (0.7: 0); it may then be stored twice. After the "
            "last one it is lost, logged and passed to the callback.handler.",
    )  # fmt: skip
    retry_backoff_ms: int = prop(
        "retry.backoff.ms", 100, int, check=not_negative, unit="ms",
        doc="Wait before the first retry; doubled for each further one, up to ten times as long.",
    )  # fmt: skip
    compression_codec: str = prop(
        "compression.codec", "none", check=one_of(*_CODECS), section="Messages",
        doc="Codec for the messages of a request, by name or number. 0.7 has none (0), gzip (1) and snappy "
            "(2).",
    )  # fmt: skip
    compressed_topics: tuple[str, ...] = prop(
        "compressed.topics", (), tuple, doc="Topics to compress; empty: all.",
    )  # fmt: skip
    serializer_class: str = prop(
        "serializer.class", "kafka.serializer.DefaultEncoder", check=not_empty,
        doc="Encoder of events: a Python class as package.module.Class, kafka.serializer.StringEncoder, or "
            "the default, which takes bytes unchanged.",
    )  # fmt: skip
    event_handler: str | None = prop(
        "event.handler", None, check=not_empty, section="Hooks (producer.type=async)",
        doc="Class that handles the batches instead of serialising, compressing and sending them.",
    )  # fmt: skip
    event_handler_props: tuple[str, ...] = prop(
        "event.handler.props", (), tuple, check=handler_properties, doc="Arguments of its init method.",
    )  # fmt: skip
    callback_handler: str | None = prop(
        "callback.handler", None, check=not_empty,
        doc="Class called at each stage of the queue, which may change the events.",
    )  # fmt: skip
    callback_handler_props: tuple[str, ...] = prop(
        "callback.handler.props", (), tuple, check=handler_properties, doc="Arguments of its init method.",
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.protocol == PROTOCOL_07 and self.codec not in CODECS_07:
            allowed = ", ".join(codec.name.lower() for codec in CODECS_07)
            raise InvalidConfig(
                f"compression.codec={self.compression_codec} is not allowed; "
                f"allowed with protocol={PROTOCOL_07}: {allowed}"
            )

    @property
    def codec(self) -> Codec:
        return _CODECS[self.compression_codec]

    def codec_of(self, topic: str) -> Codec:
        chosen = not self.compressed_topics or topic in self.compressed_topics
        return self.codec if chosen else Codec.NONE


@configuration
class ClassicProducerConfig(ZooKeeperConfig, AsyncProducerConfig):
    """The producer that finds brokers and selects among them."""

    producer_type: str = prop(
        "producer.type", "sync", check=one_of("sync", "async"), section="The producer",
        doc="Whether sends return when the broker has the messages (sync), or when they are queued (async).",
    )  # fmt: skip
    broker_list: str | None = prop(
        "broker.list", None, aliases=("metadata.broker.list", "bootstrap.servers"), check=broker_list,
        doc="The brokers, without ZooKeeper. 0.7's wire sends to a random partition of a random one; "
            "today's uses them for the first connection, ids optional.",
    )  # fmt: skip
    partitioner_class: str | None = prop(
        "partitioner.class", None, check=not_empty,
        doc="Class that chooses a partition by the key. Not set: Java's String.hashCode on 0.7's wire, "
            "murmur2 on today's; random without a key.",
    )  # fmt: skip
    zk_read_retries: int = prop(
        "zk.read.num.retries", 3, int, check=between(0, INT_MAX), unit="attempts",
        doc="How often ZooKeeper is read again if the chosen partition's broker is unknown.",
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.zookeeper_connect is None) == (self.broker_list is None):
            given = "neither is" if self.broker_list is None else "both are"
            raise InvalidConfig(f"either zookeeper.connect or broker.list must be given; {given}")
        if self.broker_list is not None and self.partitioner_class and self.protocol == PROTOCOL_07:
            raise InvalidConfig(
                "partitioner.class needs zookeeper.connect: with broker.list messages go to random partitions"
            )

    @property
    def brokers(self) -> tuple[BrokerAddress, ...]:
        return parse_broker_list(self.broker_list) if self.broker_list is not None else ()


def producer_config(cls: type[C], config: Mapping[str, object] | C | None) -> C:
    """``config`` as a ``cls``; codecs may be numbers."""
    if isinstance(config, cls):
        return config
    given: Mapping[str, object] = config if isinstance(config, Mapping) else {}
    words = {"compression.codec": str(int(c))} if isinstance(c := given.get("compression.codec"), int) else {}
    return parse(cls, {**given, **words}, source="producer")


def handler_props(words: tuple[str, ...]) -> dict[str, str]:
    pairs = (word.partition("=") for word in words)
    return {name.strip(): value.strip() for name, _, value in pairs}
