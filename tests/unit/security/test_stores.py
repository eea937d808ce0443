"""Key and trust stores as Java's keytool, OpenSSL and people's clipboards leave them."""

from __future__ import annotations

import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
    pkcs12,
)
from cryptography.x509 import load_pem_x509_certificate

from pyspark_kafkalog.errors import InvalidConfig
from pyspark_kafkalog.security.key_stores import Keys, key_and_chain, trusted
from tests.support.network.java_stores import (
    AUTHORITY_PEM,
    JKS_PASSWORD,
    KEY_PASSWORD,
    KEYS_JKS,
    KEYS_PEM,
    PASSWORD,
    TRUST_JKS,
    TRUST_PKCS12,
)

AUTHORITY = ssl.PEM_cert_to_DER_cert(AUTHORITY_PEM.decode())
KEY = load_pem_private_key(KEYS_PEM, None)
CERTIFICATE = load_pem_x509_certificate(KEYS_PEM)
TRUST = {"name": "ssl.truststore.location", "password_name": "ssl.truststore.password"}
KEYS = {
    "name": "ssl.keystore.location",
    "password_name": "ssl.keystore.password",
    "key_password_name": "ssl.key.password",
}


def same_key(found: Keys) -> bool:
    assert found.key is not None
    password = None if found.password is None else found.password.encode()
    key = load_pem_private_key(found.key, password)
    return key.public_key() == KEY.public_key() and found.certificates[0] == CERTIFICATE.public_bytes(
        Encoding.DER
    )


@pytest.mark.parametrize(
    ("store", "password"),
    [(TRUST_JKS, PASSWORD), (TRUST_JKS, None), (TRUST_PKCS12, PASSWORD), (AUTHORITY_PEM, None)],
)
def test_every_kind_of_trust_store_has_the_authority(store: bytes, password: str | None) -> None:
    assert trusted(store, password, **TRUST) == (AUTHORITY,)


def test_a_jks_key_with_a_password_of_its_own() -> None:
    assert same_key(key_and_chain(KEYS_JKS, JKS_PASSWORD, KEY_PASSWORD, **KEYS))


def test_a_pkcs12_store_of_another_tool() -> None:
    data = pkcs12.serialize_key_and_certificates(
        b"a",
        KEY,
        CERTIFICATE,
        None,
        BestAvailableEncryption(b"geheim"),  # type: ignore[arg-type]
    )
    assert same_key(key_and_chain(data, "geheim", None, **KEYS))


def test_a_pkcs12_chain_is_in_the_order_of_its_issuers_and_has_no_others() -> None:
    root, other = trustme.CA(), trustme.CA()
    issued = root.create_child_ca().issue_cert("a.example.org")
    own, intermediate = (load_pem_x509_certificate(blob.bytes()) for blob in issued.cert_chain_pems)
    authority, foreign = (load_pem_x509_certificate(ca.cert_pem.bytes()) for ca in (root, other))
    key: Any = load_pem_private_key(issued.private_key_pem.bytes(), None)
    data = pkcs12.serialize_key_and_certificates(
        b"x", key, own, [foreign, authority, intermediate], BestAvailableEncryption(b"pw")
    )
    chain = key_and_chain(data, "pw", None, **KEYS).certificates
    assert chain == tuple(each.public_bytes(Encoding.DER) for each in (own, intermediate, authority))
    assert foreign.public_bytes(Encoding.DER) in trusted(data, "pw", **TRUST)


def test_an_encrypted_pem_key() -> None:
    encrypted = KEY.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"geheim"))
    data = encrypted + CERTIFICATE.public_bytes(Encoding.PEM)
    assert same_key(key_and_chain(data, None, "geheim", **KEYS))
    with pytest.raises(
        InvalidConfig, match=r"ssl\.keystore\.location: .*encrypted, and ssl\.key\.password is missing"
    ):
        key_and_chain(data, None, None, **KEYS)


