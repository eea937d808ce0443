"""What each listener does about TLS and login (``ssl.*``, ``sasl.*``), as Kafka lets one say it: for all
listeners, for one (``listener.name.<name>.``), or for one mechanism of it
(``listener.name.<name>.<mechanism>.``). Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark_kafkalog.config.definition import (
    LONG_MAX,
    Check,
    Config,
    between,
    describe,
    one_of,
    parse_layers,
    positive_int,
    prop,
    warn_unknown,
)

PREFIX = "listener.name."
PLAIN, OAUTHBEARER = "PLAIN", "OAUTHBEARER"
SCRAM_SHA_256, SCRAM_SHA_512 = "SCRAM-SHA-256", "SCRAM-SHA-512"
MECHANISMS = (PLAIN, SCRAM_SHA_256, SCRAM_SHA_512, OAUTHBEARER)
"""The mechanisms with which clients can log in here."""

_mechanisms = Check(
    f"words of {', '.join(MECHANISMS)}",
    lambda words: {*words} <= {*MECHANISMS} and len({*words}) == len(words),
)


@dataclass(frozen=True, repr=False)
class ListenerConfig(Config):
    """One listener's, or that of one mechanism on it. Its values are secrets: it has no ``repr`` of them."""

    ssl_keystore_type: str | None = prop(
        "ssl.keystore.type", None, str, section="TLS",
        doc="JKS, PKCS12 or PEM. Read and ignored: what a store is shows in its first bytes.",
    )  # fmt: skip
    ssl_keystore_location: str | None = prop(
        "ssl.keystore.location", None, str,
        doc="File with this broker's private key and certificate chain. It is looked at every few seconds, "
            "and replaced certificates are used for new connections.",
    )  # fmt: skip
    ssl_keystore_password: str | None = prop(
        "ssl.keystore.password", None, str, doc="Password of that file, if it is JKS or PKCS12."
    )
    ssl_keystore_key: str | None = prop(
        "ssl.keystore.key", None, str, doc="The private key itself, as PEM, in place of a file."
    )
    ssl_keystore_certificate_chain: str | None = prop(
        "ssl.keystore.certificate.chain", None, str, doc="The certificate chain itself, as PEM."
    )
    ssl_key_password: str | None = prop(
        "ssl.key.password", None, str, doc="Password of an encrypted private key."
    )
    ssl_truststore_type: str | None = prop(
        "ssl.truststore.type", None, str, doc="JKS, PKCS12 or PEM. Read and ignored, as the key store's."
    )
    ssl_truststore_location: str | None = prop(
        "ssl.truststore.location", None, str,
        doc="File with the authorities of clients' certificates, for ssl.client.auth, and of other brokers'.",
    )  # fmt: skip
    ssl_truststore_password: str | None = prop(
        "ssl.truststore.password", None, str, doc="Password of that file, if it has one."
    )
    ssl_truststore_certificates: str | None = prop(
        "ssl.truststore.certificates", None, str, doc="The authorities themselves, as PEM."
    )
    ssl_endpoint_identification_algorithm: str = prop(
        "ssl.endpoint.identification.algorithm", "https", str, check=one_of("https", "HTTPS", "none", ""),
        doc="When this broker calls another at this listener: https wants a certificate of the host's name, "
            "empty or none takes any of the authorities'.",
    )  # fmt: skip
    ssl_client_auth: str = prop(
        "ssl.client.auth", "none", str, check=one_of("none", "requested", "required"),
        doc="Whether clients are asked for a certificate. For SASL_SSL it counts only as "
            "listener.name.<name>.ssl.client.auth: the certificate is checked, and the login says who the "
            "client is.",
    )  # fmt: skip
    ssl_principal_mapping_rules: str = prop(
        "ssl.principal.mapping.rules", "DEFAULT", str,
        doc="From a certificate's name to a user: RULE:regex/replacement/[LU] or DEFAULT, separated by "
            "commas; the first that matches counts.",
    )  # fmt: skip
    ssl_protocol: str | None = prop(
        "ssl.protocol", None, str, doc="TLSv1.3 or TLSv1.2: the newest version that is spoken."
    )
    ssl_enabled_protocols: tuple[str, ...] = prop(
        "ssl.enabled.protocols", ("TLSv1.2", "TLSv1.3"), tuple, doc="Versions that are spoken."
    )
    ssl_cipher_suites: tuple[str, ...] = prop(
        "ssl.cipher.suites", (), tuple, doc="Cipher suites of TLS 1.2, by their IANA names; empty: OpenSSL's."
    )

    sasl_enabled_mechanisms: tuple[str, ...] = prop(
        "sasl.enabled.mechanisms", (), tuple, check=_mechanisms, section="Login",
        doc="How clients of a SASL listener can log in. Must be given there (Kafka: GSSAPI).",
    )  # fmt: skip
    sasl_jaas_config: str | None = prop(
        "sasl.jaas.config", None, str,
        doc='Of PLAIN: the users, as PlainLoginModule required user_NAME="PASSWORD" ...; (user_NAME in '
            "quotes if it has more than letters, digits, _, - and .). SCRAM and OAUTHBEARER need none. With "
            "username and password this broker logs in at others.",
    )  # fmt: skip
    sasl_server_max_receive_size: int = prop(
        "sasl.server.max.receive.size", 524_288, int, check=positive_int, unit="bytes",
        doc="Largest request of a client that has not logged in.",
    )  # fmt: skip
    connections_max_reauth_ms: int = prop(
        "connections.max.reauth.ms", 0, int, check=between(0, LONG_MAX), unit="ms",
        doc="How long a login lasts: clients log in again on the same connection, others are closed with "
            "their next request. 0: as long as the connection, or the token.",
    )  # fmt: skip
    connection_failed_authentication_delay_ms: int = prop(
        "connection.failed.authentication.delay.ms", 100, int, check=between(0, 60_000), unit="ms",
        doc="How long a failed login waits for its answer.",
    )  # fmt: skip
    connection_authentication_timeout_ms: int = prop(
        "connection.authentication.timeout.ms", 30_000, int, check=positive_int, unit="ms",
        doc="Time for the TLS handshake and the login together (ours).",
    )  # fmt: skip
    sasl_server_callback_handler_class: str | None = prop(
        "sasl.server.callback.handler.class", None, str,
        doc="Of OAUTHBEARER: who verifies a token. OAuthBearerValidatorCallbackHandler (the default) with "
            "sasl.oauthbearer.jwks.endpoint.url; OAuthBearerUnsecuredValidatorCallbackHandler takes tokens "
            "without a signature, for tests; or module:function in Python, which gets the token and returns "
            "its claims or raises ValueError.",
    )  # fmt: skip
    sasl_oauthbearer_jwks_endpoint_url: str | None = prop(
        "sasl.oauthbearer.jwks.endpoint.url", None, str,
        doc="Where the keys are that tokens are signed with: https:, http: or file:.",
    )  # fmt: skip
    sasl_oauthbearer_jwks_endpoint_refresh_ms: int = prop(
        "sasl.oauthbearer.jwks.endpoint.refresh.ms", 3_600_000, int, check=between(1000, LONG_MAX), unit="ms",
        doc="How often they are fetched again.",
    )  # fmt: skip
    sasl_oauthbearer_expected_issuer: str | None = prop(
        "sasl.oauthbearer.expected.issuer", None, str, doc="What the claim iss of a token must be."
    )
    sasl_oauthbearer_expected_audience: tuple[str, ...] = prop(
        "sasl.oauthbearer.expected.audience", (), tuple, doc="Of which one must be in a token's claim aud."
    )
    sasl_oauthbearer_clock_skew_seconds: int = prop(
        "sasl.oauthbearer.clock.skew.seconds", 30, int, check=between(0, 3600), unit="seconds",
        doc="How far the clocks of this broker and of who signs tokens may differ.",
    )  # fmt: skip
    sasl_oauthbearer_sub_claim_name: str = prop(
        "sasl.oauthbearer.sub.claim.name", "sub", str, doc="The claim that is the user's name."
    )

    max_connections: int | None = prop(
        "max.connections", None, int, check=positive_int, unit="connections", section="Connections",
        doc="Open connections of this listener; not set means the broker's.",
    )  # fmt: skip
    num_network_threads: int | None = prop(
        "num.network.threads", None, int, check=between(1, 64), unit="threads",
        doc="Threads of this listener; not set means the broker's.",
    )  # fmt: skip

    def __repr__(self) -> str:
        return f"{type(self).__name__}(...)"


