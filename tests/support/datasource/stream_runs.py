"""Streaming queries on one checkpoint each, run again and again, and what their batches were."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.datasource.both_connectors import OURS, THEIRS, Both, Row, brief, load_stream, rows_of

_SECONDS = 120

Offsets = dict[str, dict[str, int]]


class Batch(NamedTuple):
    """One batch: the offsets where it ends, and the rows of each of its tasks; then what Spark told of it."""

    end: Offsets
    tasks: list[list[Row]]
    latest: Offsets | None
    """Where the logs ended."""

    metrics: dict[str, str]
    """Of the source."""

    @property
    def rows(self) -> list[Row]:
        """All rows, by topic, partition and offset."""
        return [row for task in self.tasks for row in task]


class StreamRuns:
    """*Not thread-safe.* A query that reads from one source and keeps the same checkpoint.

    ``query_id`` is Spark's, once it has run.
    """

    def __init__(
        self, spark: Any, source: str, servers: str, checkpoint: Path, options: Mapping[str, object]
    ) -> None:
        self.query_id = ""
        self._spark, self._source, self._servers = spark, source, servers
        self._checkpoint = checkpoint
        self._options = dict(options)
        self._seen: dict[int, list[list[Row]]] = {}
        self._query: Any = None

    def run(self, **trigger: Any) -> list[Batch]:
        """Run until all that is there is read; its batches, but those without rows.

        Raises what the query ends with.
        """
        with self.running(**(trigger or {"availableNow": True})):
            assert self._query.awaitTermination(_SECONDS), f"{self._source} does not end"
            found = self.batches()
            assert len(found) == len([tasks for tasks in self._seen.values() if tasks])
            return found

    @contextmanager
    def running(self, **trigger: Any) -> Iterator[None]:
        """The query runs, with this trigger, until this ends."""
        self._seen = {}
        frame = load_stream(self._spark, self._source, self._servers, self._options)
        writer = frame.writeStream.foreachBatch(self._take).trigger(**trigger)
        self._query = writer.option("checkpointLocation", str(self._checkpoint)).start()
        self.query_id = str(self._query.id)
        try:
            yield
        finally:
            self._query.stop()

    def batches(self) -> list[Batch]:
        """The batches with rows that this run has finished."""
        told = {each["batchId"]: each for each in map(_parsed, self._query.recentProgress)}
        return [_batch(told[n], tasks) for n, tasks in sorted(self._seen.items()) if tasks and n in told]

    def _take(self, frame: Any, number: int) -> None:
        self._seen[number] = rows_of(frame)


class BothStreams:
    """*Not thread-safe.* The same query by Spark's connector and by ours, each with its own checkpoint."""

    def __init__(self, both: Both, directory: Path, **options: object) -> None:
        told = {"startingOffsets": "earliest", "includeHeaders": "true", **options}
        # Spark keeps where a query began in its checkpoint, which a Python source is not shown.
        kept = {"offsetsPath": str(directory / "starts"), "streamName": "parity"}
        self.theirs, self.ours = (
            StreamRuns(both.spark, source, both.servers, directory / source, told | more)
            for source, more in ((THEIRS, {}), (OURS, kept))
        )

    def run(self, **trigger: object) -> list[Batch]:
        """The batches of a run, which are those of both. Raises what both end with, if both fail."""
        theirs, ours = self.outcomes(**trigger)
        assert not isinstance(theirs, str), brief(theirs)
        assert not isinstance(ours, str), brief(ours)
        return same(theirs, ours)

    def outcomes(self, **trigger: object) -> tuple[list[Batch] | str, list[Batch] | str]:
        """The batches of each, Spark's first, or the text of the error where one fails."""

        def outcome(runs: StreamRuns) -> list[Batch] | str:
            try:
                return runs.run(**trigger)
            except Exception as e:
                return f"{type(e).__name__}: {e}"

        with ThreadPoolExecutor(2) as pool:
            theirs, ours = pool.map(outcome, (self.theirs, self.ours))
        return theirs, ours


def same(theirs: list[Batch], ours: list[Batch]) -> list[Batch]:
    """Those of ours, after a look at whether both have the same offsets and rows."""
    assert [batch.end for batch in ours] == [batch.end for batch in theirs]
    assert [batch.tasks for batch in ours] == [batch.tasks for batch in theirs]
    assert [batch.latest for batch in ours] == [batch.latest for batch in theirs]
    return ours


def _parsed(progress: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(progress.json)
    return found


def _batch(told: Mapping[str, Any], tasks: list[list[Row]]) -> Batch:
    (source,) = told["sources"]
    latest = source.get("latestOffset")
    return Batch(
        _plain(source["endOffset"]),
        tasks,
        None if latest is None else _plain(latest),
        source.get("metrics") or {},
    )


def _plain(offset: dict[str, Any]) -> Offsets:
    """Without what ours keeps beside the offsets."""
    found: Offsets = offset.get("offsets", offset)
    return found
