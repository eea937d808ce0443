"""The coordinators: groups, transactions, producer ids; in a cluster also the calls to other brokers."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from kafkalog_broker.cluster.ownership import CoordinatorPartitions, Ownership
from kafkalog_broker.config.broker_config import BrokerConfig
from kafkalog_broker.disk.filesystem import FileSystem
from kafkalog_broker.groups.consumer_group import ConsumerGroupSettings
from kafkalog_broker.groups.group import GroupTopic
from kafkalog_broker.groups.group_coordinator import GroupCoordinator, GroupSettings
from kafkalog_broker.logs.manager import LogManager
from kafkalog_broker.logs.offset_records import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from kafkalog_broker.logs.state_topic import StateTopic
from kafkalog_broker.scheduler import Scheduler
from kafkalog_broker.server.delayed_fetch import DelayedFetches
from kafkalog_broker.server.topics import Topics
from kafkalog_broker.transactions.markers import Markers
from kafkalog_broker.transactions.producer_ids import ProducerIds
from kafkalog_broker.transactions.transaction_coordinator import TransactionCoordinator, transaction_topic
from pyspark_kafkalog.clock import Clock
from pyspark_kafkalog.errors import InvalidConfig

if TYPE_CHECKING:
    from kafkalog_broker.cluster.peers import Peers
    from kafkalog_broker.groups.offset_migration import OffsetMigration
    from kafkalog_broker.server.registration import Registration
    from kafkalog_broker.transactions.cluster_transactions import ClusterTransactions

_T = TypeVar("_T", bound=StateTopic[Any])

_OFFSETS_SEGMENT_BYTES = 100 << 20
_PARTITIONS_OF_A_CLUSTER = 50
"""Default for the topics of groups and transactions, as in Kafka, so that added brokers share the work."""

_MINUTE_MS = 60_000
_LOADER_STOP_SECONDS = 10.0
_LOAD_AGAIN_SECONDS = 2.0

_log = logging.getLogger(__name__)


class Coordinators:
    """*Thread-safe: the broker calls `find`, `start`, `close` and `stop`, once each.* Threads: group timers,
    ends of transactions (``transaction_work``), loading, one per other broker called.
    """

    def __init__(
        self,
        config: BrokerConfig,
        logs: LogManager,
        topics: Topics,
        fetches: DelayedFetches,
        clock: Clock,
        files: FileSystem,
        registration: Registration | None = None,
    ) -> None:
        registry = None if registration is None else registration.registry
        ownership = None if registration is None else registration.ownership
        self._config = config
        self._logs = logs
        self._topics = topics
        self._fetches = fetches
        self._registration = registration
        self._ownership = ownership
        self._timers = Scheduler(clock)
        self._state_topics: list[StateTopic[Any]] = []
        self.transaction_work = Scheduler(clock)
        self.producer_ids = ProducerIds(config.directories(), files, registry.take_ids if registry else None)
        self.groups = GroupCoordinator(
            self._state_topic(
                GroupTopic, OFFSETS_TOPIC, config.offsets_topic_num_partitions, _OFFSETS_SEGMENT_BYTES
            ),
            clock,
            self._timers,
            *_group_settings(config),
            topics=topics.all,
            newest_topics=topics.newest,
        )
        self._peers = None if ownership is None else _make_peers(config, ownership, clock)
        self.offset_migration = self._make_migration(files)
        self.transactions = TransactionCoordinator(
            logs,
            clock,
            self.producer_ids,
            self._state_topic(
                transaction_topic,
                TRANSACTIONS_TOPIC,
                config.transaction_state_log_num_partitions,
                config.transaction_state_log_segment_bytes,
            ),
            Markers(
                logs,
                self.transaction_work.after,
                flush=config.transaction_flush_before_end,
                end_offsets=self.groups.offsets.end_transaction,
                ended=fetches.transaction_ended,
                others=self._make_others(),
            ),
            max_timeout_ms=config.transaction_max_timeout_ms,
            expiration_ms=config.transactional_id_expiration_ms,
        )
        self._to_load: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._loader = threading.Thread(target=self._load, name="state-loader", daemon=True)

    def find(self) -> None:
        self.groups.look()
        self.transactions.start()
        if self.offset_migration is not None:
            self.offset_migration.find()

    def start(self) -> None:
        """Start the threads, and load the stored state; until then clients get a retriable error."""
        config, every = self._config, self.transaction_work.every
        abort_seconds = config.transaction_abort_interval_ms / 1000
        every("abort transactions", abort_seconds, self.transactions.end_overdue)
        every("abort unclaimed transactions", abort_seconds, self.transactions.abort_unclaimed)
        remove_seconds = config.transaction_remove_interval_ms / 1000
        every("forget transactional ids", remove_seconds, self.transactions.forget_idle)
        self._timers.start()
        self.transaction_work.start()
        self._loader.start()
        if self._ownership is None:
            self._to_load.put(True)

    def reconciled(self) -> None:
        """To call in the registration's thread: the partitions this broker coordinates may have changed."""
        self.groups.look()
        self.transactions.look()
        self.producer_ids.prepare()
        self._to_load.put(True)
        if self.offset_migration is not None:
            self.offset_migration.go_on()

    def bring(self, name: str) -> None:
        """Move this broker's own state to the cluster's topic of the same name. Raises `KafkaError`."""
        if name == TRANSACTIONS_TOPIC:
            self.transactions.end_own()
        elif self.offset_migration is not None:
            self.offset_migration.bring()

    def close(self) -> None:
        self.groups.close()

    def stop(self) -> None:
        if self.offset_migration is not None:
            self.offset_migration.close()
        if self._peers is not None:
            self._peers.close()
        self._timers.stop()
        self.transaction_work.stop()
        self._to_load.put(False)
        if self._loader.is_alive():
            self._loader.join(_LOADER_STOP_SECONDS)

    def _load(self) -> None:
        # Groups first: ending loaded transactions changes their logs.
        while self._to_load.get():
            self.groups.load()
            self.transactions.load()
            if any(topic.put_off for topic in self._state_topics):
                self._timers.after(_LOAD_AGAIN_SECONDS, partial(self._to_load.put, True))

    def _make_migration(self, files: FileSystem) -> OffsetMigration | None:
        if self._peers is None or self._ownership is None:
            return None
        from kafkalog_broker.groups.offset_migration import OffsetMigration

        directories = self._config.directories()
        offsets = self.groups.offsets
        return OffsetMigration(directories, files, self._logs, self._ownership, self._peers, offsets)

    def _make_others(self) -> ClusterTransactions | None:
        if self._peers is None or self._ownership is None:
            return None
        from kafkalog_broker.transactions.cluster_transactions import ClusterTransactions

        return ClusterTransactions(self._peers, self._ownership, self.transaction_work)

    def _state_topic(
        self, make: Callable[..., _T], name: str, partitions: int | None, segment_bytes: int
    ) -> _T:
        """As in Kafka its records may be superseded, but must not age out."""
        ownership = self._ownership
        count = partitions or (1 if ownership is None else _PARTITIONS_OF_A_CLUSTER)
        overrides = {"cleanup.policy": "compact", "segment.bytes": str(segment_bytes)}
        topic = make(
            self._logs,
            create=partial(self._topics.create, name, count, overrides),
            appended=self._fetches.appended,
            placement=None if ownership is None else CoordinatorPartitions(ownership, name),
        )
        self._state_topics.append(topic)
        return topic