def test_openssls_own_encryption_with_headers_in_the_block(tmp_path: Path) -> None:
    encrypted = KEY.private_bytes(
        Encoding.PEM, PrivateFormat.TraditionalOpenSSL, BestAvailableEncryption(b"geheim")
    )
    assert b"DEK-Info" in encrypted
    data = encrypted + CERTIFICATE.public_bytes(Encoding.PEM)
    assert same_key(key_and_chain(data.replace(b"\n", b" "), None, "geheim", **KEYS))


@pytest.mark.parametrize(
    "end", [b" ", b"\r\n", b"\n    ", b"\\n"], ids=["blanks", "crlf", "indented", "escaped"]
)
def test_pem_as_it_is_pasted_into_an_option(end: bytes) -> None:
    assert same_key(key_and_chain(KEYS_PEM.replace(b"\n", end), None, None, **KEYS))


def test_text_around_the_blocks_is_ignored() -> None:
    assert trusted(b"subject=CN = x\n" + AUTHORITY_PEM + b"bye", None, **TRUST) == (AUTHORITY,)


@pytest.mark.parametrize(
    ("store", "password", "said"),
    [
        (TRUST_JKS, "wrong", r"ssl\.truststore\.password is wrong, or the file is damaged"),
        (TRUST_PKCS12, "wrong", r"ssl\.truststore\.password is wrong, or the file is damaged"),
        (TRUST_PKCS12, None, r"ssl\.truststore\.password is missing"),
        (b"\xce\xce\xce\xce....", None, "JCEKS store; convert it: keytool"),
        (b"", None, "neither PEM nor"),
        (b"hello", None, "neither PEM nor"),
        (KEYS_JKS, JKS_PASSWORD, "holds no certificates"),
        (AUTHORITY_PEM[:200], None, "has no end"),
    ],
)
def test_a_trust_store_that_cannot_be_used_names_the_property(
    store: bytes, password: str | None, said: str
) -> None:
    with pytest.raises(InvalidConfig, match=rf"^ssl\.truststore\.location: .*{said}") as failure:
        trusted(store, password, **TRUST)
    assert "wrong" not in str(failure.value).replace("is wrong", "")


@pytest.mark.parametrize(
    ("store", "password", "key_password", "said"),
    [
        (KEYS_JKS, JKS_PASSWORD, None, r"ssl\.key\.password is wrong"),
        (KEYS_JKS, None, None, r"ssl\.keystore\.password is missing"),
        (TRUST_JKS, PASSWORD, None, "holds no private key"),
        (AUTHORITY_PEM, None, None, "holds no private key"),
        (KEYS_PEM + KEYS_PEM, None, None, "holds 2 private keys"),
        (KEYS_PEM[: KEYS_PEM.index(b"-----BEGIN CERT")], None, None, "holds no certificate of the key"),
    ],
)
def test_a_key_store_that_cannot_be_used_names_the_property(
    store: bytes, password: str | None, key_password: str | None, said: str
) -> None:
    with pytest.raises(InvalidConfig, match=rf"^ssl\.keystore\.location: .*{said}"):
        key_and_chain(store, password, key_password, **KEYS)


def test_a_keys_repr_shows_no_secret() -> None:
    assert "PRIVATE" not in repr(key_and_chain(KEYS_PEM, None, None, **KEYS))


def test_pkcs12_alone_needs_a_library() -> None:
    code = (
        "import sys; sys.modules['cryptography'] = None\n"
        "from tests.support.network.java_stores import *\n"
        "from pyspark_kafkalog.security.key_stores import key_and_chain, trusted\n"
        "n = dict(name='n', password_name='p')\n"
        "assert trusted(TRUST_JKS, PASSWORD, **n)\n"
        "assert key_and_chain(KEYS_PEM, None, None, **n, key_password_name='k').key\n"
        "try: trusted(TRUST_PKCS12, PASSWORD, **n)\n"
        "except Exception as e: print(e)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'pyspark-kafkalog[tls]'" in done.stdout
