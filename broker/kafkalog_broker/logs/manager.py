"""All logs of a broker: topics, their partitions' directories, and maintenance."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import MappingProxyType
from uuid import UUID, uuid4

import msgspec
from msgspec.structs import replace

from kafkalog_broker.config.broker_config import LogConfig
from kafkalog_broker.disk.data_directory import DataDirectory, Meta, PassingError, agree_on_meta, keep_or_make
from kafkalog_broker.disk.filesystem import FileSystem, OpenFiles
from kafkalog_broker.log.family import Grown, KnownProducer
from kafkalog_broker.log.generations import SINCE_08, family_of, tools_of_all
from kafkalog_broker.log.log import Log
from kafkalog_broker.log.retention import PolicyFailed, PolicyFailures, PolicyMaker, policy_of
from kafkalog_broker.logs import partition_files
from kafkalog_broker.logs.cluster_data import RegistryNote, read_note, set_partitions_aside, write_note
from kafkalog_broker.logs.directory_moves import DirectoryMoves
from kafkalog_broker.logs.startup import OfflineLog, Startup, note_recovery_points, opened_again
from kafkalog_broker.logs.topic_store import StoredTopic, TopicStore
from kafkalog_broker.scheduler import Sweep
from pyspark_kafkalog.clock import SYSTEM_CLOCK, Clock
from pyspark_kafkalog.errors import (
    ErrorCode,
    InvalidPartitions,
    KafkaError,
    ServerError,
    StorageError,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)
from pyspark_kafkalog.types import TopicPartition

MAX_OPEN_FILES = 512
"""Open segment files: half of the usual limit of 1,024 descriptors."""

_logger = logging.getLogger(__name__)


class DirectoryContents(msgspec.Struct, frozen=True):
    """A data directory, whether it is usable, and the size of each partition's segments in it."""

    path: Path
    online: bool
    sizes: Mapping[TopicPartition, int]
    futures: Mapping[TopicPartition, tuple[int, int]] = msgspec.field(default_factory=dict)
    """Partitions being moved here: bytes copied, and offsets to go."""


