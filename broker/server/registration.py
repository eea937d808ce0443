"""This broker in ZooKeeper: its id, its topics, the cluster's id; in the spelling of each listener's wire."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from broker.config import BrokerConfig
from broker.endpoint import KAFKA07, PLAINTEXT
from broker.log.data_directory import new_cluster_id
from broker.log.topic_store import StoredTopic
from broker.server.topics import INTERNAL_TOPICS
from broker.server.zookeeper_offsets import ZooKeeperOffsets
from pyspark_kafkalog.clock import Clock
from pyspark_kafkalog.errors import InvalidConfig, KafkaError
from pyspark_kafkalog.zookeeper.brokers import BrokerIdInUse, agree_on_cluster, broker_at
from pyspark_kafkalog.zookeeper.connecting import session_of
from pyspark_kafkalog.zookeeper.paths import Layout, layout_of
from pyspark_kafkalog.zookeeper.session import NodeExists, SessionEvent
from pyspark_kafkalog.zookeeper.values import BrokerNode

_AGAIN_SECONDS = 2.0
"""Pause before what could not be registered is tried again."""
_LOOK_SECONDS = 0.1
_STOP_SECONDS = 10.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Presence:
    """What this broker shows of itself in one spelling: its address there, and topics of one generation."""

    layout: Layout
    generation: str
    node: BrokerNode

    def nodes(self, topics: Mapping[str, StoredTopic]) -> dict[str, bytes]:
        """The znodes of the topics, and what stands in them."""
        found: dict[str, bytes] = {}
        for name, topic in topics.items():
            # Every broker has topics of its own use; they are none of the cluster's.
            if topic.generation != self.generation or name in INTERNAL_TOPICS:
                continue
            try:
                found |= self.layout.topic_nodes(name, self.node.id, len(topic.partitions))
            except InvalidConfig as e:
                _log.warning("topic %r is not registered: %s", name, e)
        return found


class Registration:
    """*Thread-safe.* Keeps this broker's ephemeral nodes as its topics are, through expired sessions.

    `connect`, `agree_on_cluster`, `start` and `stop` are called by the broker's owner, in this order. `start`
    registers in the caller's thread, so that an id in use ends the start. From then on one thread,
    ``registration``, compares what is wanted with what it made and does the difference: after `changed`,
    after a session was renewed, and again after a pause if something failed. Owns ``_made``, which only the
    registering thread touches.
    """

    def __init__(self, config: BrokerConfig, protocols: Sequence[str], clock: Clock) -> None:
        """``protocols`` are those of the listeners.

        Raises:
            InvalidConfig: two spellings would meet in the same znodes.
        """
        self._config = config
        self._clock = clock
        self._session = session_of(config.zookeeper)
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
        self._refused: set[str] = set()
        self._wakes: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="registration", daemon=True)

    def connect(self) -> None:
        """Open the session. Raises `ConnectionLost`."""
        self._session.start()
        self._session.listen(self._heard)

    def agree_on_cluster(self, known: str | None) -> str:
        """The id of the cluster that meets here; ``known`` is what our data says, None where it is new.

        Raises:
            KafkaError: our data belongs to another cluster, or ZooKeeper does not answer.
        """
        fresh = new_cluster_id()
        for layout, _ in self._spelled.values():
            known = agree_on_cluster(self._session, layout, known, fresh)
        return known or fresh

    def group_offsets(self) -> ZooKeeperOffsets | None:
        """The offsets that groups keep here, in the spelling of today's wire; None without a listener of it.

        Of the session that `connect` opens and `stop` closes.
        """
        spelled = self._spelled.get(PLAINTEXT)
        return None if spelled is None else ZooKeeperOffsets(self._session, spelled[0])

    def start(
        self, addresses: Mapping[str, tuple[str, int]], topics: Callable[[], Mapping[str, StoredTopic]]
    ) -> None:
        """Register under the address of each protocol, with the topics that there are, and from then on.

        Raises:
            BrokerIdInUse: another broker has our id.
            InvalidConfig: an address cannot be written in its spelling.
            ConnectionLost: ZooKeeper does not answer.
        """
        since_ms = self._clock.time_ms()
        self._topics = topics
        for protocol, (layout, generation) in self._spelled.items():
            host, port = addresses[protocol]
            node = BrokerNode(self._config.node_id, host, port, since_ms)
            self._presences.append(Presence(layout, generation, node))
        self._await_predecessor()
        if not self._settle():
            self.changed()
        self._thread.start()

    def changed(self) -> None:
        """Topics have come, gone or grown. Returns at once."""
        self._wakes.put(True)

    def stop(self) -> None:
        """Withdraw: everything of ours goes with the session. May be called again, and before `start`."""
        if self._thread.is_alive():
            self._wakes.put(False)
            self._thread.join(_STOP_SECONDS)
        self._session.close()

    def _heard(self, event: SessionEvent) -> None:
        if event in (SessionEvent.RENEWED, SessionEvent.RESUMED):
            self.changed()

    def _run(self) -> None:
        settled = True
        while True:
            try:
                if not self._wakes.get(timeout=None if settled else _AGAIN_SECONDS):
                    return
            except queue.Empty:
                pass
            try:
                settled = self._settle()
            except KafkaError as e:
                settled = False
                _log.error("not registered in ZooKeeper, trying again: %s", e)
            except Exception:
                settled = False
                _log.exception("registering in ZooKeeper failed")

    def _await_predecessor(self) -> None:
        """Wait for the nodes of a broker that died at our own address to expire; nobody else can be there."""
        deadline = self._clock.monotonic() + self._config.zookeeper_session_timeout_ms / 1000 + _AGAIN_SECONDS
        for presence in self._presences:
            told = False
            while self._clock.monotonic() < deadline:
                there = broker_at(self._session, presence.layout, presence.node.id)
                if there is None or (there.host, there.port) != (presence.node.host, presence.node.port):
                    break
                if not told:
                    _log.warning("%s died lately: waiting until ZooKeeper has missed it", there)
                    told = True
                self._clock.sleep(_LOOK_SECONDS)

    def _settle(self) -> bool:
        """Make what is wanted, remove what is not; False where others' nodes are in the way."""
        session = self._session.credentials[0]
        if session != self._made_in:
            self._made, self._made_in = {}, session
        topics = self._topics()
        wanted: dict[str, bytes] = {}
        for presence in self._presences:
            layout, node = presence.layout, presence.node
            path = layout.broker(node.id)
            if not self._make(path, layout.write_broker(node)):
                raise BrokerIdInUse(node, broker_at(self._session, layout, node.id), path)
            wanted |= {path: self._made[path]} | presence.nodes(topics)
        for path in self._made.keys() - wanted.keys():
            self._remove(path)
        refused = {path for path, data in wanted.items() if not self._make(path, data)}
        for path in sorted(refused - self._refused):
            _log.warning("%s exists in ZooKeeper and is not ours: another broker has that partition", path)
        self._refused = refused
        return not refused

    def _make(self, path: str, data: bytes) -> bool:
        """Have a node of ours hold ``data``; False while another's is there."""
        if self._made.get(path) == data:
            return True
        there = self._session.read(path) if path in self._made else None
        if there is not None and there.owner == self._made_in:
            if not self._session.replace(path, data, there.version):
                return False
        else:
            try:
                self._session.create(path, data, ephemeral=True)
            except NodeExists:
                return False
        self._made[path] = data
        return True

    def _remove(self, path: str) -> None:
        """Remove a node, and the parents that it leaves empty: of a deleted topic nothing stays."""
        roots = {presence.layout.topics for presence in self._presences}
        there = self._session.read(path)
        self._made.pop(path)
        if there is None or there.owner != self._made_in or not self._session.delete(path, there.version):
            return
        while (path := path.rpartition("/")[0]) not in roots and self._session.delete(path):
            pass
