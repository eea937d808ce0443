"""The assembled broker. Start order: logs, handlers, sockets, ZooKeeper; stop order: the reverse."""

from __future__ import annotations

import gc
import logging
import resource
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kafkalog_broker.config.broker_config import BrokerConfig, LogConfig
from kafkalog_broker.config.endpoint import KAFKA07, PLAINTEXT
from kafkalog_broker.config.listener_config import SCRAM_SHA_256, SCRAM_SHA_512
from kafkalog_broker.disk.data_directory import keep_or_make
from kafkalog_broker.disk.filesystem import FileSystem
from kafkalog_broker.log.generations import SINCE_08
from kafkalog_broker.log.retention import policy_named, policy_of
from kafkalog_broker.logs.cleaner import LogCleaner
from kafkalog_broker.logs.manager import LogManager
from kafkalog_broker.metrics import Metrics
from kafkalog_broker.scheduler import Handle, Scheduler
from kafkalog_broker.security import file_stores
from kafkalog_broker.security.authentication import ANONYMOUS, parse_principal
from kafkalog_broker.security.authorizer import Authorizer
from kafkalog_broker.server import handlers as _handlers  # noqa: F401  (importing them fills the registry)
from kafkalog_broker.server.broker_settings import BrokerSettings
from kafkalog_broker.server.coordinators import Coordinators
from kafkalog_broker.server.delayed_fetch import DelayedFetches, FetchTurns
from kafkalog_broker.server.dispatch import Services
from kafkalog_broker.server.fetch_sessions import FetchSessions
from kafkalog_broker.server.listeners import Listeners
from kafkalog_broker.server.log_access import LogAccess
from kafkalog_broker.server.metadata_cache import MetadataCache
from kafkalog_broker.server.topics import Topics
from pyspark_kafkalog.clock import SYSTEM_CLOCK, Clock
from pyspark_kafkalog.zookeeper.paths import JsonLayout, ListenerNode

if TYPE_CHECKING:
    from kafkalog_broker.cluster.membership import Membership
    from kafkalog_broker.server.registration import Registration
    from pyspark_kafkalog.status.status_server import StatusServer
    from pyspark_kafkalog.zookeeper.session import ZooKeeperSession as ZooKeeperSession

_DELETED_FILES_SECONDS = 1.0
_REOPEN_SECONDS = 2.0
_CERTIFICATES_SECONDS = 5.0

_log = logging.getLogger(__name__)


