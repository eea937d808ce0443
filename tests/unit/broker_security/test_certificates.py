"""A listener's certificate and trust, however they are given; and what is said of those that do not fit."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
    pkcs12,
)
from cryptography.x509 import Certificate, CertificateBuilder, load_pem_x509_certificates

from kafkalog_broker.config.listener_config import ListenerConfig
from pyspark_kafkalog.errors import InvalidConfig
from pyspark_kafkalog.security.tls import openssl_cipher, server_context
from tests.support.network.certificates import Authority
from tests.support.network.java_stores import (
    AUTHORITY_PEM,
    JKS_PASSWORD,
    KEY_PASSWORD,
    KEYS_JKS,
    TRUST_JKS,
)

PASSWORD = "hush-hush"
STORE = "ssl_keystore_location"


def signed_with_sha1(like: Certificate, locking: KeySerializationEncryption) -> bytes:
    """A key and its certificate, which says SHA-1: the library does not sign so any more."""
    key = rsa.generate_private_key(65537, 2048)
    made = CertificateBuilder(
        like.issuer, like.subject, key.public_key(), 1, like.not_valid_before_utc, like.not_valid_after_utc
    ).sign(key, hashes.SHA256())
    of_rsa = b"\x2a\x86\x48\x86\xf7\x0d\x01\x01"
    old = made.public_bytes(Encoding.DER).replace(of_rsa + b"\x0b", of_rsa + b"\x05")
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, locking)
    return private + ssl.DER_cert_to_PEM_cert(old).encode()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    made = Authority.made(tmp_path_factory.mktemp("certificates"))
    pem = made.issue("server", "localhost").read_bytes()
    key, chain = load_pem_private_key(pem, None), load_pem_x509_certificates(pem)
    locked = BestAvailableEncryption(PASSWORD.encode())
    store: Any = pkcs12.serialize_key_and_certificates(b"x", key, chain[0], chain[1:], locked)  # type: ignore[arg-type]
    (made.directory / "server.p12").write_bytes(store)
    trust = pkcs12.serialize_key_and_certificates(
        b"x", None, None, load_pem_x509_certificates(made.file.read_bytes()), locked
    )
    (made.directory / "trust.p12").write_bytes(trust)
    encrypted = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, locked)
    (made.directory / "locked.pem").write_bytes(encrypted + pem[pem.index(b"-----BEGIN CERT") :])
    (made.directory / "other.pem").write_bytes(
        made.issue("second", "localhost").read_bytes().split(b"-----BEGIN CERT")[0]
        + pem[pem.index(b"-----BEGIN CERT") :]
    )
    for name, locking in (("sha1.pem", NoEncryption()), ("sha1-locked.pem", locked)):
        (made.directory / name).write_bytes(signed_with_sha1(chain[0], locking))
    (made.directory / "store.jks").write_bytes(b"\xfe\xed\xfe\xed" + bytes(20))
    (made.directory / "junk").write_bytes(b"junk")
    return made


def inline(authority: Authority, join: str) -> dict[str, Any]:
    pem = (authority.directory / "server.pem").read_text()
    start = pem.index("-----BEGIN CERT")
    return {
        "ssl_keystore_key": join.join(pem[:start].splitlines()),
        "ssl_keystore_certificate_chain": join.join(pem[start:].splitlines()),
    }


def shake_hands(context: ssl.SSLContext, authority: Authority) -> None:
    """A client that trusts the authority, in memory."""
    trusting = ssl.create_default_context(cafile=str(authority.file))
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = trusting.wrap_bio(to_client, to_server, server_hostname="localhost")
    server = context.wrap_bio(to_server, to_client, server_side=True)
    waiting = [client, server]
    for _ in range(6):
        for end in list(waiting):
            try:
                end.do_handshake()
                waiting.remove(end)
            except ssl.SSLWantReadError:
                pass
    assert not waiting


@pytest.mark.parametrize(
    "given",
    [
        {STORE: "server.pem"},
        {
            "ssl_keystore_location": "server.p12",
            "ssl_keystore_password": PASSWORD,
            "ssl_keystore_type": "JKS",
        },
        {STORE: "locked.pem", "ssl_key_password": PASSWORD},
        {"join": "\n"},
        {"join": " "},
        {"join": "\n    "},
    ],
    ids=str,
)
def test_a_certificate_may_be_given_in_many_ways(authority: Authority, given: dict[str, Any]) -> None:
    if "join" in given:
        given = inline(authority, given["join"])
    else:
        given = {**given, "ssl_keystore_location": str(authority.directory / given["ssl_keystore_location"])}
    shake_hands(server_context(ListenerConfig(**given)), authority)


def test_java_s_own_format_is_read_too(tmp_path: Path) -> None:
    (tmp_path / "keys.jks").write_bytes(KEYS_JKS)
    (tmp_path / "trust.jks").write_bytes(TRUST_JKS)
    context = server_context(
        ListenerConfig(
            ssl_keystore_location=str(tmp_path / "keys.jks"), ssl_keystore_password=JKS_PASSWORD,
            ssl_key_password=KEY_PASSWORD, ssl_truststore_location=str(tmp_path / "trust.jks"),
            ssl_client_auth="required",
        )
    )  # fmt: skip
    trusted = ssl.PEM_cert_to_DER_cert(AUTHORITY_PEM.decode())
    assert context.get_ca_certs(binary_form=True) == [trusted]


@pytest.mark.parametrize(
    "trust",
    [
        {"ssl_truststore_location": "ca.pem"},
        {"ssl_truststore_location": "trust.p12", "ssl_truststore_password": PASSWORD},
        {"ssl_truststore_certificates": "ca.pem"},
    ],
    ids=str,
)
def test_so_may_the_authorities(authority: Authority, trust: dict[str, Any]) -> None:
    path = authority.directory / (trust.get("ssl_truststore_location") or "ca.pem")
    trust = {**trust, "ssl_truststore_location": str(path)}
    if trust.get("ssl_truststore_certificates"):
        trust = {"ssl_truststore_certificates": " ".join(path.read_text().split("\n"))}
    own = str(authority.directory / "server.pem")
    context = server_context(ListenerConfig(ssl_keystore_location=own, ssl_client_auth="required", **trust))
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.get_ca_certs(binary_form=True) == [ssl.PEM_cert_to_DER_cert(authority.file.read_text())]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, r"ssl\.keystore\.location is missing"),
        ({STORE: "none"}, r"ssl\.keystore\.location: there is no file .*none"),
        ({STORE: "junk"}, "it is neither PEM nor a store of type JKS or PKCS12"),
        ({STORE: "store.jks"}, "the JKS store is damaged"),
        ({STORE: "server.p12"}, r"ssl\.keystore\.password is missing"),
        ({STORE: "server.p12", "ssl_keystore_password": "nope"}, r"ssl\.keystore\.password is wrong"),
        ({STORE: "trust.p12", "ssl_keystore_password": PASSWORD}, "holds no private key"),
        ({STORE: "locked.pem"}, "is encrypted, and ssl.key.password is missing"),
        ({STORE: "locked.pem", "ssl_key_password": "nope"}, "ssl.key.password is wrong"),
        ({STORE: "other.pem"}, "the private key does not belong to the first certificate"),
        ({STORE: "sha1.pem"}, r"refused by OpenSSL's security level \(CA_MD_TOO_WEAK\): use one signed with"),
        ({STORE: "sha1-locked.pem", "ssl_key_password": PASSWORD}, r"security level \(CA_MD_TOO_WEAK\)"),
        ({STORE: "server.pem", "ssl_client_auth": "required"}, "needs ssl.truststore.location"),
        ({STORE: "server.pem", "ssl_enabled_protocols": ("SSLv3",)}, "allowed: words of TLSv1.2, TLSv1.3"),
        ({STORE: "server.pem", "ssl_cipher_suites": ("X_WITH_Y",)}, "OpenSSL knows none of them"),
        ({"ssl_keystore_key": "x"}, r"ssl\.keystore\.certificate\.chain is missing"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named_and_no_secret_is(
    authority: Authority, given: dict[str, Any], words: str
) -> None:
    if "ssl_keystore_location" in given:
        given = {**given, "ssl_keystore_location": str(authority.directory / given["ssl_keystore_location"])}
    with pytest.raises(InvalidConfig, match=words) as error:
        server_context(ListenerConfig(**given))
    assert PASSWORD not in str(error.value)
    assert "nope" not in str(error.value)


def test_versions_and_cipher_suites_are_those_that_are_named(authority: Authority) -> None:
    own = str(Path(authority.directory / "server.pem"))
    names = ("TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256")
    context = server_context(
        ListenerConfig(ssl_keystore_location=own, ssl_enabled_protocols=("TLSv1.2",), ssl_cipher_suites=names)
    )
    assert context.minimum_version is context.maximum_version is ssl.TLSVersion.TLSv1_2
    chosen = {each["name"] for each in context.get_ciphers() if each["protocol"] == "TLSv1.2"}
    assert chosen == {"ECDHE-ECDSA-AES128-GCM-SHA256", "ECDHE-RSA-CHACHA20-POLY1305"}
    assert openssl_cipher("TLS_RSA_WITH_AES_256_CBC_SHA") == "AES256-SHA"
