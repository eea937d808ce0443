"""The log of one partition: appended to by one writer at a time, read by any number."""

from __future__ import annotations

import logging
import threading
from bisect import bisect_right
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import takewhile
from pathlib import Path

from kafkalog_broker.config.broker import LogConfig
from kafkalog_broker.disk.data_directory import DataDirectory
from kafkalog_broker.log.aborted_transactions import AbortedTransaction, aborted_in
from kafkalog_broker.log.cleaning.swap import Swap
from kafkalog_broker.log.family import (
    AppendResult,
    CheckedBatch,
    KnownProducer,
    LogFamily,
    LogTools,
    NewestBatch,
    rewritten,
)
from kafkalog_broker.log.file_slice import FileSlice
from kafkalog_broker.log.recovery import CleanState, cleaned_segment, new_segment
from kafkalog_broker.log.retention import (
    RetentionPolicy,
    SegmentFacts,
    count_expired,
    just_written,
    lost_by_their_times,
)
from kafkalog_broker.log.segment import Segment, must_roll
from kafkalog_broker.log.segment_list import ListFile, SegmentList
from pyspark_kafkalog.errors import (
    CorruptMessage,
    ErrorCode,
    OffsetOutOfRange,
    ServerError,
    StorageError,
    UnknownTopicOrPartition,
)
from pyspark_kafkalog.formats.batch import MARKER_HEAD_BYTES, ControlType, encode_control
from pyspark_kafkalog.types import NO_TIMESTAMP, TimestampType, TopicPartition

_logger = logging.getLogger(__name__)

Guard = AbstractContextManager[object]
"""Entered around the part of an append that writes."""
_UNGUARDED: Guard = nullcontext()

_NUMBERINGS = 3
"""How often a set is numbered without the log's lock while others move the log's end."""


