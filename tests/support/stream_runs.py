"""One streaming query on one checkpoint, run again and again, and what its batches were."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.both_connectors import Row, load_stream, rows_of

_SECONDS = 120

Offsets = dict[str, dict[str, int]]


class Batch(NamedTuple):
    """One batch: the offsets where it ends, and the rows of each of its tasks."""

    end: Offsets
    tasks: list[list[Row]]

    @property
    def rows(self) -> list[Row]:
        """All rows, by topic, partition and offset."""
        return [row for task in self.tasks for row in task]


class StreamRuns:
    """*Not thread-safe.* A query that reads from one source and keeps the same checkpoint."""

    def __init__(
        self, spark: Any, source: str, servers: str, checkpoint: Path, options: Mapping[str, object]
    ) -> None:
        self._spark, self._source, self._servers = spark, source, servers
        self._checkpoint = checkpoint
        self._options = dict(options)
        self._seen: dict[int, list[list[Row]]] = {}

    def run(self, **trigger: Any) -> list[Batch]:
        """Run until all that is there is read; its batches, but those without rows.

        Raises what the query ends with.
        """
        self._seen = {}
        frame = load_stream(self._spark, self._source, self._servers, self._options)
        writer = frame.writeStream.foreachBatch(self._take).trigger(**(trigger or {"availableNow": True}))
        query = writer.option("checkpointLocation", str(self._checkpoint)).start()
        try:
            assert query.awaitTermination(_SECONDS), f"{self._source} does not end"
            told = [json.loads(each.json) for each in query.recentProgress]
        finally:
            query.stop()
        ends = {each["batchId"]: each["sources"][0]["endOffset"] for each in told}
        return [
            # Without what ours keeps beside the offsets.
            Batch(ends[n].get("offsets", ends[n]), tasks)
            for n, tasks in sorted(self._seen.items())
            if tasks
        ]

    def _take(self, frame: Any, number: int) -> None:
        self._seen[number] = rows_of(frame)
