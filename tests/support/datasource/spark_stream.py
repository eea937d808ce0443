"""Drives a stream reader as Spark does, without Spark: the same calls in the same order, and a checkpoint.

The order is that of Spark's micro-batches: a run that finds a batch planned and not committed repeats it
first; ``commit`` of a batch comes while the next one is planned; the start of the first batch is not kept.
"""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pyspark.sql.streaming.datasource import ReadAllAvailable

from pyspark_kafkalog.datasource.options.read_options import parse_stream_options
from pyspark_kafkalog.datasource.options.row_schema import column_names
from pyspark_kafkalog.datasource.stream.stream_reader import StreamReader

QUICK = {
    "fetchOffset.retryIntervalMs": "1", "fetchOffset.numRetries": "3", "kafka.retry.backoff.ms": "1",
    "kafkaConsumer.pollTimeoutMs": "10000",
}  # fmt: skip


class Died(Exception):
    """The run ends here, as with its process."""


class Row(NamedTuple):
    """A row, as far as most tests look at it."""

    topic: str
    partition: int
    offset: int
    value: str


@dataclass
class Checkpoint:
    """What Spark keeps: the end of each batch as text, and how many are committed."""

    ends: list[str] = field(default_factory=list)
    committed: int = 0

    def copy(self) -> Checkpoint:
        return copy.deepcopy(self)

    def end(self, batch: int = -1) -> dict[str, Any]:
        """The offsets in which a batch ended, by topic."""
        return json.loads(self.ends[batch])["offsets"]


@dataclass
class Batch:
    """One batch that was run."""

    number: int
    rows: list[Row]
    tasks: int
    latest: dict[str, Any] | None
    """What was reported as the newest offsets."""

    @property
    def values(self) -> list[int]:
        return sorted(int(row.value) for row in self.rows)


class Run:
    """One run of a query: a new reader on a checkpoint. *Not thread-safe.*"""

    def __init__(
        self,
        options: Mapping[str, str],
        checkpoint: Checkpoint,
        *,
        trigger: str = "processing",
        columns: Sequence[str] | None = None,
    ) -> None:
        self._options = {**QUICK, **options}
        parsed = parse_stream_options(self._options)
        self._columns = columns or column_names(
            None, include_headers=parsed.include_headers, include_broker=parsed.include_broker
        )
        self.reader = StreamReader(parsed, self._columns)
        self.checkpoint, self._trigger = checkpoint, trigger
        self._begun = False
        self.tables: list[Any] = []
        """The record batches of every row that was read."""

    def batches(self, most: int = 50) -> list[Batch]:
        """Run until there is nothing to read: with Trigger.AvailableNow, the whole query."""
        found = []
        while (batch := self.batch()) is not None:
            found.append(batch)
            assert len(found) <= most, "the query does not come to an end"
        return found

    def batch(self, *, dies: str = "") -> Batch | None:
        """The next batch, a repeated one first; None where there is nothing to read.

        ``dies`` ends the run ``planning`` (before the end is written), ``running`` (before the batch is read)
        or ``committing`` (after).
        """
        if not self._begun:
            self._begin()
            if len(self.checkpoint.ends) > self.checkpoint.committed:
                number = len(self.checkpoint.ends) - 1
                start = self.checkpoint.ends[number - 1] if number else _text(self.reader.initialOffset())
                return self._run(start, self.checkpoint.ends[-1], dies)
        return self._next(dies)

    def rows(self) -> list[Row]:
        """The rows of all batches from here on."""
        return [row for batch in self.batches() for row in batch.rows]

    def _begin(self) -> None:
        self._begun = True
        if self._trigger == "available_now":
            self.reader.prepareForTriggerAvailableNow()
        once = self._trigger == "once"
        # As through the JVM: a limit is made anew from its fields.
        self._limit = ReadAllAvailable() if once else copy.copy(self.reader.getDefaultReadLimit())

    def _next(self, dies: str) -> Batch | None:
        ends = self.checkpoint.ends
        start = ends[-1] if ends else _text(self.reader.initialOffset())
        end = _text(self.reader.latestOffset(json.loads(start), self._limit))
        self._latest = self.reader.reportLatestOffset()
        if ends and end == start:
            return None
        if dies == "planning":
            raise Died
        if ends:
            self.reader.commit(json.loads(start))
        else:
            assert _text(self.reader.initialOffset()) == start
        ends.append(end)
        return self._run(start, end, dies)

    def _run(self, start: str, end: str, dies: str) -> Batch:
        if dies == "running":
            raise Died
        tasks = self.reader.partitions(json.loads(start), json.loads(end))
        rows = [row for task in tasks for row in self._read(task)]
        if dies == "committing":
            raise Died
        self.checkpoint.committed = len(self.checkpoint.ends)
        return Batch(self.checkpoint.committed - 1, rows, len(tasks), getattr(self, "_latest", None))

    def _read(self, task: Any) -> list[Row]:
        # A task has a reader of its own, made from the options, and its partition as it was pickled.
        reader = pickle.loads(pickle.dumps(StreamReader(parse_stream_options(self._options), self._columns)))
        batches = list(reader.read(pickle.loads(pickle.dumps(task))))
        self.tables += batches
        if not {"topic", "partition", "offset", "value"} <= set(self._columns):
            return []
        columns = [[b.column(name).to_pylist() for b in batches] for name in Row._fields]
        merged = [[item for part in column for item in part] for column in columns]
        return [
            Row(topic, partition, offset, "" if value is None else value.decode())
            for topic, partition, offset, value in zip(*merged, strict=True)
        ]


def _text(offset: dict[str, Any]) -> str:
    return json.dumps(offset)
