"""The record sets of foreign clients in ``tests/data/vectors``, with what its manifest says of them."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark_kafkalog.types import Header

DIRECTORY = Path(__file__).parents[2] / "data" / "vectors"


@dataclass(frozen=True)
class VectorRecord:
    """One record as the manifest has it."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]


@dataclass(frozen=True)
class Vector:
    """One file and its manifest entry; ``batches`` are the manifest's own dictionaries."""

    file: str
    data: bytes
    sha256: str
    trailing_bytes: int
    batches: list[dict[str, Any]]

    def records(self, batch: dict[str, Any]) -> list[VectorRecord]:
        return [
            VectorRecord(
                entry["offset"],
                entry["timestamp"],
                _decoded(entry["key_b64"]),
                _decoded(entry["value_b64"]),
                tuple((name, _decoded(value)) for name, value in entry.get("headers") or ()),
            )
            for entry in batch["records"]
        ]


def vectors(*prefixes: str) -> list[Vector]:
    """The vectors whose file names begin with one of ``prefixes``."""
    manifest = json.loads((DIRECTORY / "manifest.json").read_text())
    return [
        Vector(
            entry["file"],
            (DIRECTORY / entry["file"]).read_bytes(),
            entry["sha256"],
            entry["trailing_bytes"],
            entry["batches"],
        )
        for entry in manifest["vectors"]
        if entry["file"].startswith(prefixes)
    ]


def vector(file: str) -> Vector:
    """The vector in this file."""
    (found,) = (v for v in vectors("") if v.file == file)
    return found


def _decoded(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)
