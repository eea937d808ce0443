"""Parses `sasl.jaas.config`: one login module of a JAAS entry, in Kafka's grammar.

``module flag (key=value)* ;`` with the tokens of Java's ``StreamTokenizer`` as Kafka configures it. Messages
hold no values, which may be secrets. Source: Kafka's `JaasConfig`, Java's `StreamTokenizer`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

_FLAGS = ("required", "requisite", "sufficient", "optional")
_DIGITS, _OCTAL = "0123456789", "01234567"
_ESCAPES = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_WORD_INSIDE = _DIGITS + ".-"
_LINE_ENDS = "\r\n"


@dataclass(frozen=True)
class JaasEntry:
    """*Thread-safe: immutable.* A login module and its options, which may be secrets."""

    module: str
    flag: str
    options: Mapping[str, str] = field(repr=False)

    def is_module(self, name: str) -> bool:
        """Whether the class has this simple name, in any package: Databricks moves Kafka's."""
        return self.module.rpartition(".")[2] == name

    def is_true(self, option: str) -> bool:
        """Whether the option is "true" in any case, as in Java."""
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
    position, end = 0, len(text)
    while position < end:
        char = text[position]
        if char <= " ":
            position += 1
        elif char in _WORD_INSIDE:
            stop = _number_end(text, position)
            yield _Token(None, "0" if stop > position else char)
            position = max(stop, position + 1)
        elif _starts_word(char):
            stop = position + 1
            while stop < end and (_starts_word(text[stop]) or text[stop] in _WORD_INSIDE):
                stop += 1
            yield _Token(text[position:stop])
            position = stop
        elif char in "\"'":
            string, position = _string(text, position)
            yield _Token(string)
        elif char == "/":
            position = _comment_end(text, position)
        else:
            yield _Token(None, char)
            position += 1


def _starts_word(char: str) -> bool:
    return "a" <= char <= "z" or "A" <= char <= "Z" or char in "_$" or char >= "\xa0"


def _number_end(text: str, start: int) -> int:
    """End of the number at ``start``; ``start`` itself for a lone minus."""
    position = start + (text[start] == "-")
    dotted = False
    while position < len(text) and (text[position] in _DIGITS or (text[position] == "." and not dotted)):
        dotted = dotted or text[position] == "."
        position += 1
    return position if position > start + (text[start] == "-") else start


def _comment_end(text: str, start: int) -> int:
    """End of the comment: ``*/`` after ``/*``, else the end of the line, even after a single slash.
    The character after a single slash always belongs to the comment, even a line end.
    """
    if text.startswith("/*", start):
        stop = text.find("*/", start + 2)
        return len(text) if stop < 0 else stop + 2
    stops = [stop for sign in _LINE_ENDS if (stop := text.find(sign, start + 2)) >= 0]
    return min(stops, default=len(text))


def _string(text: str, start: int) -> tuple[str, int]:
    """The string at ``start``, which ends at its quote or line end, and the position after it."""
    quote, position, out = text[start], start + 1, []
    while position < len(text) and text[position] != quote and text[position] not in _LINE_ENDS:
        char = text[position]
        position += 1
        if char == "\\" and position < len(text):
            char = text[position]
            position += 1
            if char in _OCTAL:
                # Up to three digits, at most \377.
                digits = char
                while (
                    position < len(text)
                    and text[position] in _OCTAL
                    and len(digits) < (3 if char <= "3" else 2)
                ):
                    digits += text[position]
                    position += 1
                char = chr(int(digits, 8))
            else:
                char = _ESCAPES.get(char, char)
        out.append(char)
    closed = position < len(text) and text[position] == quote
    return "".join(out), position + closed
