"""Names in certificates, and the users that rules make of them. The cases are those of KIP-371."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.name import _ASN1Type
from cryptography.x509.oid import NameOID

from kafkalog_broker.security.mapping_rules import parse_rules, subject_of, user_of
from pyspark_kafkalog.errors import InvalidConfig

NAME = "CN=kafka-server1,OU=KAFKA,O=Lab,C=DE"


@pytest.mark.parametrize(
    ("rules", "user"),
    [
        ("DEFAULT", NAME),
        ("", NAME),
        (r"RULE:^CN=(.*?),OU=Users.*$/$1/,RULE:^CN=(.*?),OU=KAFKA.*$/$1@k/,DEFAULT", "kafka-server1@k"),
        (r"RULE:^CN=([a-zA-Z0-9-]*).*$/$1/U", "KAFKA-SERVER1"),
        (r"RULE:^cn=(.*)$/$1/L, DEFAULT", NAME),
        (r"RULE:CN=(.*),OU=(.*),O=(.*),C=(.*)/$4 $2\/$9x/L", r"de kafka\/x"),
        (r"RULE:CN=nobody/x/", None),
    ],
)  # fmt: skip
def test_the_first_rule_that_matches_the_whole_name_counts(rules: str, user: str | None) -> None:
    assert user_of(NAME, parse_rules(rules)) == user


@pytest.mark.parametrize("rules", ["RULE:x", "DEFAULTS", "RULE:(/x/", "DEFAULT;DEFAULT", "RULE:a/b/X"])
def test_an_invalid_rule_is_refused(rules: str) -> None:
    with pytest.raises(InvalidConfig, match=r"ssl\.principal\.mapping\.rules: "):
        parse_rules(rules)


UTF8, IA5, PRINTABLE = _ASN1Type.UTF8String, _ASN1Type.IA5String, _ASN1Type.PrintableString
Part = tuple[x509.ObjectIdentifier, str, _ASN1Type]


@pytest.mark.parametrize(
    ("subject", "name"),
    [
        (
            [[(NameOID.COUNTRY_NAME, "DE", PRINTABLE)], [(NameOID.ORGANIZATION_NAME, "Lab, Inc.", UTF8)],
             [(NameOID.COMMON_NAME, "\u00e4\u20ac\U0001f600", UTF8)]],
            "CN=\u00e4\u20ac\U0001f600,O=Lab\\, Inc.,C=DE",
        ),
        (
            [[(NameOID.COMMON_NAME, ' #a=b+"c"\\<d>;/ \r', UTF8)]],
            'CN=\\ \\#a\\=b\\+\\"c\\"\\\\\\<d\\>\\;/\\ \\\r',
        ),
        ([[(NameOID.COMMON_NAME, "a\0b", UTF8)]], r"CN=a\00b"),
        ([[(NameOID.COMMON_NAME, "  ", UTF8)]], r"CN=\ \ "),
        (
            [[(NameOID.COMMON_NAME, "z", UTF8), (NameOID.EMAIL_ADDRESS, "a@b", IA5)]],
            "CN=z+1.2.840.113549.1.9.1=#1603614062",
        ),
        ([[(NameOID.SERIAL_NUMBER, "7", PRINTABLE)], [(NameOID.USER_ID, "u", IA5)]], "UID=u,2.5.4.5=#130137"),
    ],
)  # fmt: skip
def test_a_name_is_written_as_java_writes_it(subject: list[list[Part]], name: str) -> None:
    """What is expected was printed by Java 17."""
    written = x509.Name(
        [
            x509.RelativeDistinguishedName(
                [x509.NameAttribute(kind, value, _type=tag, _validate=False) for kind, value, tag in each]
            )
            for each in subject
        ]
    )
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime(2026, 1, 1, tzinfo=timezone.utc)
    certificate = (
        x509.CertificateBuilder(written, written, key.public_key(), 1, now, now)
        .sign(key, SHA256())
        .public_bytes(Encoding.DER)
    )
    assert subject_of(certificate) == name
    assert subject_of(None) is None
