"""From the name in a client's certificate to its principal: ``ssl.principal.mapping.rules``. Pure.

Rules are separated by commas: ``RULE:regex/replacement/[LU]`` or ``DEFAULT``, the whole name. The first that
matches the whole name counts; ``$1`` is a group, ``L`` and ``U`` change the case of the result.
Source: Apache Kafka's ``SslPrincipalMapper``, KIP-371.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from pyspark_kafkalog.errors import InvalidConfig

_NAME = "ssl.principal.mapping.rules"
_RULE = re.compile(r"RULE:((?:\\.|[^/\\])*)/((?:\\.|[^/\\])*)/([LU]?)\s*(?:,|$)|(DEFAULT)\s*(?:,|$)")
_GROUP = re.compile(r"\$(\d)")
_SHORT = {
    "commonName": "CN", "organizationName": "O", "organizationalUnitName": "OU", "countryName": "C",
    "localityName": "L", "stateOrProvinceName": "ST", "streetAddress": "STREET", "domainComponent": "DC",
    "userId": "UID",
}  # fmt: skip
"""The types that RFC 2253 gives a short name."""


class Rule(NamedTuple):
    """``pattern`` None is DEFAULT."""

    pattern: re.Pattern[str] | None
    replacement: str
    case: str


def parse_rules(text: str) -> tuple[Rule, ...]:
    """Raises `InvalidConfig`: a rule cannot be read."""
    rules, position, text = [], 0, text.strip() or "DEFAULT"
    while position < len(text):
        found = _RULE.match(text, position)
        if found is None:
            raise InvalidConfig(
                f"{_NAME}: {text[position : position + 60]!r} is not RULE:regex/replacement/[LU] or DEFAULT"
            )
        pattern, replacement, case, default = found.groups()
        if default:
            rules.append(Rule(None, "", ""))
        else:
            try:
                compiled = re.compile(pattern)
            except re.error as e:
                raise InvalidConfig(f"{_NAME}: {pattern!r} is no regular expression: {e}") from e
            rules.append(Rule(compiled, replacement, case))
        position = found.end()
        while text[position : position + 1] in (" ", "\t", "\n") and position < len(text):
            position += 1
    return tuple(rules)


def user_of(name: str, rules: Sequence[Rule]) -> str | None:
    """The user's name for a certificate's; None where no rule matches."""
    for rule in rules:
        if rule.pattern is None:
            return name
        found = rule.pattern.fullmatch(name)
        if found is None:
            continue
        user = _GROUP.sub(partial(_group, found), rule.replacement)
        return user.lower() if rule.case == "L" else user.upper() if rule.case == "U" else user
    return None


def _group(found: re.Match[str], wanted: re.Match[str]) -> str:
    number = int(wanted[1])
    return (found[number] or "") if number <= found.re.groups else ""


def distinguished_name(subject: Sequence[Sequence[tuple[str, str]]]) -> str:
    """A subject as `ssl.SSLObject.getpeercert` has it, as RFC 2253 writes it: the last part first."""
    parts = []
    for multiple in reversed(subject):
        parts.append("+".join(f"{_SHORT.get(kind, kind)}={_escaped(value)}" for kind, value in multiple))
    return ",".join(parts)


def _escaped(value: str) -> str:
    text = re.sub(r'([,+"\\<>;])', r"\\\1", value)
    if text[:1] in ("#", " "):
        text = "\\" + text
    return text[:-1] + "\\ " if text.endswith(" ") and len(value) > 1 else text


def subject_of(certificate: dict[str, Any] | None) -> str | None:
    """The name in a certificate of `ssl.SSLObject.getpeercert`; None without one."""
    return distinguished_name(certificate["subject"]) if certificate else None
