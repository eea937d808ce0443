"""Properties of the Kafka 0.7 producers; 0.7's names, and its defaults unless noted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from pyspark_kafkalog.config.client07_config import (
    PROTOCOL_07,
    BrokerAddress,
    Client07Config,
    broker_list,
    parse_broker_list,
)
from pyspark_kafkalog.config.definition import (
    INT_MAX,
    Check,
    between,
    not_empty,
    not_negative,
    one_of,
    parse,
    positive_int,
    prop,
)
from pyspark_kafkalog.config.zookeeper_config import ZooKeeperConfig
from pyspark_kafkalog.errors import InvalidConfig
from pyspark_kafkalog.formats.compression import Codec
from pyspark_kafkalog.formats.v07 import CODECS as CODECS_07

C = TypeVar("C", bound=Client07Config)

_CODECS = {str(int(codec)): codec for codec in Codec} | {codec.name.lower(): codec for codec in Codec}

handler_properties = Check(
    "name=value, separated by commas",
    lambda words: all("=" in word and not word.startswith("=") for word in words),
)


@dataclass(frozen=True)
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


@dataclass(frozen=True)
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
        "compression.codec", "none", str, check=one_of(*_CODECS), section="Messages",
        doc="Codec for the messages of a request, by name or number. 0.7 has none (0), gzip (1) and snappy "
            "(2).",
    )  # fmt: skip
    compressed_topics: tuple[str, ...] = prop(
        "compressed.topics", (), tuple,
        doc="Topics to compress; empty: all.",
    )  # fmt: skip
    serializer_class: str = prop(
        "serializer.class", "kafka.serializer.DefaultEncoder", str, check=not_empty,
        doc="Encoder of events: a Python class as package.module.Class, kafka.serializer.StringEncoder, or "
            "the default, which takes bytes unchanged.",
    )  # fmt: skip
    event_handler: str | None = prop(
        "event.handler", None, str, check=not_empty, section="Hooks (producer.type=async)",
        doc="Class that handles the batches instead of serialising, compressing and sending them.",
    )  # fmt: skip
    event_handler_props: tuple[str, ...] = prop(
        "event.handler.props", (), tuple, check=handler_properties, doc="Arguments of its init method.",
    )  # fmt: skip
    callback_handler: str | None = prop(
        "callback.handler", None, str, check=not_empty,
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


@dataclass(frozen=True)
class ClassicProducerConfig(ZooKeeperConfig, AsyncProducerConfig):
    """The producer that finds brokers and selects among them."""

    producer_type: str = prop(
        "producer.type", "sync", str, check=one_of("sync", "async"), section="The producer",
        doc="Whether sends return when the broker has the messages (sync), or when they are queued (async).",
    )  # fmt: skip
    broker_list: str | None = prop(
        "broker.list", None, str, aliases=("metadata.broker.list", "bootstrap.servers"), check=broker_list,
        doc="The brokers, without ZooKeeper. 0.7's wire sends to a random partition of a random one; "
            "today's uses them for the first connection, ids optional.",
    )  # fmt: skip
    partitioner_class: str | None = prop(
        "partitioner.class", None, str, check=not_empty,
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
        """Brokers of ``broker.list``; empty with ZooKeeper."""
        return parse_broker_list(self.broker_list) if self.broker_list is not None else ()


def producer_config(cls: type[C], config: Mapping[str, object] | C | None) -> C:
    """``config`` as a ``cls``; codecs may be numbers."""
    if isinstance(config, cls):
        return config
    given: Mapping[str, object] = config if isinstance(config, Mapping) else {}
    words = {"compression.codec": str(int(c))} if isinstance(c := given.get("compression.codec"), int) else {}
    return parse(cls, {**given, **words}, source="producer")


def handler_props(words: tuple[str, ...]) -> dict[str, str]:
    """Items of ``event.handler.props`` or ``callback.handler.props`` by name."""
    pairs = (word.partition("=") for word in words)
    return {name.strip(): value.strip() for name, _, value in pairs}
