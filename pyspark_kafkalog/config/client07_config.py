"""Properties shared by clients of Kafka 0.7's API: protocol, timeouts, sizes."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from pyspark_kafkalog.config.client_config import ClientConfig, check_release, parse_address
from pyspark_kafkalog.config.definition import (
    Check,
    Config,
    describe,
    one_of,
    positive_int,
    prop,
    prop_of,
    system_or_positive_int,
)
from pyspark_kafkalog.config.providers import ProvidersConfig
from pyspark_kafkalog.config.sasl_config import SaslConfig
from pyspark_kafkalog.config.tls_config import TlsConfig
from pyspark_kafkalog.errors import InvalidConfig

PROTOCOL_07, PROTOCOL_08 = "0.7", "0.8"
"""Kafka 0.7's protocol, and today's, used since 0.8."""


class BrokerAddress(NamedTuple):
    """One entry of ``broker.list``."""

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


def _is_broker_list(text: str, *, need_ids: bool = False) -> bool:
    try:
        parse_broker_list(text, need_ids=need_ids)
    except ValueError:
        return False
    return True


broker_list = Check("id:host:port, separated by commas", _is_broker_list)
numbered_broker_list = Check(
    "id:host:port, separated by commas, each with its own id",
    partial(_is_broker_list, need_ids=True),
)


@dataclass(frozen=True)
class Connection07Config(Config):
    """A connection to one broker; 0.7's names and defaults."""

    protocol: str = prop(
        "protocol", PROTOCOL_07, str, check=one_of(PROTOCOL_07, PROTOCOL_08), section="Connections",
        doc="Wire protocol: 0.7's, for a broker's KAFKA07 listener, or that since 0.8.",
    )  # fmt: skip
    client_id: str = prop(
        "clientid", "kafkalog", str, aliases=("client.id",),
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


@dataclass(frozen=True)
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