class Log:
    """*Thread-safe.* Readers take no lock: they see an immutable tuple of segments and a published end.

    ``_lock`` guards everything that an append changes: the segments, the end, the guard, what is unflushed.
    ``_maintenance`` lets one flush or retention run at a time, and is taken before ``_lock``; the disk is
    synced without ``_lock``, so appends go on meanwhile.
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
        listed: SegmentList | None = None,
    ) -> None:
        """``flushed_offset``: what is below it is known to be on the disk. ``listed``: the list of segments
        that is in the directory, None where there is none.
        """
        self.topic_partition = topic_partition
        self.path = path
        self.config = config
        self.directory = directory
        self._tools = tools
        self._family = tools.family
        self._producers = tools.family.producers(path, tools.files, tools.producer_expiration_ms)
        self._segments: tuple[Segment, ...] = tuple(segments)
        self._start_offset = max(segments[0].base_offset, listed.start_offset if listed is not None else 0)
        """Set before the segments are replaced: a reader takes these first, and then finds its start."""
        self._end_offset = segments[-1].next_offset
        self._first_open: int | None = None
        """First offset of the oldest open transaction. What an append changes of it is shown before its end,
        and readers look at the end first: so no open transaction is below the offset that they stop at.
        """
        self._flushed_offset = min(flushed_offset, self._end_offset)
        # What a crash left is in the page cache at best, and is synced as if it had just been appended.
        lost_track = self._flushed_offset < self._end_offset
        self._unflushed_since: float | None = tools.clock.monotonic() if lost_track else None
        self._unflushed_count = 0
        self._name_number = directory.name_made()
        self._durable_name: Segment | None = None
        """Newest segment whose file name is known to be on the disk; with it are those before."""
        self._list = ListFile(path, tools.files, directory, listed)
        self._begun_ms = tools.clock.time_ms()
        self._closed: Callable[[], Exception] | None = None
        self._lock = threading.RLock()
        self._maintenance = threading.Lock()

    def __repr__(self) -> str:
        return f"Log({self.topic_partition}, [{self.start_offset}, {self.end_offset}))"

    @property
    def start_offset(self) -> int:
        """First offset that can be read; it may be within the first segment."""
        return self._start_offset

    @property
    def end_offset(self) -> int:
        """Offset of the next record to be appended; without replicas also the high watermark."""
        return self._end_offset

    @property
    def family(self) -> LogFamily:
        """The table that this log was built with."""
        return self._family

    @property
    def readable_end(self) -> int:
        """Where every reader stops: the end, or where the family has it so the end of what is on the disk."""
        return self._family.readable_end(self._end_offset, self._flushed_offset)

    @property
    def last_stable_offset(self) -> int:
        """Where a reader of committed data stops: at the oldest open transaction, else at the end."""
        end_offset = self._end_offset
        first_open = self._first_open
        return end_offset if first_open is None else min(end_offset, max(first_open, self.start_offset))

    @property
    def cleaned_offset(self) -> int:
        """Below this a cleaner has taken offsets out."""
        return self._list.cleaned_offset

    @property
    def segments(self) -> tuple[Segment, ...]:
        """As they are now, the one that grows last."""
        return self._segments

    @property
    def flushed_offset(self) -> int:
        """What is below this is known to be on the disk."""
        return self._flushed_offset

    @property
    def size_bytes(self) -> int:
        """Bytes of all segments, without their indexes."""
        return sum(segment.size for segment in self._segments)

    @property
    def segment_count(self) -> int:
        """Number of segment files."""
        return len(self._segments)

    def append(
        self,
        data: bytearray | memoryview | bytes,
        *,
        internal: bool = False,
        guard: Guard | None = None,
        at_once: bool = False,
    ) -> AppendResult:
        """Append what the family lets in: whole batches, which get their offsets in place; 0.7's messages.

        ``internal`` is for the broker's own, which follow no sequence. A ``guard`` is entered before the
        log's lock is taken and left once all is written: it refuses by raising. Readers see the records when
        this returns, in a log of 0.7 after the next flush.

        Raises:
            CorruptMessage, InvalidRecord, InvalidTimestamp, MessageTooLarge, UnsupportedCompression: a batch
                may not be appended, so none of them was.
            OutOfOrderSequence, InvalidProducerEpoch, InvalidTxnState: as `ProducerState.check`.
            StorageError: the disk is full or failed; nothing was appended.
            TakesLong: only ``at_once``: it would take more than some ms; nothing was appended.
        """
        given = memoryview(bytearray(data) if isinstance(data, bytes) else data)
        config = self.config
        now_ms = self._tools.clock.time_ms()
        view, batches = self._family.check(given, config, now_ms, internal=internal, at_once=at_once)
        numbered_from = None
        if not internal and self._family.takes_long(given, config):
            # Others append meanwhile: under the lock a set is numbered only if they keep moving the end.
            for _ in range(_NUMBERINGS):
                if numbered_from == self._end_offset:
                    break
                numbered_from = self._end_offset
                now_ms = self._tools.clock.time_ms()
                append_time = now_ms if config.timestamp_type is TimestampType.LOG_APPEND_TIME else None
                view, batches = self._family.number(view, batches, numbered_from, append_time)
        return self._append(
            given, view, batches, config, now_ms, numbered_from, guard=guard, in_sequence=not internal
        )

    def end_transaction(self, producer_id: int, producer_epoch: int, *, commit: bool) -> int:
        """Append the marker that ends a producer's transaction here; its epoch is the producer's from now on.
        Returns its size in bytes. Raises as `append`.
        """
        config, now_ms = self.config, self._tools.clock.time_ms()
        kind = ControlType.COMMIT if commit else ControlType.ABORT
        marker = bytearray(
            encode_control(kind, producer_id=producer_id, producer_epoch=producer_epoch, timestamp=now_ms)
        )
        view, batches = self._family.check(memoryview(marker), config, now_ms, internal=True, at_once=False)
        self._append(view, view, batches, config, now_ms, None, in_sequence=False, marker=kind)
        return len(view)

    def check_epoch(self, producer_id: int, producer_epoch: int) -> None:
        """Raises `InvalidProducerEpoch`: the producer has written with a later epoch; or `StorageError`."""
        with self._lock:
            self._check_open()
            if not self._producers.loaded:
                self.load_producers()
            self._producers.check_epoch(producer_id, producer_epoch)

    def open_transactions(self) -> list[KnownProducer]:
        """The producers that have a transaction open. Raises `StorageError`."""
        if self._first_open is None:
            return []
        return [producer for producer in self.known_producers() if producer.open_offset >= 0]

    def known_producers(self) -> list[KnownProducer]:
        """The producers that the log knows, by id. Raises `StorageError`."""
        with self._lock:
            self._check_open()
            if not self._producers.loaded:
                self.load_producers()
            return self._producers.known()

    def newest_batches(self) -> dict[int, NewestBatch]:
        """What must stay in the log of each producer that it knows, by id. Raises `StorageError`."""
        with self._lock:
            self._check_open()
            if not self._producers.loaded:
                self.load_producers()
            return self._producers.newest()

    def takes_long(self, data: memoryview) -> bool:
        """Whether `append` may take more than some ms with ``data``."""
        return self._family.takes_long(data, self.config)

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
        """Append what was checked, in one go. ``numbered_from``: the offset that its first record has;
        ``in_sequence``: it must follow what its producer has sent; ``marker``: it is one.
        """
        count = batches[0].record_count if len(batches) == 1 else sum(b.record_count for b in batches)
        append_time = now_ms if config.timestamp_type is TimestampType.LOG_APPEND_TIME else None
        with guard or _UNGUARDED, self._lock:
            self._check_open()
            if not self._producers.loaded:
                self.load_producers()
            duplicate = self._producers.check(batches) if in_sequence else None
            if duplicate is not None:
                return AppendResult(*duplicate, NO_TIMESTAMP, self.start_offset, 0, duplicate=True)
            base_offset = self._end_offset
            if base_offset != numbered_from:
                view, batches = self._family.number(view, batches, base_offset, append_time)
            end_offset = self._write(view, batches, now_ms)
            aborted = self._producers.record(batches, base_offset, now_ms, marker)
            if aborted is not None:
                self._segments[-1].aborted.add(aborted)
            first_open = self._first_open = self._producers.first_open
            self._end_offset = end_offset
            if self._unflushed_since is None and count:  # 0.7's sets may be empty; such bytes just go along
                self._unflushed_since = self._tools.clock.monotonic()
            self._unflushed_count += count
            must_flush = self._unflushed_count >= config.flush_messages
            last_offset, start_offset = self._end_offset - 1, self._start_offset
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
        """Whole batches from the one with ``offset`` on, at most ``max_bytes``, to the end of the segment.

        The first batch may exceed ``max_bytes`` if ``at_least_one``; a batch that begins before ``offset``
        is given whole. Where offsets count bytes it is just the bytes from ``offset`` on. Empty at the end
        of the log, or when the first batch does not fit. The caller closes the slice.

        Raises:
            OffsetOutOfRange: not within ``[start_offset, readable_end]``.
            CorruptMessage: the file is not what was written.
            StorageError: the disk failed.
        """
        while True:
            self._check_open()
            # Before the segments: what is below these is in them, and so are the markers before it.
            end_offset = self.readable_end
            limit = self.last_stable_offset if committed_only else end_offset
            segments = self._segments
            start_offset = self._start_offset
            if not start_offset <= offset <= end_offset:
                raise OffsetOutOfRange(str(self.topic_partition), offset, start_offset, end_offset)
            if offset >= limit:
                return FileSlice.empty()
            first = bisect_right(segments, offset, key=lambda segment: segment.base_offset) - 1
            for segment in segments[first:]:
                try:
                    found = segment.slice(offset, limit, max_bytes, at_least_one=at_least_one)
                    if found is not None and committed_only:
                        found.aborted = self._aborted(segments, first, offset, segment, found)
                except OSError as e:
                    if segment.deleted:
                        break  # by retention, just now: the start has moved
                    raise self.directory.refused(f"reading {segment.path.name}", e) from e
                if found is not None:
                    return found  # else its last batches were compacted away
            else:
                return FileSlice.empty()

    def _aborted(
        self, segments: Sequence[Segment], first: int, offset: int, holder: Segment, found: FileSlice
    ) -> list[AbortedTransaction]:
        """What readers of ``found`` must leave out; it is a slice of ``holder`` that was read at ``offset``,
        which segment number ``first`` may have. Raises `OSError`, `CorruptMessage`.
        """
        end_offset = holder.offset_after(found.position + found.size)
        return aborted_in((segment.aborted for segment in segments[first:]), offset, end_offset)

    def offset_for_timestamp(self, timestamp_ms: int) -> tuple[int, int] | None:
        """Timestamp and offset of the first record with this time or a later one; None when there is none.
        Records of v0 have no time.

        Raises:
            CorruptMessage, StorageError: as `read`.
            MessageTooLarge: the batch in question is too large to be opened.
            ServerError: UNSUPPORTED_FOR_MESSAGE_FORMAT: the topic's format is v0.
        """
        check_timed(self.topic_partition, self.config)
        while True:
            self._check_open()
            end_offset, segments = self._end_offset, self._segments
            start_offset = self._start_offset
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
        """The largest timestamp of all records and the offset of the first that has it; None without any."""
        check_timed(self.topic_partition, self.config)
        while True:
            self._check_open()
            segments = self._segments
            first, start_offset = segments[0], self._start_offset
            rest, found = segments, None
            try:
                if start_offset > first.base_offset:
                    # The largest time of its index may be that of a deleted record.
                    rest, found = segments[1:], first.newest_record_from(start_offset)
                newest = max(rest, key=lambda segment: segment.largest[0], default=None)
                if newest is None or newest.largest[0] <= (NO_TIMESTAMP if found is None else found[0]):
                    return found
                return newest.newest_record()
            except OSError as e:
                if first is self._segments[0]:
                    raise self.directory.refused(f"reading {self.path.name}", e) from e

    def facts(self) -> list[SegmentFacts]:
        """What is known of each segment, oldest first."""
        segments = self._segments
        start_offset = self._start_offset
        # The size first: a segment that has grown since is larger than its facts say.
        return [
            SegmentFacts(max(s.base_offset, start_offset), s.size, s.age_timestamp, s.modified_ms)
            for s in segments
        ]

    def flush_due(self, monotonic_now: float) -> bool:
        """Whether the oldest record that may not be on the disk is older than ``flush.ms``."""
        since = self._unflushed_since
        return since is not None and (monotonic_now - since) * 1000 >= self.config.flush_ms

    def flush(self) -> None:
        """Put everything that has been appended on the disk.
        Raises `StorageError`: it failed; the directory is offline.
        """
        with self._maintenance:
            grown = self._flush()
        self._report(grown)

    def flush_if_free(self) -> None:
        """`flush`, unless another one or a deletion of segments is under way: the next round does it then."""
        if self._maintenance.acquire(blocking=False):
            try:
                grown = self._flush()
            finally:
                self._maintenance.release()
            self._report(grown)

    def _report(self, grown: int) -> None:
        if grown:
            self._tools.grown(self.topic_partition, grown)

    def retire(self, policy: RetentionPolicy, now_ms: int) -> list[Path]:
        """Drop the oldest segments that ``policy`` lets go; their files have lost their names.

        Returns the files that are to be removed. Reads that are under way go on. The policy is asked once,
        without a lock, as it may take long; what has changed since it was asked stays.

        Raises `StorageError`, and what the policy raises.
        """
        with self._maintenance:
            self._check_open()
            asked = self._segments
            try:
                facts = self.facts()
            except OSError as e:
                raise self.directory.refused(f"reading {self.path.name}", e) from e
        allowed = count_expired(policy, facts, now_ms)
        if not allowed:
            return []
        with self._maintenance:
            self._check_open()
            try:
                with self._lock:
                    count = _unchanged(self._segments, asked, facts[:allowed])
                    if not count:
                        return []
                    if count == len(self._segments):
                        self._roll()
                    expired, kept = self._segments[:count], self._segments[count:]
                    self._list.replace_without(expired, kept, self._start_offset)
                    self._begin_with(kept, kept[0].base_offset)
                gone = self._rename_deleted(expired)
            except OSError as e:
                raise self.directory.refused(f"deleting segments of {self.path.name}", e) from e
        if fresh := just_written(policy, facts, count, now_ms):
            why = lost_by_their_times(fresh, self.config.retention_ms)
            _logger.warning("%s: %s", self.path.name, why)
        _logger.info("%s: %d segments expired, log starts at %d", self.path, count, self.start_offset)
        return gone

    def replace(
        self, old: Sequence[Segment], cleaned: Path, size: int, aborted: Sequence[AbortedTransaction]
    ) -> bool:
        """Put the synced file ``cleaned`` of ``size`` bytes, what a cleaner has kept of ``old``, in their
        place. Reads of them that are under way go on. False where they are not in the log any more.

        Raises:
            CorruptMessage: the file cannot be read.
            StorageError: the disk is full, and nothing was changed; or it failed.
        """
        with self._maintenance:
            self._check_open()
            first = next((n for n, segment in enumerate(self._segments) if segment is old[0]), -1)
            if first < 0 or self._segments[first : first + len(old)] != tuple(old):
                return False
            new = cleaned_segment(old[0].path, old, size, self.config, self._tools)
            swap = Swap(old, new, cleaned, aborted, self._tools)
            try:
                try:
                    swap.decide()
                    with self._lock:
                        segments = self._segments
                        kept = (*segments[:first], new, *segments[first + len(old) :])
                        retired = tuple(segment.base_offset for segment in old[1:])
                        self._list.replace(
                            kept, self._start_offset, retired=retired, cleaned_offset=new.next_offset
                        )
                        self._segments = kept
                except (OSError, CorruptMessage):
                    self._undo(swap)
                    raise
                try:
                    self._list.sync()
                    swap.finish()
                except OSError as e:
                    raise self.directory.failed(f"replacing segments of {self.path.name}", e) from e
            except OSError as e:
                raise self.directory.refused(f"replacing segments of {self.path.name}", e) from e
        return True

    def _undo(self, swap: Swap) -> None:
        try:
            swap.undo()
        except OSError as e:
            raise self.directory.failed(f"replacing segments of {self.path.name}", e) from e

    def delete_before(self, offset: int) -> list[Path]:
        """Have the log begin at ``offset``, durably, unless it begins there or later already. Segments that
        are wholly before it are dropped, the files that are to be removed returned as by `retire`.

        Raises:
            OffsetOutOfRange: the log ends before ``offset``.
            StorageError: the disk is full, and nothing was changed; or it failed.
        """
        grown = 0
        try:
            with self._maintenance:
                self._check_open()
                if offset > self.readable_end:
                    raise OffsetOutOfRange(
                        str(self.topic_partition), offset, self._start_offset, self.readable_end
                    )
                if offset <= self._start_offset:
                    return []
                # A start beyond the end that a power cut leaves would have offsets given twice.
                grown = self._flush()
                try:
                    return self._delete_flushed_before(offset)
                except OSError as e:
                    raise self.directory.refused(f"deleting records of {self.path.name}", e) from e
        finally:
            self._report(grown)

    def _delete_flushed_before(self, offset: int) -> list[Path]:
        with self._lock:
            count = bisect_right(self._segments, offset, key=lambda segment: segment.next_offset)
            if count == len(self._segments):
                if self._segments[-1].size:
                    self._roll()
                else:
                    count -= 1
            expired, kept = self._segments[:count], self._segments[count:]
            self._list.replace(kept, offset, retired=tuple(segment.base_offset for segment in expired))
            self._begin_with(kept, offset)
        gone = self._rename_deleted(expired)
        _logger.info("%s: records before offset %d deleted, with %d segments", self.path, offset, count)
        return gone

    def _begin_with(self, kept: tuple[Segment, ...], start_offset: int) -> None:
        """Show the log without its first segments."""
        self._start_offset = max(self._start_offset, start_offset)
        self._segments = kept
        self._flushed_offset = max(self._flushed_offset, self._start_offset)

    def _rename_deleted(self, expired: Sequence[Segment]) -> list[Path]:
        """Put the list on the disk, then take the names of the segments that it retires; the files to remove.
        Raises `OSError`.
        """
        # What is gone but still in the list would look like lost data.
        self._list.sync()
        self._tools.files.sync_directory(self.path)
        if not expired:
            return []
        gone = [path for segment in expired for path in segment.rename_deleted()]
        self._tools.files.sync_directory(self.path)
        return gone

    def expire_producers(self, now_ms: int) -> None:
        """Forget producers that have not written for too long."""
        with self._lock:
            self._producers.forget_before(now_ms)

    def close(self) -> CleanState:
        """Put everything on the disk and take no more; returns what the next start wants to know.
        Raises `StorageError`.
        """
        while True:
            self.flush()
            with self._maintenance, self._lock:
                self._check_open()
                if self._flushed_offset < self._end_offset:
                    continue  # an append came in between
                active = self._segments[-1]
                active.save_index()
                try:
                    self._save_producers()
                except OSError as e:
                    raise self.directory.refused(f"closing {self.path.name}", e) from e
                self._closed = lambda: StorageError(f"{self.topic_partition}: the log is closed")
                return CleanState(
                    self._end_offset, active.base_offset, active.size, self._first_open is not None
                )

    def drop(self) -> None:
        """Close the log of a deleted topic: every later call raises `UnknownTopicOrPartition`."""
        with self._maintenance, self._lock:
            self._closed = lambda: UnknownTopicOrPartition(f"{self.topic_partition} was deleted")
            for segment in self._segments:
                segment.forget_files()

    def load_producers(self) -> None:
        """Learn the producers from the snapshot and the log. Raises `StorageError`."""
        with self._lock:
            now_ms = self._tools.clock.time_ms()
            try:
                offset = self._producers.restore(self._end_offset)
                for segment in self._segments:
                    if segment.next_offset <= offset:
                        if segment.growing:  # which may have been cut since its rows were written
                            segment.aborted.replace(offset, ())
                        continue
                    try:
                        aborted = self._producers.replay(segment.heads(offset, MARKER_HEAD_BYTES), now_ms)
                    except CorruptMessage as e:
                        # The log goes on: at worst a batch that is sent again is appended again.
                        _logger.error("%s: producers after the damage are not known: %s", segment.path, e)
                    else:
                        segment.aborted.replace(offset, aborted)
            except OSError as e:
                raise self.directory.refused(f"reading {self.path.name}", e) from e
            self._producers.loaded = True
            self._first_open = self._producers.first_open

    def _save_producers(self) -> None:
        """Note what is known of producers; before that, as `AbortedIndex` has it, what they have aborted.
        Raises `OSError`.
        """
        if self._producers.loaded:
            for segment in self._segments:
                segment.aborted.save()
            self._producers.save(self._end_offset)

    def _flush(self) -> int:
        """`flush`, its lock held. Returns by how much there is more to read, in bytes of a log of 0.7."""
        with self._lock:
            self._check_open()
            end_offset, readable = self._end_offset, self.readable_end
            if self._flushed_offset == end_offset:
                return 0
            try:
                self._list.replace_if_due(self._segments, self._start_offset)
            except OSError as e:
                raise self.directory.refused(f"listing the segments of {self.path.name}", e) from e
            since = self._unflushed_since
            unflushed = [s for s in self._segments if s.next_offset > self._flushed_offset]
            active, durable_name = self._segments[-1], self._durable_name
            self._unflushed_since, self._unflushed_count = None, 0
        began = self._tools.clock.monotonic()
        try:
            # Oldest first: what a power cut leaves has no holes.
            for segment in unflushed:
                segment.sync()
            self._list.sync()
            if active is not durable_name:
                self._tools.files.sync_directory(self.path)
            self.directory.sync_names(self._name_number)
        except OSError as e:
            self._unflushed_since = since
            raise self.directory.sync_failed(f"syncing {self.path.name}", e) from e
        self._tools.flushed(self._tools.clock.monotonic() - began)
        with self._lock:
            self._flushed_offset = max(self._flushed_offset, end_offset)
            self._durable_name = active
        return self._family.readable_end(end_offset, end_offset) - readable

    def _check_open(self) -> None:
        if self._closed is not None:
            raise self._closed()
        if self.directory.failure is not None:
            raise StorageError(self.directory.failure)

    def _write(self, view: memoryview, batches: list[CheckedBatch], now_ms: int) -> int:
        """Append to the active segment, a new one if that is due. All or nothing; returns the new end."""
        try:
            if must_roll(
                self._segments[-1], batches, len(view), self.config, self._family,
                now_ms=now_ms, begun_ms=self._begun_ms,
            ):  # fmt: skip
                self._roll()
            active = self._segments[-1]
            if not active.size:
                self._begun_ms = now_ms
            try:
                active.append(view, batches, now_ms)
            except OSError:
                self._cut_back(active)
                raise
        except OSError as e:
            doing = f"appending {len(view)} bytes to partition {self.topic_partition}"
            raise self.directory.refused(doing, e) from e
        return active.next_offset

    def _cut_back(self, active: Segment) -> None:
        """Recovery must not find half an append in front of the next one."""
        try:
            active.cut_back()
        except OSError as e:
            raise self.directory.failed(f"cutting {self.path.name} back", e) from e

    def _roll(self) -> None:
        """Begin a new segment. Raises `OSError`; the old one then goes on."""
        active = self._segments[-1]
        if not active.size:
            return
        if self._durable_name is not active:
            # Names become durable in their order: else a power cut could keep a later segment only, and
            # the log would seem to begin there.
            try:
                self._tools.files.sync_directory(self.path)
            except OSError as e:
                raise self.directory.sync_failed(f"syncing {self.path.name}", e) from e
        fresh = new_segment(self.path, self._end_offset, self.config, self._tools)
        active.stop_growing()
        self._segments = (*self._segments, fresh)
        self._list.is_due = True
        self._list.replace_if_due(self._segments, self._start_offset)
        self._save_producers()


def _unchanged(segments: Sequence[Segment], asked: Sequence[Segment], facts: Sequence[SegmentFacts]) -> int:
    """How many of the log's first segments are those that a policy was asked about, with the size it saw."""
    now_and_then = zip(segments, asked, facts, strict=False)
    return sum(
        1 for _ in takewhile(lambda one: one[0] is one[1] and one[0].size == one[2].size_bytes, now_and_then)
    )


def check_timed(partition: TopicPartition, config: LogConfig) -> None:
    """Refuse it where the format that the topic was given has no times. Where v0 only came, none is found.

    Source: Kafka 3.9 ``UnifiedLog.fetchOffsetByTimestamp``.

    Raises `ServerError`: UNSUPPORTED_FOR_MESSAGE_FORMAT.
    """
    if config.magic == 0:
        raise ServerError(
            ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
            f"{partition}: messages have no time with message.format.version={config.message_format_version}",
        )
