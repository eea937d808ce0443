"""`Mirror`: group consumers at one or several clusters, and a producer for the target cluster."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Protocol

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
from pyspark_kafkalog.errors import InvalidRequest, KafkaError
from pyspark_kafkalog.formats.compression import Codec
from pyspark_kafkalog.types import INTERNAL_TOPICS, Record

_log = logging.getLogger(__name__)

_POLL_SECONDS = 0.2

_LAG_SECONDS = 5.0
"""How often the lag is measured."""


class NotMirrored(KafkaError):
    """Messages were not delivered to the target; the sources commit nothing more."""


@dataclass(frozen=True, slots=True)
class SourceProgress:
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
        self._target: MirrorTarget | None = None
        self._sources: list[MirrorSource] = []
        self._lost_lock = threading.Lock()  # guards the three below
        self._lost_count = 0
        self._lost_error: KafkaError | None = None
        self._failure: KafkaError | None = None
        self._ended = threading.Event()
        self._lag_thread = threading.Thread(target=self._watch_lag, name="kafkalog-mirror-lag", daemon=True)
        self._stopped = False

    def start(self) -> Mirror:
        """Connects to the target and the sources, and starts the threads.

        Raises `InvalidConfig` for an invalid filter, `ConnectionLost` if a ZooKeeper does not answer.
        """
        chosen = topics_of(self._config)
        self._target = target_of(self._config, self._lost, clock=self._clock)
        try:
            for name, config in self._config.sources.items():
                streams = self._config.mirror.num_streams
                source = source_of(name, config, chosen, streams, self, clock=self._clock)
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
    def lost_count(self) -> int:
        return self._lost_count

    @property
    def aborted(self) -> bool:
        """Whether it stopped sending because a message was not delivered."""
        return self._lost_error is not None and self._config.mirror.abort_on_send_failure

    def progress(self) -> list[SourceProgress]:
        return [
            SourceProgress(
                source.name, source.message_count, source.byte_count, source.partition_count, source.lag
            )
            for source in self._sources
        ]

    def copy(self, source: str, where: MessageMetadata) -> None:
        """Called by a source: sends a message to the target."""
        self._begun().send(source, where)

    def settle(self) -> None:
        """Called by a source before it commits: waits for delivery. Raises `NotMirrored`."""
        self._check_lost()
        self._begun().flush()
        self._check_lost()

    def failed(self, error: KafkaError) -> None:
        """Called by a source that cannot be read further."""
        with self._lost_lock:
            self._failure = self._failure or error
        self._ended.set()

    def _lost(self, count: int, error: KafkaError) -> bool:
        """The target's `Lost` callback; returns whether to continue."""
        abort = self._config.mirror.abort_on_send_failure
        with self._lost_lock:
            first = self._lost_error is None
            self._lost_count += count
            self._lost_error = self._lost_error or error
        if abort:
            self._ended.set()
        if first or not abort:
            _log.error("%d message(s) were not delivered to the target: %s", count, error)
        return not abort

    def _begun(self) -> MirrorTarget:
        if self._target is None:
            raise InvalidRequest("the mirror has not been started")
        return self._target

    def _check_lost(self) -> None:
        if self.aborted:
            raise NotMirrored(
                f"{self._lost_count} message(s) were not delivered to the target; nothing more is committed, "
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


class MirrorSource(Protocol):
    """*Thread-safe.* A cluster to read from; counts are since the start."""

    name: str

    @property
    def message_count(self) -> int: ...

    @property
    def byte_count(self) -> int: ...

    @property
    def partition_count(self) -> int:
        """Partitions owned by this mirror."""
        ...

    @property
    def lag(self) -> int | None:
        """Messages (bytes in 0.7) not copied yet; None if unknown."""
        ...

    def start(self) -> None:
        """Joins the group and starts the threads. Raises `ConnectionLost` if ZooKeeper does not answer."""
        ...

    def end_reading(self) -> None: ...

    def close(self) -> None:
        """Commits what was delivered to the target, and leaves the group."""
        ...

    def measure_lag(self) -> None:
        """Updates `lag`, if it is not measured anyway; raises `KafkaError`."""
        ...


def source_of(
    name: str,
    config: SourceConfig | BrokersSourceConfig,
    topics: TopicFilter,
    streams: int,
    mirror: Mirror,
    *,
    clock: Clock = SYSTEM_CLOCK,
) -> MirrorSource:
    """The source for a configuration, with ``streams`` threads; not connected yet."""
    if isinstance(config, BrokersSourceConfig):
        return BrokersSource(name, config, topics, streams, mirror, clock=clock)
    return ZooKeeperSource(name, config, topics, streams, mirror, clock=clock)


class ZooKeeperSource:
    """Reads with a `ConsumerConnector`, with one thread per stream."""

    def __init__(
        self,
        name: str,
        config: SourceConfig,
        topics: TopicFilter,
        streams: int,
        mirror: Mirror,
        *,
        clock: Clock,
    ) -> None:
        self.name, self._topics, self._streams, self._mirror = name, topics, streams, mirror
        self._connector = ConsumerConnector(config, before_commit=mirror.settle, clock=clock)
        self._copiers: list[_Copier] = []
        self.lag: int | None = None
        """Written by the measuring thread."""

    @property
    def message_count(self) -> int:
        return sum(copier.message_count for copier in self._copiers)

    @property
    def byte_count(self) -> int:
        return sum(copier.byte_count for copier in self._copiers)

    @property
    def partition_count(self) -> int:
        return len(self._connector.owned)

    def start(self) -> None:
        streams = self._connector.create_message_streams_by_filter(self._topics, self._streams)
        self._copiers = [_Copier(self._mirror, self.name, stream) for stream in streams]
        for copier in self._copiers:
            copier.start()

    def end_reading(self) -> None:
        for copier in self._copiers:
            copier.end()

    def close(self) -> None:
        self._connector.shutdown()

    def measure_lag(self) -> None:
        self.lag = None
        self.lag = sum(self._connector.lag().values())


class _Copier:
    """Copies one stream to the target. Its thread writes the counters; any thread reads them."""

    def __init__(self, mirror: Mirror, source: str, stream: MessageStream) -> None:
        self.message_count = self.byte_count = 0
        self._mirror, self._source, self._stream = mirror, source, stream
        self._thread = threading.Thread(
            target=self._run, name=f"kafkalog-mirror-{source}-{stream.number}", daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        """Stops reading; returns when everything read was passed to the target."""
        self._stream.close()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        with _failures(self._source, self._mirror.failed):
            for message, where in self._stream:
                if self._mirror.aborted:
                    return
                self._mirror.copy(self._source, where)
                self.message_count += 1
                self.byte_count += len(message) + len(where.record.key or b"")


class BrokersSource:
    """Reads with several `Consumer`s of one group, each in a thread of its own."""

    def __init__(
        self,
        name: str,
        config: BrokersSourceConfig,
        topics: TopicFilter,
        streams: int,
        mirror: Mirror,
        *,
        clock: Clock,
    ) -> None:
        self.name = name
        self._members = [
            _Member(name, _numbered(config, number, streams), topics, mirror, clock)
            for number in range(streams)
        ]

    @property
    def message_count(self) -> int:
        return sum(member.message_count for member in self._members)

    @property
    def byte_count(self) -> int:
        return sum(member.byte_count for member in self._members)

    @property
    def partition_count(self) -> int:
        return sum(member.partition_count for member in self._members)

    @property
    def lag(self) -> int | None:
        found = [member.lag for member in self._members]
        return None if None in found else sum(lag or 0 for lag in found)

    def start(self) -> None:
        for member in self._members:
            member.start()

    def end_reading(self) -> None:
        for member in self._members:
            member.end()

    def close(self) -> None:
        for member in self._members:
            member.join()

    def measure_lag(self) -> None:
        """Nothing to do: each member measures its own."""


class _Member:
    """One consumer of the group and the only thread that uses it. Any thread may read the counters."""

    def __init__(
        self, source: str, config: BrokersSourceConfig, topics: TopicFilter, mirror: Mirror, clock: Clock
    ) -> None:
        self.message_count = self.byte_count = self.partition_count = 0
        self.lag: int | None = None
        self._source, self._config, self._topics = source, config, topics
        self._mirror, self._clock = mirror, clock
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"kafkalog-mirror-{source}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self._ending.set()

    def join(self) -> None:
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        with (
            _failures(self._source, self._mirror.failed),
            Consumer(self._config, clock=self._clock) as consumer,
        ):
            consumer.subscribe(
                pattern=self._topics.regex,
                on_revoked=lambda _: self._commit(consumer),
                on_lost=lambda _: None,
            )
            interval = self._config.auto_commit_interval_ms / 1000
            commit_at, lag_at = self._clock.monotonic() + interval, 0.0
            while not self._ending.is_set() and not self._mirror.aborted:
                self._copy(consumer.poll(_POLL_SECONDS))
                self.partition_count = len(consumer.assignment)
                now = self._clock.monotonic()
                if now >= commit_at:
                    self._commit(consumer)
                    commit_at = self._clock.monotonic() + interval
                if now >= lag_at:
                    self._measure_lag(consumer)
                    lag_at = self._clock.monotonic() + _LAG_SECONDS

    def _copy(self, records: list[ConsumerRecord]) -> None:
        for one in records:
            if self._mirror.aborted:
                return
            record = Record(
                one.offset, one.offset + 1, one.timestamp, one.timestamp_type, one.key, one.value, one.headers
            )
            self._mirror.copy(
                self._source,
                MessageMetadata(one.topic, -1, one.partition, one.offset, one.offset + 1, record, Codec.NONE),
            )
            self.message_count += 1
            self.byte_count += len(one.value or b"") + len(one.key or b"")

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


def _numbered(config: BrokersSourceConfig, number: int, streams: int) -> BrokersSourceConfig:
    if config.group_instance_id is None or streams == 1:
        return config
    return replace(config, group_instance_id=f"{config.group_instance_id}-{number}")


@contextmanager
def _failures(source: str, failed: Callable[[KafkaError], None]) -> Iterator[None]:
    """Reports an error that ends a copying thread to the mirror."""
    try:
        yield
    except KafkaError as e:
        failed(e)
    except Exception as e:
        _log.exception("mirroring source %s failed", source)
        failed(KafkaError(f"mirroring source {source} failed: {e!r}"))


def topics_of(config: Mirroring) -> TopicFilter:
    """The topic filter of a configuration. Raises `InvalidConfig` for an invalid expression."""
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
