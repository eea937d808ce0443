"""TLS contexts from Kafka's ``ssl.*`` properties, and one side of a TLS connection."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import socket
import ssl
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Protocol, cast

from pyspark_kafkalog.config.security_config import TlsConfig
from pyspark_kafkalog.errors import InvalidConfig
from pyspark_kafkalog.security.key_stores import Keys, key_and_chain, pem, trusted
from pyspark_kafkalog.security.references import found_file

_log = logging.getLogger(__name__)

Named = Callable[[str], str]

VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}

_PARTIAL_CHAIN = 0x80000  # X509_V_FLAG_PARTIAL_CHAIN: trust a certificate without its root, as Java does
_KEPT_CONTEXTS = 16


class TlsProperties(Protocol):
    @property
    def ssl_keystore_location(self) -> str | None: ...
    @property
    def ssl_keystore_password(self) -> str | None: ...
    @property
    def ssl_keystore_key(self) -> str | None: ...
    @property
    def ssl_keystore_certificate_chain(self) -> str | None: ...
    @property
    def ssl_key_password(self) -> str | None: ...
    @property
    def ssl_truststore_location(self) -> str | None: ...
    @property
    def ssl_truststore_password(self) -> str | None: ...
    @property
    def ssl_truststore_certificates(self) -> str | None: ...
    @property
    def ssl_protocol(self) -> str | None: ...
    @property
    def ssl_enabled_protocols(self) -> tuple[str, ...]: ...
    @property
    def ssl_cipher_suites(self) -> tuple[str, ...]: ...


class ListenerProperties(TlsProperties, Protocol):
    @property
    def ssl_client_auth(self) -> str: ...


_made: dict[tuple[object, ...], ssl.SSLContext] = {}
_making = threading.Lock()


def client_context(config: TlsConfig, named: Named) -> ssl.SSLContext:
    """*Thread-safe.* Cached until a file changes. ``named`` is for errors. Raises `InvalidConfig`."""
    key = _fingerprint(config, named)
    with _making:
        context = _made.get(key)
        if context is None:
            context = _client_context(config, named)
            while len(_made) >= _KEPT_CONTEXTS:
                del _made[next(iter(_made))]
            _made[key] = context
        return context


def _fingerprint(config: TlsConfig, named: Named) -> tuple[object, ...]:
    located = {
        "ssl.keystore.location": config.ssl_keystore_location,
        "ssl.certificate.location": config.ssl_certificate_location,
        "ssl.key.location": config.ssl_key_location,
        "ssl.truststore.location": config.ssl_truststore_location,
    }
    files = []
    for name, path in located.items():
        if path:
            state = found_file(path, named(name)).stat()
            files.append((path, state.st_mtime_ns, state.st_size, state.st_ino))
        else:
            files.append((name, 0, 0, 0))
    return (*files, *(getattr(config, field.name) for field in fields(TlsConfig)), named("ssl"))


def _client_context(config: TlsConfig, named: Named) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _limit(context, config, named)
    context.check_hostname = config.verifies_names and config.verifies_certificates
    if not config.verifies_certificates:
        _log.warning(
            "%s=false: anybody can pretend to be the broker", named("enable.ssl.certificate.verification")
        )
        context.verify_mode = ssl.CERT_NONE
    elif not _trust(context, config, named):
        context.load_default_certs()
    keys: Keys | None
    if config.ssl_certificate_location or config.ssl_key_location:
        keys, source = _separate_keys(config, named), "ssl.certificate.location"
    else:
        keys, source = _own_keys(config, named), _key_source(config)
    if keys is not None:
        _load_keys(context, keys, named(source), named("ssl.key.password"))
    return context


_CLIENT_AUTH = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}


def server_context(config: ListenerProperties) -> ssl.SSLContext:
    """A new context with a listener's certificate and its clients' authorities. Raises `InvalidConfig`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.options |= getattr(ssl, "OP_NO_RENEGOTIATION", 0)
    _limit(context, config, str)
    keys = _own_keys(config, str)
    if keys is None:
        raise InvalidConfig(
            "ssl.keystore.location is missing: TLS needs a certificate and its key "
            "(kafkalog-broker secure-init makes them)"
        )
    _load_keys(context, keys, _key_source(config), "ssl.key.password")
    if not _trust(context, config, str) and config.ssl_client_auth != "none":
        # The system's authorities would admit anyone with any certificate.
        raise InvalidConfig(
            f"ssl.client.auth={config.ssl_client_auth} needs ssl.truststore.location: the authorities of "
            "clients' certificates"
        )
    context.verify_mode = _CLIENT_AUTH[config.ssl_client_auth]
    return context


