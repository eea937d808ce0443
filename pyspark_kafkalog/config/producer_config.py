"""The properties of a producer: batching, time limits, delivery."""

from __future__ import annotations

from typing import cast

from pyspark_kafkalog.config.client_config import ClientConfig
from pyspark_kafkalog.config.definition import (
    INT_MAX,
    LONG_MAX,
    Check,
    between,
    configuration,
    not_empty,
    not_negative,
    one_of,
    positive_int,
    prop,
)
from pyspark_kafkalog.errors import InvalidConfig
from pyspark_kafkalog.formats.compression import LEVELS, Codec
from pyspark_kafkalog.protocol.exchange import message_magic

MAX_IN_FLIGHT_IDEMPOTENT = 5
"""A broker remembers a producer's last five batches, and only detects duplicates of these."""

MAGICS = {"v2": 2, "v1": 1, "v0": 0}  # message formats that can be sent, with their magic
_WITHOUT_LZ4 = ("0.8.0", "0.8.1")

_DELIVERY_TIMEOUT_MS = 120_000


@configuration
class ProducerConfig(ClientConfig):
    acks: str = prop(
        "acks", "all", check=one_of("all", "-1", "1", "0"), aliases=("request.required.acks",),
        section="Delivery",
        doc="When the broker confirms: once all in-sync replicas (all, -1) or the leader (1) have the "
            "batch, or never (0).",
    )  # fmt: skip
    enable_idempotence: bool = prop(
        "enable.idempotence", None, bool,
        doc="Number the batches, so that a retried one is stored once and in order. Not set: true unless "
            "acks, the requests in flight or message.format prevent it.",
    )  # fmt: skip
    max_in_flight: int = prop(
        "max.in.flight.requests.per.connection", 5, int, check=positive_int, unit="requests",
        doc="Unanswered requests to one broker; at most 5 when idempotent.",
    )  # fmt: skip
    delivery_timeout_ms: int = prop(
        "delivery.timeout.ms", _DELIVERY_TIMEOUT_MS, int, check=between(0, INT_MAX), unit="ms",
        doc="Time from send() to success or failure, including retries; at least linger.ms + "
            "request.timeout.ms.",
    )  # fmt: skip
    max_block_ms: int = prop(
        "max.block.ms", 60_000, int, check=not_negative, unit="ms",
        doc="How long send() waits for metadata or for buffer memory before it fails.",
    )  # fmt: skip
    linger_ms: int = prop(
        "linger.ms", 5, int, check=between(0, INT_MAX), unit="ms", aliases=("queue.buffering.max.ms",),
        section="Batches", doc="How long a batch waits for more records before it is sent.",
    )  # fmt: skip
    batch_size: int = prop(
        "batch.size", 16_384, int, check=between(0, INT_MAX), unit="bytes",
        doc="Size at which a batch is sent. 0 sends every record separately.",
    )  # fmt: skip
    max_request_size: int = prop(
        "max.request.size", 1 << 20, int, check=positive_int, unit="bytes",
        doc="Largest record, before compression, and largest request.",
    )  # fmt: skip
    buffer_memory: int = prop(
        "buffer.memory", 32 << 20, int, check=Check(f"1024 to {LONG_MAX}", lambda v: 1024 <= v <= LONG_MAX),
        unit="bytes", doc="Memory for records that are not delivered yet; above it send() waits.",
    )  # fmt: skip
    compression_type: str = prop(
        "compression.type", "none", aliases=("compression.codec",),
        check=one_of(*(codec.name.lower() for codec in Codec)),
        doc="Codec of the batches; each is compressed as a whole.",
    )  # fmt: skip
    compression_level: int | None = prop(
        "compression.level", None, int, check=between(0, 22),
        doc="The codec's level; not set: the codec's default. gzip 1-9, lz4 0-16, zstd 1-22.",
    )  # fmt: skip
    message_format: str = prop(
        "message.format", None, check=one_of(*MAGICS),
        doc="Record batches, v2 (Kafka 0.11 and later), or older message sets: v1 (0.10) and v0 (0.8, 0.9), "
            "without headers, zstd and idempotence; v0 drops timestamps, too. Not set: v2, or the newest "
            "that brokers of broker.version.fallback accept.",
    )  # fmt: skip
    partitioner_ignore_keys: bool = prop(
        "partitioner.ignore.keys", False, bool, section="Partitions",
        doc="Choose partitions as for records without a key, not by the key's murmur2 hash.",
    )  # fmt: skip
    partitioner_sticky_bytes: int = prop(
        "partitioner.sticky.bytes", 0, int, check=between(0, INT_MAX), unit="bytes",
        doc="Data after which records without a key go to another partition; 0: batch.size.",
    )  # fmt: skip
    transactional_id: str | None = prop(
        "transactional.id", None, check=not_empty, section="Transactions",
        doc="Name of this producer's transactions across restarts; a newer producer with it fences the "
            "older one. Not set: no transactions. Needs enable.idempotence and Apache Kafka 0.11 or later.",
    )  # fmt: skip
    transaction_timeout_ms: int = prop(
        "transaction.timeout.ms", 60_000, int, check=positive_int, unit="ms",
        doc="Age at which the coordinator aborts an open transaction; at most the broker's "
            "transaction.max.timeout.ms (default 15 minutes).",
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        if cast("str | None", self.message_format) is None:
            object.__setattr__(self, "message_format", self._usual_format())
        least = min(self.linger_ms + self.request_timeout_ms, INT_MAX)
        if cast("bool | None", self.enable_idempotence) is None:
            possible = (
                self.required_acks == -1
                and self.max_in_flight <= MAX_IN_FLIGHT_IDEMPOTENT
                and not self.sends_old_sets
            )
            object.__setattr__(self, "enable_idempotence", possible)
        if self.delivery_timeout_ms == _DELIVERY_TIMEOUT_MS < least:
            # Only an explicit value conflicts with longer waits; the default is increased instead.
            object.__setattr__(self, "delivery_timeout_ms", least)
        self._check_delivery()
        self._check_transactions()
        self._check_level()
        self._check_format()

    @property
    def required_acks(self) -> int:
        return -1 if self.acks == "all" else int(self.acks)

    @property
    def sends_old_sets(self) -> bool:
        return MAGICS[self.message_format] < MAGICS["v2"]

    @property
    def codecs(self) -> tuple[str, ...]:
        """Values of `compression_type` that the message format and the brokers support."""
        known = tuple(codec.name.lower() for codec in Codec)
        if self.sends_old_sets:
            newer = ("lz4", "zstd") if self.fallback_release in _WITHOUT_LZ4 else ("zstd",)
            known = tuple(name for name in known if name not in newer)
        return known

    def _usual_format(self) -> str:
        release = self.fallback_release
        return "v2" if release is None else f"v{message_magic(release)}"

    def _check_delivery(self) -> None:
        if self.enable_idempotence and self.required_acks != -1:
            raise InvalidConfig(
                f"acks={self.acks} is not allowed; allowed: all, as long as enable.idempotence=true"
            )
        if self.enable_idempotence and self.max_in_flight > MAX_IN_FLIGHT_IDEMPOTENT:
            raise InvalidConfig(
                f"max.in.flight.requests.per.connection={self.max_in_flight} is not allowed; "
                f"allowed: 1 to {MAX_IN_FLIGHT_IDEMPOTENT}, as long as enable.idempotence=true"
            )
        least = min(self.linger_ms + self.request_timeout_ms, INT_MAX)
        if self.delivery_timeout_ms < least:
            raise InvalidConfig(
                f"delivery.timeout.ms={self.delivery_timeout_ms} is not allowed; "
                f"allowed: at least linger.ms + request.timeout.ms, here {least}"
            )

    def _check_transactions(self) -> None:
        if self.transactional_id is not None and not self.enable_idempotence:
            raise InvalidConfig(
                f"transactional.id={self.transactional_id} is not allowed; allowed: not set, unless "
                "enable.idempotence=true, which acks=all, message.format=v2 and "
                f"max.in.flight.requests.per.connection of at most {MAX_IN_FLIGHT_IDEMPOTENT} go with"
            )
        if self.transactional_id is not None and self.retries == 0:
            raise InvalidConfig(
                "retries=0 is not allowed; allowed: 1 or more, as long as transactional.id is set"
            )

    def _check_level(self) -> None:
        level, levels = self.compression_level, LEVELS.get(Codec.named(self.compression_type), range(0))
        if level is None or level in levels:
            return
        allowed = f"{levels[0]} to {levels[-1]}" if levels else "none: this codec has no levels"
        raise InvalidConfig(
            f"compression.level={level} is not allowed; allowed with {self.compression_type}: {allowed}"
        )

    def _check_format(self) -> None:
        if not self.sends_old_sets:
            return
        if self.enable_idempotence:
            raise InvalidConfig(
                f"enable.idempotence=true is not allowed; allowed: false, as long as message.format="
                f"{self.message_format}, which has no sequence numbers"
            )
        if self.compression_type not in self.codecs:
            release = self.broker_version_fallback
            brokers = f" and broker.version.fallback={release}" if release is not None else ""
            raise InvalidConfig(
                f"compression.type={self.compression_type} is not allowed; allowed with message.format="
                f"{self.message_format}{brokers}: {', '.join(self.codecs)}"
            )