class LogManager:
    """*Thread-safe.* ``_lock`` guards the set of topics while one is changed, published or withdrawn.

    Topics being created or deleted, which may take seconds, are in ``_making`` or ``_leaving``, without the
    lock and not visible; ``_settled`` tells when they leave. ``_reopening``, taken before it, keeps offline
    partitions from being opened and removed at once. Look-ups take no lock: ``topics`` and ``logs`` are
    replaced, never modified.
    """

    def __init__(
        self,
        dirs: Sequence[Path],
        *,
        defaults: LogConfig | Callable[[Mapping[str, str]], LogConfig],
        producer_expiration_ms: int,
        clock: Clock = SYSTEM_CLOCK,
        files: FileSystem | None = None,
        max_open_files: int = MAX_OPEN_FILES,
        node_id: int = 0,
        name_cluster: Callable[[str | None], str] = keep_or_make,
        retention: PolicyMaker = policy_of,
        flushed: Callable[[float], object] = lambda _: None,
        grown: Grown = lambda _partition, _size: None,
        truncate_missing: bool = False,
        run_moves: Callable[[Callable[[], object]], object] = lambda run: run(),
    ) -> None:
        """``defaults``: topic defaults, or a function of the settings stored by `set_defaults`. ``retention``
        makes the policy of a topic. ``flushed`` gets the seconds of each flush, ``grown`` the bytes it made
        readable (0.7). ``truncate_missing``: a log with missing segments starts after them instead of being
        offline. ``run_moves`` gets the function that copies partitions to other directories; it takes long.
        """
        self._files = files if files is not None else FileSystem()
        self._directories = [DataDirectory(Path(path).absolute(), self._files, clock) for path in dirs]
        self._make_defaults = defaults
        self.defaults = LogConfig()
        self._settings_change = 0
        self._clock = clock
        self._agree = partial(agree_on_meta, node_id=node_id, name_cluster=name_cluster)
        self._retention = retention
        self._policy_failures = PolicyFailures()
        self._retiring, self._expiry = Sweep("retention"), Sweep("forgetting producers")
        self.open_files = OpenFiles(self._files, max_open_files)
        self._tools = tools_of_all(
            self._files, self.open_files, clock, flushed, producer_expiration_ms, grown
        )
        self.topics: Mapping[str, StoredTopic] = MappingProxyType({})
        self._stores: dict[str, DataDirectory] = {}
        self.logs: Mapping[TopicPartition, Log] = {}
        self._offline: dict[TopicPartition, OfflineLog] = {}
        self._truncate_missing = truncate_missing
        self._making: set[str] = set()
        self._leaving: set[str] = set()
        self._unfinished: dict[str, Callable[[], None]] = {}
        self._doomed = partition_files.DelayedRemoval(self._files, clock)
        self._moves, self._run_moves = DirectoryMoves(self._files, self._doomed), run_moves
        self._meta: Meta | None = None
        self._lock = threading.RLock()
        self._settled = threading.Condition(self._lock)
        self._reopening = threading.Lock()

    @property
    def meta(self) -> Meta:
        """Cluster and node id. Raises `StorageError` before `start`."""
        if self._meta is None:
            raise StorageError("the log manager has not been started")
        return self._meta

    def start(self) -> None:
        """Lock the directories, complete what a crash interrupted, and open every log; skips failed disks."""
        with self._lock:
            opened: dict[DataDirectory, dict[str, str]] = {}
            try:
                for directory in self._directories:
                    try:
                        directory.open()
                        opened[directory] = directory.read_meta()
                    except OSError as e:
                        error = directory.refused("opening it", e)
                        if directory.online:
                            raise error from e
                if not opened:
                    raise StorageError("none of log.dirs can be used")
                try:
                    self._meta = self._agree(opened)
                except OSError as e:
                    raise StorageError(f"meta.properties: {e}") from e
                self.defaults = self._read_defaults(opened)
                found = Startup(list(opened), self.defaults, self._files, self._tools, self._truncate_missing)
                found.run(all_online=len(opened) == len(self._directories))
            except BaseException:
                self.open_files.close()
                for directory in self._directories:
                    directory.close()
                raise
            self.topics = MappingProxyType(found.topics)
            self._stores = found.stores
            self.logs = found.logs
            self._offline = found.offline
            self._unfinished = found.unfinished
            self._leaving |= found.unfinished.keys()
            for path in found.leftovers:
                self._doomed.add_tree(path, 0)
            for directory in {log.directory for log in found.offline.values()}:
                # The clean stop's state was consumed: the next start needs their recovery points.
                self._note_recovery_points(directory)
            _logger.info("%d partitions of %d topics", len(self.logs), len(self.topics))
            if found.offline:
                names = ", ".join(map(str, sorted(found.offline)[:20]))
                why = "as data is missing or the disk is full"
                _logger.error("partitions that are offline, %s: %d: %s", why, len(found.offline), names)
        for partition, target in found.moving:
            try:
                self.move(partition, str(target.path))
            except KafkaError as e:
                _logger.warning("%s is not moved to %s: %s", partition, target.path, e)

    def log(self, partition: TopicPartition) -> Log:
        """The log of a partition. Raises `UnknownTopicOrPartition`; `StorageError`: it is offline."""
        log = self.logs.get(partition)
        if log is None and partition.topic in self.topics:
            with self._lock:  # without it, a topic being created or deleted may be in only one table
                log, topic = self.logs.get(partition), self.topics.get(partition.topic)
            offline = self._offline.get(partition)
            if log is None and offline is not None:
                kind = StorageError if offline.reopen is None else PassingError
                raise kind(f"{partition} is offline: {offline.reason}")
            if log is None and topic is not None and partition.partition in topic.partitions:
                raise StorageError(f"{partition}: its directory is offline")
        if log is None:
            raise UnknownTopicOrPartition(f"{partition} does not exist")
        return log

    def directories(self) -> list[DirectoryContents]:
        sizes: dict[DataDirectory, dict[TopicPartition, int]] = {each: {} for each in self._directories}
        for partition, log in list(self.logs.items()):
            sizes[log.directory][partition] = log.size_bytes
        return [
            DirectoryContents(each.path, each.held and each.online, sizes[each], self._moves.to(each))
            for each in self._directories
        ]

    def move(self, partition: TopicPartition, path: str) -> None:
        """Begin to move a partition to another of ``log.dirs``, named as `directories` names it; ends a move
        to yet another. Raises `ServerError` LOG_DIR_NOT_FOUND; `StorageError`; `UnknownTopicOrPartition`.
        """
        target = next((each for each in self._directories if str(each.path) == path), None)
        if target is None:
            known = ", ".join(str(each.path) for each in self._directories)
            raise ServerError(ErrorCode.LOG_DIR_NOT_FOUND, f"{path!r} is not one of log.dirs: {known}")
        if not target.held:
            raise StorageError(f"{path} is offline")
        target.check()
        with self._lock:
            log = self.log(partition)
            log.directory.check()
            if self._moves.target_of(partition) is target:
                return
            self._moves.cancel([partition])
            if log.directory is target:
                return
            self._moves.begin(log, target)
        self._run_moves(self._moves.run)

    def stop_moves(self) -> None:
        self._moves.stop()

    def open_transactions(self) -> list[tuple[TopicPartition, KnownProducer]]:
        found = []
        for partition, log in self.logs.items():
            try:
                found += [(partition, producer) for producer in log.open_transactions()]
            except KafkaError as e:
                _logger.warning("%s: its transactions are not known: %s", partition, e)
        return found

    def create_topic(
        self,
        name: str,
        topic_id: UUID,
        partition_count: int,
        overrides: Mapping[str, str] | None = None,
        *,
        generation: str = SINCE_08.generation,
        numbers: Sequence[int] | None = None,
        starts: Mapping[int, int] = MappingProxyType({}),
        epochs: Mapping[int, int] = MappingProxyType({}),
    ) -> None:
        """Create a topic atomically; its ``generation`` never changes. ``numbers``: this broker's partitions,
        ascending, if others have the rest. ``starts``: first offsets; ``epochs``: leader epochs. Raises
        `TopicAlreadyExists`, `InvalidTopic`, `InvalidPartitions`, `InvalidConfig`; `StorageError`: nothing
        was created.
        """
        family = family_of(generation)
        family.check_name(name, ())
        if partition_count < 1:
            raise InvalidPartitions(f"a topic has at least one partition, not {partition_count}")
        self.defaults.overridden(overrides or {})  # raises if invalid
        here = tuple(range(partition_count) if numbers is None else numbers)
        topic = StoredTopic(topic_id, here, dict(overrides or {}), generation, partition_count, epochs)
        with self._lock:
            if name in self.topics or name in self._making or name in self._leaving:
                raise TopicAlreadyExists(f"topic {name} exists")
            family.check_name(name, self._making)
            store = self._online()[0]
            self._making.add(name)
        try:
            logs = self._make_partitions(name, topic, topic.partitions, starts)
            with self._lock:
                for log in logs.values():
                    log.config = self.defaults.overridden(topic.overrides)
                self._commit(name, topic, store, logs)
        finally:
            self._settle(self._making, name)

    def wait_until_settled(self, name: str, seconds: float) -> None:
        with self._settled:
            self._settled.wait_for(lambda: name not in self._making | self._leaving, seconds)

    def _settle(self, changing: set[str], name: str) -> None:
        with self._settled:
            changing.discard(name)
            self._settled.notify_all()

    def add_partitions(
        self,
        name: str,
        total: int,
        *,
        numbers: Sequence[int] | None = None,
        starts: Mapping[int, int] = MappingProxyType({}),
        epochs: Mapping[int, int] = MappingProxyType({}),
    ) -> None:
        """Extend a topic to ``total`` partitions, all or none; ``numbers``, ``starts`` and ``epochs`` as in
        `create_topic`. Raises `UnknownTopicOrPartition`, `InvalidPartitions`, `StorageError`.
        """
        with self._lock:
            old = self._topic(name)
            if total <= len(old.partitions):
                raise InvalidPartitions(f"topic {name} has {len(old.partitions)} partitions already")
            if name in self._making:
                raise InvalidPartitions(f"topic {name} is being given more partitions already")
            self._making.add(name)
        try:
            added = range(len(old.partitions), total) if numbers is None else numbers
            new = replace(old, partitions=tuple(added), epochs=epochs)
            logs = self._make_partitions(name, new, added, starts)
            with self._lock:
                now = self.topics.get(name)
                if now is None or now.topic_id != old.topic_id:
                    partition_files.remove_partitions(self._files, logs)
                    raise UnknownTopicOrPartition(f"topic {name} was deleted meanwhile")
                for log in logs.values():
                    log.config = self.defaults.overridden(now.overrides)
                here = tuple(sorted({*now.partitions, *added}))
                total = max(total, now.total)
                topic = replace(now, partitions=here, total=total, epochs={**now.epochs, **new.epochs})
                self._commit(name, topic, self._stores[name], logs)
        finally:
            self._settle(self._making, name)

    def set_defaults(self, defaults: LogConfig, settings: Mapping[str, str]) -> None:
        """Apply new ``defaults``, stored as ``settings``; after `StorageError` only at the next start."""
        with self._lock:
            change = self._settings_change + 1
            for directory in self._online():
                with directory.refusing("writing the broker's properties"):
                    directory.write_settings(change, settings)
            self._settings_change, self.defaults = change, defaults
            for partition, log in self.logs.items():
                log.config = defaults.overridden(self.topics[partition.topic].overrides)

    def _read_defaults(self, opened: Iterable[DataDirectory]) -> LogConfig:
        if isinstance(self._make_defaults, LogConfig):
            return self._make_defaults
        newest: dict[str, str] = {}
        for directory in opened:
            try:
                change, found = directory.read_settings()
            except OSError as e:
                error = directory.refused("reading the broker's properties", e)
                if directory.online:
                    raise error from e
                continue
            if change > self._settings_change:
                self._settings_change, newest = change, found
        return self._make_defaults(newest)

    def set_overrides(self, name: str, overrides: Mapping[str, str]) -> None:
        """Replace a topic's own properties; after `StorageError` nothing is changed."""
        with self._lock:
            old = self._topic(name)
            config = self.defaults.overridden(overrides)
            topic = replace(old, overrides=dict(overrides))
            self._commit(name, topic, self._stores[name], {})
            for number in topic.partitions:
                log = self.logs.get(TopicPartition(name, number))
                if log is not None:
                    log.config = config

    def set_total(self, name: str, total: int) -> None:
        with self._lock:
            topic = replace(self._topic(name), total=total)
            self._commit(name, topic, self._stores[name], {})

    def delete_topic(self, name: str, goes_too: Callable[[], object] = lambda: None) -> None:
        """Delete a topic; ``goes_too`` is called once it is no longer visible. If the disk is then too full,
        `remove_deleted` completes it. Raises `UnknownTopicOrPartition`; `StorageError`: if the topic is gone,
        the next start completes the deletion.
        """
        with self._reopening, self._lock:
            topic, store = self._topic(name), self._stores[name]
            delay_ms = self.defaults.overridden(topic.overrides).file_delete_delay_ms
            records = TopicStore(store.path, self._files)
            store.check()
            with store.refusing(f"deleting topic {name}"):
                records.put(name, topic, deleting=True)
            logs = [log for tp, log in self.logs.items() if tp.topic == name]
            offline = [log for tp, log in self._offline.items() if tp.topic == name]
            self.topics = MappingProxyType({n: t for n, t in self.topics.items() if n != name})
            self.logs = {tp: log for tp, log in self.logs.items() if tp.topic != name}
            self._offline = {tp: log for tp, log in self._offline.items() if tp.topic != name}
            del self._stores[name]
            self._leaving.add(name)

        def finish() -> None:
            with store.refusing(f"deleting topic {name}"):
                self._moves.cancel([log.topic_partition for log in logs])
                for log in logs:
                    log.drop()
                    self._doom(log.path, delay_ms)
                    log.drop()  # again: a reader may have opened a file before the rename
                for lost in offline:
                    self._doom(lost.path, delay_ms)
                for directory in {log.directory for log in logs} | {lost.directory for lost in offline}:
                    self._files.sync_directory(directory.path)
                records.remove(name)

        try:
            with store.refusing(f"deleting topic {name}"):
                goes_too()
            finish()
        except PassingError:
            self._unfinished[name] = finish
        except BaseException:
            self._settle(self._leaving, name)
            raise
        else:
            self._settle(self._leaving, name)
        self._doomed.purge()

    def set_aside(self, name: str, topic_id: UUID, numbers: Iterable[int]) -> None:
        """Take partitions out of service but keep their data: `set_partitions_aside`. Raises
        `UnknownTopicOrPartition`: no topic with this name and id; `StorageError`: call again to continue.
        """
        with self._reopening, self._lock:
            topic, store = self._topic(name), self._stores[name]
            if topic.topic_id != topic_id:
                raise UnknownTopicOrPartition(f"topic {name} is another one by now")
            gone = {TopicPartition(name, number) for number in numbers}
            held: Mapping[TopicPartition, Log | OfflineLog] = {**self.logs, **self._offline}
            leaving = [log for partition, log in held.items() if partition in gone]
            staying = {n for n in topic.partitions if TopicPartition(name, n) not in gone}
            self._moves.cancel(gone)
            with store.refusing(f"setting partitions of {name} aside"):
                rest = set_partitions_aside(
                    self._files, TopicStore(store.path, self._files), name, topic, leaving, staying
                )
            self.logs = {tp: log for tp, log in self.logs.items() if tp not in gone}
            self._offline = {tp: log for tp, log in self._offline.items() if tp not in gone}
            topics = {n: t for n, t in self.topics.items() if n != name}
            if rest is not None:
                topics[name] = rest
            else:
                del self._stores[name]
            self.topics = MappingProxyType(topics)

    def registry_notes(self) -> list[RegistryNote]:
        found = (read_note(directory) for directory in self._online())
        return [note for note in found if note is not None]

    def note_registry(self, note: RegistryNote) -> None:
        for directory in self._online():
            write_note(directory, note)

    def flush_due(self) -> None:
        now = self._clock.monotonic()
        due = [log for log in self.logs.values() if log.flush_due(now) and log.directory.online]
        partition_files.for_each_log(due, partial(Log.flush, wait=False))
        for directory in self._directories:
            self._note_recovery_points(directory)

    def remove_deleted(self) -> None:
        """Remove what was deleted, once its time has come, and finish deletions that the disk had refused."""
        for name, finish in list(self._unfinished.items()):
            try:
                finish()
            except PassingError:
                continue
            except StorageError as e:
                _logger.error("the deletion of topic %s is left to the next start: %s", name, e)
            del self._unfinished[name]
            self._settle(self._leaving, name)
        self._doomed.purge()

    def reopen(self) -> int:
        """Open partitions for which the disk was too full, or descriptors too few; returns their number."""
        opened = 0
        still_full: set[DataDirectory] = set()
        for partition, offline in list(self._offline.items()):
            with self._reopening:
                is_due = offline.directory.online and offline.directory not in still_full
                if offline.reopen is None or not is_due or self._offline.get(partition) is not offline:
                    continue
                now = opened_again(partition, offline, offline.reopen)
                if isinstance(now, OfflineLog):
                    still_full.add(offline.directory)
                else:
                    opened += 1
                self._replace_offline(partition, offline, now)
        return opened

    def _replace_offline(self, partition: TopicPartition, old: OfflineLog, new: OfflineLog | Log) -> None:
        with self._lock:
            rest = {tp: offline for tp, offline in self._offline.items() if tp != partition}
            if isinstance(new, OfflineLog):
                rest[partition] = new  # last, so that others are tried before it
            elif self._offline.get(partition) is old:
                new.config = self.defaults.overridden(self.topics[partition.topic].overrides)
                self.logs = {**self.logs, partition: new}
            else:  # closed meanwhile
                new.drop()
            self._offline = rest

    def apply_retention(self) -> None:
        kept: dict[TopicPartition, PolicyFailed] = {}

        def retire(log: Log) -> None:
            config = log.config
            try:
                gone = log.retire(self._retention(config), self._clock.time_ms())
            except PolicyFailed as e:
                kept[log.topic_partition] = e
            else:
                self._doomed.add_files(gone, config.file_delete_delay_ms)

        online = [(partition, log) for partition, log in self.logs.items() if log.directory.online]
        self._retiring.run(online, retire)
        self._policy_failures.tell(kept)
        self._doomed.purge()

    def delete_records(self, partition: TopicPartition, offset: int) -> int:
        log = self.log(partition)
        self._doomed.add_files(log.delete_before(offset), log.config.file_delete_delay_ms)
        return log.start_offset

    def expire_producers(self) -> None:
        now_ms = self._clock.time_ms()
        self._expiry.run(list(self.logs.items()), lambda log: log.expire_producers(now_ms))

    def close(self) -> None:
        self._moves.stop()
        with self._lock:
            held = [directory for directory in self._directories if directory.held]
            tables: dict[DataDirectory, dict[str, tuple[int, ...]]] = {directory: {} for directory in held}
            online = [log for log in self.logs.values() if log.directory.online]
            for log, state in zip(online, partition_files.for_each_log(online, Log.close), strict=True):
                if state is not None:
                    tables[log.directory][log.path.name] = (
                        state.end_offset, state.last_base_offset, state.last_size,
                        *((1,) if state.in_transaction else ()),
                    )  # fmt: skip
            self.open_files.close()
            for directory, table in tables.items():
                if directory.online:
                    try:
                        directory.mark_clean_shutdown(table)
                    except OSError as e:
                        _logger.warning("%s: the next start recovers it: %s", directory.path, e)
                directory.close()
            self.logs, self._offline = {}, {}
            self.topics = MappingProxyType({})

    def _topic(self, name: str) -> StoredTopic:
        topic = self.topics.get(name)
        if topic is None:
            raise UnknownTopicOrPartition(f"topic {name} does not exist")
        return topic

    def _online(self) -> list[DataDirectory]:
        online = [directory for directory in self._directories if directory.held and directory.online]
        if not online:
            raise StorageError("none of log.dirs can be used")
        return online

    def _make_partitions(
        self, name: str, topic: StoredTopic, numbers: Sequence[int], starts: Mapping[int, int]
    ) -> dict[TopicPartition, Log]:
        config, online = self.defaults.overridden(topic.overrides), self._online()
        load = dict.fromkeys(online, 0)
        for log in list(self.logs.values()) if len(online) > 1 else ():
            if log.directory in load:
                load[log.directory] += 1
        return partition_files.make_partitions(
            self._files, self._tools[topic.generation], name, topic, numbers, config, starts, load
        )

    def _commit(
        self, name: str, topic: StoredTopic, store: DataDirectory, made: Mapping[TopicPartition, Log]
    ) -> None:
        store.check()
        try:
            TopicStore(store.path, self._files).put(name, topic)
        except OSError as e:
            partition_files.remove_partitions(self._files, made)
            raise store.refused(f"writing the record of topic {name}", e) from e
        self.logs = {**self.logs, **made}
        self._stores[name] = store
        self.topics = MappingProxyType({**self.topics, name: topic})

    def _doom(self, path: Path, delay_ms: int) -> None:
        target = path.parent / partition_files.deleted_name(uuid4().int)
        with suppress(FileNotFoundError):  # never made, or an attempt that failed later
            self._files.rename(path, target)
            self._doomed.add_tree(target, delay_ms)

    def _note_recovery_points(self, directory: DataDirectory) -> None:
        if directory.held and directory.online:
            note_recovery_points(directory, self.topics, self.logs.values(), self._offline.values())
