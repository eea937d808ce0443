"""Creates a certificate authority and a broker certificate: two keys and two certificates, as PEM."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from typing import NamedTuple

from pyspark_kafkalog.errors import InvalidConfig

_CA_DAYS = 3650
_SERVER_DAYS = 825
"""The longest validity that some clients accept."""


class Made(NamedTuple):
    """All PEM. ``server`` holds a key, its certificate and the authority's, for ``ssl.keystore.location``."""

    ca_certificate: bytes
    ca_key: bytes
    server: bytes


def make(hosts: Sequence[str], now: datetime | None = None) -> Made:
    """A new authority, and a broker certificate for ``hosts``. Raises `InvalidConfig`: no cryptography."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
        from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
    except ImportError as e:
        raise InvalidConfig("certificates need cryptography: pip install 'pyspark-kafkalog[tls]'") from e
    now = now or datetime.now(timezone.utc)

    def key_bytes(key: ec.EllipticCurvePrivateKey) -> bytes:
        return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())

    def usage(*, signs_certificates: bool) -> x509.KeyUsage:
        return x509.KeyUsage(
            digital_signature=not signs_certificates, content_commitment=False, key_encipherment=False,
            data_encipherment=False, key_agreement=False, key_cert_sign=signs_certificates,
            crl_sign=signs_certificates, encipher_only=False, decipher_only=False,
        )  # fmt: skip

    def named(name: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])

    def begun(subject: x509.Name, key: ec.EllipticCurvePrivateKey, days: int) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(authority)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(minutes=5))
            .not_valid_after(now + timedelta(days=days))
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False
            )
        )

    authority = named(f"kafkalog authority {now:%Y-%m-%d}")
    ca_key, server_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    ca = (
        begun(authority, ca_key, _CA_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage(signs_certificates=True), critical=True)
        .sign(ca_key, SHA256())
    )
    alternatives = [
        x509.DNSName(each) if isinstance(each, str) else x509.IPAddress(each) for each in map(_address, hosts)
    ]
    server = (
        begun(named(hosts[0]), server_key, _SERVER_DAYS)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .sign(ca_key, SHA256())
    )
    ca_pem = ca.public_bytes(Encoding.PEM)
    return Made(ca_pem, key_bytes(ca_key), key_bytes(server_key) + server.public_bytes(Encoding.PEM) + ca_pem)


def _address(host: str) -> str | ipaddress.IPv4Address | ipaddress.IPv6Address:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return host
