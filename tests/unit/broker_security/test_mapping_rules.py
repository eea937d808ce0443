"""Names in certificates, and the users that rules make of them. The cases are those of KIP-371."""

from __future__ import annotations

import pytest

from broker.security.mapping_rules import distinguished_name, parse_rules, user_of
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
def test_what_is_no_rule_is_refused(rules: str) -> None:
    with pytest.raises(InvalidConfig, match=r"ssl\.principal\.mapping\.rules: "):
        parse_rules(rules)


def test_a_name_is_written_from_its_end_on() -> None:
    subject = (
        (("countryName", "DE"),), (("organizationName", "Lab, Inc."),),
        (("organizationalUnitName", "F"), ("emailAddress", "a@b")), (("commonName", "a"),),
    )  # fmt: skip
    assert distinguished_name(subject) == r"CN=a,OU=F+emailAddress=a@b,O=Lab\, Inc.,C=DE"