def _limit(context: ssl.SSLContext, config: TlsProperties, named: Named) -> None:
    """Set TLS versions and ciphers, and check certificates as Java does."""
    # Strict checks reject authorities made by plain `openssl req -x509`, as in Kafka's manual.
    context.verify_flags &= ~getattr(ssl, "VERIFY_X509_STRICT", ssl.VerifyFlags(0))
    context.verify_flags |= ssl.VerifyFlags(_PARTIAL_CHAIN)
    names = config.ssl_enabled_protocols
    if not names or not VERSIONS.keys() >= {*names}:
        raise InvalidConfig(
            f"{named('ssl.enabled.protocols')}={','.join(names)} is not allowed; allowed: words of "
            f"{', '.join(VERSIONS)}"
        )
    enabled = [VERSIONS[name] for name in names]
    newest = VERSIONS.get(config.ssl_protocol or "", max(enabled))
    context.minimum_version = min(enabled)
    context.maximum_version = max(min(newest, max(enabled)), min(enabled))
    if not config.ssl_cipher_suites:
        return
    name = named("ssl.cipher.suites")
    chosen = [
        openssl_cipher(suite)
        for suite in config.ssl_cipher_suites
        if not suite.startswith("TLS_") or "_WITH_" in suite
    ]
    if len(chosen) < len(config.ssl_cipher_suites):
        _log.warning("%s: the suites of TLS 1.3 cannot be chosen in Python; all of them are used", name)
    if not chosen:
        return
    try:
        context.set_ciphers(":".join(chosen))
    except ssl.SSLError:
        suites = ", ".join(config.ssl_cipher_suites)
        raise InvalidConfig(f"{name}={suites}: OpenSSL knows none of them") from None


def openssl_cipher(suite: str) -> str:
    """``ECDHE-RSA-AES128-GCM-SHA256`` for ``TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256``; OpenSSL's names stay."""
    exchange, found, cipher = suite.removeprefix("TLS_").partition("_WITH_")
    if not found:
        return suite
    cipher = re.sub(r"(AES|CAMELLIA|ARIA)_(\d+)", r"\1\2", cipher).replace("_CBC", "")
    cipher = cipher.replace("CHACHA20_POLY1305_SHA256", "CHACHA20_POLY1305")
    joined = cipher if exchange == "RSA" else f"{exchange}_{cipher}"
    return joined.replace("_", "-")


def _store(
    location: str | None, text: str | None, names: tuple[str, str], named: Named
) -> tuple[bytes, str] | None:
    """A store's content and name: a file, or the text itself; None if neither is configured."""
    of_location, of_text = map(named, names)
    if location and text:
        raise InvalidConfig(f"{of_location} and {of_text}: one of them, not both")
    if location:
        return _content(location, of_location), f"{of_location}={location}"
    return (text.encode(), of_text) if text else None


def _trust(context: ssl.SSLContext, config: TlsProperties, named: Named) -> bool:
    names = "ssl.truststore.location", "ssl.truststore.certificates"
    store = _store(config.ssl_truststore_location, config.ssl_truststore_certificates, names, named)
    if store is None:
        return False
    data, name = store
    password_name = named("ssl.truststore.password")
    certificates = trusted(data, config.ssl_truststore_password, name=name, password_name=password_name)
    try:
        context.load_verify_locations(cadata=b"".join(certificates))
    except (ssl.SSLError, ValueError):
        raise InvalidConfig(f"{name}: a certificate in it is damaged") from None
    return True


def _key_source(config: TlsProperties) -> str:
    return "ssl.keystore.location" if config.ssl_keystore_location else "ssl.keystore.key"


def _own_keys(config: TlsProperties, named: Named) -> Keys | None:
    key, chain = config.ssl_keystore_key, config.ssl_keystore_certificate_chain
    text = f"{key}\n{chain}" if key or chain else None
    names = "ssl.keystore.location", "ssl.keystore.key"
    store = _store(config.ssl_keystore_location, text, names, named)
    if store is None:
        return None
    if text and not (key and chain):
        missing = "ssl.keystore.certificate.chain" if key else "ssl.keystore.key"
        raise InvalidConfig(f"{named(missing)} is missing: a certificate needs its key, and a key its chain")
    return key_and_chain(
        store[0],
        config.ssl_keystore_password,
        config.ssl_key_password,
        name=store[1],
        password_name=named("ssl.keystore.password"),
        key_password_name=named("ssl.key.password"),
    )


def _separate_keys(config: TlsConfig, named: Named) -> Keys:
    certificate, key = config.ssl_certificate_location, config.ssl_key_location
    of_certificate, of_key = named("ssl.certificate.location"), named("ssl.key.location")
    if not (certificate and key):
        raise InvalidConfig(
            f"{of_certificate if not certificate else of_key} is missing: both files are needed"
        )
    data = _content(key, of_key) + b"\n" + _content(certificate, of_certificate)
    asked = named("ssl.key.password")
    return key_and_chain(
        data,
        None,
        config.ssl_key_password,
        name=f"{of_key}={key}",
        password_name=asked,
        key_password_name=asked,
    )