class Broker:
    """*Thread-safe: the owner calls `start` and `stop`, once each and in this order.* Threads: the socket
    servers', those of `Coordinators`, and one each for flushes; retention, expiry and deletions, which must
    not delay flushes; the log cleaner; moves to other directories; timeouts of delayed fetches, which a slow
    fsync must not delay.
    """

    def __init__(
        self,
        config: BrokerConfig,
        *,
        clock: Clock = SYSTEM_CLOCK,
        files: FileSystem | None = None,
    ) -> None:
        self.config = config
        self.metrics = Metrics()
        self._clock = clock
        files = files if files is not None else FileSystem()
        self._registration = self._make_registration()
        self._timers = Scheduler(clock)
        self._fetches = DelayedFetches(self._timers)
        open_files, self._descriptors = _share_descriptors(config.log_open_files_max)
        self._moves = Scheduler(clock)
        self._logs = LogManager(
            config.directories(),
            defaults=self._topic_defaults,
            clock=clock,
            files=files,
            producer_expiration_ms=config.producer_id_expiration_ms,
            max_open_files=open_files,
            node_id=config.node_id,
            name_cluster=self._registration.agree_on_cluster if self._registration else keep_or_make,
            retention=policy_named(policy) if (policy := config.log_retention_policy) else policy_of,
            flushed=self.metrics.log_flush_seconds.observe,
            grown=self._fetches.appended,
            truncate_missing=config.log_missing_segments == "truncate",
            run_moves=lambda run: self._moves.after(0, run),
        )
        self._security_file = file_stores.SecurityFile(config.directories(), files)
        self._credentials: file_stores.CredentialStore = file_stores.FileCredentials(self._security_file)
        self._acls: file_stores.AclStore = file_stores.FileAcls(self._security_file)
        self._start_sharing: Callable[[], object] = lambda: None
        if self._registration is not None:
            self._share_security(self._registration.session)
        self._authorizer = self._make_authorizer() if config.authorizer_class_name else None
        self._settings = BrokerSettings(config, self._logs, self._configure_cleaner)
        self._topics = Topics(self._logs, config)
        self._disk = Scheduler(clock)
        self._flushes = Scheduler(clock)
        self._cleanings = Scheduler(clock)
        self._cleaner = LogCleaner(
            self._logs,
            clock,
            files,
            memory_bytes=config.log_cleaner_dedupe_buffer_size,
            bytes_per_second=config.log_cleaner_io_max_bytes_per_second,
        )
        self._coordinators = Coordinators(
            config, self._logs, self._topics, self._fetches, clock, files, self._registration
        )
        self._topics.membership = self._make_membership()
        self._cleaning: Handle | None = None
        self._listeners: Listeners | None = None
        self._zookeeper_offsets = self._registration.group_offsets() if self._registration else None
        self._machine_name = socket.gethostname()
        self._status: StatusServer | None = None

    @property
    def port(self) -> int:
        return next(iter(self.ports.values()))

    @property
    def ports(self) -> dict[str, int]:
        if self._listeners is not None:
            return self._listeners.ports
        return {endpoint.name: endpoint.port for endpoint in self.config.endpoints}

    @property
    def cluster_id(self) -> str:
        return self._logs.meta.cluster_id

    def start(self) -> None:
        """Recover the logs, then serve. Cleans up on failure. Raises `KafkaError`."""
        try:
            if self._registration is not None:
                # Before the logs: a new data directory takes the id of the cluster in ZooKeeper.
                self._registration.connect()
            self._logs.start()
        except BaseException:
            self._withdraw()
            raise
        try:
            self._security_file.load()
            self._start_sharing()
            if self._authorizer is not None:
                self._authorizer.load()
            self._coordinators.find()
            self._schedule()
            listeners = self._make_listeners()
            self._listeners = listeners
            self._timers.start()
            self._disk.start()
            self._flushes.start()
            self._cleanings.start()
            self._moves.start()
            self._coordinators.start()
            self._status = self._make_status()
            if self._registration is not None:
                self._registration.look()
                self._timers.every("pulse", self._registration.beat_seconds, self._registration.beat)
            listeners.start()
            self._register(listeners)
        except BaseException:
            if self._status is not None:
                self._status.stop()
            self._withdraw()
            self._stop_background()
            self._logs.close()
            raise
        _log.info("broker %d serves: %s", self.config.node_id, self.ports)
        if self._status is not None:
            self._status.start()
            _log.info("broker %d shows its status at %s", self.config.node_id, self._status.url)

    def stop(self, grace_seconds: float = 5.0) -> None:
        """Answer pending requests, for up to ``grace_seconds``, then flush and close every log."""
        if self._status is not None:
            self._status.stop()
        self._withdraw()
        if self._listeners is not None:
            self._fetches.close()
            self._coordinators.close()
            self._listeners.stop(grace_seconds)
        self._stop_background()
        self._logs.close()
        _log.info("broker %d stopped", self.config.node_id)

    def advertised(self) -> dict[str, tuple[str, int]]:
        ports, found = self.ports, {}
        for listening in self.config.endpoints:
            endpoint = self.config.advertised_endpoint(listening, ports[listening.name], self._machine_name)
            found[listening.name] = (endpoint.host, endpoint.port)
        return found

    @property
    def status_url(self) -> str | None:
        return None if self._status is None else self._status.url

    def _make_status(self) -> StatusServer | None:
        listener = self.config.metrics_listener
        if listener is None:
            return None
        from kafkalog_broker.server.broker_status import BrokerSnapshots
        from pyspark_kafkalog.status.status_server import StatusServer, parse_listener

        name = next((each.name for each in self.config.endpoints if each.name != KAFKA07), "")
        snapshots = BrokerSnapshots(
            self.config.node_id, self.cluster_id, self._logs, self._coordinators.groups, self._registration,
            lambda: next(iter(self.advertised().values())), name, self._clock,
        )  # fmt: skip
        status = StatusServer(
            parse_listener(listener, "metrics.listener"),
            snapshots.take,
            health=snapshots.health,
            registry=self.metrics.registry,
            title=f"kafkalog broker {self.config.node_id}",
        )
        if not status.is_loopback:
            _log.warning(
                "metrics.listener=%s has no login: whoever reaches it reads names and sizes of topics and "
                "groups",
                listener,
            )
        return status

    def _topic_defaults(self, kept: Mapping[str, str]) -> LogConfig:
        return self._settings.defaults(kept)

    def _make_authorizer(self) -> Authorizer:
        config = self.config
        words = (config.super_users or "").split(";")
        if KAFKA07 in (config.protocols[each.name] for each in config.endpoints):
            _log.warning(
                "the listener of Kafka 0.7 has no login: its clients are %s, and what ACLs allow that "
                "principal anybody who reaches its port may do",
                ANONYMOUS,
            )
        return Authorizer(
            self._acls,
            self.metrics,
            super_users=[parse_principal(word) for word in words if word.strip()],
            allow_without_acl=config.allow_everyone_if_no_acl_found,
        )

    def _share_security(self, session: ZooKeeperSession) -> None:
        """Keep ACLs in ZooKeeper, and users too if they are protected there."""
        from kafkalog_broker.security.zookeeper_stores import ZooKeeperAcls, ZooKeeperUsers, start_sharing

        config = self.config
        layout = JsonLayout(config.zookeeper_prefix)
        users, acls = None, None
        if config.shares_credentials:
            self._credentials = users = ZooKeeperUsers(session, layout, self._clock)
        elif _checks_scram(config):
            _log.warning(
                "users with SCRAM stay in %s and are not shared: only with zookeeper.ssl.client.enable and "
                "zookeeper.set.acl nobody else can read them in ZooKeeper. "
                "zookeeper.allow.unprotected.credentials=true keeps them there all the same",
                self._security_file.path,
            )
        if config.authorizer_class_name:
            if not config.zookeeper_set_acl:
                _log.warning(
                    "ACLs are kept in ZooKeeper without zookeeper.set.acl: whoever reaches it can change them"
                )
            self._acls = acls = ZooKeeperAcls(session, layout, self._clock)
        self._start_sharing = lambda: start_sharing(self._security_file, users, acls)

    def _make_registration(self) -> Registration | None:
        if self.config.zookeeper_connect is None:
            return None
        from kafkalog_broker.server.registration import Registration  # it loads ZooKeeper's client

        protocols = self.config.protocols
        spoken = (protocols[each.name] for each in self.config.endpoints)
        wires = dict.fromkeys(KAFKA07 if protocol == KAFKA07 else PLAINTEXT for protocol in spoken)
        return Registration(self.config, [*wires], self._clock)

    def _make_membership(self) -> Membership | None:
        registration = self._registration
        if registration is None or registration.registry is None or registration.ownership is None:
            return None
        from kafkalog_broker.cluster.membership import Membership

        return Membership(
            self._logs,
            registration.registry,
            registration.ownership,
            forget=self._coordinators.groups.offsets.forget_topic,
            bring=self._coordinators.bring,
            changed=registration.changed,
        )

    def _register(self, listeners: Listeners) -> None:
        if self._registration is None:
            return
        self._topics.watch(self._registration.changed)
        member = self._topics.membership
        topics = self._topics.all if member is None else member.served
        addresses: dict[str, tuple[str, int]] = {}
        nodes = []
        for name, (host, port) in self.advertised().items():
            protocol = self.config.protocols[name]
            addresses.setdefault(protocol, (host, port))
            if protocol != KAFKA07:
                nodes.append(ListenerNode(name, protocol, host, port))
        self._registration.prepare(addresses, topics, nodes, member, self._coordinators.reconciled)
        try:
            self._registration.start()
        except BaseException:
            self._fetches.close()
            listeners.stop(0)
            raise

    def _withdraw(self) -> None:
        if self._registration is not None:
            self._registration.stop()

    def _make_listeners(self) -> Listeners:
        config = self.config
        ownership = self._registration.ownership if self._registration else None
        services = Services(
            config=config, settings=self._settings, clock=self._clock, metrics=self.metrics,
            logs=LogAccess(self._logs, SINCE_08, ownership=ownership), topics=self._topics,
            fetches=self._fetches, turns=FetchTurns(),
            fetch_sessions=FetchSessions(
                config.max_incremental_fetch_session_cache_slots, self._clock, self.metrics
            ),
            metadata_cache=MetadataCache(config.node_id, ownership), groups=self._coordinators.groups,
            producer_ids=self._coordinators.producer_ids, transactions=self._coordinators.transactions,
            transaction_work=self._coordinators.transaction_work,
            offset_migration=self._coordinators.offset_migration, cluster_id=self.cluster_id,
            endpoint=lambda: next(iter(self.advertised().values())),
            zookeeper_offsets=self._zookeeper_offsets, ownership=ownership, credentials=self._credentials,
            authorizer=self._authorizer,
        )  # fmt: skip
        listeners = Listeners(config, self._logs, services, self.advertised, self._timers, self._descriptors)
        self._disk.every("certificates", _CERTIFICATES_SECONDS, listeners.renew_certificates)
        listeners.refresh_keys(self._disk.every)
        return listeners

    def _schedule(self) -> None:
        config, every = self.config, self._disk.every
        self._flushes.every("flush", config.log_flush_scheduler_interval_ms / 1000, self._logs.flush_due)
        self._configure_cleaner(self._settings.config)
        every("deleted files", _DELETED_FILES_SECONDS, self._logs.remove_deleted)
        every("offline partitions", _REOPEN_SECONDS, self._logs.reopen)
        every("retention", config.log_retention_check_interval_ms / 1000, self._logs.apply_retention)
        offsets = self._coordinators.groups.offsets
        every("expire offsets", config.offsets_retention_check_interval_ms / 1000, offsets.expire)
        check_seconds = config.producer_id_expiration_check_interval_ms / 1000
        every("expire producers", check_seconds, self._logs.expire_producers)

    def _configure_cleaner(self, config: BrokerConfig) -> None:
        self._cleaner.configure(
            config.log_cleaner_dedupe_buffer_size, config.log_cleaner_io_max_bytes_per_second
        )
        seconds, before = config.log_cleaner_backoff_ms / 1000, self._cleaning
        if config.log_cleaner_enable and (before is None or before.period != seconds):
            if before is not None:
                before.cancel()
            self._cleaning = self._cleanings.every("cleaner", seconds, self._cleaner.run)

    def _stop_background(self) -> None:
        if self._zookeeper_offsets is not None:
            self._zookeeper_offsets.close()
        self._coordinators.stop()
        self._timers.stop()
        self._disk.stop()
        self._flushes.stop()
        self._cleaner.stop()
        self._cleanings.stop()
        self._logs.stop_moves()
        self._moves.stop()


