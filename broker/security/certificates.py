"""A listener's certificates as a TLS context, made again when their files are replaced."""

from __future__ import annotations

import logging
import os
import re
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from broker.listener_config import ListenerConfig
from pyspark_kafkalog.errors import InvalidConfig, KafkaError

_log = logging.getLogger(__name__)

_Stamp = tuple[tuple[int, int, int] | None, ...]


class ListenerCertificates:
    """*Thread-safe: `renew` is called by one thread; ``context`` is replaced as a whole.*"""

    def __init__(self, listener: str, config: ListenerConfig) -> None:
        """Raises `InvalidConfig`: there is no certificate, or it cannot be read."""
        self._listener = listener
        self._config = config
        self._stamp = self._look()
        self.context = self._made()
        """For new connections."""

    def renew(self) -> None:
        """Look whether the files were replaced. What cannot be used is logged, and the old context stays."""
        stamp = self._look()
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self.context = self._made()
        except (KafkaError, OSError) as e:
            _log.error("listener %s keeps its old certificates: %s", self._listener, e)
        else:
            _log.info("listener %s has new certificates", self._listener)

    def _made(self) -> ssl.SSLContext:
        try:
            return server_context(self._config)
        except InvalidConfig as e:
            raise InvalidConfig(f"listener {self._listener}: {e}") from e

    def _look(self) -> _Stamp:
        paths = (self._config.ssl_keystore_location, self._config.ssl_truststore_location)
        return tuple(_stamp(path) if path is not None else None for path in paths)


def _stamp(path: str) -> tuple[int, int, int] | None:
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


_CLIENT_AUTH = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_BLOCK = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----(.*?)-----END \1-----", re.DOTALL)
_LINE_CHARS = 64
_JKS, _JCEKS, _DER = b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce", b"\x30"
_LEGACY_RENEGOTIATION = getattr(ssl, "OP_NO_RENEGOTIATION", 0)


def server_context(config: ListenerConfig) -> ssl.SSLContext:
    """A context with a listener's certificate, and with the authorities of its clients' ones.
    Raises `InvalidConfig`: there is no certificate, or something cannot be read.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.options |= _LEGACY_RENEGOTIATION
    # Java accepts authorities without key usage, and a certificate that is trusted itself.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    _set_versions(context, config)
    pem, password, source = _key_and_chain(config)
    with _as_file(pem) as path:
        try:
            context.load_cert_chain(path, password=password or _no_password)
        except (OSError, ValueError) as e:
            raise InvalidConfig(f"{source}: {_reason(e)}") from None
    trusted = _trusted(config)
    if trusted is not None:
        text, source = trusted
        try:
            context.load_verify_locations(cadata=text)
        except (OSError, ValueError) as e:
            raise InvalidConfig(f"{source}: {_reason(e)}") from None
    elif config.ssl_client_auth != "none":
        raise InvalidConfig(
            f"ssl.client.auth={config.ssl_client_auth} needs ssl.truststore.location: the authorities of "
            "clients' certificates"
        )
    context.verify_mode = _CLIENT_AUTH[config.ssl_client_auth]
    return context


def _set_versions(context: ssl.SSLContext, config: ListenerConfig) -> None:
    names = set(config.ssl_enabled_protocols)
    if not names or not names <= _VERSIONS.keys():
        raise InvalidConfig(
            f"ssl.enabled.protocols={','.join(config.ssl_enabled_protocols)}; there are "
            + ", ".join(_VERSIONS)
        )
    context.minimum_version = min(_VERSIONS[name] for name in names)
    context.maximum_version = max(_VERSIONS[name] for name in names)
    if config.ssl_cipher_suites:
        # Python cannot choose those of TLS 1.3.
        given = [name for name in config.ssl_cipher_suites if "_WITH_" in name or not name.startswith("TLS_")]
        try:
            if given:
                context.set_ciphers(":".join(map(openssl_cipher, given)))
        except ssl.SSLError:
            raise InvalidConfig(
                f"ssl.cipher.suites={','.join(config.ssl_cipher_suites)}: OpenSSL has none of them"
            ) from None


def openssl_cipher(name: str) -> str:
    """A cipher suite of TLS 1.2 as OpenSSL calls it: ``TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256`` is
    ``ECDHE-RSA-AES128-GCM-SHA256``.
    """
    exchange, found, cipher = name.removeprefix("TLS_").partition("_WITH_")
    if not found:
        return name
    cipher = re.sub(r"(AES|CAMELLIA|ARIA)_(\d+)", r"\1\2", cipher).replace("_CBC", "")
    cipher = cipher.replace("CHACHA20_POLY1305_SHA256", "CHACHA20_POLY1305")
    return (cipher if exchange == "RSA" else f"{exchange}_{cipher}").replace("_", "-")


def _key_and_chain(config: ListenerConfig) -> tuple[str, str | None, str]:
    """The key and its certificates as PEM, the key's password, and the property that they are from."""
    if config.ssl_keystore_key is not None:
        chain = config.ssl_keystore_certificate_chain
        if config.ssl_keystore_location is not None or chain is None:
            raise InvalidConfig(
                "ssl.keystore.key goes with ssl.keystore.certificate.chain, and without ssl.keystore.location"
            )
        text = _wrapped(config.ssl_keystore_key) + _wrapped(chain)
        return text, config.ssl_key_password, "ssl.keystore.key"
    location = config.ssl_keystore_location
    if location is None:
        raise InvalidConfig(
            "ssl.keystore.location is missing: TLS needs a certificate and its key "
            "(kafkalog-broker secure-init makes them)"
        )
    source = f"ssl.keystore.location={location}"
    data = _read(location, source)
    if data[:1] == _DER:
        return _from_pkcs12(data, config.ssl_keystore_password, source, keys=True), None, source
    text = _wrapped(_text(data, source))
    return text, config.ssl_key_password or config.ssl_keystore_password, source


