"""Fetches from one broker for all streams that read its partitions: one thread, one connection."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from pyspark_kafkalog.classic.consumer.simple_consumer import SimpleConsumer
from pyspark_kafkalog.classic.consumer.stream import Chunk, MessageSet, OwnedPartition
from pyspark_kafkalog.client.connection import Address
from pyspark_kafkalog.client.transport import peer_name
from pyspark_kafkalog.clock import SYSTEM_CLOCK, Clock
from pyspark_kafkalog.config.classic_config import LARGEST, NONE, ConnectorConfig
from pyspark_kafkalog.errors import CorruptMessage, InvalidRequest, KafkaError, OffsetOutOfRange
from pyspark_kafkalog.protocol.v07 import FetchRequest
from pyspark_kafkalog.types import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP

_log = logging.getLogger(__name__)

_STOP_SECONDS = 5.0


class BrokerFetcher:
    """*Thread-safe.* Fetches with multifetches for all partitions whose streams have room.

    Owns its connection, its thread and, guarded by `_lock`, its partitions. Broker errors are logged and
    retried, as partitions of a dead broker move; final errors are raised by the stream.
    """

    def __init__(
        self,
        address: Address,
        config: ConnectorConfig,
        store: Callable[[OwnedPartition, int], object],
        *,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.address = address
        self._config, self._store = config, store
        self._consumer = SimpleConsumer(*address, config, clock=clock)
        self._lock = threading.Lock()
        self._partitions: list[OwnedPartition] = []
        self._wake = threading.Event()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name=f"fetcher-{peer_name(*address)}", daemon=True)

    def start(self) -> BrokerFetcher:
        self._thread.start()
        return self

    def add(self, partition: OwnedPartition) -> None:
        with self._lock:
            self._partitions.append(partition)
        self._wake.set()

    def remove(self, partition: OwnedPartition) -> None:
        with self._lock:
            self._partitions = [one for one in self._partitions if one is not partition]

    def wake(self) -> None:
        self._wake.set()

    def stop(self, wait_seconds: float = _STOP_SECONDS) -> None:
        """Waits a little for the thread, as a running request may take longer."""
        self._stopped = True
        self._wake.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(wait_seconds)

    def end_offset(self, partition: OwnedPartition) -> int:
        key = partition.key
        try:
            found = self._consumer.get_offsets_before(key.topic, key.number, LATEST_TIMESTAMP, 1)
        finally:
            if self._stopped:  # the thread may have closed the connection before this call reopened it
                self._consumer.close()
        return max(found, default=0)

    @property
    def idle(self) -> bool:
        with self._lock:
            return not self._partitions

    def _run(self) -> None:
        while not self._stopped:
            self._wake.clear()
            is_news = False
            try:
                is_news = self._fetch()
            except KafkaError as e:
                if not self._stopped:
                    _log.warning("fetching failed, retrying: %s", e)
            except Exception:
                _log.exception("fetching from %s:%d failed", *self.address)
            if not is_news and not self._stopped:
                self._wake.wait(self._config.fetcher_backoff_ms / 1000)
        self._consumer.close()

    def _fetch(self) -> bool:
        with self._lock:
            partitions = [one for one in self._partitions if not one.failed and one.stream.room()]
        requests = []
        for one in partitions:
            if one.fetch_offset is None:
                self._begin(one)
            if one.fetch_offset is not None:
                key = one.key
                request = FetchRequest(key.topic, key.number, one.fetch_offset, self._config.fetch_size)
                requests.append((one, request))
        sets = self._consumer.multifetch([request for _, request in requests])
        news = [self._take(one, messages) for (one, _), messages in zip(requests, sets, strict=True)]
        return any(news)

    def _take(self, partition: OwnedPartition, found: MessageSet) -> bool:
        try:
            if found.error is not None:
                raise found.error
            if not found.data:
                return False
            end = found.next_offset
            if end <= found.offset:
                next(iter(found), None)  # raises if the first entry is bad
                raise CorruptMessage(f"{partition.key} at offset {found.offset}: a response without an entry")
            return self._put(partition, found, end)
        except OffsetOutOfRange as e:
            if self._config.auto_offset_reset == NONE:
                return self._fail(partition, e)
            _log.warning("%s: starting again at the %s offset", e, self._config.auto_offset_reset)
            self._begin(partition)
            return True
        except KafkaError as e:
            if e.retriable and not isinstance(e, CorruptMessage):
                _log.warning("fetching %s failed, retrying: %s", partition.key, e)
                return False
            return self._fail(partition, e)

    def _begin(self, partition: OwnedPartition) -> None:
        """Stores the first offset, so that the next owner starts there too."""
        reset, key = self._config.auto_offset_reset, partition.key
        if reset == NONE:
            text = f"group {self._config.group_id} has no offset for {key}, and autooffset.reset is {NONE}"
            self._fail(partition, InvalidRequest(text))
            return
        time = LATEST_TIMESTAMP if reset == LARGEST else EARLIEST_TIMESTAMP
        try:
            offset = max(self._consumer.get_offsets_before(key.topic, key.number, time, 1), default=0)
            with self._lock:
                if partition not in self._partitions:
                    return
                self._store(partition, offset)
        except KafkaError as e:
            # This broker's other partitions must not wait for this one.
            _log.warning("the first offset of %s is not known yet: %s", key, e)
            return
        self._put(partition, offset, offset)

    def _put(self, partition: OwnedPartition, chunk: Chunk, end: int) -> bool:
        with self._lock:
            if partition not in self._partitions:
                return False
            partition.fetch_offset = end
            partition.stream.put(partition, chunk)
        return True

    def _fail(self, partition: OwnedPartition, error: KafkaError) -> bool:
        _log.error("stopped reading %s: %s", partition.key, error)
        partition.failed = True
        partition.stream.put(partition, error)
        return False
