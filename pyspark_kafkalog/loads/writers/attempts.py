"""What tasks say of their files: a line for each, and a last one when all of them are durable."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import msgspec

from pyspark_kafkalog.ledger.commit import OutputFile
from pyspark_kafkalog.loads.writers.parquet_files import WrittenFile

Said = list[dict[str, Any]]
"""The lines of an attempt: the last one has ``end``."""


def line_of(index: int, attempt: str, **said: Any) -> str:
    return json.dumps({"range": index, "attempt": attempt, **said}, separators=(",", ":"))


def lines_of(index: int, attempt: str, files: Iterable[WrittenFile], kind: str = "file") -> list[str]:
    return [line_of(index, attempt, **{kind: msgspec.to_builtins(file)}) for file in files]


def ended_attempts(lines: Iterable[str], count: int) -> list[list[Said]]:
    """Of each of ``count`` tasks the attempts that came to their end."""
    said: dict[int, dict[str, Said]] = defaultdict(lambda: defaultdict(list))
    for line in lines:
        one = json.loads(line)
        said[one["range"]][one["attempt"]].append(one)
    return [[lines for lines in said[index].values() if "end" in lines[-1]] for index in range(count)]


def files_of(said: Said, kind: str = "file") -> list[WrittenFile]:
    return [msgspec.convert(one[kind], WrittenFile) for one in said if kind in one]


def files_noted(files: Iterable[WrittenFile]) -> tuple[OutputFile, ...]:
    """As a commit lists them."""
    noted = [OutputFile(one.name, one.bytes, one.rows, one.crc32c) for one in files]
    return tuple(sorted(noted, key=lambda file: file.name))
