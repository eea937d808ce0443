"""A mirror's source: a cluster given by its ZooKeeper, of either wire, or by its brokers."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Protocol

from pyspark_kafkalog.classic.consumer.consumer_connector import ConsumerConnector
from pyspark_kafkalog.classic.consumer.stream import MessageMetadata, MessageStream, TopicFilter
from pyspark_kafkalog.clock import SYSTEM_CLOCK, Clock
from pyspark_kafkalog.config.mirror_config import BrokersSourceConfig, SourceConfig
from pyspark_kafkalog.consumer.consumer import Consumer
from pyspark_kafkalog.consumer.record_fetcher import ConsumerRecord
from pyspark_kafkalog.errors import KafkaError
from pyspark_kafkalog.formats.compression import Codec
from pyspark_kafkalog.types import Record

_log = logging.getLogger(__name__)

_POLL_SECONDS = 0.2

LAG_SECONDS = 5.0
"""How often the lag is measured."""


class Mirroring(Protocol):
    """*Thread-safe.* The mirror as seen by its sources."""

    @property
    def aborted(self) -> bool:
        """Whether to stop copying."""
        ...

    def copy(self, source: str, where: MessageMetadata) -> None:
        """Sends a message to the target; blocks while too many are in flight."""
        ...

    def settle(self) -> None:
        """Returns when all messages are delivered; raises `KafkaError` if some were not: do not commit."""
        ...

    def failed(self, error: KafkaError) -> None:
        """Reports that a source cannot be read further."""
        ...


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
    mirror: Mirroring,
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
        mirror: Mirroring,
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

    def __init__(self, mirror: Mirroring, source: str, stream: MessageStream) -> None:
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
        mirror: Mirroring,
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
        self, source: str, config: BrokersSourceConfig, topics: TopicFilter, mirror: Mirroring, clock: Clock
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
                    lag_at = self._clock.monotonic() + LAG_SECONDS

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
