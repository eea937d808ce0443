"""What every client must know: where the brokers are and how long to wait for them."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from pyspark_kafkalog.config.definition import (
    INT_MAX,
    Check,
    Config,
    between,
    not_empty,
    not_negative,
    positive,
    positive_int,
    prop,
    system_or_positive_int,
    unlisted,
)
from pyspark_kafkalog.errors import InvalidConfig
from pyspark_kafkalog.protocol.exchange import RELEASES, release_of

_PORT = re.compile(r"[0-9]{1,5}")


def parse_address(text: str) -> tuple[str, int]:
    """Host and port of ``host:port`` or ``[ipv6]:port``.

    Raises:
        ValueError: anything else, or a port outside 1-65535.
    """
    host, colon, port = text.strip().rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"{text!r}: an IPv6 address is written [address]:port")
    if not (colon and host and _PORT.fullmatch(port) and 1 <= int(port) <= 65535):
        raise ValueError(f"{text!r} is not host:port")
    return host, int(port)


def parse_addresses(text: str) -> tuple[tuple[str, int], ...]:
    """Host and port of each of the addresses between commas; ValueError as `parse_address`."""
    return tuple(parse_address(part) for part in text.split(",") if part.strip())


def _are_addresses(text: str) -> bool:
    try:
        return len(parse_addresses(text)) > 0
    except ValueError:
        return False


_old_release = Check(
    f"one of {', '.join(RELEASES)}, with or without the number of a patch (0.8.2.2)",
    lambda text: release_of(text) is not None,
)


def check_release(asks: bool, release: str | None) -> None:
    """Raise `InvalidConfig` where brokers are not asked for their versions and nobody tells them."""
    if not asks and release is None:
        raise InvalidConfig(
            "api.version.request=false needs broker.version.fallback, which says what the brokers speak; "
            f"allowed: {_old_release.allowed}"
        )


_plain = Check("only PLAINTEXT: TLS and SASL are not supported", lambda value: value == "PLAINTEXT")

addresses = Check("host:port, several of them separated by commas", _are_addresses)
_brokers = addresses._replace(allowed=f"{addresses.allowed}, such as localhost:9092")


@dataclass(frozen=True)
class ClientConfig(Config):
    """The properties that producers, consumers and admin calls share; Kafka's names and defaults."""

    bootstrap_servers: str = prop(
        "bootstrap.servers", kind=str, check=_brokers, section="Connections",
        doc="Brokers to ask first; every other one is learned from them.",
    )  # fmt: skip
    client_id: str = prop(
        "client.id", "kafkalog", str, check=not_empty,
        doc="Name sent with every request, for the broker's logs.",
    )  # fmt: skip
    request_timeout_ms: int = prop(
        "request.timeout.ms", 30_000, int, check=positive_int, unit="ms",
        doc="Time after which a request without an answer counts as lost.",
    )  # fmt: skip
    connection_setup_timeout_ms: int = prop(
        "socket.connection.setup.timeout.ms", 10_000, int, check=positive, unit="ms",
        doc="Time that making one connection may take.",
    )  # fmt: skip
    retries: int = prop(
        "retries", INT_MAX, int, check=between(0, INT_MAX), unit="attempts",
        doc="How often a request that failed for a passing reason is sent again; time limits end it first.",
    )  # fmt: skip
    retry_backoff_ms: int = prop(
        "retry.backoff.ms", 100, int, check=not_negative, unit="ms",
        doc="Wait before the first repetition; doubled for each further one.",
    )  # fmt: skip
    retry_backoff_max_ms: int = prop(
        "retry.backoff.max.ms", 1_000, int, check=not_negative, unit="ms",
        doc="Longest wait between two repetitions.",
    )  # fmt: skip
    metadata_max_age_ms: int = prop(
        "metadata.max.age.ms", 300_000, int, check=not_negative, unit="ms",
        doc="Age at which topics, partitions and leaders are asked for again.",
    )  # fmt: skip
    send_buffer_bytes: int = prop(
        "send.buffer.bytes", -1, int, check=system_or_positive_int, unit="bytes",
        doc="Socket send buffer (SO_SNDBUF). Left alone, the system tunes it.",
    )  # fmt: skip
    receive_buffer_bytes: int = prop(
        "receive.buffer.bytes", -1, int, check=system_or_positive_int, unit="bytes",
        doc="Socket receive buffer (SO_RCVBUF). Left alone, the system tunes it.",
    )  # fmt: skip
    max_response_bytes: int = prop(
        "receive.message.max.bytes", 256 << 20, int, check=between(1 << 10, INT_MAX), unit="bytes",
        doc="Largest answer that is accepted; a larger one closes the connection before memory is taken.",
    )  # fmt: skip
    api_version_request: bool = prop(
        "api.version.request", True, bool,
        doc="Ask each broker which versions of the protocol it speaks. false: it is what "
            "broker.version.fallback says, without a question that brokers before 0.10 log as an error and "
            "those of 0.9 never answer.",
    )  # fmt: skip
    broker_version_fallback: str | None = prop(
        "broker.version.fallback", None, str, check=_old_release,
        doc="Release of brokers before Kafka 0.10. Where one does not say which versions it speaks, closing "
            "the connection or in a quarter of socket.connection.setup.timeout.ms, it is taken for one of "
            "this release.",
    )  # fmt: skip
    security_protocol: str = prop(
        "security.protocol", "PLAINTEXT", str, check=_plain,
        doc="How connections are protected.",
    )  # fmt: skip
    servers_option: str = unlisted("bootstrap.servers")
    """What the user knows `bootstrap_servers` by; errors say to check it. Empty where it is no option."""
    answered_before: bool = unlisted(False)
    """Whether the cluster has answered another process of the same job: then an outage is a broken
    connection, for which clients wait longer than at a first contact."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_release(self.api_version_request, self.broker_version_fallback)

    @classmethod
    def check_names(cls, names: Collection[str], prefix: str = "") -> None:
        protected = sorted(name for name in names if name.startswith(("sasl.", "ssl.")))
        if protected and "security.protocol" not in names:
            raise InvalidConfig(
                f"{', '.join(prefix + name for name in protected)}: TLS and SASL are not supported, and "
                "without them this connection would be in plain text. Leave these properties out and use a "
                "listener without TLS and SASL; to keep them here without effect, set "
                f"{prefix}security.protocol=PLAINTEXT"
            )

    @property
    def fallback_release(self) -> str | None:
        """`broker_version_fallback` as `RELEASES` has it: without the number of a patch."""
        return release_of(self.broker_version_fallback) if self.broker_version_fallback else None

    def bootstrap_addresses(self) -> tuple[tuple[str, int], ...]:
        """`bootstrap_servers` as pairs of host and port, in the order given."""
        return parse_addresses(self.bootstrap_servers)
