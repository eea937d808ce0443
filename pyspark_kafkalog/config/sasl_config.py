"""The properties of a client's login (SASL): Kafka's names, with librdkafka's as aliases."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_kafkalog.config.definition import Config, prop

MECHANISMS = (
    "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "AWS_MSK_IAM", "GSSAPI",
)  # fmt: skip


@dataclass(frozen=True)
class SaslConfig(Config):
    """How a client logs in. Used only as far as `security.protocol` and the mechanism need it."""

    sasl_mechanism: str | None = prop(
        "sasl.mechanism", None, str, aliases=("sasl.mechanisms",), section="Login (SASL)",
        doc=f"Mechanism of the login: {', '.join(MECHANISMS)}. Needed with security.protocol=SASL_...",
    )  # fmt: skip
    sasl_jaas_config: str | None = prop(
        "sasl.jaas.config", None, str,
        doc='Credentials as a JAAS entry: `...PlainLoginModule required username="u" password="p";`. The '
            "mechanism decides their use, not the module.",
    )  # fmt: skip
    sasl_username: str | None = prop(
        "sasl.username", None, str, doc="User name for PLAIN and SCRAM, instead of sasl.jaas.config.",
    )  # fmt: skip
    sasl_password: str | None = prop(
        "sasl.password", None, str, doc="Password for PLAIN and SCRAM, instead of sasl.jaas.config.",
    )  # fmt: skip
    sasl_oauthbearer_token_endpoint_url: str | None = prop(
        "sasl.oauthbearer.token.endpoint.url", None, str,
        doc="Source of OAUTHBEARER tokens: an HTTP(S) endpoint that grants client credentials, or a file "
            "(`file:/path`) with the token.",
    )  # fmt: skip
    sasl_oauthbearer_client_id: str | None = prop(
        "sasl.oauthbearer.client.credentials.client.id", None, str, aliases=("sasl.oauthbearer.client.id",),
        doc="Client id at the token endpoint, instead of clientId in sasl.jaas.config.",
    )  # fmt: skip
    sasl_oauthbearer_client_secret: str | None = prop(
        "sasl.oauthbearer.client.credentials.client.secret", None, str,
        aliases=("sasl.oauthbearer.client.secret",),
        doc="Client secret at the token endpoint, instead of clientSecret in sasl.jaas.config.",
    )  # fmt: skip
    sasl_oauthbearer_scope: str | None = prop(
        "sasl.oauthbearer.scope", None, str,
        doc="Scope requested at the token endpoint, instead of scope in sasl.jaas.config.",
    )  # fmt: skip
    sasl_oauthbearer_extensions: str | None = prop(
        "sasl.oauthbearer.extensions", None, str,
        doc="Extensions sent with the token: key=value,key=value.",
    )  # fmt: skip
    sasl_oauthbearer_header_urlencode: bool = prop(
        "sasl.oauthbearer.header.urlencode", False, bool,
        doc="Percent-encode client id and secret in the Authorization header.",
    )  # fmt: skip
    sasl_oauthbearer_method: str | None = prop(
        "sasl.oauthbearer.method", None, str,
        doc="librdkafka's: oidc is a token endpoint, the default here.",
    )  # fmt: skip
    sasl_oauthbearer_jwt_retriever_class: str | None = prop(
        "sasl.oauthbearer.jwt.retriever.class", None, str,
        doc="Kafka's ClientCredentialsJwtRetriever, FileJwtRetriever or DefaultJwtRetriever; the token "
            "endpoint's address decides.",
    )  # fmt: skip
    sasl_login_callback_handler_class: str | None = prop(
        "sasl.login.callback.handler.class", None, str,
        doc="Source of OAUTHBEARER tokens: Kafka's OAuthBearerLoginCallbackHandler (the token endpoint), or "
            "a Python `module:function` that returns the token, alone or with its expiry in seconds since "
            "1970.",
    )  # fmt: skip
    sasl_client_callback_handler_class: str | None = prop(
        "sasl.client.callback.handler.class", None, str,
        doc="IAMClientCallbackHandler with AWS_MSK_IAM; other classes cannot be used from Python.",
    )  # fmt: skip
    sasl_kerberos_service_name: str | None = prop(
        "sasl.kerberos.service.name", None, str,
        doc="Service name in the brokers' Kerberos principals, often kafka; instead of serviceName in "
            "sasl.jaas.config.",
    )  # fmt: skip
    sasl_kerberos_principal: str | None = prop(
        "sasl.kerberos.principal", None, str,
        doc="The client's Kerberos principal, instead of principal in sasl.jaas.config.",
    )  # fmt: skip
    sasl_kerberos_keytab: str | None = prop(
        "sasl.kerberos.keytab", None, str,
        doc="File with that principal's keys, instead of keyTab in sasl.jaas.config. By default the ticket "
            "cache of kinit is used.",
    )  # fmt: skip
