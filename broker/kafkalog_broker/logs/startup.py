"""Reads the data directories at the broker's start: topics, logs, and what a crash left."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import msgspec
from msgspec.structs import replace

from kafkalog_broker.config.broker_config import LogConfig
from kafkalog_broker.disk.data_directory import DataDirectory, PassingError
from kafkalog_broker.disk.filesystem import FileSystem, remove_tree
from kafkalog_broker.log.family import LogTools
from kafkalog_broker.log.log import Log
from kafkalog_broker.log.recovery import CleanState, MissingSegments
from kafkalog_broker.log.segment_list import Missing
from kafkalog_broker.logs import topic_store
from kafkalog_broker.logs.partition_files import DELETED_PREFIX, deleted_name, open_partition, remove_if_empty
from pyspark_kafkalog.errors import InvalidConfig, StorageError
from pyspark_kafkalog.types import TopicPartition

_logger = logging.getLogger(__name__)


class OfflineLog(msgspec.Struct, frozen=True):
    """A partition that cannot be used: its directory, the reason, its stored recovery point, and, unless data
    is missing, what opens it once the reason has passed; that raises `StorageError`.
    """

    directory: DataDirectory
    path: Path
    reason: str
    recovery_point: tuple[int, int]
    reopen: Callable[[], Log] | None = None


def opened_again(
    partition: TopicPartition, offline: OfflineLog, reopen: Callable[[], Log]
) -> OfflineLog | Log:
    """Try to open an offline partition; returns its log, or why it stays offline."""
    try:
        log = reopen()
    except PassingError as e:
        return replace(offline, reason=str(e))
    except StorageError as e:
        _logger.error("%s is offline: %s", partition, e)
        reason = e.missing_text if isinstance(e, MissingSegments) else str(e)
        return replace(offline, reason=reason, reopen=None)
    _logger.info("%s is online again", partition)
    return log


def note_recovery_points(
    directory: DataDirectory,
    topics: Mapping[str, topic_store.StoredTopic],
    logs: Iterable[Log],
    offline: Iterable[OfflineLog],
) -> None:
    """Write up to where a start after a crash may trust the logs of ``directory``."""
    points = {
        log.path.name: (topics[name].topic_id.int, log.flushed_offset)
        for log in list(logs)
        if log.directory is directory and (name := log.topic_partition.topic) in topics
    }
    points |= {log.path.name: log.recovery_point for log in offline if log.directory is directory}
    try:
        directory.write_recovery_points(points)
    except OSError as e:
        _logger.warning("%s: recovery after a crash will read more: %s", directory.path, e)


@dataclass(slots=True)
class _Contents:
    clean: dict[str, tuple[int, ...]] | None
    points: dict[str, tuple[int, ...]]
    partitions: set[TopicPartition]
    futures: dict[str, tuple[int, ...]]
    deleted: set[str]

    def known_of(self, name: str, topic: topic_store.StoredTopic) -> tuple[CleanState | None, int]:
        clean = self.clean.get(name, ()) if self.clean is not None else ()
        number, point = self.points.get(name, (0, 0))
        # Ignore a recovery point of an earlier topic with this name.
        # A clean state has three numbers, a fourth if a transaction was open.
        state = CleanState(clean[0], clean[1], clean[2], len(clean) == 4) if len(clean) in (3, 4) else None
        return state, point if number == topic.topic_id.int else 0


@dataclass(slots=True)
class Startup:
    """*Not thread-safe: runs once, before the logs are published.* ``_tools`` are by generation."""

    _directories: Sequence[DataDirectory]
    _defaults: LogConfig
    _files: FileSystem
    _tools: Mapping[str, LogTools]
    _truncate_missing: bool
    topics: dict[str, topic_store.StoredTopic] = field(default_factory=dict)
    stores: dict[str, DataDirectory] = field(default_factory=dict)
    logs: dict[TopicPartition, Log] = field(default_factory=dict)
    offline: dict[TopicPartition, OfflineLog] = field(default_factory=dict)
    unfinished: dict[str, Callable[[], None]] = field(default_factory=dict)
    """Deletions of topics, by name, for which the disk was too full."""
    leftovers: list[Path] = field(default_factory=list)
    """Deleted directories that could not be removed."""
    moving: list[tuple[TopicPartition, DataDirectory]] = field(default_factory=list)
    """Partitions whose move to a directory was interrupted; what was copied is removed."""
    _contents: dict[DataDirectory, _Contents] = field(default_factory=dict)

    def run(self, *, all_online: bool) -> None:
        """Open all logs. Unless ``all_online``, a partition that is not found may be on another disk."""
        deleting: list[tuple[DataDirectory, str]] = []
        for directory in self._directories:
            try:
                deleting += self._read(directory)
            except OSError as e:
                error = directory.refused("reading it", e)
                if directory.online:
                    raise error from e  # without it, its topics would seem not to exist
                self._contents.pop(directory, None)
                all_online = False
        if not self._contents:
            raise StorageError("none of log.dirs can be read")
        self._finish_moves(all_online)
        self._finish_deletions(deleting, all_online)
        for name, topic in self.topics.items():
            try:
                config = self._defaults.overridden(topic.overrides)
            except InvalidConfig as e:
                raise InvalidConfig(f"{self.stores[name].path}: {name}: {e}") from e
            for number in topic.partitions:
                self._open(TopicPartition(name, number), topic, config, all_online)
        self._clear_leftovers()

    def _read(self, directory: DataDirectory) -> list[tuple[DataDirectory, str]]:
        store = topic_store.TopicStore(directory.path, self._files)
        store.open()
        clean, points = directory.take_clean_shutdown(), directory.read_recovery_points()
        topics, ended = store.load()
        for name, topic in topics.items():
            if name in self.topics:
                raise StorageError(f"topic {name} is in {directory.path} and in {self.stores[name].path}")
            self.topics[name] = topic
            self.stores[name] = directory
        partitions, deleted = set(), set()
        for entry in self._files.scan(directory.path):
            if not entry.is_directory:
                continue
            if entry.name.startswith(DELETED_PREFIX):
                deleted.add(entry.name)
            elif (partition := topic_store.partition_of(entry.name)) is not None:
                partitions.add(partition)
        self._contents[directory] = _Contents(clean, points, partitions, directory.read_futures(), deleted)
        return [(directory, name) for name in ended]

    def _finish_moves(self, all_online: bool) -> None:
        """Keep one of the copies of each partition that was being moved (`DirectoryMoves`), then remove the
        deleted directories, which tell how far a move was. A copy whose original may be on a disk that cannot
        be read is left as it is.
        """
        deleted = {name for contents in self._contents.values() for name in contents.deleted}
        for directory, contents in self._contents.items():
            rows = dict(contents.futures)
            for name, (number,) in contents.futures.items():
                partition = topic_store.partition_of(name)
                originals = [
                    d
                    for d, other in self._contents.items()
                    if partition in other.partitions and name not in other.futures
                ]
                if partition is None or deleted_name(number) in deleted or (all_online and not originals):
                    del rows[name]
                    continue
                contents.partitions.discard(partition)
                if not originals:
                    continue
                try:
                    with directory.refusing(f"removing a copy of {name}"):
                        remove_tree(self._files, directory.path / name)
                except PassingError:
                    continue
                del rows[name]
                self.moving.append((partition, directory))
            if rows != contents.futures:
                try:
                    with directory.refusing("noting the future partitions"):
                        directory.write_futures(rows)
                except PassingError:
                    return  # what was deleted is still needed
        for directory, contents in self._contents.items():
            for name in contents.deleted:
                try:
                    with directory.refusing("removing what was deleted"):
                        remove_tree(self._files, directory.path / name)
                except PassingError:
                    self.leftovers.append(directory.path / name)

    def _finish_deletions(self, deleting: list[tuple[DataDirectory, str]], all_online: bool) -> None:
        for owner, name in deleting:
            doomed: dict[DataDirectory, list[Path]] = {}
            for directory, contents in self._contents.items():
                gone = {partition for partition in contents.partitions if partition.topic == name}
                doomed[directory] = [
                    directory.path / topic_store.directory_name(partition) for partition in gone
                ]
                contents.partitions -= gone
            finish = partial(self._finish_deletion, owner, name, doomed, all_online)
            try:
                finish()
            except PassingError:
                self.unfinished[name] = finish
            except StorageError as e:
                _logger.error("the deletion of topic %s is left to the next start: %s", name, e)

    def _finish_deletion(
        self, owner: DataDirectory, name: str, doomed: Mapping[DataDirectory, list[Path]], all_online: bool
    ) -> None:
        for directory, paths in doomed.items():
            with directory.refusing(f"deleting topic {name}"):
                for path in paths:
                    remove_tree(self._files, path)
                self._files.sync_directory(directory.path)
        if all_online:
            with owner.refusing(f"deleting topic {name}"):
                topic_store.TopicStore(owner.path, self._files).remove(name)
        _logger.info("the deletion of topic %s is finished", name)

    def _open(
        self, partition: TopicPartition, topic: topic_store.StoredTopic, config: LogConfig, all_online: bool
    ) -> None:
        places = [d for d, contents in self._contents.items() if partition in contents.partitions]
        if len(places) > 1:
            raise StorageError(f"{partition} is in {places[0].path} and in {places[1].path}")
        if not places:
            if not all_online:
                _logger.error("%s is in none of the directories that can be read", partition)
                return
            places = [self._place_for(topic_store.directory_name(partition), topic)]
        directory = places[0]
        name = topic_store.directory_name(partition)
        clean, point = self._contents[directory].known_of(name, topic)
        known_end = max(clean.end_offset if clean else 0, point)
        path = directory.path / name
        offline = partial(OfflineLog, directory, path, recovery_point=(topic.topic_id.int, known_end))

        def opened() -> Log:
            with directory.refusing(f"opening {name}"):
                if partition not in self._contents[directory].partitions:
                    self._make_again(directory, partition, known_end)
                self._own(path, partition, topic)
                return open_partition(
                    directory, path, partition, config, self._tools[topic.generation],
                    leader_epoch=topic.epoch(partition.partition), clean=clean, recovery_point=point,
                    truncate_missing=self._truncate_missing,
                )  # fmt: skip

        try:
            self.logs[partition] = opened()
        except MissingSegments as e:
            _logger.error("%s is offline: %s", partition, e)
            self.offline[partition] = offline(reason=e.missing_text)
        except PassingError as e:
            self.offline[partition] = offline(reason=str(e), reopen=opened)
        except StorageError:
            if directory.online:
                raise

    def _place_for(self, name: str, topic: topic_store.StoredTopic) -> DataDirectory:
        """Directory for a partition without one: where it was, else the least loaded."""
        for directory, contents in self._contents.items():
            if contents.known_of(name, topic) != (None, 0):
                return directory
        return min(self._contents, key=lambda directory: len(self._contents[directory].partitions))

    def _make_again(self, directory: DataDirectory, partition: TopicPartition, known_end: int) -> None:
        path = directory.path / topic_store.directory_name(partition)
        if known_end and not self._truncate_missing:
            raise MissingSegments(path, [Missing(0, known_end, f"the directory {path.name} is not there")])
        self._contents[directory].partitions.add(partition)
        _logger.info("%s is made in %s", partition, directory.path)

    def _own(self, path: Path, partition: TopicPartition, topic: topic_store.StoredTopic) -> None:
        try:
            if topic_store.is_partition_metadata(self._files, path, topic):
                return
            metadata = topic_store.read_partition_metadata(self._files, path)
        except NotADirectoryError:
            raise StorageError(f"{path} is not a directory; {partition} needs this place") from None
        if metadata is None:
            self._files.make_directory(path)
            topic_store.write_partition_metadata(self._files, path, topic)
        elif metadata != (topic.topic_id, topic.generation):
            raise StorageError(f"{path} belongs to another topic than {partition.topic}: {metadata}")

    def _clear_leftovers(self) -> None:
        known = {name: frozenset(topic.partitions) for name, topic in self.topics.items()}
        for directory, contents in self._contents.items():
            for partition in contents.partitions:
                if partition.partition in known.get(partition.topic, ()):
                    continue
                path = directory.path / topic_store.directory_name(partition)
                try:
                    if not remove_if_empty(self._files, path):
                        _logger.warning("%s belongs to no topic; it is left as it is", path)
                except OSError as e:
                    _logger.warning("%s belongs to no topic, and cannot be removed: %s", path, e)
