"""`Mirror`: group consumers at one or several clusters, and a producer for the target cluster."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace

import msgspec

from pyspark_kafkalog.classic.consumer.consumer_connector import ConsumerConnector
from pyspark_kafkalog.classic.consumer.stream import (
    Blacklist,
    MessageMetadata,
    MessageStream,
    TopicFilter,
    Whitelist,
)
from pyspark_kafkalog.classic.mirror_target import MirrorTarget, target_of
from pyspark_kafkalog.clock import SYSTEM_CLOCK, Clock
from pyspark_kafkalog.config.mirror_config import BrokersSourceConfig, Mirroring, SourceConfig
from pyspark_kafkalog.consumer.consumer import Consumer
from pyspark_kafkalog.consumer.record_fetcher import ConsumerRecord
from pyspark_kafkalog.errors import KafkaError
from pyspark_kafkalog.formats.compression import Codec
from pyspark_kafkalog.types import INTERNAL_TOPICS, Record

_log = logging.getLogger(__name__)

_POLL_SECONDS = 0.2
_LAG_SECONDS = 5.0  # how often the lag is measured


class NotMirrored(KafkaError):
    """Messages were not delivered to the target; the sources commit nothing more."""


class SourceProgress(msgspec.Struct, frozen=True):
    """Read from a source since the start; bytes are those of keys and values.

    ``lag`` is in bytes in 0.7, else offsets; None if unknown.
    """

    name: str
    message_count: int
    byte_count: int
    partition_count: int
    lag: int | None


class Mirror:
    """*Thread-safe.* Copies topics from its sources to its target, at least once, until stopped.

    Each commit of a source, periodic or before partitions move, first waits for the target. If a message was
    not delivered, nothing is committed. Owns sources, target and threads.
    """

    def __init__(self, config: Mirroring, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._config, self._clock = config, clock
        self.stream_count = config.mirror.num_streams
        self._target: MirrorTarget | None = None
        self._sources: list[MirrorSource] = []
        self._lost_lock = threading.Lock()  # guards the three below
        self.lost_count = 0
        self._lost_error: KafkaError | None = None
        self._failure: KafkaError | None = None
        self._ended = threading.Event()
        self._lag_thread = threading.Thread(target=self._watch_lag, name="kafkalog-mirror-lag", daemon=True)
        self._stopped = False

    def start(self) -> Mirror:
        """Connects to the target and the sources, and starts the threads.

        Raises `InvalidConfig` for an invalid filter, `ConnectionLost` if a ZooKeeper does not answer.
        """
        self.topics = topics_of(self._config)
        self._target = target = target_of(self._config, self._lost, clock=self._clock)
        try:
            for name, config in self._config.sources.items():
                source = (
                    BrokersSource(name, config, self, target, self._clock)
                    if isinstance(config, BrokersSourceConfig)
                    else ZooKeeperSource(name, config, self, target, self._clock)
                )
                self._sources.append(source)
                source.start()
        except BaseException:
            self._shut_down()
            raise
        self._lag_thread.start()
        return self

    def wait(self, timeout: float | None = None) -> bool:
        """Waits up to ``timeout`` seconds; True if it has failed, then `stop` raises the error."""
        return self._ended.wait(timeout)

    def stop(self) -> None:
        """Stops reading, waits for the target, commits, leaves the groups. A second call does nothing.

        Raises:
            NotMirrored: messages were not delivered; the next start repeats what was not committed.
            KafkaError: a source cannot be read further; messages read before are mirrored and committed.
        """
        if self._stopped:
            return
        self._stopped = True
        self._shut_down()
        self._check_lost()
        if self._failure is not None:
            raise self._failure

    def __enter__(self) -> Mirror:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def aborted(self) -> bool:
        """Whether it stopped sending because a message was not delivered."""
        return self._lost_error is not None and self._config.mirror.abort_on_send_failure

    def progress(self) -> list[SourceProgress]:
        return [source.progress() for source in self._sources]

    def settle(self) -> None:
        """Waits for delivery before a source commits. Raises `NotMirrored`."""
        self._check_lost()
        if self._target is not None:
            self._target.flush()
        self._check_lost()

    def failed(self, error: KafkaError) -> None:
        with self._lost_lock:
            self._failure = self._failure or error
        self._ended.set()

    def _lost(self, count: int, error: KafkaError) -> bool:
        """Returns whether to continue."""
        abort = self._config.mirror.abort_on_send_failure
        with self._lost_lock:
            first = self._lost_error is None
            self.lost_count += count
            self._lost_error = self._lost_error or error
        if abort:
            self._ended.set()
        if first or not abort:
            _log.error("%d message(s) were not delivered to the target: %s", count, error)
        return not abort

    def _check_lost(self) -> None:
        if self.aborted:
            raise NotMirrored(
                f"{self.lost_count} message(s) were not delivered to the target; nothing more is committed, "
                f"and a restart begins before them: {self._lost_error}"
            )

    def _shut_down(self) -> None:
        """Closes the target last: sources commit when they end, and wait for the target first."""
        self._ended.set()
        aborted = self.aborted
        if aborted and self._target is not None:
            # Messages after a lost one must not be delivered.
            self._target.close(at_once=True)
        for source in self._sources:
            source.end_reading()
        if self._target is not None and not aborted:
            # Flush now, so that sources need not wait while they leave.
            self._target.flush()
        if self._lag_thread.is_alive():
            self._lag_thread.join(_LAG_SECONDS)
        for source in self._sources:
            source.close()
        if self._target is not None:
            self._target.close(at_once=aborted)

    def _watch_lag(self) -> None:
        while not self._ended.is_set():
            for source in self._sources:
                try:
                    source.measure_lag()
                except KafkaError as e:
                    _log.debug("the lag of source %s is unknown: %s", source.name, e)
            self._ended.wait(_LAG_SECONDS)


class MirrorSource(ABC):
    """*Thread-safe.* A cluster to read from; counts are since the start."""

    def __init__(self, name: str, mirror: Mirror, target: MirrorTarget) -> None:
        self.name, self._mirror, self._target = name, mirror, target
        self._copiers: Sequence[_Copier] = ()

    def progress(self) -> SourceProgress:
        message_count = sum(copier.message_count for copier in self._copiers)
        byte_count = sum(copier.byte_count for copier in self._copiers)
        return SourceProgress(self.name, message_count, byte_count, self.partition_count, self.lag)

    @property
    @abstractmethod
    def partition_count(self) -> int: ...

    @property
    @abstractmethod
    def lag(self) -> int | None:
        """Messages (bytes in 0.7) not copied yet; None if unknown."""

    def start(self) -> None:
        """Joins the group and starts the threads. Raises `ConnectionLost` if ZooKeeper does not answer."""
        for copier in self._copiers:
            copier.start()

    def end_reading(self) -> None:
        for copier in self._copiers:
            copier.end()

    @abstractmethod
    def close(self) -> None: ...

    @abstractmethod
    def measure_lag(self) -> None: ...


class ZooKeeperSource(MirrorSource):
    def __init__(
        self, name: str, config: SourceConfig, mirror: Mirror, target: MirrorTarget, clock: Clock
    ) -> None:
        super().__init__(name, mirror, target)
        self._connector = ConsumerConnector(config, before_commit=mirror.settle, clock=clock)
        self._lag: int | None = None

    @property
    def partition_count(self) -> int:
        return len(self._connector.owned)

    @property
    def lag(self) -> int | None:
        return self._lag

    def start(self) -> None:
        streams = self._connector.create_message_streams_by_filter(
            self._mirror.topics, self._mirror.stream_count
        )
        self._copiers = [
            _StreamCopier(stream, self._mirror, self._target, self.name, f"{self.name}-{stream.number}")
            for stream in streams
        ]
        super().start()

    def close(self) -> None:
        self._connector.shutdown()

    def measure_lag(self) -> None:
        self._lag = None
        self._lag = sum(self._connector.lag().values())


class BrokersSource(MirrorSource):
    def __init__(
        self, name: str, config: BrokersSourceConfig, mirror: Mirror, target: MirrorTarget, clock: Clock
    ) -> None:
        super().__init__(name, mirror, target)
        configs = [config] * mirror.stream_count
        if config.group_instance_id is not None and len(configs) > 1:
            configs = [
                replace(config, group_instance_id=f"{config.group_instance_id}-{number}")
                for number in range(len(configs))
            ]
        self._members = [_Member(one, clock, mirror, target, name) for one in configs]
        self._copiers = self._members

    @property
    def partition_count(self) -> int:
        return sum(member.partition_count for member in self._members)

    @property
    def lag(self) -> int | None:
        lags = [member.lag for member in self._members]
        return None if None in lags else sum(lag or 0 for lag in lags)

    def close(self) -> None:
        for member in self._members:
            member.join()

    def measure_lag(self) -> None: ...


class _Copier(ABC):
    """A thread that copies messages to the target. It writes the counters; any thread may read them."""

    def __init__(self, mirror: Mirror, target: MirrorTarget, source: str, name: str) -> None:
        self.message_count = self.byte_count = 0
        self._mirror, self._target, self._source = mirror, target, source
        self._thread = threading.Thread(target=self._run, name=f"kafkalog-mirror-{name}", daemon=True)
        self.start = self._thread.start

    @abstractmethod
    def end(self) -> None: ...

    def join(self) -> None:
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        try:
            self._read()
        except KafkaError as e:
            self._mirror.failed(e)
        except Exception as e:
            _log.exception("mirroring source %s failed", self._source)
            self._mirror.failed(KafkaError(f"mirroring source {self._source} failed: {e!r}"))

    @abstractmethod
    def _read(self) -> None: ...

    def _copy(self, where: MessageMetadata) -> None:
        self._target.send(self._source, where)
        self.message_count += 1
        self.byte_count += len(where.record.value or b"") + len(where.record.key or b"")


class _StreamCopier(_Copier):
    def __init__(
        self, stream: MessageStream, mirror: Mirror, target: MirrorTarget, source: str, name: str
    ) -> None:
        super().__init__(mirror, target, source, name)
        self._stream = stream

    def end(self) -> None:
        self._stream.close()
        self.join()

    def _read(self) -> None:
        for _, where in self._stream:
            if self._mirror.aborted:
                return
            self._copy(where)


class _Member(_Copier):
    def __init__(
        self, config: BrokersSourceConfig, clock: Clock, mirror: Mirror, target: MirrorTarget, source: str
    ) -> None:
        super().__init__(mirror, target, source, source)
        self.partition_count = 0
        self.lag: int | None = None
        self._config, self._clock = config, clock
        self._ending = threading.Event()

    def end(self) -> None:
        self._ending.set()

    def _read(self) -> None:
        with Consumer(self._config, clock=self._clock) as consumer:
            consumer.subscribe(
                pattern=self._mirror.topics.regex,
                on_revoked=lambda _: self._commit(consumer),
                on_lost=lambda _: None,
            )
            interval = self._config.auto_commit_interval_ms / 1000
            commit_at, lag_at = self._clock.monotonic() + interval, 0.0
            while not self._ending.is_set() and not self._mirror.aborted:
                self._copy_all(consumer.poll(_POLL_SECONDS))
                self.partition_count = len(consumer.assignment)
                now = self._clock.monotonic()
                if now >= commit_at:
                    self._commit(consumer)
                    commit_at = self._clock.monotonic() + interval
                if now >= lag_at:
                    self._measure_lag(consumer)
                    lag_at = self._clock.monotonic() + _LAG_SECONDS

    def _copy_all(self, records: list[ConsumerRecord]) -> None:
        for one in records:
            if self._mirror.aborted:
                return
            record = Record(
                one.offset, one.offset + 1, one.timestamp, one.timestamp_type, one.key, one.value, one.headers
            )
            self._copy(
                MessageMetadata(one.topic, -1, one.partition, one.offset, one.offset + 1, record, Codec.NONE)
            )

    def _commit(self, consumer: Consumer) -> None:
        """Commits what was copied; after a failure the partitions' next owner copies it again."""
        self._mirror.settle()
        try:
            consumer.commit()
        except KafkaError as e:
            _log.warning("committing the offsets of source %s failed: %s", self._source, e)

    def _measure_lag(self, consumer: Consumer) -> None:
        positions = consumer.positions()
        try:
            ends = consumer.end_offsets(positions)
        except KafkaError as e:
            _log.debug("the lag of source %s is unknown: %s", self._source, e)
            self.lag = None
            return
        self.lag = sum(max(ends[tp] - offset, 0) for tp, offset in positions.items())


def topics_of(config: Mirroring) -> TopicFilter:
    """Raises `InvalidConfig` for an invalid expression."""
    mirror = config.mirror
    internal = "|".join(INTERNAL_TOPICS)
    if mirror.blacklist is not None:
        chosen: TopicFilter = Blacklist(mirror.blacklist.strip(" \"'"))
        return Blacklist(f"{chosen.expression},{internal}") if mirror.exclude_internal_topics else chosen
    # Blanks and quotes around an expression are ignored; inside the combined one they would count.
    chosen = Whitelist((mirror.whitelist or "").strip(" \"'"))
    if not mirror.exclude_internal_topics:
        return chosen
    return Whitelist(f"(?!({internal})$)({chosen.expression})")
