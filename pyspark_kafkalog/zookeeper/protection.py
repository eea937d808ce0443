"""TLS, login and node ACLs of a session with ZooKeeper, and the connections that kazoo makes with them."""

from __future__ import annotations

import enum
import logging
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kazoo.handlers.threading import SequentialThreadingHandler

from pyspark_kafkalog.config.security_config import TlsConfig
from pyspark_kafkalog.config.zookeeper_config import ZooKeeperConfig
from pyspark_kafkalog.errors import InvalidConfig, KafkaError
from pyspark_kafkalog.security.jaas import parse_jaas
from pyspark_kafkalog.security.references import resolved
from pyspark_kafkalog.security.tls import client_context
from pyspark_kafkalog.zookeeper.cluster_nodes import SecurityNodes
from pyspark_kafkalog.zookeeper.paths import JsonLayout, V07Layout

_log = logging.getLogger(__name__)

_OTHER_NAME = (62, 64)  # OpenSSL's X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH

_JAAS = "zookeeper.sasl.jaas.config"


class Access(enum.Enum):
    OPEN = "everybody may do everything"
    READ = "who made it may do everything, others may read it"
    PRIVATE = "who made it may do everything, others nothing"


@dataclass(frozen=True)
class Protection:
    """*Thread-safe: immutable.* No protection by default."""

    context: Callable[[], ssl.SSLContext] | None = None
    """TLS context for the next connection; None for plain text."""
    login: tuple[str, str] | None = field(default=None, repr=False)  # user and password for DIGEST-MD5
    access: Callable[[str], Access] | None = None
    """Access by path below the chroot; None leaves all nodes open."""


UNPROTECTED = Protection()


def protection_of(config: ZooKeeperConfig) -> Protection:
    """Raises `InvalidConfig` if a file or the login cannot be read."""
    config = resolved(config)
    return Protection(
        context=_context_of(config) if config.zookeeper_ssl_client_enable else None,
        login=_login_of(config.zookeeper_sasl_jaas_config) if config.zookeeper_sasl_jaas_config else None,
        access=_access_of(config) if config.zookeeper_set_acl else None,
    )


def _context_of(config: ZooKeeperConfig) -> Callable[[], ssl.SSLContext]:
    tls = TlsConfig(
        ssl_truststore_location=config.zookeeper_ssl_truststore_location,
        ssl_truststore_password=config.zookeeper_ssl_truststore_password,
        ssl_keystore_location=config.zookeeper_ssl_keystore_location,
        ssl_keystore_password=config.zookeeper_ssl_keystore_password,
        ssl_endpoint_identification_algorithm=config.zookeeper_ssl_endpoint_identification_algorithm,
        ssl_protocol=config.zookeeper_ssl_protocol,
        ssl_enabled_protocols=config.zookeeper_ssl_enabled_protocols,
        ssl_cipher_suites=config.zookeeper_ssl_cipher_suites,
    )

    def context() -> ssl.SSLContext:
        return client_context(tls, "zookeeper.{}".format)

    context()  # report a bad file here, not in kazoo's thread
    return context


def _login_of(jaas: str) -> tuple[str, str]:
    try:
        options = parse_jaas(jaas).options
    except ValueError as e:
        raise InvalidConfig(f"{_JAAS}: {e}") from None
    missing = [name for name in ("username", "password") if not options.get(name)]
    if missing:
        raise InvalidConfig(f"{_JAAS} has no {missing[0]}, which the login at ZooKeeper needs")
    return options["username"], options["password"]


def _access_of(config: ZooKeeperConfig) -> Callable[[str], Access]:
    layouts = JsonLayout(config.zookeeper_prefix), V07Layout(config.zookeeper_prefix_07)
    # Consumers without a login keep their groups there, so Kafka leaves it open too.
    groups = {layout.groups for layout in layouts}
    nodes = SecurityNodes(JsonLayout(config.zookeeper_prefix))
    private = {nodes.users, nodes.secret}

    def access(path: str) -> Access:
        if path in groups:
            return Access.OPEN
        return Access.PRIVATE if path in private or path.startswith(f"{nodes.users}/") else Access.READ

    return access


class Connector(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo is not typed
    """Connects with our own TLS context, since kazoo's reads PEM files only.

    A connection and the first response may each take ``answer_seconds``; kazoo would wait for the session
    timeout, but a starting server (ZooKeeper 3.9) may accept a connection and neither answer nor close it.
    """

    def __init__(
        self,
        context: Callable[[], ssl.SSLContext] | None,
        answer_seconds: float,
        connecting: Callable[[], object],
    ) -> None:
        super().__init__()
        self._context = context
        self._answer_seconds = answer_seconds
        self._connecting = connecting
        self.answered = False  # whether the newest connection has a session; set by the session
        self.problem = "no address is known for its name"

    def create_connection(self, *arguments: Any, **given: Any) -> Any:
        self._connecting()
        self.answered = False
        given["timeout"] = min(given["timeout"], self._answer_seconds)
        try:
            if self._context is None:
                made = super().create_connection(*arguments, **given)
            else:
                made = self._secured(self._context(), given["address"], given["hostname"], given["timeout"])
        except (OSError, KafkaError) as e:
            self.problem = _what_failed(e, given["hostname"])
            _log.debug("no connection to ZooKeeper: %s", self.problem)
            raise OSError(self.problem) from e
        self.problem = (
            "it ended the connection: is this a port for TLS (zookeeper.ssl.client.enable=true)?"
            if self._context is None
            else "it ended the connection: does it want a certificate (zookeeper.ssl.keystore.location)?"
        )
        return made

    def _secured(
        self, context: ssl.SSLContext, address: tuple[str, int], host: str, timeout: float
    ) -> ssl.SSLSocket:
        plain = socket.create_connection(address, timeout)
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return context.wrap_socket(plain, server_hostname=host)
        except BaseException:
            plain.close()
            raise

    def select(self, readers: Any, writers: Any, errors: Any, timeout: float | None = None) -> Any:
        # The system's select does not see bytes that TLS has already decrypted.
        if not self.answered and timeout is not None:
            timeout = min(timeout, self._answer_seconds)
        decrypted = [each for each in readers if isinstance(each, ssl.SSLSocket) and each.pending()]
        ready, *others = super().select(readers, writers, errors, 0 if decrypted else timeout)
        return ([*ready, *(each for each in decrypted if each not in ready)], *others)


def _what_failed(error: Exception, host: str) -> str:
    """Why the connection failed, with the property to check."""
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code in _OTHER_NAME:
            return (
                f"its certificate is not of {host}: use a name that it has in zookeeper.connect, or set "
                "zookeeper.ssl.endpoint.identification.algorithm to nothing"
            )
        return (
            f"its certificate is not trusted ({error.verify_message}): check "
            "zookeeper.ssl.truststore.location"
        )
    if isinstance(error, ssl.SSLError):
        return f"{error.reason or error}: is this its secureClientPort, and does it ask for a certificate?"
    return str(error)
