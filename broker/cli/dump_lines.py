"""What ``dump-log`` writes, a line for each thing: as Kafka's ``DumpLogSegments`` has it, or JSON."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from typing import Any

from broker.log.scan import Damage
from pyspark_kafkalog.types import Record

Decoder = Callable[[Record], Mapping[str, Any]]
"""What a record says, for a topic whose records are understood."""

Line = dict[str, Any]


def damage_line(damage: Damage) -> Line:
    """A place in which no batch can be made out."""
    return {"position": damage.position, "size": damage.end - damage.position, "reason": damage.reason}


def as_json(kind: str, line: Line) -> str:
    """One object; ``kind`` is its first field."""
    return json.dumps({"kind": kind, **line}, ensure_ascii=False)


def as_text(kind: str, line: Line) -> str:
    """``name: value`` with blanks between; records are set off as Kafka's tool does it."""
    words = [
        f"{name}: {_word(value)}" for name, value in line.items() if value is not None or name in _NULLABLE
    ]
    prefix = {"record": "| ", "message": "| ", "damage": "DAMAGED "}.get(kind, "")
    return prefix + " ".join(words)


_NULLABLE = ("key", "value")


def bytes_value(data: bytes | None) -> str | dict[str, str] | None:
    """Text where it is UTF-8, else an object with the bytes in base64."""
    if data is None:
        return None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode("ascii")}


def _word(value: Any) -> str:
    """A value on one line: whatever a record holds, it cannot begin a line or steer the terminal."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "null"
    if isinstance(value, str):
        return value if value.isprintable() else "".join(_visible(character) for character in value)
    if isinstance(value, dict):
        return f"base64:{value['base64']}"
    if isinstance(value, list):
        return "[" + ", ".join(f"{_word(name)}={_word(content)}" for name, content in value) + "]"
    return str(value)


def _visible(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
