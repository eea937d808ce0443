"""Parses `sasl.jaas.config`: one login module of a JAAS entry, in Kafka's grammar.

``module flag (key=value)* ;`` with the tokens of Java's ``StreamTokenizer`` as Kafka configures it. Messages
hold no values, which may be secrets. Source: Kafka's `JaasConfig`, Java's `StreamTokenizer`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

_FLAGS = ("required", "requisite", "sufficient", "optional")
_ESCAPES = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_ESCAPE = re.compile(r"\\(?:([0-3][0-7]{0,2}|[4-7][0-7]?)|(.))", re.DOTALL)
_TOKEN = re.compile(
    r"(?P<word>[A-Za-z_$\xa0-\U0010ffff][A-Za-z0-9_$.\-\xa0-\U0010ffff]*)"
    r"|(?P<number>-?(?:[0-9]+\.?[0-9]*|\.[0-9]*))"
    # A string ends at its quote or at a line end that is not escaped.
    r"|\"(?P<double>(?:\\.|[^\"\\\r\n])*\\?)\"?"
    r"|'(?P<single>(?:\\.|[^'\\\r\n])*\\?)'?"
    # A single slash begins a comment, to which the next character always belongs, even a line end.
    r"|(?P<skipped>[\x00-\x20]+|/\*.*?(?:\*/|\Z)|/(?:.[^\r\n]*)?)"
    r"|(?P<sign>.)",
    re.DOTALL,
)


@dataclass(frozen=True)
class JaasEntry:
    """*Thread-safe: immutable.* A login module and its options, which may be secrets."""

    module: str
    flag: str
    options: Mapping[str, str] = field(repr=False)

    def is_true(self, option: str) -> bool:
        return self.options.get(option, "").strip().lower() == "true"


def parse_jaas(text: str) -> JaasEntry:
    """The entry in ``text``; the last option of a key counts. Raises `ValueError` with Kafka's messages."""
    tokens = _tokens(text)
    entries: list[JaasEntry] = []
    while (first := next(tokens, None)) is not None:
        entries.append(_entry(first, tokens))
    if not entries:
        raise ValueError("Login module not specified in JAAS config")
    if len(entries) > 1:
        raise ValueError(f"JAAS config property contains {len(entries)} login modules, should be 1 module")
    return entries[0]


class _Token(NamedTuple):
    """A word or string; for others ``text`` is None and ``sign`` the character, "0" for a number."""

    text: str | None
    sign: str = ""


def _entry(module: _Token, tokens: Iterator[_Token]) -> JaasEntry:
    if module.text is None and module.sign == "{":
        raise ValueError("Login module not specified in JAAS config; leave out the name and braces of a file")
    flag = next(tokens, None)
    if flag is None:
        raise ValueError("Login module control flag not specified in JAAS config")
    if flag.text is None:
        hint = "; leave out the name and braces of a JAAS file" if flag.sign == "{" else ""
        raise ValueError(f"Login module control flag is not available in the JAAS config{hint}")
    if flag.text.lower() not in _FLAGS:
        raise ValueError(f"Invalid login module control flag in JAAS config; allowed: {', '.join(_FLAGS)}")
    options: dict[str, str] = {}
    for key in tokens:
        if key.sign == ";":
            if not module.text:
                raise ValueError("Login module not specified in JAAS config")
            return JaasEntry(module.text, flag.text.lower(), options)
        equals, value = next(tokens, None), None
        if equals is not None and equals.sign == "=":
            value = next(tokens, None)
        if key.text is None or value is None or value.text is None:
            raise ValueError(
                f"Value not specified for key '{_shown_key(key)}' in JAAS config; a value needs quotes "
                "unless it begins with a letter, '_' or '$' and has only these, digits, '-' and '.'"
            )
        options[key.text] = value.text
    raise ValueError("JAAS config entry not terminated by semi-colon")


def _shown_key(key: _Token) -> str:
    """A key for a message; an unknown one may be the rest of an unquoted secret."""
    known = key.text is not None and (key.text in _KNOWN_KEYS or key.text.startswith("user_"))
    return str(key.text) if known else "..."


_KNOWN_KEYS = frozenset(
    "username password tokenauth user clientId clientSecret scope serviceName keyTab principal useKeyTab "
    "storeKey useTicketCache ticketCache doNotPrompt awsProfileName awsRoleArn awsRoleSessionName "
    "awsStsRegion awsRoleExternalId awsDebugCreds ssl.protocol".split()
)


def _tokens(text: str) -> Iterator[_Token]:
    for match in _TOKEN.finditer(text):
        kind = match.lastgroup or ""
        if kind == "word":
            yield _Token(match[0])
        elif kind in ("double", "single"):
            yield _Token(_ESCAPE.sub(_unescaped, match[kind]))
        elif kind != "skipped":
            yield _Token(None, "0" if kind == "number" else match[0])


def _unescaped(escape: re.Match[str]) -> str:
    octal, char = escape.groups()
    return _ESCAPES.get(char, char) if octal is None else chr(int(octal, 8))
