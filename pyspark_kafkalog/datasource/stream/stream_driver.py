"""The driver's side of a stream: its start, its limits, and its batches. Spark stores the end of each batch
in its checkpoint and passes it back; `stream_offsets` stores the first batch's start, which Spark does not.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from msgspec.structs import replace

from pyspark_kafkalog.clock import SYSTEM_CLOCK, Clock
from pyspark_kafkalog.datasource.batch.batch_reader import KafkaInputPartition, tasks_of, together
from pyspark_kafkalog.datasource.options.topics_and_offsets import OffsetsByPartition, is_reproducible
from pyspark_kafkalog.datasource.reading.kafka import open_cluster
from pyspark_kafkalog.datasource.reading.source_cluster import SourceCluster
from pyspark_kafkalog.datasource.reading.start_positions import locate_start
from pyspark_kafkalog.datasource.stream.stream_batches import (
    NO_LIMITS,
    BatchLimits,
    Offsets,
    OffsetsLost,
    Trigger,
    check_fixed_end,
    losses,
    ranges_between,
    share_limit,
    start_not_kept,
)
from pyspark_kafkalog.datasource.stream.stream_offsets import StartKeeper, StreamOffset, keeper_for
from pyspark_kafkalog.errors import KafkaError, UnknownTopicOrPartition
from pyspark_kafkalog.types import EARLIEST_OFFSET, LATEST_OFFSET, NO_BROKER, TopicPartition

if TYPE_CHECKING:
    from pyspark_kafkalog.datasource.options.option_definitions import StreamOptions

log = logging.getLogger(__name__)


class StreamDriver:
    """*Not thread-safe.* One run of a query's source. Its connections may last as long as the process."""

    def __init__(
        self,
        options: StreamOptions,
        *,
        open_source: Callable[[StreamOptions], SourceCluster] = open_cluster,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._options, self._open, self._clock = options, open_source, clock
        self._opened: SourceCluster | None = None
        self._keeper: StartKeeper | None = keeper_for(options, lambda: self._cluster)
        self._trigger = Trigger(options.max_delay_ms, clock)
        self._initial: StreamOffset | None = None
        self._fixed_end: StreamOffset | None = None
        self.newest: StreamOffset | None = None
        """The logs' last known ends."""
        self._leaders: dict[TopicPartition, int] = {}
        self._away: frozenset[TopicPartition] = frozenset()
        self._position: StreamOffset | None = None
        """The end of this run's last batch, for Spark before 4.2, which does not pass it."""
        self._asked = self._planned = False
        """Whether Spark called `latest` in this run, and whether this run planned a batch."""
        self._committed: StreamOffset | None = None

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()
        self._opened = None

    def fix_end(self) -> None:
        """Read only to the logs' current ends (Trigger.AvailableNow)."""
        self._fixed_end = self._look({})

    def initial(self) -> StreamOffset:
        """The start of the first batch: the same in this run, and in another run that repeats that batch."""
        if self._initial is None:
            partitions = sorted(self._cluster.leaders())
            kept = self._keeper.kept(partitions) if self._keeper is not None else None
            if kept is not None:
                log.info("the query begins where an earlier run, which finished no batch, began")
                self._initial = kept
            else:
                self._initial = self._keep(self._resolve(partitions))
            self._position = self._initial
        return self._initial

    def latest(self, start: StreamOffset | None, limits: BatchLimits = NO_LIMITS) -> StreamOffset:
        """The end of the batch that begins at ``start``; ``start`` itself if there is nothing to read yet.
        Spark before 4.2 passes no ``start``: then it is the end of this run's last batch, and the first
        batch, requested before `initial`, has no limits. Raises `OffsetsLost` with ``failOnDataLoss``.
        """
        begin = self._position if start is None else start
        if begin is not None and (self._planned or begin != self._initial):
            self.finished(begin)  # Spark asks for the batch after it
        self._asked = True
        known = {} if begin is None else begin.offsets
        self.newest = found = self._look(known) if self._fixed_end is None else self._fixed_end
        if begin is None:
            if limits != NO_LIMITS:
                log.warning(
                    "the first batch of this run has no limit: Spark before 4.2 does not pass its start"
                )
            return found
        ends = self._with_brokers_away(begin.offsets, found.offsets)
        starts = begin.continued(found)
        new = self._earliest_of_new(starts, ends)
        if self._options.fail_on_data_loss:
            self._report(begin, replace(found, offsets=ends), new)
        starts |= new
        ends = {p: end for p, end in ends.items() if p in starts}
        if not ends:
            # An offset without partitions would make all later ones new.
            return begin
        if self._fixed_end is None and not self._trigger.fires(limits.least, starts, ends):
            return begin
        if limits.most is not None:
            ends = share_limit(limits.most, starts, ends)
        if ends == begin.offsets and not begin.recreated(found):
            return begin  # also in another form, as that of Spark's own connector
        ids = begin.topic_ids | found.topic_ids
        return StreamOffset(ends, {t: ids[t] for t in sorted({p.topic for p in ends} & ids.keys())})

    def plan(self, start: StreamOffset, end: StreamOffset) -> list[KafkaInputPartition]:
        repeated, now = not self._asked, None
        if repeated or self._fixed_end is not None:
            now = self._look(end.offsets)
        elif not end.offsets.keys() <= self._leaders.keys():
            self._leaders = dict(self._cluster.leaders(missing_ok=True))
        if now is not None and self._fixed_end is not None and not repeated:
            check_fixed_end(end.offsets, self._fixed_end.offsets, now.offsets)
        gone = start.offsets.keys() - end.offsets.keys()
        if repeated and start == self._initial:
            # An unstored start of the first batch was resolved again; there may be new partitions.
            gone = gone - self._leaders.keys()
            self._raise_or_log(start_not_kept(start.offsets, end.offsets))
            before = {p: min(offset, end.offsets.get(p, offset)) for p, offset in start.offsets.items()}
            start = replace(start, offsets=before)
        starts = start.continued(end)
        new = self._earliest_of_new(starts, end.offsets)
        self._report(start, end, new, gone)
        self._planned, self._position = True, end
        ends = end.offsets if now is None else self._left(end, now)
        ranges = self._cluster.split(ranges_between(starts, ends, new))
        tasks = tasks_of(self._cluster, ranges, self._leaders, end.topic_ids)
        return together(tasks, self._options.per_task)

    def finished(self, end: StreamOffset) -> None:
        if self._keeper is not None:
            self._keeper.spend()
        group = self._options.group_id
        if not self._options.commits_group or group is None or end == self._committed:
            return
        try:
            self._cluster.commit_group(group, end.offsets)
            self._committed = end
        except KafkaError as e:
            text = "the offsets of this query are not committed to group %s (the next batch's will be): %s"
            log.warning(text, group, e)

    @property
    def _cluster(self) -> SourceCluster:
        if self._opened is None:
            self._opened = self._open(self._options)
        return self._opened

    def _resolve(self, partitions: list[TopicPartition]) -> StreamOffset:
        ids = self._cluster.topic_ids(partitions)
        asked = locate_start(self._options, self._cluster, partitions)
        # "latest" means an end that Spark got before (AvailableNow, or Spark before 4.2).
        fixed = self._fixed_end or self.newest or StreamOffset({})
        asked = {p: fixed.offsets.get(p, o) if o == LATEST_OFFSET else o for p, o in asked.items()}
        found = dict(self._cluster.resolve(asked))
        self._cluster.check_positions(found)
        return StreamOffset(found, {topic: fixed.topic_ids.get(topic, id) for topic, id in ids.items()})

    def _keep(self, start: StreamOffset) -> StreamOffset:
        if self._keeper is not None:
            return self._keeper.keep(start)
        if not is_reproducible(self._options.start):
            log.warning(
                "startingOffsets is resolved now and kept nowhere: if the query dies in its first batch, the "
                "next run resolves it again, and may leave out or repeat rows of that batch. offsetsPath and "
                "streamName, or commitOffsets=group with kafka.group.id, keep it"
            )
        return start

    def _look(self, known: Offsets) -> StreamOffset:
        """The logs' current ends; asks again if outdated metadata may have shortened the ``known`` ones."""
        left = self._options.offset_retries
        while True:
            try:
                leaders = dict(self._cluster.leaders(missing_ok=True))
                # Before the ends: those of a recreated topic with its former id are noticed by the next look.
                ids = self._cluster.topic_ids(leaders)
                ends = dict(self._cluster.resolve(dict.fromkeys(leaders, LATEST_OFFSET)))
                shorter = (p.broker == NO_BROKER and ends.get(p, -1) < o for p, o in known.items())
                if left == 0 or not any(shorter):
                    self._leaders = leaders
                    return StreamOffset(ends, ids)
            except UnknownTopicOrPartition:
                # Deleted between two requests.
                if left == 0:
                    raise
            left -= 1
            self._clock.sleep(self._options.offset_retry_interval_ms / 1000)

    def _with_brokers_away(self, start: Offsets, ends: Offsets) -> OffsetsByPartition:
        """In 0.7 partitions come and go with their broker: while it is away they keep their offsets."""
        away = frozenset(p for p in start if p.broker != NO_BROKER and p not in ends)
        if away != self._away and away:
            log.warning("brokers are away, their partitions wait: %s", ", ".join(map(str, sorted(away))))
        self._away = away
        return {**ends, **{p: start[p] for p in away}}

    def _left(self, end: StreamOffset, now: StreamOffset) -> OffsetsByPartition:
        """What can still be read of a batch that was planned earlier: its ends, within the logs' ends."""
        logs = self._with_brokers_away(end.offsets, now.offsets)
        there = {p: logs[p] for p in end.offsets.keys() & logs.keys()}
        self._report(end, replace(now, offsets=there), {})
        return {p: min(offset, there[p]) for p, offset in end.continued(now).items() if p in there}

    def _earliest_of_new(self, start: Offsets, end: Offsets) -> OffsetsByPartition:
        new = [p for p in sorted(end.keys() - start.keys()) if p in self._leaders]
        if not new:
            return {}
        try:
            return dict(self._cluster.resolve(dict.fromkeys(new, EARLIEST_OFFSET)))
        except UnknownTopicOrPartition:
            there = self._cluster.leaders(missing_ok=True)
            return dict(self._cluster.resolve({p: EARLIEST_OFFSET for p in new if p in there}))

    def _report(
        self,
        start: StreamOffset,
        end: StreamOffset,
        new: Offsets,
        gone: Collection[TopicPartition] | None = None,
    ) -> None:
        gone = start.offsets.keys() - end.offsets.keys() if gone is None else gone
        self._raise_or_log(losses(start, end, new, gone=gone, group=self._options.group_id))

    def _raise_or_log(self, found: list[OffsetsLost]) -> None:
        for loss in found:
            if self._options.fail_on_data_loss:
                raise loss
            log.warning("%s", loss)
