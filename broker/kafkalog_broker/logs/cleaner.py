"""The log cleaner: finds the compacted log most in need, cleans it, and stores its progress.

``cleaner-offset-checkpoint`` in each data directory, as Kafka's: a line ``0``, the number of rows, and a row
``topic partition offset`` for each log, clean below that offset.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Generator, Mapping
from pathlib import Path

from kafkalog_broker.disk.filesystem import FileSystem, read_file, replace_file
from kafkalog_broker.log.aborted_transactions import aborted_in
from kafkalog_broker.log.cleaning.run import (
    CleanedFile,
    CleanJob,
    Dirt,
    Pace,
    clean,
    dirt_of,
    legacy_horizon_ms,
)
from kafkalog_broker.log.generations import SINCE_08
from kafkalog_broker.log.log import Log
from kafkalog_broker.logs.manager import LogManager
from pyspark_kafkalog.clock import Clock
from pyspark_kafkalog.errors import KafkaError, StorageError, UnknownTopicOrPartition
from pyspark_kafkalog.types import TopicPartition

CHECKPOINT_NAME = "cleaner-offset-checkpoint"

Clean = Callable[[CleanJob, FileSystem, Pace], Generator[CleanedFile, None, None]]

_logger = logging.getLogger(__name__)


class Stopped(Exception):
    """The cleaner was stopped."""


class LogCleaner:
    """*Thread-safe: `run` by one thread at a time, the others by any.* Skips logs that it failed to clean."""

    def __init__(
        self,
        logs: LogManager,
        clock: Clock,
        files: FileSystem,
        *,
        memory_bytes: int,
        bytes_per_second: float,
        clean: Clean = clean,
    ) -> None:
        self._logs = logs
        self._clock = clock
        self._files = files
        self._clean = clean
        self._stop = threading.Event()
        self._pace = _Throttle(clock, self._stop)
        self.configure(memory_bytes, bytes_per_second)
        self._uncleanable: set[Log] = set()
        self._cleaned: dict[Path, dict[TopicPartition, int]] = {}

    def configure(self, memory_bytes: int, bytes_per_second: float) -> None:
        """``memory_bytes``: for the key map, from the next log on. ``bytes_per_second``: of reads and writes
        together, from now on.
        """
        self._memory_bytes = memory_bytes
        self._pace.bytes_per_second = bytes_per_second

    def stop(self) -> None:
        self._stop.set()

    def run(self) -> None:
        while not self._stop.is_set():
            log, dirt = self._dirtiest()
            if log is None:
                return
            try:
                self._clean_log(log, dirt)
            except Stopped:
                return
            except OSError as e:
                if self._is_refused(log, e):
                    return  # a full disk may have room next time
            except UnknownTopicOrPartition:
                continue  # deleted meanwhile
            except StorageError as e:
                _logger.warning("%s was not cleaned: %s", log.topic_partition, e)
                return
            except Exception as e:
                # A failing log must not keep the others from being cleaned.
                if isinstance(e, KafkaError):
                    _logger.error("%s is not cleaned any more: %s", log.topic_partition, e)
                else:
                    _logger.exception("%s is not cleaned any more", log.topic_partition)
                self._uncleanable.add(log)

    def _dirtiest(self) -> tuple[Log | None, Dirt]:
        found: Log | None = None
        most = Dirt(0, 0, 0, 0, overdue=False)
        logs = self._logs.logs
        self._uncleanable.intersection_update(logs.values())
        for log in logs.values():
            config = log.config
            if (
                "compact" not in config.cleanup_policy
                or log.family is not SINCE_08
                or len(log.segments) < 2
                or log in self._uncleanable
                or not log.directory.online
            ):
                continue
            try:
                dirt = self._dirt(log)
            except OSError as e:
                self._is_refused(log, e)
                continue
            except KafkaError as e:
                _logger.error("%s is not cleaned any more: %s", log.topic_partition, e)
                self._uncleanable.add(log)
                continue
            if dirt.is_due(config) and (found is None or dirt.ratio > most.ratio):
                found, most = log, dirt
        return found, most

    def _is_refused(self, log: Log, error: OSError) -> bool:
        """Tell the directory that its disk failed; False if the log was deleted, and its files with it."""
        if log not in self._logs.logs.values():
            return False
        log.directory.refused(f"cleaning {log.path.name}", error)
        return True

    def _dirt(self, log: Log) -> Dirt:
        known = self._checkpoint(log.directory.path).get(log.topic_partition, 0)
        # The segment list also stores it, and is removed with its topic.
        first_dirty = max(min(known, log.cleaned_offset), log.start_offset)
        now_ms = self._clock.time_ms()
        return dirt_of(log.segments[:-1], first_dirty, log.last_stable_offset, log.config, now_ms)

    def _clean_log(self, log: Log, dirt: Dirt) -> None:
        log.end_swap()
        if log.flushed_offset < dirt.end_offset:
            # Newer records must be durable before the older ones they replace are removed.
            log.flush()
        segments = tuple(s for s in log.segments[:-1] if s.next_offset <= dirt.end_offset)
        if not segments:
            return
        config, began = log.config, self._clock.monotonic()
        job = CleanJob(
            sources=segments,
            first_dirty=dirt.first_dirty,
            memory_bytes=self._memory_bytes,
            segment_bytes=config.segment_bytes,
            producers=log.newest_batches(),
            aborted=tuple(
                aborted_in((s.aborted for s in log.segments), segments[0].base_offset, dirt.end_offset)
            ),
            now_ms=self._clock.time_ms(),
            delete_retention_ms=config.delete_retention_ms,
            legacy_horizon_ms=legacy_horizon_ms(segments, dirt.first_dirty, config.delete_retention_ms),
        )
        end_offset, before, after = dirt.first_dirty, 0, 0
        cleaned = self._clean(job, self._files, self._pace)
        try:
            for made in cleaned:
                replaced = segments[made.first : made.after]
                if not log.replace(replaced, made.path, made.size, made.aborted):
                    _logger.info("%s has changed while it was cleaned", log.topic_partition)
                    self._files.remove(made.path)
                    return
                end_offset = made.end_offset
                before += sum(segment.size for segment in replaced)
                after += made.size
        except FileNotFoundError:
            if log in self._logs.logs.values() and segments[0] in log.segments:
                raise
            return  # the topic or its records were deleted
        finally:
            cleaned.close()
        self._note(log, end_offset)
        _logger.info(
            "%s: cleaned up to offset %d in %.1f s: %d bytes became %d",
            log.topic_partition, end_offset, self._clock.monotonic() - began, before, after,
        )  # fmt: skip

    def _checkpoint(self, directory: Path) -> dict[TopicPartition, int]:
        known = self._cleaned.get(directory)
        if known is None:
            known = self._cleaned[directory] = read_checkpoint(self._files, directory)
        return known

    def _note(self, log: Log, end_offset: int) -> None:
        directory, logs = log.directory, self._logs.logs
        rows = {tp: offset for tp, offset in self._checkpoint(directory.path).items() if tp in logs}
        rows[log.topic_partition] = end_offset
        self._cleaned[directory.path] = rows
        with directory.refusing("writing the cleaner's checkpoint"):
            write_checkpoint(self._files, directory.path, rows)


def read_checkpoint(files: FileSystem, directory: Path) -> dict[TopicPartition, int]:
    """Checkpoint of a data directory; empty if missing or damaged. Raises `OSError`."""
    path = directory / CHECKPOINT_NAME
    try:
        text = read_file(files, path).decode()
    except FileNotFoundError:
        return {}
    except UnicodeDecodeError as e:
        _logger.warning("%s is damaged: %s", path, e)
        return {}
    try:
        version, count, *lines = text.splitlines()
        rows = {}
        for line in lines:
            topic, partition, offset = line.split(" ")
            rows[TopicPartition(topic, int(partition))] = int(offset)
        if int(version) != 0 or int(count) != len(lines):
            raise ValueError(f"version {version}, {count} rows announced, {len(lines)} there")
    except ValueError as e:
        _logger.warning("%s is damaged: %s", path, e)
        return {}
    return rows


def write_checkpoint(files: FileSystem, directory: Path, rows: Mapping[TopicPartition, int]) -> None:
    lines = [f"{tp.topic} {tp.partition} {offset}\n" for tp, offset in sorted(rows.items())]
    data = f"0\n{len(lines)}\n{''.join(lines)}".encode()
    replace_file(files, directory / CHECKPOINT_NAME, data, durable=True)


_WAKE_SECONDS = 0.5


class _Throttle:
    """*Not thread-safe: one cleaning at a time; any thread may set the rate.* Limits bytes per second."""

    def __init__(self, clock: Clock, stop: threading.Event) -> None:
        self.bytes_per_second = float("inf")
        self._clock = clock
        self._stop = stop
        self._due = 0.0

    def __call__(self, size: int) -> None:
        """Count ``size`` bytes and wait if due, until the rate changes. Raises `Stopped`."""
        rate = self.bytes_per_second
        self._due = max(self._due, self._clock.monotonic()) + size / rate
        # Combine short waits, which are inexact and cost a thread switch.
        while (left := self._due - self._clock.monotonic()) > 0.01 and not self._stop.is_set():
            self._stop.wait(min(left, _WAKE_SECONDS))
            if rate != self.bytes_per_second:
                self._due = 0.0
        if self._stop.is_set():
            raise Stopped
