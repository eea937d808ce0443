"""Topic filters: regular expressions as Java reads them, since all consumers of a group must agree. Pure.

Source: Java's ``java.util.regex.Pattern``; kafka 0.7 ``consumer/TopicFilter.scala``.
"""

from __future__ import annotations

import re
from functools import lru_cache

from pyspark_kafkalog.errors import InvalidConfig

_CLASSES = {
    "Lower": "a-z", "Upper": "A-Z", "ASCII": r"\x00-\x7f", "Alpha": "a-zA-Z", "Digit": "0-9",
    "Alnum": "0-9a-zA-Z", "Punct": r"!-/:-@\[-`{-~", "Graph": "!-~", "Print": r"\x20-~", "Blank": r"\x20\t",
    "Cntrl": r"\x00-\x1f\x7f", "XDigit": "0-9a-fA-F", "Space": r"\s",
}  # fmt: skip

_FLAGS = re.compile(r"\(\?([is]+)\)")
_SAME = r"\\[dDwWsStnrfa]|\\[^A-Za-z0-9]|\\x[0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}"
"""Escapes that mean the same in Python, in a class too."""

_OUTSIDE = re.compile(
    rf"(?P<same>{_SAME}|\\[BA]|\\b(?!\{{)|\\[1-9](?![0-9])|\((?!\?)|\(\?(?:[:>=!]|<[=!]|-?[is]+:)|\{{[0-9]+(?:,[0-9]*)?\}}"
    r"|[^\\({\[])"
    r"|(?P<open>\[\^?\]?)|\(\?<(?P<name>[a-zA-Z][a-zA-Z0-9]*)>|\\k<(?P<reference>[a-zA-Z][a-zA-Z0-9]*)>"
    r"|\\(?P<kind>[pP])\{(?P<class>[A-Za-z]+)\}|(?P<end>\\[zZ])|\\Q(?P<quoted>.*?)(?:\\E|\Z)",
    re.DOTALL,
)
_INSIDE = re.compile(
    rf"(?P<same>{_SAME}|&(?!&)|[^\\\[\]&])|(?P<close>\])|\\(?P<kind>p)\{{(?P<class>[A-Za-z]+)\}}"
)


def topic_regex(text: str) -> re.Pattern[str]:
    """Compile 0.7's filter: commas mean "or"; outer blanks and quotes are ignored. Raises `InvalidConfig`."""
    expression = text.strip().replace(",", "|").replace(" ", "").strip("\"'")
    try:
        return java_regex(expression)
    except ValueError as e:
        raise InvalidConfig(f"{text!r} is not a regular expression for topics: {e}") from e


@lru_cache(maxsize=64)
def java_regex(expression: str) -> re.Pattern[str]:
    """Compile an expression in Java's syntax. Raises ValueError for what Python cannot do in the same way."""
    try:
        return re.compile(_python_expression(expression))
    except re.error as e:
        raise ValueError(str(e)) from e


def _python_expression(java: str) -> str:
    """With Java's meaning. Raises ValueError for what Python would read otherwise, or Java would not."""
    flags = _FLAGS.match(java)
    found, inside, at = [], False, flags.end() if flags else 0
    while at < len(java):
        token = (_INSIDE if inside else _OUTSIDE).match(java, at)
        if token is None or (token["class"] is not None and token["class"] not in _CLASSES):
            raise ValueError(f"it is not supported from {java[at:]!r} on")
        found.append(_translated(token, inside))
        inside, at = token.lastgroup == "open" or (inside and token.lastgroup != "close"), token.end()
    return f"(?a{flags[1] if flags else ''}:{''.join(found)})"


def _translated(token: re.Match[str], inside: bool) -> str:
    part = token.groupdict()
    if token["class"] is not None:
        members = _CLASSES[token["class"]]
        return members if inside else f"[{'^' * (token['kind'] == 'P')}{members}]"
    if part.get("name"):
        return f"(?P<{part['name']}>"
    if part.get("reference"):
        return f"(?P={part['reference']})"
    if part.get("end"):
        return r"\Z"
    if part.get("quoted") is not None:
        return re.escape(part["quoted"])
    # Python warns of these in a class, as they may get a meaning there.
    return f"\\{token[0]}" if inside and token[0] in "|~&" else token[0]
