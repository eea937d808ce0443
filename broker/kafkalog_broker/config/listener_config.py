"""TLS and login of listeners (``ssl.*``, ``sasl.*``), set as in Kafka for all listeners, for one
(``listener.name.<name>.``), or for one of its mechanisms (``listener.name.<name>.<mechanism>.``). Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark_kafkalog.config.definition import (
    LONG_MAX,
    Check,
    Config,
    between,
    configuration,
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

_mechanisms = Check(
    f"words of {', '.join(MECHANISMS)}",
    lambda words: {*words} <= {*MECHANISMS} and len({*words}) == len(words),
)


@configuration
class ListenerConfig(Config):
    """Properties of a listener or one of its mechanisms. No ``repr``, as they contain secrets."""

    # fmt: off
    ssl_keystore_type: str | None = prop(
        "ssl.keystore.type", None, section="TLS",
        doc="JKS, PKCS12 or PEM; ignored, because the file's first bytes tell.")
    ssl_keystore_location: str | None = prop(
        "ssl.keystore.location", None,
        doc="File with this broker's private key and certificate chain: PEM, PKCS12 or JKS. Replaced "
            "certificates are used for new connections after a few seconds.")
    ssl_keystore_password: str | None = prop("ssl.keystore.password", None, doc="Password of that file.")
    ssl_keystore_key: str | None = prop(
        "ssl.keystore.key", None, doc="The private key itself, as PEM, instead of a file.")
    ssl_keystore_certificate_chain: str | None = prop(
        "ssl.keystore.certificate.chain", None,
        doc="The certificate chain itself, as PEM, instead of a file.")
    ssl_key_password: str | None = prop(
        "ssl.key.password", None,
        doc="Password of an encrypted private key; by default that of the key store.")
    ssl_truststore_type: str | None = prop(
        "ssl.truststore.type", None, doc="JKS, PKCS12 or PEM; ignored, because the file's first bytes tell.")
    ssl_truststore_location: str | None = prop(
        "ssl.truststore.location", None,
        doc="File with the authorities of clients' certificates, for ssl.client.auth, and of other brokers'.")
    ssl_truststore_password: str | None = prop(
        "ssl.truststore.password", None, doc="Password of that file; JKS opens without one.")
    ssl_truststore_certificates: str | None = prop(
        "ssl.truststore.certificates", None,
        doc="The authorities themselves, as PEM; blanks may stand for line ends.")
    ssl_endpoint_identification_algorithm: str = prop(
        "ssl.endpoint.identification.algorithm", "https", check=one_of("https", "HTTPS", "none", ""),
        doc="When this broker calls another: https requires a certificate for the host's name, none or "
            "empty accepts any of the authorities.")
    ssl_client_auth: str = prop(
        "ssl.client.auth", "none", check=one_of("none", "requested", "required"),
        doc="Whether clients are asked for a certificate. On SASL_SSL only with the prefix "
            "listener.name.<name>.: the certificate is checked, and the login names the user.")
    ssl_principal_mapping_rules: str = prop(
        "ssl.principal.mapping.rules", "DEFAULT",
        doc="Rules from a certificate's name to a user: RULE:regex/replacement/[LU] or DEFAULT, separated "
            "by commas; the first match counts.")
    ssl_protocol: str | None = prop(
        "ssl.protocol", None, doc="Newest TLS version that is used: TLSv1.3 or TLSv1.2.")
    ssl_enabled_protocols: tuple[str, ...] = prop(
        "ssl.enabled.protocols", ("TLSv1.2", "TLSv1.3"), tuple,
        doc="TLS versions that are used: TLSv1.2, TLSv1.3.")
    ssl_cipher_suites: tuple[str, ...] = prop(
        "ssl.cipher.suites", (), tuple,
        doc="Cipher suites of TLS 1.2 by their IANA names; empty: OpenSSL's. Those of TLS 1.3 cannot be "
            "chosen.")

    sasl_enabled_mechanisms: tuple[str, ...] = prop(
        "sasl.enabled.mechanisms", (), tuple, check=_mechanisms, section="Login",
        doc="Mechanisms with which clients of a SASL listener can log in; required there (Kafka: GSSAPI).")
    sasl_jaas_config: str | None = prop(
        "sasl.jaas.config", None,
        doc='For PLAIN, the users: PlainLoginModule required user_NAME="PASSWORD" ...; (user_NAME in quotes '
            "if it has more than letters, digits, _, - and .). Not needed for SCRAM and OAUTHBEARER. "
            "username and password are this broker's login at others.")
    sasl_server_max_receive_size: int = prop(
        "sasl.server.max.receive.size", 524_288, int, check=positive_int, unit="bytes",
        doc="Largest request of a client before its login.")
    connections_max_reauth_ms: int = prop(
        "connections.max.reauth.ms", 0, int, check=between(0, LONG_MAX), unit="ms",
        doc="How long a login lasts: clients log in again on the same connection, others are closed at "
            "their next request. 0: as long as the connection, or the token.")
    connection_failed_authentication_delay_ms: int = prop(
        "connection.failed.authentication.delay.ms", 100, int, check=between(0, 60_000), unit="ms",
        doc="Delay of the answer to a failed login.")
    connection_authentication_timeout_ms: int = prop(
        "connection.authentication.timeout.ms", 30_000, int, check=positive_int, unit="ms",
        doc="Time limit for TLS handshake and login together (not in Kafka).")
    sasl_server_callback_handler_class: str | None = prop(
        "sasl.server.callback.handler.class", None,
        doc="Verifies OAUTHBEARER tokens: OAuthBearerValidatorCallbackHandler (the default) with "
            "sasl.oauthbearer.jwks.endpoint.url; OAuthBearerUnsecuredValidatorCallbackHandler, which "
            "accepts unsigned tokens, for tests; or a Python function module:function that returns a "
            "token's claims or raises ValueError.")
    sasl_oauthbearer_jwks_endpoint_url: str | None = prop(
        "sasl.oauthbearer.jwks.endpoint.url", None,
        doc="URL (https:, http: or file:) of the keys that sign tokens.")
    sasl_oauthbearer_jwks_endpoint_refresh_ms: int = prop(
        "sasl.oauthbearer.jwks.endpoint.refresh.ms", 3_600_000, int, check=between(1000, LONG_MAX), unit="ms",
        doc="How often these keys are fetched again.")
    sasl_oauthbearer_expected_issuer: str | None = prop(
        "sasl.oauthbearer.expected.issuer", None, doc="Required claim iss of a token.")
    sasl_oauthbearer_expected_audience: tuple[str, ...] = prop(
        "sasl.oauthbearer.expected.audience", (), tuple, doc="One of these must be in a token's claim aud.")
    sasl_oauthbearer_clock_skew_seconds: int = prop(
        "sasl.oauthbearer.clock.skew.seconds", 30, int, check=between(0, 3600), unit="seconds",
        doc="Allowed difference between the clocks of this broker and the tokens' issuer.")
    sasl_oauthbearer_sub_claim_name: str = prop(
        "sasl.oauthbearer.sub.claim.name", "sub", doc="Claim with the user's name.")

    max_connections: int | None = prop(
        "max.connections", None, int, check=positive_int, unit="connections", section="Connections",
        doc="Open connections of this listener; not set: the broker's.")
    num_network_threads: int | None = prop(
        "num.network.threads", None, int, check=between(1, 64), unit="threads",
        doc="Threads of this listener; not set: the broker's.")
    # fmt: on

    def __repr__(self) -> str:
        return f"{type(self).__name__}(...)"


_BROKERS_OWN = frozenset({"max.connections", "num.network.threads"})
"""Without a prefix these are broker properties."""

_NAMES = frozenset(item.name for item in describe(ListenerConfig))


@dataclass(frozen=True, repr=False)
class ListenerProperties:
    """*Thread-safe: immutable.* All listeners' properties as given."""

    texts: Mapping[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self.texts)} properties)"

    @staticmethod
    def takes(name: str) -> bool:
        return name.startswith(PREFIX) or (name in _NAMES and name not in _BROKERS_OWN)

    def of(self, listener: str, mechanism: str | None = None) -> ListenerConfig:
        """A listener's or mechanism's configuration; specific properties win. Raises `InvalidConfig`."""
        layers: list[tuple[str, Mapping[str, Any]]] = [
            ("broker", {name: text for name, text in self.texts.items() if not name.startswith(PREFIX)})
        ]
        prefix = PREFIX
        for part in (listener, mechanism) if mechanism is not None else (listener,):
            prefix += f"{part.lower()}."
            below = {n.removeprefix(prefix): text for n, text in self.texts.items() if n.startswith(prefix)}
            layers.append((prefix + "*", {name: text for name, text in below.items() if name in _NAMES}))
        return parse_layers(ListenerConfig, layers)

    def warn_of_unknown(self, listeners: tuple[str, ...]) -> None:
        """Log prefixed names that match no listener, mechanism or property."""
        prefixes = [f"{PREFIX}{name.lower()}." for name in listeners]
        prefixes += [f"{prefix}{mechanism.lower()}." for prefix in prefixes for mechanism in MECHANISMS]
        known = {prefix + name for prefix in prefixes for name in _NAMES}
        for name in self.texts:
            if name.startswith(PREFIX) and name not in known:
                warn_unknown(name, known, "broker")


def known_name(name: str) -> bool:
    return name in _NAMES or (name.startswith(PREFIX) and any(name.endswith(f".{each}") for each in _NAMES))
