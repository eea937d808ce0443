"""Properties of a client's TLS and login (Kafka's names, with librdkafka's as aliases), and of secrets kept
elsewhere: ``config.providers``, and references such as ``${env:NAME}``. Pure.

A reference is ``${provider:path:key}`` or ``${provider:key}``. Configurations keep it as written;
`pyspark_kafkalog.security.references` replaces it. Source: KIP-297, 421, 887 and 993.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark_kafkalog.config.definition import Check, Config, Property, configuration, describe, one_of, prop
from pyspark_kafkalog.errors import InvalidConfig

TLS_VERSIONS = ("TLSv1.2", "TLSv1.3")

tls_versions = Check(
    f"words of {', '.join(TLS_VERSIONS)}", lambda words: len(words) > 0 and {*words} <= {*TLS_VERSIONS}
)


@configuration
class TlsConfig(Config):
    """TLS of a client. Used only with `security.protocol` SSL and SASL_SSL."""

    ssl_truststore_location: str | None = prop(
        "ssl.truststore.location", None, aliases=("ssl.ca.location",), section="TLS",
        doc="File with the authorities of the brokers' certificates: PEM, PKCS12 or JKS. By default the "
            "system's authorities.",
    )  # fmt: skip
    ssl_truststore_password: str | None = prop(
        "ssl.truststore.password", None, doc="Password of that file; JKS opens without one.",
    )  # fmt: skip
    ssl_truststore_certificates: str | None = prop(
        "ssl.truststore.certificates", None, aliases=("ssl.ca.pem",),
        doc="The authorities themselves, as PEM; blanks may stand for line ends.",
    )  # fmt: skip
    ssl_truststore_type: str | None = prop(
        "ssl.truststore.type", None, doc="JKS, PKCS12 or PEM; ignored, because the file's first bytes tell.",
    )  # fmt: skip
    ssl_keystore_location: str | None = prop(
        "ssl.keystore.location", None,
        doc="File with this client's private key and certificate chain, for brokers that ask for a "
            "certificate: PEM, PKCS12 or JKS.",
    )  # fmt: skip
    ssl_keystore_password: str | None = prop("ssl.keystore.password", None, doc="Password of that file.")
    ssl_keystore_type: str | None = prop(
        "ssl.keystore.type", None, doc="JKS, PKCS12 or PEM; ignored, because the file's first bytes tell.",
    )  # fmt: skip
    ssl_key_password: str | None = prop(
        "ssl.key.password", None,
        doc="Password of an encrypted private key; by default that of the key store.",
    )  # fmt: skip
    ssl_keystore_key: str | None = prop(
        "ssl.keystore.key", None, aliases=("ssl.key.pem",),
        doc="The private key itself, as PEM, instead of a file.",
    )  # fmt: skip
    ssl_keystore_certificate_chain: str | None = prop(
        "ssl.keystore.certificate.chain", None, aliases=("ssl.certificate.pem",),
        doc="The certificate chain itself, as PEM, instead of a file.",
    )  # fmt: skip
    ssl_certificate_location: str | None = prop(
        "ssl.certificate.location", None,
        doc="librdkafka's: PEM file with the certificate chain, whose key is in ssl.key.location.",
    )  # fmt: skip
    ssl_key_location: str | None = prop(
        "ssl.key.location", None, doc="librdkafka's: PEM file with the private key.",
    )  # fmt: skip
    ssl_endpoint_identification_algorithm: str = prop(
        "ssl.endpoint.identification.algorithm", "https", check=one_of("https", "HTTPS", "none", ""),
        doc="https: a broker's certificate must be for the host name connected to. none or empty: any host "
            "name; the authority is still checked.",
    )  # fmt: skip
    enable_ssl_certificate_verification: bool = prop(
        "enable.ssl.certificate.verification", True, bool,
        doc="librdkafka's. false: brokers' certificates are not checked at all, for experiments only.",
    )  # fmt: skip
    ssl_protocol: str | None = prop(
        "ssl.protocol", None, check=one_of(*TLS_VERSIONS, "TLS"), doc="Newest TLS version that is used.",
    )  # fmt: skip
    ssl_enabled_protocols: tuple[str, ...] = prop(
        "ssl.enabled.protocols", TLS_VERSIONS, tuple, check=tls_versions, doc="TLS versions that are used.",
    )  # fmt: skip
    ssl_cipher_suites: tuple[str, ...] = prop(
        "ssl.cipher.suites", (), tuple,
        doc="Cipher suites of TLS 1.2 by their IANA names; empty: OpenSSL's. Those of TLS 1.3 cannot be "
            "chosen.",
    )  # fmt: skip

    @property
    def verifies_certificates(self) -> bool:
        return self.enable_ssl_certificate_verification

    @property
    def verifies_names(self) -> bool:
        return self.ssl_endpoint_identification_algorithm.lower() == "https"


MECHANISMS = (
    "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "AWS_MSK_IAM", "GSSAPI",
)  # fmt: skip


@configuration
class SaslConfig(Config):
    """How a client logs in. Used only as far as `security.protocol` and the mechanism need it."""

    sasl_mechanism: str | None = prop(
        "sasl.mechanism", None, aliases=("sasl.mechanisms",), section="Login (SASL)",
        doc=f"Mechanism of the login: {', '.join(MECHANISMS)}. Needed with security.protocol=SASL_...",
    )  # fmt: skip
    sasl_jaas_config: str | None = prop(
        "sasl.jaas.config", None,
        doc='Credentials as a JAAS entry: `...PlainLoginModule required username="u" password="p";`. The '
            "mechanism decides their use, not the module.",
    )  # fmt: skip
    sasl_username: str | None = prop(
        "sasl.username", None, doc="User name for PLAIN and SCRAM, instead of sasl.jaas.config.",
    )  # fmt: skip
    sasl_password: str | None = prop(
        "sasl.password", None, doc="Password for PLAIN and SCRAM, instead of sasl.jaas.config.",
    )  # fmt: skip
    sasl_oauthbearer_token_endpoint_url: str | None = prop(
        "sasl.oauthbearer.token.endpoint.url", None,
        doc="Source of OAUTHBEARER tokens: an HTTP(S) endpoint that grants client credentials, or a file "
            "(`file:/path`) with the token.",
    )  # fmt: skip
    sasl_oauthbearer_client_id: str | None = prop(
        "sasl.oauthbearer.client.credentials.client.id", None, aliases=("sasl.oauthbearer.client.id",),
        doc="Client id at the token endpoint, instead of clientId in sasl.jaas.config.",
    )  # fmt: skip
    sasl_oauthbearer_client_secret: str | None = prop(
        "sasl.oauthbearer.client.credentials.client.secret", None,
        aliases=("sasl.oauthbearer.client.secret",),
        doc="Client secret at the token endpoint, instead of clientSecret in sasl.jaas.config.",
    )  # fmt: skip
    sasl_oauthbearer_scope: str | None = prop(
        "sasl.oauthbearer.scope", None,
        doc="Scope requested at the token endpoint, instead of scope in sasl.jaas.config.",
    )  # fmt: skip
    sasl_oauthbearer_extensions: str | None = prop(
        "sasl.oauthbearer.extensions", None, doc="Extensions sent with the token: key=value,key=value.",
    )  # fmt: skip
    sasl_oauthbearer_header_urlencode: bool = prop(
        "sasl.oauthbearer.header.urlencode", False, bool,
        doc="Percent-encode client id and secret in the Authorization header.",
    )  # fmt: skip
    sasl_oauthbearer_method: str | None = prop(
        "sasl.oauthbearer.method", None, doc="librdkafka's: oidc is a token endpoint, the default here.",
    )  # fmt: skip
    sasl_oauthbearer_jwt_retriever_class: str | None = prop(
        "sasl.oauthbearer.jwt.retriever.class", None,
        doc="Kafka's ClientCredentialsJwtRetriever, FileJwtRetriever or DefaultJwtRetriever; the token "
            "endpoint's address decides.",
    )  # fmt: skip
    sasl_login_callback_handler_class: str | None = prop(
        "sasl.login.callback.handler.class", None,
        doc="Source of OAUTHBEARER tokens: Kafka's OAuthBearerLoginCallbackHandler (the token endpoint), or "
            "a Python `module:function` that returns the token, alone or with its expiry in seconds since "
            "1970.",
    )  # fmt: skip
    sasl_client_callback_handler_class: str | None = prop(
        "sasl.client.callback.handler.class", None,
        doc="IAMClientCallbackHandler with AWS_MSK_IAM; other classes cannot be used from Python.",
    )  # fmt: skip
    sasl_kerberos_service_name: str | None = prop(
        "sasl.kerberos.service.name", None,
        doc="Service name in the brokers' Kerberos principals, often kafka; instead of serviceName in "
            "sasl.jaas.config.",
    )  # fmt: skip
    sasl_kerberos_principal: str | None = prop(
        "sasl.kerberos.principal", None,
        doc="The client's Kerberos principal, instead of principal in sasl.jaas.config.",
    )  # fmt: skip
    sasl_kerberos_keytab: str | None = prop(
        "sasl.kerberos.keytab", None,
        doc="File with that principal's keys, instead of keyTab in sasl.jaas.config. By default the ticket "
            "cache of kinit is used.",
    )  # fmt: skip


ENV, FILE, DIRECTORY = "env", "file", "directory"

REFERENCE = re.compile(r"\$\{([^}]*?):(([^}]*?):)?([^}]*?)\}")
"""Groups 1, 3 and 4 are provider, path (or None) and key."""

_CLASSES = {"EnvVarConfigProvider": ENV, "FileConfigProvider": FILE, "DirectoryConfigProvider": DIRECTORY}
_PARAMETERS = {ENV: ("allowlist.pattern",), FILE: ("allowed.paths",), DIRECTORY: ("allowed.paths",)}
_RESOLVED = ("ssl.", "sasl.", "zookeeper.ssl.", "zookeeper.sasl.")

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Provider:
    kind: str  # `ENV`, `FILE` or `DIRECTORY`
    parameters: Mapping[str, str]


@configuration
class ProvidersConfig(Config):
    """Where secrets that other properties refer to are kept."""

    config_providers: tuple[str, ...] = prop(
        "config.providers", (), tuple, section="Secrets kept elsewhere",
        doc="Names of the providers that resolve `${name:path:key}` in `ssl.*`, `sasl.*`, `zookeeper.ssl.*` "
            "and `zookeeper.sasl.*` when a connection is made: `env` (`${env:NAME}`), `file` "
            "(`${file:/path:key}`, a properties file), `directory` (`${directory:/path:file}`, a file's "
            "content). Other names need a class.",
    )  # fmt: skip
    config_provider_settings: str | None = prop(
        "config.providers.*", None,
        doc="`config.providers.NAME.class`: Kafka's EnvVarConfigProvider, FileConfigProvider or "
            "DirectoryConfigProvider. `config.providers.NAME.param.allowed.paths`: directories and files "
            "that may be read. `config.providers.NAME.param.allowlist.pattern`: regular expression for the "
            "variables that may be read.",
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        named = self.providers()
        for item in describe(type(self)):
            value = getattr(self, item.field)
            if isinstance(value, str) and "${" in value:
                _check(item, {found[1] for found in REFERENCE.finditer(value)}, named)

    def providers(self) -> dict[str, Provider]:
        settings = dict(
            line.split("=", 1) for line in (self.config_provider_settings or "").splitlines() if "=" in line
        )
        # Spark passes option names in lower case.
        settings = {name.lower(): value.strip() for name, value in settings.items()}
        return {name: _provider(name, settings) for name in self.config_providers}


def resolvable(item: Property) -> bool:
    """Whether the property may hold references: text that is used only when connecting."""
    return item.kind is str and item.check is None and item.name.startswith(_RESOLVED)


def _check(item: Property, used: set[str], named: Mapping[str, Any]) -> None:
    if used & named.keys() and not resolvable(item):
        raise InvalidConfig(
            f"{item.name}: config.providers are not asked for its value; allowed: in text of "
            f"{', '.join(f'{prefix}*' for prefix in _RESOLVED)}"
        )
    for name in sorted(used & {*_PARAMETERS} - named.keys()) if resolvable(item) else ():
        logger.warning(
            "%s: ${%s:...} stays as it is: config.providers does not name %s", item.name, name, name
        )


def _provider(name: str, settings: Mapping[str, str]) -> Provider:
    prefix = f"{name.lower()}."
    class_name = settings.get(f"{prefix}class")
    kind = _CLASSES.get(class_name.rpartition(".")[2]) if class_name else name
    if kind not in _PARAMETERS:
        given = f"={class_name} cannot be used from Python" if class_name else " is missing"
        raise InvalidConfig(f"config.providers.{name}.class{given}; allowed: {', '.join(_CLASSES)}")
    of_parameters = f"{prefix}param."
    given_parameters = {
        key[len(of_parameters) :]: value for key, value in settings.items() if key.startswith(of_parameters)
    }
    for parameter in given_parameters:
        if parameter not in _PARAMETERS[kind]:
            # Ignoring it could permit what it was meant to forbid.
            raise InvalidConfig(
                f"config.providers.{name}.param.{parameter} is unknown; allowed: "
                f"{', '.join(_PARAMETERS[kind])}"
            )
    pattern = given_parameters.get("allowlist.pattern")
    if pattern is not None:
        try:
            re.compile(pattern)
        except re.error as e:
            raise InvalidConfig(
                f"config.providers.{name}.param.allowlist.pattern={pattern} is not a regular expression: {e}"
            ) from None
    return Provider(kind, given_parameters)
