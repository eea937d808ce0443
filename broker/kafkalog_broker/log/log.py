"""The log of one partition: one writer at a time, any number of readers."""

from __future__ import annotations

import logging
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import takewhile
from pathlib import Path

from kafkalog_broker.config.broker_config import LogConfig
from kafkalog_broker.disk.data_directory import DataDirectory
from kafkalog_broker.log import retention
from kafkalog_broker.log.aborted_transactions import AbortedTransaction, aborted_in
from kafkalog_broker.log.cleaning.swap import Swap
from kafkalog_broker.log.family import (
    AppendResult,
    CheckedBatch,
    KnownProducer,
    LogTools,
    NewestBatch,
    Producers,
    rewritten,
)
from kafkalog_broker.log.file_slice import NOTHING, FileSlice
from kafkalog_broker.log.recovery import CleanState, Loaded, cleaned_segment, new_segment
from kafkalog_broker.log.segment import Segment, newest_record
from kafkalog_broker.log.segment_list import ListFile
from pyspark_kafkalog.errors import OffsetOutOfRange, StorageError, UnknownTopicOrPartition
from pyspark_kafkalog.formats.batch import ControlType, encode_control
from pyspark_kafkalog.types import NO_TIMESTAMP, TimestampType, TopicPartition

_logger = logging.getLogger(__name__)

Guard = AbstractContextManager[object]
_UNGUARDED: Guard = nullcontext()

_NUMBERINGS = 3
"""Attempts to number a set outside the log's lock while other appends move the log's end."""


