"""What a consumer reads at the moment: its partitions, who fetches them, and how far their readers are."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Mapping

from pyspark_kafkalog.clock import SYSTEM_CLOCK, Clock
from pyspark_kafkalog.config.connector import ConnectorConfig
from pyspark_kafkalog.consumer.broker_fetcher import Address, BrokerFetcher
from pyspark_kafkalog.consumer.offset_store import OffsetStore
from pyspark_kafkalog.consumer.stream import MessageStream, OwnedPartition
from pyspark_kafkalog.consumer.zookeeper_group import Claim, Lease
from pyspark_kafkalog.errors import ConnectionLost, KafkaError
from pyspark_kafkalog.zookeeper.values import BrokerNode, PartitionKey

_log = logging.getLogger(__name__)

_PATIENCE_SECONDS = 0.5
"""How long a reader may take to finish its message before the partition goes to somebody else."""


class Holdings:
    """*Thread-safe.* Holds what the group has given to a consumer: the `Holder` of its `GroupMember`.

    Owns partitions and fetchers, guarded by `_lock`; `_committing` is held over a commit, so that none ends
    after the partition has gone to somebody else.
    """

    def __init__(
        self,
        config: ConnectorConfig,
        offsets: OffsetStore,
        lease: Lease,
        stream_of: Callable[[str, int], MessageStream],
        *,
        before_commit: Callable[[], object] | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """``stream_of`` tells which stream reads a topic's partitions of a thread's number; ``before_commit``
        is called between noting what was dealt with and storing it.
        """
        self._config, self._offsets, self._lease, self._clock = config, offsets, lease, clock
        self._stream_of, self._before_commit = stream_of, before_commit
        self._lock, self._committing = threading.Lock(), threading.Lock()
        self._partitions: dict[PartitionKey, tuple[OwnedPartition, BrokerFetcher | None]] = {}
        self._fetchers: dict[Address, BrokerFetcher] = {}

    def partitions(self) -> list[OwnedPartition]:
        """Those that are read now, sorted."""
        with self._lock:
            return [partition for _, (partition, _) in sorted(self._partitions.items())]

    def lag(self) -> dict[PartitionKey, int]:
        """How far behind the ends of their logs the readers are: asks a broker for each partition.

        Raises `KafkaError`. What nobody fetches at the moment is left out.
        """
        with self._lock:
            held = list(self._partitions.values())
        return {
            partition.key: max(0, fetcher.end_offset(partition) - done)
            for partition, fetcher in held
            if fetcher is not None and (done := partition.done) is not None
        }

    def wake_fetchers(self) -> None:
        """There is room in a stream."""
        for fetcher in list(self._fetchers.values()):
            fetcher.wake()

    def close(self) -> None:
        """Stop fetching."""
        for fetcher in self._fetchers.values():
            fetcher.stop()

    def release(self, partitions: Collection[PartitionKey]) -> None:
        """For the group: see `Holder`."""
        given_up = self._give_up(partitions, _PATIENCE_SECONDS)
        if not self._config.auto_commit:
            with self._committing:  # a commit under way must not end after the next owner's first
                return
        try:
            self.commit(given_up)
        except KafkaError as e:
            _log.warning("handed over without a commit, messages will come again: %s", e)

    def abandon(self, partitions: Collection[PartitionKey]) -> None:
        """For the group: see `Holder`."""
        self._give_up(partitions, 0.0)

    def take(self, claimed: Mapping[PartitionKey, Claim]) -> None:
        """For the group: see `Holder`."""
        offsets = self._load(claimed)
        for key, claim in claimed.items():
            stream = self._stream_of(key.topic, claim.stream)
            found = offsets.get(key)
            offset = found if isinstance(found, int) else None
            partition = OwnedPartition(key, claim.broker, stream, offset)
            if isinstance(found, KafkaError):
                partition.failed = True
                stream.put(partition, found)
            with self._lock:
                self._partitions[key] = (partition, None)

    def _load(self, claimed: Iterable[PartitionKey]) -> dict[PartitionKey, int | KafkaError]:
        """Offsets; an error for a partition whose offset cannot be read. Raises what may pass."""
        found: dict[PartitionKey, int | KafkaError] = {}
        try:
            found.update(self._offsets.load(list(claimed)))
        except KafkaError as e:
            if e.retriable:
                raise
            for key in claimed:
                try:
                    found.update(self._offsets.load([key]))
                except KafkaError as one:
                    found[key] = one
        return found

    def _give_up(self, keys: Collection[PartitionKey], patience_seconds: float) -> list[OwnedPartition]:
        with self._lock:
            found = [self._partitions.pop(key) for key in keys if key in self._partitions]
        until = self._clock.monotonic() + patience_seconds
        for partition, fetcher in found:
            if fetcher is not None:
                fetcher.remove(partition)
            partition.stream.revoke(partition)
        for partition, _ in found:
            partition.stream.revoke(partition, max(0.0, until - self._clock.monotonic()))
        return [partition for partition, _ in found]

    def attach(self, nodes: Mapping[int, BrokerNode]) -> None:
        """Have each partition fetched from where its broker is now; fetchers with nothing to do end."""
        with self._lock:
            for key, (partition, fetcher) in self._partitions.items():
                node = nodes.get(partition.broker)
                if node is None:
                    continue
                address = Address(node.host, node.port)
                if fetcher is not None:
                    if fetcher.address == address:
                        continue
                    fetcher.remove(partition)
                if address not in self._fetchers:
                    made = BrokerFetcher(address, self._config, self._store_begin, clock=self._clock)
                    self._fetchers[address] = made.start()
                self._partitions[key] = (partition, self._fetchers[address])
                self._fetchers[address].add(partition)
            idle = [address for address, fetcher in self._fetchers.items() if fetcher.idle]
            ended = [self._fetchers.pop(address) for address in idle]
        for fetcher in ended:
            fetcher.stop(wait_seconds=0.0)  # it may be waiting for a broker that is gone

    def _store_begin(self, partition: OwnedPartition, offset: int) -> None:
        if not self._lease.held():
            raise ConnectionLost(f"{partition.key}: it is not known whether it is still ours")
        self._offsets.save({partition.key: offset})
        partition.committed = offset

    def commit(self, partitions: Collection[OwnedPartition]) -> None:
        """Store how far ``partitions`` have been dealt with, where that is news.

        Raises:
            ConnectionLost: it cannot be stored now, or it is not known whether they are still ours.
            KafkaError: the store refused, or who is asked before a commit.
        """
        with self._committing:
            done = [(one, one.done) for one in partitions]
            offsets = {
                one.key: offset for one, offset in done if offset is not None and offset != one.committed
            }
            if not offsets:
                return
            ends = self._lease.ends
            if self._before_commit is not None:
                self._before_commit()
            # That may have taken long enough for them to go to somebody else, and for us to join again.
            if not self._lease.held() or self._lease.ends != ends:
                raise ConnectionLost(
                    f"group {self._config.group_id}: ZooKeeper is silent and partitions may be somebody "
                    "else's by now: nothing is committed"
                )
            self._offsets.save(offsets)
            for one, offset in done:
                if one.key in offsets:
                    one.committed = offset