_BROKERS_OWN = frozenset({"max.connections", "num.network.threads"})
"""Without a prefix these are the broker's."""

_NAMES = frozenset(item.name for item in describe(ListenerConfig))


@dataclass(frozen=True, repr=False)
class ListenerProperties:
    """*Thread-safe: immutable.* The properties of all listeners as they were given."""

    texts: Mapping[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self.texts)} properties)"

    @staticmethod
    def takes(name: str) -> bool:
        """Whether a property of a broker's file belongs here."""
        return name.startswith(PREFIX) or (name in _NAMES and name not in _BROKERS_OWN)

    def of(self, listener: str, mechanism: str | None = None) -> ListenerConfig:
        """One listener's configuration, or that of a mechanism on it, from the most general to the closest.
        Raises `InvalidConfig`: a value is not allowed.
        """
        prefix = f"{PREFIX}{listener.lower()}."
        layers: list[tuple[str, Mapping[str, Any]]] = [
            ("broker", {name: text for name, text in self.texts.items() if not name.startswith(PREFIX)}),
            (prefix + "*", dict(self._below(prefix))),
        ]
        if mechanism is not None:
            prefix += f"{mechanism.lower()}."
            layers.append((prefix + "*", dict(self._below(prefix))))
        return parse_layers(ListenerConfig, layers)

    def warn_of_unknown(self, listeners: tuple[str, ...]) -> None:
        """Log the names with a prefix that no listener, mechanism or property has."""
        prefixes = [f"{PREFIX}{name.lower()}." for name in listeners]
        prefixes += [f"{prefix}{mechanism.lower()}." for prefix in prefixes for mechanism in MECHANISMS]
        known = {prefix + name for prefix in prefixes for name in _NAMES}
        for name in self.texts:
            if name.startswith(PREFIX) and name not in known:
                warn_unknown(name, known, "broker")

    def _below(self, prefix: str) -> Iterator[tuple[str, str]]:
        for name, text in self.texts.items():
            if name.startswith(prefix) and name.removeprefix(prefix) in _NAMES:
                yield name.removeprefix(prefix), text


def known_name(name: str) -> bool:
    """Whether ``name`` is a property of some listener, with a prefix or without."""
    return name in _NAMES or (name.startswith(PREFIX) and any(name.endswith(f".{each}") for each in _NAMES))