def _make_peers(config: BrokerConfig, ownership: Ownership, clock: Clock) -> Peers:
    from kafkalog_broker.cluster.peers import Peers, peer_config

    listener, client = config.inter_broker_listener, None
    try:
        client = peer_config(config)
    except InvalidConfig as e:
        _log.warning("this broker cannot log in at others, so no transaction is of several: %s", e)
    name = listener.name if listener is not None and client is not None else ""
    return Peers(client, lambda broker: ownership.live(name).get(broker), clock)


def _group_settings(config: BrokerConfig) -> tuple[GroupSettings, ConsumerGroupSettings]:
    return (
        GroupSettings(
            min_session_timeout_ms=config.group_min_session_timeout_ms,
            max_session_timeout_ms=config.group_max_session_timeout_ms,
            initial_rebalance_delay_ms=config.group_initial_rebalance_delay_ms,
            max_size=config.group_max_size,
            offsets_retention_ms=config.offsets_retention_minutes * _MINUTE_MS,
        ),
        ConsumerGroupSettings(
            session_timeout_ms=config.group_consumer_session_timeout_ms,
            heartbeat_interval_ms=config.group_consumer_heartbeat_interval_ms,
            assignors=config.group_consumer_assignors,
            max_size=config.group_consumer_max_size,
            regex_refresh_interval_ms=config.group_consumer_regex_refresh_interval_ms,
            upgrades=config.group_consumer_migration_policy.lower() in ("bidirectional", "upgrade"),
            downgrades=config.group_consumer_migration_policy.lower() in ("bidirectional", "downgrade"),
        ),
    )
