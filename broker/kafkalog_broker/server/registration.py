"""Registers this broker in ZooKeeper, in each listener's layout: id, topics, cluster id, group offsets."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec

from kafkalog_broker.cluster.membership import Membership
from kafkalog_broker.cluster.ownership import LiveBroker, Ownership, Pulse
from kafkalog_broker.cluster.registry import TopicRegistry
from kafkalog_broker.config.broker_config import BrokerConfig
from kafkalog_broker.config.endpoint import KAFKA07, PLAINTEXT
from kafkalog_broker.disk.data_directory import new_cluster_id
from kafkalog_broker.logs.offset_records import INTERNAL_TOPICS, CommittedOffset
from kafkalog_broker.logs.topic_store import StoredTopic
from pyspark_kafkalog.clock import Clock
from pyspark_kafkalog.errors import (
    ConnectionLost,
    ErrorCode,
    InvalidConfig,
    InvalidRequest,
    KafkaError,
    ServerError,
)
from pyspark_kafkalog.types import TopicPartition
from pyspark_kafkalog.zookeeper import registries
from pyspark_kafkalog.zookeeper.paths import BrokerNode, JsonLayout, ListenerNode, RegistryLayout, layout_of
from pyspark_kafkalog.zookeeper.session import NodeExists, SessionEvent, ZooKeeperSession, session_of

_AGAIN_SECONDS = 2.0
_LOOK_SECONDS = 0.1
_STOP_SECONDS = 10.0

_LATE_SHARE = 1 / 2
"""Share of the session timeout. A process stopped for less than this still has its session: its last ping
was at most a third of the timeout earlier.
"""
_BEATS = 4
"""Calls of `Registration.beat` in that time."""

_log = logging.getLogger(__name__)


class Presence(msgspec.Struct, frozen=True):
    layout: RegistryLayout
    generation: str
    node: BrokerNode

    def nodes(self, topics: Mapping[str, StoredTopic]) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        for name, topic in topics.items():
            # Every broker has internal topics of its own; they do not belong to the cluster.
            if topic.generation != self.generation or name in INTERNAL_TOPICS:
                continue
            try:
                found |= self.layout.topic_nodes(
                    name, self.node.id, len(topic.partitions), topic.partitions, topic.epochs
                )
            except InvalidConfig as e:
                _log.warning("topic %r is not registered: %s", name, e)
        return found


class Registration:
    """*Thread-safe.* Keeps this broker's ephemeral nodes in line with its topics, through expired sessions.

    Call `connect`, `agree_on_cluster`, `look`, `start` and `stop`, in this order. `start` registers in the
    caller's thread, so that startup fails if the id is in use. From then on the thread ``registration``
    writes the differences; only the registering thread touches ``_made`` and runs `Membership.reconcile`.
    """

    def __init__(
        self,
        config: BrokerConfig,
        protocols: Sequence[str],
        clock: Clock,
        session: ZooKeeperSession | None = None,
    ) -> None:
        """``protocols``: PLAINTEXT is 0.8 and later. Raises `InvalidConfig`: two layouts share znodes."""
        self._config = config
        self._clock = clock
        self.session = session_of(config.zookeeper) if session is None else session
        generations = {PLAINTEXT: "0.8", KAFKA07: "0.7"}
        self._spelled = {
            protocol: (layout_of(config.zookeeper, generations[protocol]), generations[protocol])
            for protocol in protocols
        }
        prefixes = [layout.prefix for layout, _ in self._spelled.values()]
        if len(set(prefixes)) < len(prefixes):
            raise InvalidConfig(
                "zookeeper.prefix and zookeeper.prefix.07 must differ on a broker with both kinds of "
                "listener: they write the same znodes in different ways"
            )
        self._presences: list[Presence] = []
        self._topics: Callable[[], Mapping[str, StoredTopic]] = dict
        self._made: dict[str, bytes] = {}
        self._made_in = 0
        self._cluster: str | None = None
        self._pulse = Pulse(config.zookeeper_session_timeout_ms / 1000 * _LATE_SHARE, clock)
        self._stops_seen = 0
        self.beat_seconds = config.zookeeper_session_timeout_ms / 1000 * _LATE_SHARE / _BEATS
        self.ownership: Ownership | None = None
        self.registry: TopicRegistry | None = None
        if PLAINTEXT in protocols:
            layout = JsonLayout(config.zookeeper_prefix)
            self.ownership = Ownership(config.node_id, self._pulse)
            self.registry = TopicRegistry(self.session, layout, self.ownership, new_cluster_id)
        self._membership: Membership | None = None
        self.problem: KafkaError | None = None
        """Why the last registration failed, or None; set by the registering thread only."""
        self._reconciled: Callable[[], object] = lambda: None
        self._wakes: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="registration", daemon=True)

    @property
    def id_in_use(self) -> registries.BrokerIdInUse | None:
        return self.problem if isinstance(self.problem, registries.BrokerIdInUse) else None

    def connect(self) -> None:
        self.session.start()
        self.session.listen(self._heard)

    def agree_on_cluster(self, known: str | None) -> str:
        """The cluster's id; ``known`` is that in our data, None if new. Raises `KafkaError`."""
        fresh = new_cluster_id()
        for layout, _ in self._spelled.values():
            known = registries.agree_on_cluster(self.session, layout, known, fresh)
        self._cluster = known or fresh
        return self._cluster

    def look(self) -> None:
        """Read topics and brokers before clients ask: if a topic seems missing, they may drop its records."""
        if self.registry is not None:
            self._see_brokers()
            self.registry.look()
        self._stops_seen = self._pulse.beat()

    def beat(self) -> None:
        """Note that the process is running; after a pause of the process, check again what it owns."""
        stops = self._pulse.beat()
        if stops != self._stops_seen and self.ownership is not None:
            _log.warning("this process was stopped for a while: looking again what it owns")
            self.changed()
        self._stops_seen = stops

    def group_offsets(self) -> ZooKeeperOffsets | None:
        """Group offsets in ZooKeeper; None without a listener of 0.8 or later. Uses the `session`."""
        spelled = self._spelled.get(PLAINTEXT)
        return None if spelled is None else ZooKeeperOffsets(self.session, spelled[0])

    def prepare(
        self,
        addresses: Mapping[str, tuple[str, int]],
        topics: Callable[[], Mapping[str, StoredTopic]],
        listeners: Sequence[ListenerNode] = (),
        membership: Membership | None = None,
        reconciled: Callable[[], object] = lambda: None,
    ) -> None:
        """Set what to register; ``reconciled`` is also called when another broker has our id."""
        since_ms = self._clock.time_ms()
        self._topics = topics
        self._membership = membership
        self._reconciled = reconciled
        for protocol, (layout, generation) in self._spelled.items():
            host, port = addresses.get(protocol, ("", -1))
            named = tuple(listeners) if protocol == PLAINTEXT else ()
            node = BrokerNode(self._config.node_id, host, port, since_ms, named)
            self._presences.append(Presence(layout, generation, node))

    def start(self) -> None:
        """Register, and keep registered. Raises `BrokerIdInUse`, `InvalidConfig` and `ConnectionLost`."""
        self._await_predecessor()
        if self.ownership is not None:
            layout = self._spelled[PLAINTEXT][0]
            registries.watch_brokers(self.session, layout, self.changed)
            self.session.watch_node(layout.topics, lambda _: self.changed())
        if not self.register():
            self.changed()
        self._thread.start()

    def changed(self) -> None:
        self._wakes.put(True)

    def stop(self) -> None:
        """Close the session, which removes our nodes. May be called again, and before `start`."""
        if self._thread.is_alive():
            self._wakes.put(False)
            self._thread.join(_STOP_SECONDS)
        self.session.close()

    def _heard(self, event: SessionEvent) -> None:
        if event in (SessionEvent.RENEWED, SessionEvent.RESUMED):
            self.changed()

    def _run(self) -> None:
        done = True
        while True:
            try:
                if not self._wakes.get(timeout=None if done else _AGAIN_SECONDS):
                    return
            except queue.Empty:
                pass
            try:
                done = self.register()
                self.problem = None
            except KafkaError as e:
                done, self.problem = False, e
                _log.error("not registered in ZooKeeper, trying again: %s", e)
            except Exception:
                done = False
                _log.exception("registering in ZooKeeper failed")

    def _await_predecessor(self) -> None:
        """Wait until the nodes of a broker that died at our own address have expired."""
        deadline = self._clock.monotonic() + self._config.zookeeper_session_timeout_ms / 1000 + _AGAIN_SECONDS
        for presence in self._presences:
            # Read back from the node: without PLAINTEXT the address is that of the first listener.
            ours = presence.layout.read_broker(presence.node.id, presence.layout.write_broker(presence.node))
            logged = False
            while self._clock.monotonic() < deadline:
                there = registries.broker_at(self.session, presence.layout, presence.node.id)
                if there is None or (there.host, there.port) != (ours.host, ours.port):
                    break
                if not logged:
                    _log.warning("%s died lately: waiting until its ZooKeeper session expires", there)
                    logged = True
                self._clock.sleep(_LOOK_SECONDS)

    def register(self) -> bool:
        """False to try again: another's nodes are in the way, or the session has ended meanwhile."""
        stops = self._pulse.beat()
        session = self.session.credentials[0]
        if session != self._made_in or self._was_emptied():
            self._made, self._made_in = {}, session
            if self._cluster is not None:
                self.agree_on_cluster(self._cluster)
        wanted: dict[str, bytes] = {}
        for presence in self._presences:
            layout, node = presence.layout, presence.node
            path = layout.broker(node.id)
            if not self._make(path, layout.write_broker(node)):
                in_use = registries.BrokerIdInUse(
                    node, registries.broker_at(self.session, layout, node.id), path
                )
                if self.ownership is not None:
                    self.ownership.refuse(str(in_use))
                    self._reconciled()
                raise in_use
            wanted[path] = self._made[path]
        done = self._reconcile()
        if self.session.credentials[0] != session:
            return False
        if self.ownership is not None:
            self.ownership.serve()
            self._pulse.caught_up(stops)
            self._reconciled()
        topics = self._topics()
        for presence in self._presences:
            wanted |= presence.nodes(topics)
        for path in self._made.keys() - wanted.keys():
            self._remove(path)
        refused = [path for path, data in wanted.items() if not self._make(path, data)]
        if self.registry is not None:
            self.registry.tidy()
        return done and not refused

    def _reconcile(self) -> bool:
        if self.ownership is None:
            return True
        self._see_brokers()
        return self._membership is None or self._membership.reconcile()

    def _was_emptied(self) -> bool:
        for presence in self._presences:
            path = presence.layout.broker(presence.node.id)
            if path in self._made and self.session.read(path) is None:
                return True
        layouts = (presence.layout for presence in self._presences)
        return self._cluster is not None and any(
            self.session.read(layout.cluster_id) is None for layout in layouts
        )

    def _see_brokers(self) -> None:
        if self.ownership is not None:
            found = registries.brokers(self.session, self._spelled[PLAINTEXT][0])
            self.ownership.see_brokers(
                LiveBroker(
                    each.id, {listener.name: (listener.host, listener.port) for listener in each.listeners}
                )
                for each in found.values()
            )

    def _make(self, path: str, data: bytes) -> bool:
        """Write ``data`` to a node of ours; False while another broker's node is there."""
        if self._made.get(path) == data:
            return True
        there = self.session.read(path) if path in self._made else None
        if there is not None and there.owner == self._made_in:
            if not self.session.replace(path, data, there.version):
                return False
        else:
            try:
                self.session.create(path, data, ephemeral=True)
            except NodeExists:
                return False
        self._made[path] = data
        return True

    def _remove(self, path: str) -> None:
        roots = {presence.layout.topics for presence in self._presences}
        there = self.session.read(path)
        self._made.pop(path)
        if there is None or there.owner != self._made_in or not self.session.delete(path, there.version):
            return
        while (path := path.rpartition("/")[0]) not in roots:
            there = self.session.read(path)
            # A node with data is the topic's record, which belongs to the cluster.
            if there is None or there.data or not self.session.delete(path, there.version):
                return