def _content(path: str, name: str) -> bytes:
    try:
        return found_file(path, name).read_bytes()
    except OSError as e:
        raise InvalidConfig(f"{name}={path}: it cannot be read: {e.strerror or e}") from None


def _load_keys(context: ssl.SSLContext, keys: Keys, name: str, asked: str) -> None:
    """``asked`` is the property of the key's password, for errors."""
    with _as_file((keys.key or b"") + pem(keys.certificates)) as path:
        try:
            # Without a function OpenSSL would ask at the terminal.
            context.load_cert_chain(path, password=lambda: keys.password or "")
        except (OSError, ValueError) as e:
            reason = getattr(e, "reason", None) or ""
            if reason == "KEY_VALUES_MISMATCH":
                why = "the private key does not belong to the first certificate"
            elif reason.endswith(("_MD_TOO_WEAK", "_KEY_TOO_SMALL")):
                why = (
                    f"a certificate is refused by OpenSSL's security level ({reason}): use one signed with"
                    " SHA-256 or better, with a key of at least 2048 bits (RSA) or 256 (EC)"
                )
            elif keys.password is not None:
                why = f"the private key cannot be decrypted: {asked} is wrong, or the key is damaged"
            else:
                why = f"the key or a certificate is damaged{f' ({reason})' if reason else ''}"
            raise InvalidConfig(f"{name}: {why}") from None


@contextlib.contextmanager
def _as_file(data: bytes) -> Iterator[str]:
    """``data`` at a path for OpenSSL: in memory, or briefly in a private file."""
    if hasattr(os, "memfd_create") and Path("/proc/self/fd").is_dir():
        with os.fdopen(os.memfd_create("key", os.MFD_CLOEXEC), "wb") as file:
            file.write(data)
            file.flush()
            yield f"/proc/self/fd/{file.fileno()}"
        return
    with tempfile.NamedTemporaryFile() as file:  # created with mode 0600
        file.write(data)
        file.flush()
        yield file.name


class TlsStream:
    """*Not thread-safe.* One side of a connection. Does not wait; the socket's timeout applies.

    Uses `ssl.MemoryBIO`, not `ssl.SSLSocket`: ciphertext can be sent partially like other bytes, and all
    received data can be read before asking the selector again.
    """

    __slots__ = ("_incoming", "_outgoing", "_unsent", "dry", "ended", "stage", "tls")

    def __init__(
        self,
        context: ssl.SSLContext,
        stage: memoryview,
        *,
        server_side: bool = False,
        server_hostname: str | None = None,
    ) -> None:
        """``stage`` holds the ciphertext of one read. It is empty between calls and may be shared."""
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server_side, server_hostname=server_hostname
        )
        self.stage = stage
        self._unsent: memoryview | None = None
        self.dry = True  # whether nothing can be decrypted until more is received
        self.ended = False  # whether the peer has closed TLS

    @property
    def unsent(self) -> bool:
        """Whether ciphertext waits for the socket."""
        return self._unsent is not None or self._outgoing.pending > 0

    def shake_hands(self) -> bool:
        """Continue the handshake; True once done. Raises `ssl.SSLError`."""
        try:
            self.tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        self.dry = False
        return True

    def receive(self, sock: socket.socket, most_bytes: int = 0) -> int:
        """Read ciphertext once, by default up to the size of the stage; returns its size, 0 at the end."""
        count = sock.recv_into(self.stage, most_bytes)
        if count:
            self._incoming.write(self.stage[:count])
            self.dry = False
        return count

    def decrypt_into(self, buffer: memoryview) -> int:
        """Fill ``buffer``; returns fewer bytes only if `dry` or `ended`. Raises `ssl.SSLError`."""
        read, filled, room = self.tls.read, 0, len(buffer)
        try:
            while filled < room and not self.ended:
                # Typeshed wants a bytearray; any writable buffer works.
                count = cast("int", read(room - filled, cast("bytearray", buffer[filled:])))
                filled += count
                self.ended = not count
        except ssl.SSLWantReadError:
            self.dry = True
        return filled

    def send_some(self, sock: socket.socket) -> None:
        """Send unsent ciphertext in one call and keep the rest; call it only if `unsent`."""
        unsent = self._unsent
        if unsent is None:
            unsent = self._unsent = memoryview(self._outgoing.read())
        sent = sock.send(unsent)
        self._unsent = unsent[sent:] if sent < len(unsent) else None
