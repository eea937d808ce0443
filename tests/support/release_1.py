"""The data in ``tests/data/release-1``: see the README there."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

RELEASE_1 = Path(__file__).parents[1] / "data" / "release-1"
WRITTEN_AT = Path("/tmp/kafkalog-release-1")
"""Where it lay when it was written: commits name their outputs by absolute paths."""

LEDGERS = ("flights", "losses", "old", "small", "warehouse")

BROKER_PROPERTIES: dict[str, object] = {
    "listeners": "PLAINTEXT://127.0.0.1:0,KAFKA07://127.0.0.1:0",
    "node.id": 3,
    "log.retention.ms": -1,
    "log.segment.bytes": 700,
    "log.flush.interval.messages": 1,
    "offsets.topic.num.partitions": 2,
    "offsets.retention.minutes": 2_000_000_000 // 60_000,
    "producer.id.expiration.ms": 2_000_000_000,
    "num.partitions": 2,
    "transaction.state.log.num.partitions": 1,
}
"""Those that the broker had."""


def facts() -> dict[str, Any]:
    """What nobody could choose when it was written."""
    found: dict[str, Any] = json.loads((RELEASE_1 / "facts.json").read_text())
    return found


def lines(name: str) -> list[dict[str, Any]]:
    """The objects in a file of JSON lines."""
    return [json.loads(line) for line in (RELEASE_1 / name).read_text().splitlines()]


def copied(name: str, directory: Path) -> Path:
    """A copy of a directory or file, below ``directory``, that a test may change."""
    source, target = RELEASE_1 / name, directory / name
    if source.is_dir():
        shutil.copytree(source, target)
    else:
        shutil.copy(source, target)
    return target
