"""``ssl.principal.mapping.rules``: maps the name in a client's certificate to its principal. Pure.

Rules are separated by commas: ``RULE:regex/replacement/[LU]``, or ``DEFAULT`` for the name itself. The first
that matches the whole name applies; ``$1`` is a group, ``L`` and ``U`` change the case of the result.
Source: Apache Kafka's ``SslPrincipalMapper``, KIP-371.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from pyspark_kafkalog.errors import InvalidConfig

_NAME = "ssl.principal.mapping.rules"
_RULE = re.compile(r"RULE:((?:\\.|[^/\\])*)/((?:\\.|[^/\\])*)/([LU]?)\s*(?:,|$)|(DEFAULT)\s*(?:,|$)")
_GROUP = re.compile(r"\$(\d)")
_KEYWORDS = {
    "2.5.4.3": "CN", "2.5.4.6": "C", "2.5.4.7": "L", "2.5.4.8": "ST", "2.5.4.9": "STREET", "2.5.4.10": "O",
    "2.5.4.11": "OU", "0.9.2342.19200300.100.1.1": "UID", "0.9.2342.19200300.100.1.25": "DC",
}  # fmt: skip
"""Attribute types with a keyword in RFC 2253; others are written as numbers, with the encoded value."""
_VERSION = 0xA0
_TEXTS = frozenset((0x0C, 0x13, 0x14, 0x16, 0x1B, 0x1C, 0x1E))
"""Tags of strings: UTF8, Printable, T61, IA5, General, Universal, BMP."""


class Rule(NamedTuple):
    """One rule; ``pattern`` None is DEFAULT."""

    pattern: re.Pattern[str] | None
    replacement: str
    case: str


def parse_rules(text: str) -> tuple[Rule, ...]:
    """The rules in ``text``. Raises `InvalidConfig`: one is malformed."""
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
                raise InvalidConfig(f"{_NAME}: {pattern!r} is not a regular expression: {e}") from e
            rules.append(Rule(compiled, replacement, case))
        position = found.end()
        while text[position : position + 1] in (" ", "\t", "\n") and position < len(text):
            position += 1
    return tuple(rules)


def user_of(name: str, rules: Sequence[Rule]) -> str | None:
    """The user name for a certificate's name; None if no rule matches."""
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


def subject_of(certificate: bytes | None) -> str | None:
    """The subject in a certificate (DER) as Java's `X500Principal.getName` writes it, on which Kafka's ACLs
    and rules rely: RFC 2253, last part first. None without a certificate.
    """
    if not certificate:
        return None
    fields = _elements(_elements(_elements(certificate)[0].content)[0].content)
    subject = fields[5 if fields[0].tag == _VERSION else 4]
    parts = []
    for multiple in reversed(_elements(subject.content)):
        parts.append("+".join(_attribute(each) for each in _elements(multiple.content)))
    return ",".join(parts)


class _Element(NamedTuple):
    tag: int
    content: bytes
    whole: bytes


def _elements(data: bytes) -> list[_Element]:
    """The sequence of elements in ``data``, which OpenSSL has validated."""
    found, at = [], 0
    while at < len(data):
        start, tag, length = at, data[at], data[at + 1]
        at += 2
        if length & 0x80:
            size = length & 0x7F
            length = int.from_bytes(data[at : at + size], "big")
            at += size
        at += length
        found.append(_Element(tag, data[at - length : at], data[start:at]))
    return found


def _attribute(pair: _Element) -> str:
    kind, value = _elements(pair.content)
    number = _dotted(kind.content)
    keyword = _KEYWORDS.get(number)
    if keyword is None or value.tag not in _TEXTS:
        return f"{keyword or number}=#{value.whole.hex()}"
    return f"{keyword}={_escaped(value.content.decode(errors='replace'))}"


def _dotted(encoded: bytes) -> str:
    numbers, number = [], 0
    for each in encoded:
        number = number << 7 | each & 0x7F
        if not each & 0x80:
            numbers.append(number)
            number = 0
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))


def _escaped(value: str) -> str:
    """With a backslash before special characters, and before each leading and trailing blank."""
    text = re.sub(r'([,=+<>#;"\\])', r"\\\1", value).replace("\0", r"\00")
    inner = text.strip(" \r")
    if not inner:
        return "".join("\\" + each for each in text)
    before, _, after = text.partition(inner)
    return "".join("\\" + each for each in before) + inner + "".join("\\" + each for each in after)
