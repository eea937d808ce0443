"""Reads and writes Java ``.properties`` text, also for configurations.

Source: ``java.util.Properties.load``: ``#`` and ``!`` begin comments; a name ends at the first unescaped
``=``, ``:`` or white space; a backslash at the end of a line joins the next.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from pyspark_kafkalog.config.definition import Config, describe
from pyspark_kafkalog.errors import InvalidConfig

MAX_FILE_BYTES = 1 << 20  # larger files are not configurations, and refused before reading
_LINE_END = re.compile(r"\r\n|\r|\n")
_BLANK = " \t\f"
_SPECIAL = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_ESCAPED = {"\\": "\\\\"} | {char: "\\" + letter for letter, char in _SPECIAL.items()}
_HEX4 = re.compile(r"[0-9a-fA-F]{4}")


def load_properties(path: Path | str) -> dict[str, str]:
    """Read a UTF-8 file. Raises `InvalidConfig`."""
    try:
        with Path(path).open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as e:
        raise InvalidConfig(f"cannot read {path}: {e.strerror or e}") from e
    if len(data) > MAX_FILE_BYTES:
        raise InvalidConfig(f"{path} is larger than {MAX_FILE_BYTES} bytes: not a properties file")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as e:
        raise InvalidConfig(f"{path} is not UTF-8 text: byte {e.start} cannot be decoded") from e
    return parse_properties(text, source=str(path))


def parse_properties(text: str, *, source: str = "properties") -> dict[str, str]:
    """Names and values in order; the last value of a name counts. Raises `InvalidConfig`."""
    found: dict[str, str] = {}
    for number, line in _logical_lines(text):
        end, value_at = _split(line)
        try:
            found[_unescape(line[:end])] = _unescape(line[value_at:])
        except ValueError as e:
            raise InvalidConfig(f"{source}, line {number}: {e}") from e
    return found


def format_properties(properties: Mapping[str, str]) -> str:
    """Text, one line per name, that `parse_properties` reads back exactly."""
    return "".join(f"{_escape_name(name)}={_escape_value(value)}\n" for name, value in properties.items())


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Joined lines without comments and blank lines; numbered from 1."""
    parts: list[str] = []
    began = 0
    for number, natural in enumerate(_LINE_END.split(text), 1):
        line = natural.lstrip(_BLANK)
        if not parts:
            if not line or line[0] in "#!":
                continue
            began = number
        if (len(line) - len(line.rstrip("\\"))) % 2:
            parts.append(line[:-1])
            continue
        yield began, "".join([*parts, line])
        parts = []
    if parts:
        yield began, "".join(parts)


def _split(line: str) -> tuple[int, int]:
    pos = 0
    while pos < len(line) and line[pos] not in "=:" and line[pos] not in _BLANK:
        pos += 2 if line[pos] == "\\" else 1
    end = min(pos, len(line))
    rest = line[end:].lstrip(_BLANK)
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(_BLANK)
    return end, len(line) - len(rest)


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    out: list[str] = []
    pos = 0
    while pos < len(text):
        char = text[pos]
        pos += 1
        if char != "\\":
            out.append(char)
        elif pos < len(text):
            char = text[pos]
            pos += 1
            if char == "u":
                digits = _HEX4.match(text, pos)
                if digits is None:
                    raise ValueError(f"\\u is followed by {text[pos : pos + 4]!r}, not by four hex digits")
                out.append(chr(int(digits.group(), 16)))
                pos += 4
            else:
                out.append(_SPECIAL.get(char, char))
    joined = "".join(out)
    try:
        # Java writes a character above U+FFFF as a surrogate pair of two escapes.
        return joined.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
    except UnicodeDecodeError as e:
        raise ValueError("\\u escapes give half a surrogate pair") from e


def _escape_name(text: str) -> str:
    return "".join(_ESCAPED.get(char) or ("\\" + char if char in "=:#! " else char) for char in text)


def _escape_value(text: str) -> str:
    out = "".join(_ESCAPED.get(char, char) for char in text)
    return "\\" + out if out.startswith(" ") else out


_WIDTH = 100


def properties_file(
    cls: type[Config],
    heading: str,
    given: Mapping[str, str] | None = None,
    *,
    prefix: str = "",
    left_out: Collection[str] = (),
    commented: Collection[str] = (),
) -> str:
    """Every property with its default, after a comment with its meaning, unit and range.

    Properties without a default or a value in ``given`` are commented out, so that `parse` reads the result.
    ``prefix`` precedes each name. Fields in ``left_out`` are omitted, those in ``commented`` commented out.
    """
    given = given or {}
    blocks = ["".join(map(_comment, heading.splitlines()))]
    section = ""
    for item in describe(cls):
        section = item.section or section
        if item.field in left_out:
            continue
        if section:
            blocks.append(f"{'#' * 8} {section}\n")
            section = ""
        facts = [item.unit, item.allowed, f"default {item.text(item.default) or 'not set'}"]
        if item.aliases:
            facts.append(f"also read as {', '.join(prefix + alias for alias in item.aliases)}")
        value = given.get(item.name, item.text(item.default))
        line = format_properties({prefix + item.name: value})
        is_set = (value or item.default is not None) and item.field not in commented
        blocks.append(
            _comment(item.doc)
            + _comment("; ".join(fact for fact in facts if fact))
            + (line if is_set else "#" + line)
        )
    return "\n".join(blocks)


def _comment(text: str) -> str:
    return textwrap.fill(text, _WIDTH, initial_indent="# ", subsequent_indent="# ") + "\n"
