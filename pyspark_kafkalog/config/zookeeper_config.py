"""ZooKeeper's address and prefixes, for brokers and clients, and the bundled server's properties. Pure."""

from __future__ import annotations

from pathlib import Path

from pyspark_kafkalog.config.definition import (
    INT_MAX,
    Check,
    Config,
    between,
    configuration,
    not_empty,
    one_of,
    parse,
    parsed_by,
    positive_int,
    prop,
)
from pyspark_kafkalog.config.properties import load_properties
from pyspark_kafkalog.config.security_config import TLS_VERSIONS, ProvidersConfig, tls_versions
from pyspark_kafkalog.errors import InvalidConfig
from pyspark_kafkalog.types import parse_addresses

SESSION_TIMEOUT_MS = 6_000
CONNECTION_TIMEOUT_MS = 6_000


def parse_connect(text: str) -> tuple[str, str]:
    """Servers and chroot (or "") of ``host:port,host:port/chroot``. Raises `ValueError`."""
    servers, slash, below = text.strip().partition("/")
    if not parse_addresses(servers):
        raise ValueError(f"{text!r} has no server")
    chroot = (slash + below).rstrip("/")
    if any(part in ("", ".", "..") for part in chroot.split("/")[1:]):
        raise ValueError(f"{chroot!r} is not a ZooKeeper path")
    return servers, chroot


_is_connect = parsed_by(parse_connect)
znode_name = Check(
    "a name without slashes",
    lambda text: text not in ("", ".", "..") and "/" not in text and text.isprintable(),
)
connect_string = Check("host:port, separated by commas, optionally with /chroot", _is_connect)
_no_lists = Check("only false: revoked certificates are not told apart", lambda value: not value)
path_prefix = Check(
    "a path such as /kafka; / is the root", lambda text: text[:1] == "/" and _is_connect(f"h:1{text}")
)