class Log:
    """*Thread-safe.* Readers take no lock: they see an immutable tuple of segments and a published end.
    ``_lock`` guards appends; ``_maintenance``, taken before it, flushes and retention.
    """

    def __init__(
        self,
        topic_partition: TopicPartition,
        path: Path,
        segments: list[Segment],
        config: LogConfig,
        directory: DataDirectory,
        tools: LogTools,
        *,
        flushed_offset: int,
        segment_list: ListFile,
        leader_epoch: int = 0,
    ) -> None:
        """``flushed_offset``: records below it are durable. ``leader_epoch``: written into every batch; it is
        this log's for good, as a new owner's log is new.
        """
        self.topic_partition = topic_partition
        self.path = path
        self.config = config
        self.directory = directory
        self.leader_epoch = leader_epoch
        self._tools = tools
        self.family = tools.family
        self._producers = tools.family.producers(path, tools.files, tools.producer_expiration_ms)
        self.segments: tuple[Segment, ...] = tuple(segments)
        self.start_offset = max(segments[0].base_offset, segment_list.start_offset)
        """First readable offset, maybe inside the first segment. Set before ``segments``, and read after."""
        self.end_offset = segments[-1].next_offset
        """Offset of the next record to append; without replicas also the high watermark."""
        self.first_open: int | None = None
        """Where the oldest open transaction begins."""
        """First offset of the oldest open transaction; set before the end, which readers read first."""
        self.flushed_offset = min(flushed_offset, self.end_offset)
        # Data left by a crash may only be in the page cache; sync it as if just appended.
        lost_track = self.flushed_offset < self.end_offset
        self._unflushed_since: float | None = tools.clock.monotonic() if lost_track else None
        self._unflushed_count = 0
        self._name_number = directory.name_made()
        self._durable_name: Segment | None = None
        """Newest segment whose file name is durable; the names of earlier segments are too."""
        self._list = segment_list
        self._swap: Swap | None = None
        self._closed: Callable[[], Exception] | None = None
        self._lock = threading.RLock()
        self._maintenance = threading.Lock()

    def __repr__(self) -> str:
        return f"Log({self.topic_partition}, [{self.start_offset}, {self.end_offset}))"

    @property
    def readable_end(self) -> int:
        """Offset where readers stop: the end, or for 0.7 the flushed end."""
        return self.family.scheme.readable_end(self.end_offset, self.flushed_offset)

    @property
    def last_stable_offset(self) -> int:
        """Where ``read_committed`` readers stop: the oldest open transaction, else the end."""
        end_offset = self.end_offset
        first_open = self.first_open
        return end_offset if first_open is None else min(end_offset, max(first_open, self.start_offset))

    @property
    def cleaned_offset(self) -> int:
        return self._list.cleaned_offset

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self.segments)

    @property
    def segment_count(self) -> int:
        return len(self.segments)

    def append(
        self,
        data: bytearray | memoryview | bytes,
        *,
        internal: bool = False,
        guard: Guard | None = None,
        at_once: bool = False,
    ) -> AppendResult:
        """Append whole batches, numbering them in place, or 0.7 messages; all or none. ``internal``: the
        broker's own, without sequence check. ``guard`` is entered before the lock and left after the write.
        """
        given = memoryview(bytearray(data) if isinstance(data, bytes) else data)
        config = self.config
        now_ms = self._tools.clock.time_ns() // 1_000_000  # one call less than time_ms
        view, batches = self.family.check(given, config, now_ms, internal=internal, at_once=at_once)
        numbered_from = None
        if not internal and self.family.takes_long(given, config):
            # Others append meanwhile; number under the lock only if they keep moving the end.
            for _ in range(_NUMBERINGS):
                if numbered_from == self.end_offset:
                    break
                numbered_from = self.end_offset
                now_ms = self._tools.clock.time_ms()
                append_time = now_ms if config.timestamp_type is TimestampType.LOG_APPEND_TIME else None
                view, batches = self.family.number(
                    view, batches, numbered_from, append_time, self.leader_epoch
                )
        return self._append(
            given, view, batches, config, now_ms, numbered_from, guard=guard, in_sequence=not internal
        )

    def end_transaction(self, producer_id: int, producer_epoch: int, *, commit: bool) -> int:
        """Append a producer's commit or abort marker; returns its size."""
        config, now_ms = self.config, self._tools.clock.time_ms()
        kind = ControlType.COMMIT if commit else ControlType.ABORT
        marker = bytearray(
            encode_control(kind, producer_id=producer_id, producer_epoch=producer_epoch, timestamp=now_ms)
        )
        view, batches = self.family.check(memoryview(marker), config, now_ms, internal=True, at_once=False)
        self._append(view, view, batches, config, now_ms, None, in_sequence=False, marker=kind)
        return len(view)

    def check_epoch(self, producer_id: int, producer_epoch: int) -> None:
        """Raise `InvalidProducerEpoch` if the producer has written with a later epoch; or `StorageError`."""
        with self._loaded_producers() as producers:
            producers.check_epoch(producer_id, producer_epoch)

    def open_transactions(self) -> list[KnownProducer]:
        if self.first_open is None:
            return []
        return [producer for producer in self.known_producers() if producer.open_offset >= 0]

    def known_producers(self) -> list[KnownProducer]:
        with self._loaded_producers() as producers:
            return producers.known()

    def newest_batches(self) -> dict[int, NewestBatch]:
        """Newest batch of each known producer, which must stay in the log. Raises `StorageError`."""
        with self._loaded_producers() as producers:
            return producers.newest()

    @contextmanager
    def _loaded_producers(self) -> Iterator[Producers]:
        with self._lock:
            self._check_open()
            if not self._producers.loaded:
                self.load_producers()
            yield self._producers

    def takes_long(self, data: memoryview) -> bool:
        return self.family.takes_long(data, self.config)

    def _append(
        self,
        given: memoryview,
        view: memoryview,
        batches: list[CheckedBatch],
        config: LogConfig,
        now_ms: int,
        numbered_from: int | None,
        *,
        guard: Guard | None = None,
        in_sequence: bool = True,
        marker: ControlType | None = None,
    ) -> AppendResult:
        count = batches[0].record_count if len(batches) == 1 else sum(b.record_count for b in batches)
        append_time = now_ms if config.timestamp_type is TimestampType.LOG_APPEND_TIME else None
        with guard or _UNGUARDED, self._lock:
            self._check_open()
            if not self._producers.loaded:
                self.load_producers()
            duplicate = self._producers.check_all(batches) if in_sequence else None
            if duplicate is not None:
                return AppendResult(*duplicate, NO_TIMESTAMP, self.start_offset, 0, duplicate=True)
            base_offset = self.end_offset
            if base_offset != numbered_from:
                view, batches = self.family.number(view, batches, base_offset, append_time, self.leader_epoch)
            end_offset = self._write(view, batches, now_ms)
            aborted = self._producers.record_all(batches, base_offset, now_ms, marker)
            if aborted is not None:
                self.segments[-1].aborted.add(aborted)
            first_open = self.first_open = self._producers.first_open
            self.end_offset = end_offset
            if self._unflushed_since is None and count:  # 0.7 sets may be empty; their bytes need no flush
                self._unflushed_since = self._tools.clock.monotonic()
            self._unflushed_count += count
            must_flush = self._unflushed_count >= config.flush_messages
            last_offset, start_offset = self.end_offset - 1, self.start_offset
        if must_flush:
            self.flush()
        time_ms = NO_TIMESTAMP if append_time is None else append_time
        converted = rewritten(batches) if view is not given else (0, 0)
        return AppendResult(
            base_offset, last_offset, time_ms, start_offset, count, False, *converted, first_open is None
        )

    def read(
        self, offset: int, max_bytes: int, *, at_least_one: bool, committed_only: bool = False
    ) -> FileSlice:
        """Whole batches from the one holding ``offset``, at most ``max_bytes``, up to the end of the segment.
        With ``at_least_one`` the first batch may be larger. Empty at the log's end, or if the first batch
        does not fit. The caller closes it. Raises `OffsetOutOfRange`; `CorruptMessage`; `StorageError`.
        """
        while True:
            self._check_open()
            # Read before the segments: these then hold everything below the end, and the markers before it.
            end_offset = self.readable_end
            limit = self.last_stable_offset if committed_only else end_offset
            segments = self.segments
            start_offset = self.start_offset
            if not start_offset <= offset <= end_offset:
                raise OffsetOutOfRange(str(self.topic_partition), offset, start_offset, end_offset)
            if offset >= limit:
                return NOTHING
            first = bisect_right(segments, offset, key=lambda segment: segment.base_offset) - 1
            for segment in segments[first:]:
                try:
                    found = segment.slice(offset, limit, max_bytes, at_least_one=at_least_one)
                    if found is not None and committed_only:
                        below = segment.offset_after(found.position + found.size)
                        found.aborted = aborted_in((s.aborted for s in segments[first:]), offset, below)
                except OSError as e:
                    if segment.deleted:
                        break  # just deleted by retention: the start has moved
                    raise self.directory.refused(f"reading {segment.path.name}", e) from e
                if found is not None:
                    return found  # else its last batches were compacted away
            else:
                return NOTHING

    def offset_for_timestamp(self, timestamp_ms: int) -> tuple[int, int] | None:
        """Timestamp and offset of the first record at or after this time; None if there is none."""
        retention.check_timed(self.topic_partition, self.config)
        while True:
            self._check_open()
            end_offset, segments = self.end_offset, self.segments
            start_offset = self.start_offset
            for segment in segments:
                try:
                    if segment.largest[0] < timestamp_ms:
                        continue
                    found = segment.first_at_or_after(timestamp_ms, end_offset, start_offset)
                except OSError as e:
                    if segment.deleted:
                        break
                    raise self.directory.refused(f"reading {segment.path.name}", e) from e
                if found is not None:
                    return found
            else:
                return None

    def max_timestamp(self) -> tuple[int, int] | None:
        retention.check_timed(self.topic_partition, self.config)
        while True:
            self._check_open()
            segments = self.segments
            try:
                return newest_record(segments, self.start_offset)
            except OSError as e:
                if not any(segment.deleted for segment in segments):
                    raise self.directory.refused(f"reading {self.path.name}", e) from e

    def facts(self) -> list[retention.SegmentFacts]:
        segments = self.segments
        start_offset = self.start_offset
        # Size first: a segment that grows meanwhile is larger than its facts.
        return [
            retention.SegmentFacts(max(s.base_offset, start_offset), s.size, s.age_timestamp, s.modified_ms)
            for s in segments
        ]

    def flush_due(self, monotonic_now: float) -> bool:
        since = self._unflushed_since
        return since is not None and (monotonic_now - since) * 1000 >= self.config.flush_ms

    def flush(self, *, wait: bool = True) -> None:
        """Make all that was appended durable; without ``wait`` not while another flush or deletion runs."""
        if self._maintenance.acquire(blocking=wait):
            try:
                grown = self._flush()
            finally:
                self._maintenance.release()
            self._report(grown)

    def _report(self, grown: int) -> None:
        if grown:
            self._tools.grown(self.topic_partition, grown)

    def retire(self, policy: retention.RetentionPolicy, now_ms: int) -> list[Path]:
        """Drop the oldest segments that ``policy`` allows; returns their renamed files, to be removed."""
        with self._maintenance:
            self._end_swap()
            asked = self.segments
            with self.directory.refusing(f"deleting segments of {self.path.name}"):
                gone = self._list.rename_dropped()  # of an earlier run
            with self.directory.refusing(f"reading {self.path.name}"):
                facts = self.facts()
        # Without a lock, as the policy may be slow; segments that change meanwhile stay.
        allowed = retention.count_expired(policy, facts, now_ms)
        if not allowed:
            return gone
        with self._maintenance:
            self._end_swap()
            with self.directory.refusing(f"deleting segments of {self.path.name}"):
                with self._lock:
                    now_and_then = zip(self.segments, asked, facts[:allowed], strict=False)
                    same = takewhile(lambda s: s[0] is s[1] and s[0].size == s[2].size_bytes, now_and_then)
                    count = sum(1 for _ in same)
                    if not count:
                        return gone
                    if count == len(self.segments):
                        self._roll()
                    expired, kept = self.segments[:count], self.segments[count:]
                    self._list.replace_without(expired, kept, self.start_offset)
                    self._begin_with(kept, kept[0].base_offset)
                gone += self._list.rename_dropped()
        if fresh := retention.just_written(policy, facts, count, now_ms):
            why = retention.lost_by_their_times(fresh, self.config.retention_ms)
            _logger.warning("%s: %s", self.path.name, why)
        _logger.info("%s: %d segments expired, log starts at %d", self.path, count, self.start_offset)
        return gone

    def replace(
        self, old: Sequence[Segment], cleaned: Path, size: int, aborted: Sequence[AbortedTransaction]
    ) -> bool:
        """Replace ``old`` by a cleaner's synced file of ``size`` bytes; running reads continue. False if
        ``old`` is no longer in the log. Call `end_swap` before. Raises `CorruptMessage`, `StorageError`.
        """
        with self._maintenance:
            self._check_open()
            first = next((n for n, segment in enumerate(self.segments) if segment is old[0]), -1)
            if first < 0 or self.segments[first : first + len(old)] != tuple(old):
                return False
            new = cleaned_segment(old[0].path, old, size, self.config, self._tools)

            def publish() -> None:
                with self._lock:
                    segments = self.segments
                    kept = (*segments[:first], new, *segments[first + len(old) :])
                    retired = tuple(segment.base_offset for segment in old[1:])
                    self._list.replace(
                        kept, self.start_offset, retired=retired, cleaned_offset=new.next_offset
                    )
                    self.segments = kept

            self._swap = Swap(old, new, cleaned, aborted, self._tools, self._list.sync)
            with self.directory.refusing(f"replacing segments of {self.path.name}"):
                try:
                    self._swap.begin(publish)
                finally:
                    self._end_swap()
        return True

    def end_swap(self) -> None:
        """Finish or undo the last `replace` if the disk was too full for that. Raises `StorageError`."""
        with self._maintenance:
            self._end_swap()

    def _end_swap(self) -> None:
        self._check_open()
        if self._swap is not None:
            with self.directory.refusing(f"replacing segments of {self.path.name}"):
                self._swap.end()
            self._swap = None

    def delete_before(self, offset: int) -> list[Path]:
        """Durably move the log's start up to ``offset``; returns the dropped segments' files, as `retire`."""
        grown = 0
        try:
            with self._maintenance:
                self._end_swap()
                if offset > self.readable_end:
                    raise OffsetOutOfRange(
                        str(self.topic_partition), offset, self.start_offset, self.readable_end
                    )
                if offset <= self.start_offset:
                    return []
                # Flush first: if a power cut left an end below the start, offsets would be assigned twice.
                grown = self._flush()
                with self.directory.refusing(f"deleting records of {self.path.name}"):
                    return self._delete_flushed_before(offset)
        finally:
            self._report(grown)

    def _delete_flushed_before(self, offset: int) -> list[Path]:
        with self._lock:
            count = bisect_right(self.segments, offset, key=lambda segment: segment.next_offset)
            if count == len(self.segments):
                if self.segments[-1].size:
                    self._roll()
                else:
                    count -= 1
            expired, kept = self.segments[:count], self.segments[count:]
            self._list.replace(kept, offset, expired=expired, durable=True)
            self._begin_with(kept, offset)
        gone = self._list.rename_dropped()
        _logger.info("%s: records before offset %d deleted, with %d segments", self.path, offset, count)
        return gone

    def _begin_with(self, kept: tuple[Segment, ...], start_offset: int) -> None:
        self.start_offset = max(self.start_offset, start_offset)
        self.segments = kept
        self.flushed_offset = max(self.flushed_offset, self.start_offset)

    def expire_producers(self, now_ms: int) -> None:
        with self._lock:
            self._producers.forget_before(now_ms)

    def close(self) -> CleanState:
        """Flush, then refuse further appends. Returns the state for the next start. Raises `StorageError`."""
        while True:
            self.flush()
            with self._maintenance, self._lock:
                self._check_open()
                if self.flushed_offset < self.end_offset:
                    continue  # an append came in between
                active = self.segments[-1]
                active.save_index()
                with self.directory.refusing(f"closing {self.path.name}"):
                    self._save_producers()
                self._closed = lambda: StorageError(f"{self.topic_partition}: the log is closed")
                return CleanState(
                    self.end_offset, active.base_offset, active.size, self.first_open is not None
                )

    def move(
        self,
        directory: DataDirectory,
        path: Path,
        finish: Callable[[CleanState, LogTools], Loaded],
        decide: Callable[[], object],
    ) -> None:
        """Continue in ``path`` of another ``directory``. With appends stopped, ``finish`` completes and loads
        the copy, and ``decide`` removes the original. Raises as they do; after `OSError` nothing has changed.
        """
        with self._maintenance, self._lock:
            self._end_swap()
            (active := self.segments[-1]).save_index()
            self._save_producers()
            loaded = finish(CleanState(self.end_offset, active.base_offset, active.size), self._tools)
            before, self.segments = self.segments, tuple(loaded.segments)
            try:
                decide()
            except OSError:
                self.segments = before
                raise
            self.path = self._producers.directory = path
            self.directory = directory
            self._list = ListFile(path, self._tools.files, loaded.listed, is_due=loaded.list_is_due)
            self._name_number, self._durable_name = directory.name_made(), None

    def drop(self) -> None:
        """Close the log of a deleted topic: every later call raises `UnknownTopicOrPartition`."""
        with self._maintenance, self._lock:
            self._closed = lambda: UnknownTopicOrPartition(f"{self.topic_partition} was deleted")
            for segment in (*self.segments, *self._list.dropped):
                segment.forget_files()
            if self._swap is not None:
                self._swap.abandon()

    def load_producers(self) -> None:
        with self._lock:
            now_ms = self._tools.clock.time_ms()
            with self.directory.refusing(f"reading {self.path.name}"):
                offset = self._producers.load(self.end_offset)
                for segment in self.segments:
                    segment.replay(self._producers, offset, now_ms)
            self._producers.loaded = True
            self.first_open = self._producers.first_open

    def _save_producers(self) -> None:
        """Save producer state; first the aborted transactions, as `AbortedIndex` requires."""
        if self._producers.loaded:
            for segment in self.segments:
                segment.aborted.save()
            self._producers.save(self.end_offset)

    def _flush(self) -> int:
        """`flush` with its lock held. Returns how many bytes became readable, for 0.7."""
        with self._lock:
            self._check_open()
            end_offset, readable = self.end_offset, self.readable_end
            if self.flushed_offset == end_offset:
                return 0
            with self.directory.refusing(f"listing the segments of {self.path.name}"):
                self._list.replace_if_due(self.segments, self.start_offset)
            since = self._unflushed_since
            unflushed = [s for s in self.segments if s.next_offset > self.flushed_offset]
            active, durable_name = self.segments[-1], self._durable_name
            self._unflushed_since, self._unflushed_count = None, 0
        began = self._tools.clock.monotonic()
        try:
            with self.directory.syncing(f"syncing {self.path.name}"):
                # Oldest first, so that a power cut leaves no holes.
                for segment in unflushed:
                    segment.sync()
                self._list.sync()
                if active is not durable_name:
                    self._tools.files.sync_directory(self.path)
                self.directory.sync_names(self._name_number)
        except StorageError:
            self._unflushed_since = since
            raise
        self._tools.flushed(self._tools.clock.monotonic() - began)
        with self._lock:
            self.flushed_offset = max(self.flushed_offset, end_offset)
            self._durable_name = active
        return self.family.scheme.readable_end(end_offset, end_offset) - readable

    def _check_open(self) -> None:
        if self._closed is not None:
            raise self._closed()
        if self.directory.failure is not None:
            raise StorageError(self.directory.failure)

    def _write(self, view: memoryview, batches: list[CheckedBatch], now_ms: int) -> int:
        try:
            if self.segments[-1].must_roll(batches, len(view), self.config, now_ms):
                self._roll()
            active = self.segments[-1]
            active.append(view, batches, now_ms)
        except OSError as e:
            doing = f"appending {len(view)} bytes to partition {self.topic_partition}"
            raise self.directory.refused(doing, e) from e
        return active.next_offset

    def _roll(self) -> None:
        active = self.segments[-1]
        if not active.size:
            return
        if self._durable_name is not active:
            # Names must become durable in order: else a power cut could keep only a later segment, and
            # the log would seem to begin there.
            with self.directory.syncing(f"syncing {self.path.name}"):
                self._tools.files.sync_directory(self.path)
        active.cut_back()
        fresh = new_segment(self.path, self.end_offset, self.config, self._tools)
        active.stop_growing()
        self.segments = (*self.segments, fresh)
        self._list.is_due = True
        self._list.replace_if_due(self.segments, self.start_offset)
        self._save_producers()