def _trusted(config: ListenerConfig) -> tuple[str, str] | None:
    """The authorities as PEM, and the property that they are from."""
    if config.ssl_truststore_certificates is not None:
        return _wrapped(config.ssl_truststore_certificates), "ssl.truststore.certificates"
    location = config.ssl_truststore_location
    if location is None:
        return None
    source = f"ssl.truststore.location={location}"
    data = _read(location, source)
    if data[:1] == _DER:
        return _from_pkcs12(data, config.ssl_truststore_password, source, keys=False), source
    return _wrapped(_text(data, source)), source


def _read(location: str, source: str) -> bytes:
    try:
        data = Path(location).read_bytes()
    except OSError as e:
        raise InvalidConfig(f"{source}: {e.strerror}") from e
    if data[:4] in (_JKS, _JCEKS):
        raise InvalidConfig(
            f"{source} is a Java key store; make it PKCS12: keytool -importkeystore -srckeystore FILE "
            "-destkeystore FILE.p12 -deststoretype PKCS12"
        )
    return data


def _text(data: bytes, source: str) -> str:
    text = data.decode("latin-1")
    if _BLOCK.search(text) is None:
        raise InvalidConfig(f"{source} is neither PEM nor PKCS12")
    return text


def _wrapped(text: str) -> str:
    """PEM as OpenSSL reads it: properties may have blanks for its line ends, or indent it."""
    blocks = []
    for kind, body in _BLOCK.findall(text):
        if "ENCRYPTED" in body:  # headers of an old encrypted key: lines that count
            lines = [line.strip() for line in body.strip().splitlines()]
        else:
            packed = "".join(body.split())
            lines = [packed[at : at + _LINE_CHARS] for at in range(0, len(packed), _LINE_CHARS)]
        blocks.append("\n".join([f"-----BEGIN {kind}-----", *lines, f"-----END {kind}-----", ""]))
    return "".join(blocks)


def _from_pkcs12(data: bytes, password: str | None, source: str, *, keys: bool) -> str:
    """What a PKCS12 file holds, as PEM: with ``keys`` the key and its certificates, else all certificates."""
    try:
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, pkcs12
    except ImportError as e:
        raise InvalidConfig(f"{source} is PKCS12, which needs: pip install 'pyspark-kafkalog[tls]'") from e
    try:
        found = pkcs12.load_pkcs12(data, password.encode() if password else None)
    except ValueError:
        raise InvalidConfig(f"{source}: it is no PKCS12 file, or its password is wrong") from None
    certificates = [each.certificate for each in (found.cert, *found.additional_certs) if each is not None]
    text = "".join(each.public_bytes(Encoding.PEM).decode() for each in certificates)
    if not keys:
        return text
    if found.key is None:
        raise InvalidConfig(f"{source} has no private key")
    return found.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode() + text


@contextmanager
def _as_file(text: str) -> Iterator[str]:
    """A file that nobody else can open, for what OpenSSL takes by name only."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("kafkalog")
        try:
            os.write(fd, text.encode())
            yield f"/proc/self/fd/{fd}"
        finally:
            os.close(fd)
        return
    with tempfile.NamedTemporaryFile() as file:
        file.write(text.encode())
        file.flush()
        yield file.name


def _no_password() -> str:
    """OpenSSL would ask on the terminal."""
    raise ValueError("its key is encrypted: set ssl.key.password")


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        known = {
            "KEY_VALUES_MISMATCH": "the key is not that of the first certificate",
            "BAD_DECRYPT": "ssl.key.password is wrong",
        }
        return known.get(error.reason or "", f"OpenSSL cannot read it: {error.reason or error}")
    return str(error)