def _checks_scram(config: BrokerConfig) -> bool:
    protocols, properties = config.protocols, config.listener_properties
    return any(
        protocols[each.name].startswith("SASL")
        and not {SCRAM_SHA_256, SCRAM_SHA_512}.isdisjoint(properties.of(each.name).sasl_enabled_mechanisms)
        for each in config.endpoints
    )


def _share_descriptors(wanted: int) -> tuple[int, int]:
    """Limit of open segment files: the configured one, but at most half of the process's descriptors; and how
    many descriptors that leaves.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        limit = sys.maxsize
    if wanted > limit // 2:
        _log.warning(
            "log.open.files.max=%d is more than half of the %d descriptors of this process; using %d",
            wanted, limit, limit // 2,
        )  # fmt: skip
        wanted = max(1, limit // 2)
    return wanted, limit - wanted


# --- garbage collection must not scan long-lived objects while clients wait

_ALL_THROUGH_SECONDS = 3600.0
_OLDEST = 2
"""Generation whose collection scans all objects."""


@contextmanager
def starting(clock: Clock = SYSTEM_CLOCK) -> Iterator[None]:
    """Excludes a start's objects from later collections: with 10,000 partitions those take 0.1 s each."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        look_through_once(clock)
        gc.enable()


def look_through_once(clock: Clock) -> Callable[[str, dict[str, int]], None]:
    """Full collections scan long-lived objects once an hour: that stops all clients for 0.1 to 0.4 s."""
    due = clock.monotonic() + _ALL_THROUGH_SECONDS

    def looks(phase: str, info: dict[str, int]) -> None:
        nonlocal due
        if info["generation"] != _OLDEST:
            return
        if phase == "stop":
            gc.freeze()
        elif clock.monotonic() >= due:
            gc.unfreeze()
            due = clock.monotonic() + _ALL_THROUGH_SECONDS

    gc.callbacks.append(looks)
    return looks