class ZooKeeperOffsets:
    """*Thread-safe.* The ``offsets`` znodes of groups. `in_turn` works on thread ``zookeeper-offsets``."""

    def __init__(self, session: ZooKeeperSession, layout: RegistryLayout) -> None:
        self._session = session
        self._layout = layout
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="zookeeper-offsets")

    def in_turn(self, work: Callable[[], None]) -> None:
        self._worker.submit(work)

    def read(self, group: str, partition: TopicPartition) -> CommittedOffset | None:
        try:
            offset = registries.read_group_offset(
                self._session, self._layout, group, partition.topic, self._name(partition)
            )
        except (ConnectionLost, InvalidConfig) as e:
            raise _as_server_error(e) from e
        return None if offset is None else CommittedOffset(offset)

    def write(self, group: str, partition: TopicPartition, offset: int) -> None:
        """Blocks. Raises `InvalidRequest` if negative, `ServerError` if ZooKeeper does not answer."""
        if offset < 0:
            raise InvalidRequest(f"{partition}: offset {offset}")
        try:
            registries.write_group_offset(
                self._session, self._layout, group, partition.topic, self._name(partition), offset
            )
        except (ConnectionLost, InvalidConfig) as e:
            raise _as_server_error(e) from e

    def close(self) -> None:
        self._worker.shutdown(wait=False, cancel_futures=True)

    def _name(self, partition: TopicPartition) -> str:
        return self._layout.partition_name(partition.broker, partition.partition)


def _as_server_error(error: ConnectionLost | InvalidConfig) -> ServerError:
    lost = isinstance(error, ConnectionLost)
    return ServerError(ErrorCode.REQUEST_TIMED_OUT if lost else ErrorCode.INVALID_GROUP_ID, str(error))
