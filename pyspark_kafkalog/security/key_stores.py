"""Reads key and trust stores, recognised by their first bytes: PEM, Java's JKS and PKCS12. Reads no files.

JKS (``sun.security.provider.JavaKeyStore``), big-endian: magic FEEDFEED, version, number of entries. An entry
is tag, alias, time, and either a private key with its chain or one certificate. The last 20 bytes are SHA-1
of password, salt and everything before. PKCS12 needs ``cryptography``, imported on use.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from pyspark_kafkalog.errors import InvalidConfig

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

_JKS, _JCEKS, _DER_SEQUENCE = b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce", b"\x30"
_SHA1_BYTES = 20
_JKS_SALT = b"Mighty Aphrodite"
_JKS_KEY, _JKS_CERTIFICATE = 1, 2
_JKS_KEY_CIPHER = bytes.fromhex("2b060104012a02110101")

_BLOCK = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----(.*?)-----END \1-----", re.DOTALL)
_OPENSSL_HEADERS = re.compile(r"\s*Proc-Type:\s*(\S+)\s+DEK-Info:\s*(\S+)")
_CERTIFICATE_LABELS = ("CERTIFICATE", "X509 CERTIFICATE")
_LINE = 64


@dataclass(frozen=True)
class Keys:
    """Content of a store. Certificates are DER."""

    certificates: tuple[bytes, ...]
    """In a trust store the trusted ones; in a key store the key's chain, its own first."""
    key: bytes | None = field(default=None, repr=False)
    """The private key as PEM, encrypted if ``password`` is not None."""
    password: str | None = field(default=None, repr=False)


class _Unreadable(Exception): ...


class _Password(NamedTuple):
    text: str | None
    property: str  # its property, for errors


def trusted(data: bytes, password: str | None, *, name: str, password_name: str) -> tuple[bytes, ...]:
    """Certificates in a trust store. JKS opens without a password, unchecked. Raises `InvalidConfig`."""
    certificates = _read(data, name, _Password(password, password_name), None).certificates
    if not certificates:
        raise InvalidConfig(f"{name}: it holds no certificates")
    return certificates


def key_and_chain(
    data: bytes,
    password: str | None,
    key_password: str | None,
    *,
    name: str,
    password_name: str,
    key_password_name: str,
) -> Keys:
    """Private key and chain in a key store; ``key_password`` defaults to ``password``. `InvalidConfig`."""
    keys = _read(data, name, _Password(password, password_name), _Password(key_password, key_password_name))
    if keys.key is None:
        raise InvalidConfig(f"{name}: it holds no private key")
    if not keys.certificates:
        raise InvalidConfig(f"{name}: it holds no certificate of the key")
    return keys


def _read(data: bytes, name: str, password: _Password, key_password: _Password | None) -> Keys:
    """Without ``key_password`` a trust store, of which only certificates are needed."""
    try:
        if data.startswith(_JKS):
            return _read_jks(data, password, key_password)
        if _is_pkcs12(data):
            return _read_pkcs12(data, password, keys=key_password is not None)
        keys = _read_pem(data.decode("utf-8", errors="replace"))
        if key_password is None or keys.key is None or b"ENCRYPTED" not in keys.key:
            return keys
        secret = key_password.text or password.text
        if secret is None:
            raise _Unreadable(f"the private key is encrypted, and {key_password.property} is missing")
        return replace(keys, password=secret)
    except _Unreadable as e:
        raise InvalidConfig(f"{name}: {e}") from None


def pem(certificates: tuple[bytes, ...]) -> bytes:
    return b"".join(_block("CERTIFICATE", certificate) for certificate in certificates)


def _is_pkcs12(data: bytes) -> bool:
    if data.startswith(_JCEKS):
        raise _Unreadable(
            "it is a JCEKS store; convert it: keytool -importkeystore -srcstoretype JCEKS -srckeystore OLD "
            "-deststoretype PKCS12 -destkeystore NEW"
        )
    if data.startswith(_DER_SEQUENCE):
        return True
    if b"-----BEGIN " in data:
        return False
    raise _Unreadable("it is neither PEM nor a store of type JKS or PKCS12, or is damaged at its beginning")


def _block(label: str, data: bytes, headers: str = "") -> bytes:
    text = base64.b64encode(data).decode()
    lines = "\n".join(text[at : at + _LINE] for at in range(0, len(text), _LINE))
    return f"-----BEGIN {label}-----\n{headers}{lines}\n-----END {label}-----\n".encode()


def _read_pem(text: str) -> Keys:
    """Lines may end with blanks, or with a backslash and an n."""
    certificates, keys = [], []
    spoiled = text.count("-----BEGIN ")
    for label, content in _BLOCK.findall(text):
        spoiled -= 1
        if label not in _CERTIFICATE_LABELS and not label.endswith("PRIVATE KEY"):
            continue
        body = content.replace("\\n", "\n")
        headers, encrypted = "", _OPENSSL_HEADERS.match(body)
        if encrypted is not None:
            headers = f"Proc-Type: {encrypted[1]}\nDEK-Info: {encrypted[2]}\n\n"
        start = encrypted.end() if encrypted is not None else 0
        try:
            data = base64.b64decode("".join(body[start:].split()), validate=True)
        except (binascii.Error, ValueError):
            raise _Unreadable(f"the PEM block {label} is damaged: it is not base64") from None
        if not data:
            raise _Unreadable(f"the PEM block {label} is empty")
        if label in _CERTIFICATE_LABELS:
            certificates.append(data)
        else:
            keys.append(_block(label, data, headers))
    if spoiled:
        raise _Unreadable("a PEM block has no end: the text is cut off, or damaged")
    if len(keys) > 1:
        raise _Unreadable(f"it holds {len(keys)} private keys; one is expected")
    return Keys(tuple(certificates), keys[0] if keys else None)


