"""What of a value or a message may be shown: no password, wherever it stands. Pure."""

from __future__ import annotations

import re

_NAME = r"[\w.]*(?:password|passwd|pwd|secret|token|sslkey|jaas\.config)"
_SECRET_NAME = re.compile(_NAME, re.IGNORECASE)
_BEFORE_HOST = re.compile(r"//\S*@|(?<![^\s'\"=])[^\s/:@'\"=]+:[^\s/@][^\s@]*@")
_NAMED = re.compile(rf"(?i)({_NAME})(\s*=\s*|:(?=\S))('[^']*'|\"[^\"]*\"|[^\s&;,'\"]+)")


def is_secret(name: str) -> bool:
    """Whether the property ``name`` holds a secret, as far as its name says."""
    return _SECRET_NAME.search(name) is not None


def masked(text: str) -> str:
    """``text`` with ``***`` for what looks like a secret: user and password before a host, and the values of
    parameters and properties that are named like one.
    """
    text = _BEFORE_HOST.sub(lambda found: "//***@" if found[0].startswith("//") else "***@", text)
    return _NAMED.sub(r"\1\2***", text)
