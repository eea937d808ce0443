"""The properties of a client's TLS: Kafka's names, with librdkafka's as aliases."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_kafkalog.config.definition import Check, Config, one_of, prop

TLS_VERSIONS = ("TLSv1.2", "TLSv1.3")

tls_versions = Check(
    f"words of {', '.join(TLS_VERSIONS)}", lambda words: len(words) > 0 and {*words} <= {*TLS_VERSIONS}
)


@dataclass(frozen=True)
class TlsConfig(Config):
    """TLS of a client. Used only with `security.protocol` SSL and SASL_SSL."""

    ssl_truststore_location: str | None = prop(
        "ssl.truststore.location", None, str, aliases=("ssl.ca.location",), section="TLS",
        doc="File with the authorities of the brokers' certificates: PEM, PKCS12 or JKS. By default the "
            "system's authorities.",
    )  # fmt: skip
    ssl_truststore_password: str | None = prop(
        "ssl.truststore.password", None, str, doc="Password of that file; JKS opens without one.",
    )  # fmt: skip
    ssl_truststore_certificates: str | None = prop(
        "ssl.truststore.certificates", None, str, aliases=("ssl.ca.pem",),
        doc="The authorities themselves, as PEM; blanks may stand for line ends.",
    )  # fmt: skip
    ssl_truststore_type: str | None = prop(
        "ssl.truststore.type", None, str,
        doc="JKS, PKCS12 or PEM; ignored, because the file's first bytes tell.",
    )  # fmt: skip
    ssl_keystore_location: str | None = prop(
        "ssl.keystore.location", None, str,
        doc="File with this client's private key and certificate chain, for brokers that ask for a "
            "certificate: PEM, PKCS12 or JKS.",
    )  # fmt: skip
    ssl_keystore_password: str | None = prop(
        "ssl.keystore.password", None, str, doc="Password of that file.",
    )  # fmt: skip
    ssl_keystore_type: str | None = prop(
        "ssl.keystore.type", None, str,
        doc="JKS, PKCS12 or PEM; ignored, because the file's first bytes tell.",
    )  # fmt: skip
    ssl_key_password: str | None = prop(
        "ssl.key.password", None, str,
        doc="Password of an encrypted private key; by default that of the key store.",
    )  # fmt: skip
    ssl_keystore_key: str | None = prop(
        "ssl.keystore.key", None, str, aliases=("ssl.key.pem",),
        doc="The private key itself, as PEM, instead of a file.",
    )  # fmt: skip
    ssl_keystore_certificate_chain: str | None = prop(
        "ssl.keystore.certificate.chain", None, str, aliases=("ssl.certificate.pem",),
        doc="The certificate chain itself, as PEM, instead of a file.",
    )  # fmt: skip
    ssl_certificate_location: str | None = prop(
        "ssl.certificate.location", None, str,
        doc="librdkafka's: PEM file with the certificate chain, whose key is in ssl.key.location.",
    )  # fmt: skip
    ssl_key_location: str | None = prop(
        "ssl.key.location", None, str, doc="librdkafka's: PEM file with the private key.",
    )  # fmt: skip
    ssl_endpoint_identification_algorithm: str = prop(
        "ssl.endpoint.identification.algorithm", "https", str, check=one_of("https", "HTTPS", "none", ""),
        doc="https: a broker's certificate must be for the host name connected to. none or empty: any host "
            "name; the authority is still checked.",
    )  # fmt: skip
    enable_ssl_certificate_verification: bool = prop(
        "enable.ssl.certificate.verification", True, bool,
        doc="librdkafka's. false: brokers' certificates are not checked at all, for experiments only.",
    )  # fmt: skip
    ssl_protocol: str | None = prop(
        "ssl.protocol", None, str, check=one_of(*TLS_VERSIONS, "TLS"),
        doc="Newest TLS version that is used.",
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