def _read_pkcs12(data: bytes, password: _Password, *, keys: bool) -> Keys:
    try:
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, pkcs12
    except ImportError as e:
        raise _Unreadable(
            "it is a PKCS12 store, which needs cryptography, on driver and executors: "
            "pip install 'pyspark-kafkalog[tls]'; or use PEM"
        ) from e
    try:
        store = pkcs12.load_pkcs12(data, None if password.text is None else password.text.encode())
        entries = ([store.cert] if store.cert is not None else []) + store.additional_certs
        certificates = tuple(entry.certificate.public_bytes(Encoding.DER) for entry in entries)
        if store.key is None or not keys:
            return Keys(certificates)
        key = store.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        chain = _chain([entry.certificate for entry in entries])
        certificates = tuple(certificate.public_bytes(Encoding.DER) for certificate in chain)
    except Exception:  # the library raises many kinds for damaged bytes, with messages of no use to users
        wrong = f"{password.property} is {'missing' if password.text is None else 'wrong'}"
        raise _Unreadable(f"this PKCS12 store cannot be opened: {wrong}, or the file is damaged") from None
    return Keys(certificates, key)


def _chain(certificates: list[Certificate]) -> list[Certificate]:
    """The first certificate and its issuers in turn; files may have them in any order, among others."""
    chain, left = certificates[:1], certificates[1:]
    while chain and (issuers := [each for each in left if each.subject == chain[-1].issuer]):
        chain.append(issuers[0])
        left.remove(issuers[0])
    return chain


class _Bytes:
    """A cursor over bytes; raises `_Unreadable` at the end."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def take(self, count: int) -> bytes:
        if count > self.left:
            raise _Unreadable("the store is damaged, or cut off")
        self._at += count
        return self._data[self._at - count : self._at]

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def der(self, tag: int) -> _Bytes:
        """Content of the next element, which must have this tag."""
        if self.number(1) != tag:
            raise _Unreadable("the store is damaged: a private key in it cannot be read")
        length = self.number(1)
        if length & 0x80:
            length = self.number(length & 0x7F)
        return _Bytes(self.take(length))


def _read_jks(data: bytes, password: _Password, key_password: _Password | None) -> Keys:
    if password.text is not None:
        body, digest = data[:-_SHA1_BYTES], data[-_SHA1_BYTES:]
        expected = hashlib.sha1(_utf16(password.text) + _JKS_SALT + body, usedforsecurity=False).digest()
        if not hmac.compare_digest(expected, digest):
            raise _Unreadable(
                f"this JKS store cannot be opened: {password.property} is wrong, or the file is damaged"
            )
    stream = _Bytes(data)
    stream.take(len(_JKS))
    version, count = stream.number(4), stream.number(4)
    if version not in (1, 2):
        raise _Unreadable(f"the JKS store is damaged: it has version {version}")
    certificates, keys = [], []
    for _ in range(count):
        tag = stream.number(4)
        stream.take(stream.number(2) + 8)  # alias, time
        if tag == _JKS_CERTIFICATE:
            certificates.append(_jks_certificate(stream, version))
        elif tag == _JKS_KEY:
            protected = stream.take(stream.number(4))
            keys.append((protected, [_jks_certificate(stream, version) for _ in range(stream.number(4))]))
        else:
            raise _Unreadable(f"the JKS store is damaged: it has an entry of type {tag}")
    if stream.left != _SHA1_BYTES:
        raise _Unreadable("the store is damaged, or cut off")
    if key_password is None:
        return Keys(tuple(certificates))
    if not keys:
        return Keys(())
    protected, chain = keys[0]
    secret = key_password.text or password.text
    if secret is None:
        raise _Unreadable(f"a private key of a JKS store cannot be read: {password.property} is missing")
    key = _jks_key(protected, secret)
    if key is None:
        raise _Unreadable(
            f"the private key in the JKS store cannot be read: {key_password.property} is wrong"
        )
    return Keys(tuple(chain), _block("PRIVATE KEY", key))


def _jks_certificate(stream: _Bytes, version: int) -> bytes:
    if version == 2:
        stream.take(stream.number(2))  # X.509
    return stream.take(stream.number(4))


def _jks_key(protected: bytes, password: str) -> bytes | None:
    """Decrypt with Sun's KeyProtector: XOR with a SHA-1 chain. None if the password is wrong."""
    info = _Bytes(protected).der(0x30)
    if info.der(0x30).der(0x06).take(len(_JKS_KEY_CIPHER)) != _JKS_KEY_CIPHER:
        raise _Unreadable("a private key in the JKS store is protected in a way that is not known")
    data = info.der(0x04)
    digest = data.take(_SHA1_BYTES)
    if data.left < _SHA1_BYTES:
        raise _Unreadable("the store is damaged, or cut off")
    encrypted, check = data.take(data.left - _SHA1_BYTES), data.take(_SHA1_BYTES)
    secret, stream = _utf16(password), bytearray()
    while len(stream) < len(encrypted):
        digest = hashlib.sha1(secret + digest, usedforsecurity=False).digest()
        stream += digest
    key = bytes(a ^ b for a, b in zip(encrypted, stream, strict=False))
    expected = hashlib.sha1(secret + key, usedforsecurity=False).digest()
    return key if hmac.compare_digest(expected, check) else None


def _utf16(password: str) -> bytes:
    return password.encode("utf-16-be")
