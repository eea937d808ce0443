"""Reports how far a stream is behind after each batch, and commits each batch's end to a group. Spark tells
sources of a finished batch only when it plans the next, but listeners at once, also in Spark Connect.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import TYPE_CHECKING

import msgspec
from pyspark.sql.streaming.listener import StreamingQueryListener

from pyspark_kafkalog.datasource.options.option_definitions import StreamOptions
from pyspark_kafkalog.datasource.options.read_options import parse_stream_options
from pyspark_kafkalog.datasource.options.topics_and_offsets import OffsetsByPartition, covers
from pyspark_kafkalog.datasource.reading.kafka import open_cluster
from pyspark_kafkalog.datasource.stream.stream_offsets import decode_offsets
from pyspark_kafkalog.errors import InvalidConfig, KafkaError

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

log = logging.getLogger(__name__)

_KEPT = 1000
"""Sources whose last lag is kept; the one reported longest ago is dropped first."""


class SourceLag(msgspec.Struct, frozen=True):
    """Unread offsets per partition of one source after a batch.

    ``source`` is its number in the query, from 0 on. The three counts are the metrics of Spark's own
    connector, ``minOffsetsBehindLatest`` and so on.
    """

    query_id: str
    query_name: str | None
    batch_id: int
    source: int
    min_offsets_behind: int
    max_offsets_behind: int
    avg_offsets_behind: float


class LagListener(StreamingQueryListener):
    """*Thread-safe.* For ``spark.streams.addListener``: reports the lag of every kafkalog stream.

    With ``commit``, the options of a stream with ``kafka.group.id``, it commits the end of each of its
    batches to that group, including the last one, which the stream itself cannot commit.
    """

    def __init__(
        self,
        on_lag: Callable[[SourceLag], object] | None = None,
        *,
        commit: Mapping[str, str] | None = None,
        query: str | None = None,
    ) -> None:
        """``on_lag`` is called after each batch, in a Spark thread; ``query`` selects queries by name.

        Raises `InvalidConfig` if ``commit`` is not a stream's options, or names no group.
        """
        self._on_lag, self._query = on_lag, query
        self._commit = None if commit is None else parse_stream_options(commit)
        if self._commit is not None and self._commit.group_id is None:
            raise InvalidConfig(
                "commit needs kafka.group.id: the group to which the stream's offsets are committed"
            )
        self._lock = threading.Lock()
        self._lags: dict[tuple[str, int], SourceLag] = {}

    def lags(self) -> list[SourceLag]:
        with self._lock:
            return list(self._lags.values())

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Called by Spark after each batch. Failures are only logged: Spark ignores exceptions."""
        progress = event.progress
        if self._query is not None and progress.name != self._query:
            return
        reached: OffsetsByPartition = {}
        for number, source in enumerate(progress.sources):
            end = _offsets_in(source.endOffset)
            if end is None:
                continue
            reached |= end
            behind = lag_between(end, _offsets_in(source.latestOffset))
            if behind is not None:
                self._report(SourceLag(str(progress.id), progress.name, progress.batchId, number, *behind))
        if self._commit is not None:
            _commit(self._commit, reached)

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """Does nothing."""

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Does nothing."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Does nothing: the last lag stays."""

    def _report(self, lag: SourceLag) -> None:
        with self._lock:
            key = (lag.query_id, lag.source)
            self._lags.pop(key, None)
            self._lags[key] = lag
            while len(self._lags) > _KEPT:
                del self._lags[next(iter(self._lags))]
        if self._on_lag is not None:
            try:
                self._on_lag(lag)
            except Exception:
                log.exception("on_lag failed")


def lag_between(end: OffsetsByPartition, latest: OffsetsByPartition | None) -> tuple[int, int, float] | None:
    """Minimum, maximum and average unread offsets of a partition, or None. Unread partitions count whole."""
    behind = [max(0, there - end.get(p, 0)) for p, there in (latest or {}).items()]
    return (min(behind), max(behind), sum(behind) / len(behind)) if behind else None


def _offsets_in(text: str | None) -> OffsetsByPartition | None:
    try:
        value = json.loads(text or "null")
        return decode_offsets(value).offsets if isinstance(value, dict) and "version" in value else None
    except (ValueError, InvalidConfig):
        return None


def _commit(options: StreamOptions, reached: OffsetsByPartition) -> None:
    positions = {p: offset for p, offset in reached.items() if covers(options.subscription, p)}
    if not positions or options.group_id is None:
        return
    try:
        with closing(open_cluster(options)) as cluster:
            cluster.commit_group(options.group_id, positions)
    except KafkaError as e:
        log.warning("the offsets of a batch are not committed to group %s: %s", options.group_id, e)