@configuration
class ZooKeeperConfig(ProvidersConfig):
    """How the brokers and clients of a cluster use ZooKeeper."""

    zookeeper_connect: str | None = prop(
        "zookeeper.connect", None, aliases=("zk.connect",), check=connect_string, section="ZooKeeper",
        doc="ZooKeeper servers, where brokers and consumers of a cluster find each other. Not set: without "
            "ZooKeeper.",
    )  # fmt: skip
    zookeeper_session_timeout_ms: int = prop(
        "zookeeper.session.timeout.ms", SESSION_TIMEOUT_MS, int, aliases=("zk.sessiontimeout.ms",),
        check=between(100, INT_MAX), unit="ms",
        doc="Time without contact after which ZooKeeper ends the session, within the server's limits.",
    )  # fmt: skip
    zookeeper_connection_timeout_ms: int = prop(
        "zookeeper.connection.timeout.ms", CONNECTION_TIMEOUT_MS, int, aliases=("zk.connectiontimeout.ms",),
        check=positive_int, unit="ms", doc="Time limit for connecting, and for one operation.",
    )  # fmt: skip
    zookeeper_prefix: str = prop(
        "zookeeper.prefix", "/kafka", check=path_prefix,
        doc="Path below the chroot for the JSON registries of today's wire.",
    )  # fmt: skip
    zookeeper_prefix_07: str = prop(
        "zookeeper.prefix.07", "/", check=path_prefix,
        doc="Path for the plain-text registries of 0.7's wire; 0.7's own clients only use the root.",
    )  # fmt: skip
    zookeeper_ssl_client_enable: bool = prop(
        "zookeeper.ssl.client.enable", False, bool, doc="Connect with TLS, to ZooKeeper's secureClientPort.",
    )  # fmt: skip
    zookeeper_client_cnxn_socket: str | None = prop(
        "zookeeper.clientCnxnSocket", None, doc="Java class that Kafka needs for TLS; ignored.",
    )  # fmt: skip
    zookeeper_ssl_truststore_location: str | None = prop(
        "zookeeper.ssl.truststore.location", None,
        doc="File with the authorities of ZooKeeper's certificates: PEM, PKCS12 or JKS. By default the "
            "system's authorities.",
    )  # fmt: skip
    zookeeper_ssl_truststore_password: str | None = prop(
        "zookeeper.ssl.truststore.password", None, doc="Password of that file; JKS opens without one.",
    )  # fmt: skip
    zookeeper_ssl_truststore_type: str | None = prop(
        "zookeeper.ssl.truststore.type", None, doc="Ignored, because the file's first bytes tell.",
    )  # fmt: skip
    zookeeper_ssl_keystore_location: str | None = prop(
        "zookeeper.ssl.keystore.location", None,
        doc="File with the private key and certificate chain to show ZooKeeper: PEM, PKCS12 or JKS.",
    )  # fmt: skip
    zookeeper_ssl_keystore_password: str | None = prop(
        "zookeeper.ssl.keystore.password", None, doc="Password of that file and of its key.",
    )  # fmt: skip
    zookeeper_ssl_keystore_type: str | None = prop(
        "zookeeper.ssl.keystore.type", None, doc="Ignored, because the file's first bytes tell.",
    )  # fmt: skip
    zookeeper_ssl_endpoint_identification_algorithm: str = prop(
        "zookeeper.ssl.endpoint.identification.algorithm", "HTTPS",
        check=one_of("HTTPS", "https", "none", ""),
        doc="https: ZooKeeper's certificate must be for the host name in zookeeper.connect. none or empty: "
            "any host name.",
    )  # fmt: skip
    zookeeper_ssl_protocol: str | None = prop(
        "zookeeper.ssl.protocol", None, check=one_of(*TLS_VERSIONS, "TLS"),
        doc="Newest TLS version that is used.",
    )  # fmt: skip
    zookeeper_ssl_enabled_protocols: tuple[str, ...] = prop(
        "zookeeper.ssl.enabled.protocols", TLS_VERSIONS, tuple, check=tls_versions,
        doc="TLS versions that are used.",
    )  # fmt: skip
    zookeeper_ssl_cipher_suites: tuple[str, ...] = prop(
        "zookeeper.ssl.cipher.suites", (), tuple,
        doc="Cipher suites of TLS 1.2 by their IANA names; empty: OpenSSL's.",
    )  # fmt: skip
    zookeeper_ssl_crl_enable: bool = prop(
        "zookeeper.ssl.crl.enable", False, bool, check=_no_lists, doc="Kafka's check of revocation lists.",
    )  # fmt: skip
    zookeeper_ssl_ocsp_enable: bool = prop(
        "zookeeper.ssl.ocsp.enable", False, bool, check=_no_lists,
        doc="Kafka's check of revocation with the authority.",
    )  # fmt: skip
    zookeeper_sasl_jaas_config: str | None = prop(
        "zookeeper.sasl.jaas.config", None,
        doc='Login to ZooKeeper (DIGEST-MD5) as a JAAS entry: `...DigestLoginModule required username="u" '
            "password=\"p\";`. Kafka has it in a file's section Client.",
    )  # fmt: skip
    zookeeper_set_acl: bool = prop(
        "zookeeper.set.acl", False, bool,
        doc="Create znodes that only this login or certificate may change; others may read them, except "
            "users' credentials.",
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        by_certificate = self.zookeeper_ssl_client_enable and self.zookeeper_ssl_keystore_location
        if self.zookeeper_set_acl and not (by_certificate or self.zookeeper_sasl_jaas_config):
            raise InvalidConfig(
                "zookeeper.set.acl=true needs a login, zookeeper.sasl.jaas.config, or a certificate, "
                "zookeeper.ssl.client.enable=true with zookeeper.ssl.keystore.location: without one "
                "ZooKeeper does not know whose znodes they are"
            )

    @property
    def protects_credentials(self) -> bool:
        """Whether credentials in ZooKeeper are safe from others, stored and in transit."""
        return self.zookeeper_ssl_client_enable and self.zookeeper_set_acl


@configuration
class ZooKeeperServerConfig(Config):
    """``zookeeper.properties`` for ``kafkalog zookeeper start``. ZooKeeper's names."""

    data_dir: str = prop(
        "dataDir", "zookeeper-data", check=not_empty, section="The server",
        doc="Directory for snapshots and transaction logs, relative to the working directory.",
    )  # fmt: skip
    client_port: int = prop(
        "clientPort", 2181, int, check=between(0, 65535), unit="port",
        doc="Port for clients; 0: any free one.",
    )  # fmt: skip
    client_port_address: str = prop(
        "clientPortAddress", "127.0.0.1", check=not_empty,
        doc="Address to listen on. 0.0.0.0 admits other machines: there is no password by default.",
    )  # fmt: skip
    secure_client_port: int = prop(
        "secureClientPort", -1, int, check=between(-1, 65535), unit="port",
        doc="Port for clients with TLS, on the same address; 0: any free one, -1: none.",
    )  # fmt: skip
    ssl_key_store_location: str | None = prop(
        "ssl.keyStore.location", None,
        doc="File with the server's private key and certificate chain; its name ends in .pem, .p12 or .jks.",
    )  # fmt: skip
    ssl_key_store_password: str | None = prop("ssl.keyStore.password", None, doc="Password of that file.")
    ssl_trust_store_location: str | None = prop(
        "ssl.trustStore.location", None, doc="File with the authorities of clients' certificates.",
    )  # fmt: skip
    ssl_trust_store_password: str | None = prop("ssl.trustStore.password", None, doc="Password of that file.")
    ssl_client_auth: str = prop(
        "ssl.clientAuth", "want", check=one_of("none", "want", "need"),
        doc="Whether clients of that port are asked for a certificate (ZooKeeper: need).",
    )  # fmt: skip
    login_config: str | None = prop(
        "java.security.auth.login.config", None,
        doc="JAAS file whose section Server has the clients' passwords: `Server { "
            'org.apache.zookeeper.server.auth.DigestLoginModule required user_kafka="..."; };`.',
    )  # fmt: skip
    max_client_cnxns: int = prop(
        "maxClientCnxns", 0, int, check=between(0, INT_MAX), unit="connections",
        doc="Connections from one address; 0: no limit.",
    )  # fmt: skip
    tick_time_ms: int = prop(
        "tickTime", 500, int, check=between(10, 60_000), unit="ms", section="Sessions",
        doc="ZooKeeper's unit of time (ZooKeeper: 3000). A session timeout is at least two ticks.",
    )  # fmt: skip
    max_session_timeout_ms: int = prop(
        "maxSessionTimeout", 60_000, int, check=positive_int, unit="ms",
        doc="Longest session timeout that a client may request (ZooKeeper: 20 ticks).",
    )  # fmt: skip
    purge_interval_hours: int = prop(
        "autopurge.purgeInterval", 24, int, check=between(0, INT_MAX), unit="hours", section="Old files",
        doc="How often old snapshots and transaction logs are removed; 0: never.",
    )  # fmt: skip
    snap_retain_count: int = prop(
        "autopurge.snapRetainCount", 3, int, check=between(3, INT_MAX), unit="snapshots",
        doc="Snapshots kept, with their transaction logs.",
    )  # fmt: skip

    @classmethod
    def load(cls, path: Path | str | None) -> ZooKeeperServerConfig:
        return parse(cls, load_properties(path) if path is not None else {}, source=str(path))
