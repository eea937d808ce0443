"""Brokers, topics, partitions and leaders of a cluster, from any broker that responds."""

from __future__ import annotations

import logging
import random
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from math import inf
from typing import NamedTuple, TypeVar, Union

import msgspec

from pyspark_kafkalog.client.connection import REACHED, Address, Connection, ConnectionPool
from pyspark_kafkalog.client.retry import Attempts, Deadline, RetryPolicy
from pyspark_kafkalog.client.transport import peer_name
from pyspark_kafkalog.clock import SYSTEM_CLOCK, Clock
from pyspark_kafkalog.config.client_config import ClientConfig
from pyspark_kafkalog.config.definition import parse
from pyspark_kafkalog.errors import (
    BrokersUnreachable,
    CannotConnect,
    ConnectionLost,
    EndpointUnreachable,
    ErrorCode,
    KafkaError,
    UnknownHost,
    error_for,
    reason,
)
from pyspark_kafkalog.protocol.api.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)
from pyspark_kafkalog.protocol.exchange import ApiKey
from pyspark_kafkalog.types import INTERNAL_TOPICS, TopicPartition

logger = logging.getLogger(__name__)

T = TypeVar("T")

NO_LEADER = -1
FIRST_CONTACT_SECONDS, SILENT_CONTACT_SECONDS = 12.0, 45.0
"""How long to try addresses that never responded: if all are refused or unknown, and if one is silent.
With the last attempt and wait this stays below 15 s and 60 s."""
_DEAD_SECONDS = 20.0  # by then a broker that died is no longer in the metadata (zookeeper.session.timeout.ms)
_WARN_AFTER_SECONDS = 3.0  # when a warning says that it is still trying; a starting broker is up by then
_NEW_TRY_AFTER_SECONDS = 5.0  # after such a pause, and an attempt, a failure belongs to the user's next call
_LEAST_REPLICA_SECONDS = 1.0
_ANSWERED: set[tuple[Address, ...]] = set()  # bootstrap servers that have responded to this process

_ALL = "all brokers"  # of whose outage `Outages` is told
_NULL_IS_ALL_SINCE, _CREATION_ASKED_SINCE = 1, 4
"""Versions of Metadata: before the first an empty list means all topics; before the second it may create."""


class Leader(NamedTuple):
    node_id: int
    epoch: int


class ReadReplica(NamedTuple):
    """Where to fetch from. A leader that gets a ``rack`` may name a replica instead (KIP-392)."""

    node_id: int
    leader: Leader
    rack: str


class PartitionMetadata(msgspec.Struct, frozen=True):
    """``leader`` is a node id or `NO_LEADER`; ``replicas`` include brokers that are down."""

    leader: int
    leader_epoch: int
    replicas: tuple[int, ...] = ()


class TopicMetadata(msgspec.Struct, frozen=True):
    """One topic; ``error`` says why there are no partitions."""

    name: str
    topic_id: uuid.UUID
    error: ErrorCode
    partitions: Mapping[int, PartitionMetadata]
    is_internal: bool = False


class ClusterMetadata(msgspec.Struct, frozen=True):
    """One view of the cluster. Immutable: a refresh creates a new one."""

    cluster_id: str | None
    controller_id: int
    brokers: Mapping[int, Address]
    topics: Mapping[str, TopicMetadata]


class _Cached(NamedTuple):
    topic: TopicMetadata
    asked_at: float
    complete: bool


@dataclass(slots=True)
class _Outage:
    """A period in which no broker, or not this one, could be reached, from the first failure to the last."""

    began: float
    last: float
    warned: bool = False


class Outages:
    """*Not thread-safe.* Since when brokers cannot be reached: when to warn, and when to give up."""

    def __init__(self, config: ClientConfig, clock: Clock) -> None:
        self._clock = clock
        self._bootstrap = config.bootstrap_addresses()
        self._pause = _NEW_TRY_AFTER_SECONDS + config.connection_setup_timeout_ms / 1000
        self._since: dict[object, _Outage] = {}

    def began(self, of: object) -> float:
        """When the attempts that now fail began; after a pause they are another call's."""
        now = self._clock.monotonic()
        known = self._since.get(of)
        if known is None or now - known.last > self._pause:
            known = self._since[of] = _Outage(now, now)
        return known.began

    def ended(self, of: object) -> None:
        self._since.pop(of, None)

    def failure(self, of: object, text: str, hint: str, *, most: float) -> BrokersUnreachable:
        """The error for another failure after `began`; final after ``most`` seconds."""
        outage, now = self._since[of], self._clock.monotonic()
        tried, outage.last = now - outage.began, now
        final = tried >= most
        if final:
            self.ended(of)
        elif not outage.warned and tried >= _WARN_AFTER_SECONDS:
            outage.warned = True
            logger.warning("%s%s; still trying", text, hint)
        took = f" (tried for {tried:.0f} s)" if tried >= 1 else ""
        return BrokersUnreachable(f"{text}{took}{hint}", final=final)

    def advertised(
        self, node_id: int, address: Address, error: CannotConnect, *, patient: bool
    ) -> KafkaError:
        """``error`` of a broker's address that is known from Metadata only. ``patient``: never final."""
        if isinstance(error, EndpointUnreachable) or address in REACHED or address in self._bootstrap:
            return error
        most = SILENT_CONTACT_SECONDS if error.silent else _DEAD_SECONDS
        most = FIRST_CONTACT_SECONDS if isinstance(error, UnknownHost) else most
        text = f"broker {node_id} advertises {error.peer}, which cannot be reached: {error.reason}"
        hint = "; see the broker's advertised.listeners"
        self.began(address)
        return self.failure(address, text, hint, most=inf if patient else most)


class Cluster:
    """*Not thread-safe.* Metadata, and a connection per broker. Deadlines default to request.timeout.ms."""

    def __init__(self, config: ClientConfig, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self.config, self.clock = config, clock
        self.answered_before = config.answered_before  # as `ClientConfig.answered_before`; may be set later
        self.retry = RetryPolicy.of(config)
        self._pool = ConnectionPool(config, clock=clock)
        self._bootstrap = config.bootstrap_addresses()
        self._outages = Outages(config, clock)
        self._given_up = False
        self._cluster_id: str | None = None
        self._controller_id = -1
        self._brokers: dict[int, Address] = {}
        self._topics: dict[str, _Cached] = {}
        self._read_at: dict[TopicPartition, tuple[int, float]] = {}
        """Replicas that leaders named, `NO_LEADER` for the leader itself; and until when."""

    def metadata(
        self,
        topics: Sequence[str] | None = None,
        refresh: bool = False,
        allow_auto_creation: bool = False,
        deadline: Deadline | None = None,
    ) -> ClusterMetadata:
        """The brokers and these topics, or all (None; never cached). A missing topic has an ``error``."""
        if topics is None:
            answer = self._ask(None, allow_auto_creation, deadline)
            return self._view(topic.name for topic in answer.topics if topic.name is not None)
        stale = [name for name in topics if refresh or not self._fresh(name)]
        if stale or refresh or not self._brokers:
            self._ask(stale, allow_auto_creation, deadline)
        return self._view(topics)

    def leader(self, tp: TopicPartition, *, deadline: Deadline | None = None) -> Leader:
        """The leader of ``tp``. Raises LEADER_NOT_AVAILABLE if there is none at the moment."""
        if not self._fresh(tp.topic):
            self.metadata([tp.topic], deadline=deadline)
        topic = self._topics[tp.topic].topic
        if topic.error not in (ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE):
            unknown = topic.error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            why = "no such topic" if unknown else reason(topic.error, "Describe", topic=tp.topic)
            raise error_for(topic.error, f"topic {tp.topic}: {why}")
        found = topic.partitions.get(tp.partition)
        if found is None and topic.error == ErrorCode.NONE:
            raise error_for(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"{tp}: no such partition; topic {tp.topic} has {len(topic.partitions)}",
            )
        if found is None or found.leader == NO_LEADER or found.leader not in self._brokers:
            raise error_for(ErrorCode.LEADER_NOT_AVAILABLE, f"{tp} has no leader at the moment")
        return Leader(found.leader, found.leader_epoch)

    def read_replica(self, tp: TopicPartition, rack: str, *, deadline: Deadline | None = None) -> ReadReplica:
        """The leader, asked as a client in ``rack``, or the replica that it has named."""
        leader = self.leader(tp, deadline=deadline)
        node_id, until = self._read_at.get(tp, (NO_LEADER, 0.0))
        if self.clock.monotonic() >= until:
            return ReadReplica(leader.node_id, leader, rack)
        return ReadReplica(node_id if node_id in self._brokers else leader.node_id, leader, "")

    def read_at(self, tp: TopicPartition, node_id: int) -> None:
        """Have ``tp`` read at this replica, until the leader is asked again after ``metadata.max.age.ms``."""
        age = max(self.config.metadata_max_age_ms / 1000, _LEAST_REPLICA_SECONDS)
        self._read_at[tp] = node_id, self.clock.monotonic() + age

    def forget(self, topic: str) -> None:
        """Look the topic up again. What was read at a replica, and perhaps failed there, is its leader's."""
        self._topics.pop(topic, None)
        for tp in self._read_at:
            if tp.topic == topic:
                self.read_at(tp, NO_LEADER)

    def address(self, node_id: int) -> Address:
        """Host and port of a broker. Raises LEADER_NOT_AVAILABLE for an unknown id."""
        try:
            return self._brokers[node_id]
        except KeyError:
            raise error_for(
                ErrorCode.LEADER_NOT_AVAILABLE,
                f"broker {node_id} is unknown; known are {sorted(self._brokers)}",
            ) from None

    def connection(
        self, node_id: int, deadline: Deadline | None = None, pool: ConnectionPool | None = None
    ) -> Connection:
        address = self.address(node_id)
        try:
            return (pool or self._pool).get(address, self.limit(deadline))
        except CannotConnect as e:
            raise self._outages.advertised(node_id, address, e, patient=self.answered_before) from e

    def any_connection(self, deadline: Deadline | None = None) -> Connection:
        """A connection to some broker: an open one, else to a known broker, else to a bootstrap server.

        Raises `BrokersUnreachable`. Addresses that never responded are given up sooner: a wrong setting
        should fail fast, but a restarting broker refuses connections for a while.
        """
        existing = self._pool.any_existing()
        if existing is not None:
            return existing
        known = list(dict.fromkeys(self._brokers.values()))
        random.shuffle(known)
        candidates = list(dict.fromkeys([*known, *self._bootstrap]))
        limit = self.limit(deadline)
        began = self._outages.began(_ALL)
        if not self._has_answered:
            limit = limit.within(max(began + SILENT_CONTACT_SECONDS - self.clock.monotonic(), 0))
        failures: dict[Address, KafkaError] = {}
        for address in candidates:
            try:
                connection = self._pool.get(address, limit)
            except KafkaError as e:
                failures[address] = e
                continue
            self._outages.ended(_ALL)
            _ANSWERED.add(self._bootstrap)
            return connection
        # An invalid response means a mistake in the settings: waiting does not help.
        nonsense = next((e for e in failures.values() if not isinstance(e, ConnectionLost)), None)
        if nonsense is not None:
            raise error_for(nonsense.code, _describe(failures)) from nonsense
        raise self._unreachable(failures) from list(failures.values())[-1]

    def drop_lost(self) -> None:
        self._pool.drop_lost()

    def close(self) -> None:
        self._pool.close()

    def give_up(self) -> None:
        """Make calls of other threads end with their next failure."""
        self._given_up = True

    def retrying(self, doing: str, deadline: Deadline | None = None) -> Attempts:
        """A retry loop over this cluster; ``doing`` begins the message when time runs out."""
        limit = self.limit(deadline)
        return Attempts(self.retry, limit, doing=doing, clock=self.clock, wanted=lambda: not self._given_up)

    def call(self, doing: str, request: Callable[[Connection], T], deadline: Deadline) -> T:
        return self.retrying(doing, deadline).run(lambda limit: request(self.any_connection(limit)))

    @property
    def _has_answered(self) -> bool:
        return self.answered_before or self._bootstrap in _ANSWERED

    def _unreachable(self, failures: Mapping[Address, KafkaError]) -> BrokersUnreachable:
        """The error for ``failures``; final if a first contact took long enough."""
        option = self.config.servers_option
        text, hint = _describe(failures), f"; check `{option}`" if option else ""
        most = SILENT_CONTACT_SECONDS
        endpoint = next((e for e in failures.values() if isinstance(e, EndpointUnreachable)), None)
        if endpoint is not None:
            text, hint = str(endpoint), ""  # it names its own option
        elif all(isinstance(e, CannotConnect) and not e.silent for e in failures.values()):
            most = FIRST_CONTACT_SECONDS
        return self._outages.failure(_ALL, text, hint, most=inf if self._has_answered else most)

    def limit(self, deadline: Deadline | None) -> Deadline:
        """``deadline``, or ``request.timeout.ms`` from now."""
        return deadline or Deadline.after(self.config.request_timeout_ms / 1000, self.clock)

    def _fresh(self, topic: str) -> bool:
        entry = self._topics.get(topic)
        if entry is None or not entry.complete:
            return False
        return self.clock.monotonic() - entry.asked_at < self.config.metadata_max_age_ms / 1000

    def _view(self, names: Iterable[str]) -> ClusterMetadata:
        topics = {name: self._topics[name].topic for name in names}
        return ClusterMetadata(self._cluster_id, self._controller_id, dict(self._brokers), topics)

    def _ask(
        self, topics: Sequence[str] | None, allow_auto_creation: bool, deadline: Deadline | None
    ) -> MetadataResponse:
        limit = self.limit(deadline)

        def ask(connection: Connection) -> MetadataResponse:
            version = connection.version(ApiKey.METADATA)
            request = metadata_request(topics, version, allow_auto_creation=allow_auto_creation)
            found: MetadataResponse = connection.request(request, deadline=limit)
            return found

        answer = self.call("looking up topics", ask, limit)
        self._learn(answer, topics)
        return answer

    def _learn(self, answer: MetadataResponse, asked: Sequence[str] | None) -> None:
        now = self.clock.monotonic()
        self._cluster_id, self._controller_id = answer.cluster_id, answer.controller_id
        self._brokers = {broker.node_id: (broker.host, broker.port) for broker in answer.brokers}
        if asked is None:
            self._topics.clear()
        for name in asked or ():
            # A topic missing in the response does not exist.
            missing = TopicMetadata(name, uuid.UUID(int=0), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, {})
            self._topics[name] = _Cached(missing, now, complete=False)
        for topic in answer.topics:
            if topic.name is not None:
                found = _topic(topic)
                # Stored here: each look-up of a leader needs it, and a topic may have thousands of
                # partitions.
                led = all(p.leader != NO_LEADER for p in found.partitions.values())
                complete = found.error == ErrorCode.NONE and led
                self._topics[topic.name] = _Cached(found, now, complete)


Where = Union[Cluster, str, Mapping[str, object]]  # noqa: UP007 - evaluated, also by Python 3.10
"""A connected cluster, ``bootstrap.servers``, or a client's properties by name."""


@contextmanager
def cluster_at(where: Where) -> Iterator[Cluster]:
    """``where`` itself if it is a cluster, else one for this call. Raises `InvalidConfig`."""
    if isinstance(where, Cluster):
        yield where
        return
    given = {"bootstrap.servers": where} if isinstance(where, str) else where
    with closing(Cluster(parse(ClientConfig, given, source="properties"))) as cluster:
        yield cluster


def by_topic(items: Iterable[tuple[TopicPartition, T]]) -> dict[str, tuple[T, ...]]:
    topics: dict[str, list[T]] = defaultdict(list)
    for tp, item in items:
        topics[tp.topic].append(item)
    return {name: tuple(found) for name, found in topics.items()}


def _describe(failures: Mapping[Address, KafkaError]) -> str:
    if len(failures) == 1:
        (only,) = failures.values()
        return str(only)
    names = ", ".join(peer_name(*address) for address in failures)
    each = [f"{e.peer}: {e.reason}" if isinstance(e, CannotConnect) else str(e) for e in failures.values()]
    return f"cannot connect to any of {names}: {'; '.join(each)}"


def metadata_request(
    topics: Iterable[str] | None, version: int, *, allow_auto_creation: bool
) -> MetadataRequest:
    """A request for these topics; for all if None, or if naming them could create topics (old versions)."""
    wanted = None if topics is None else tuple(MetadataRequestTopic(name=name) for name in topics)
    if version >= _CREATION_ASKED_SINCE:
        return MetadataRequest(topics=wanted, allow_auto_topic_creation=allow_auto_creation)
    if wanted and not allow_auto_creation:
        wanted = None
    return MetadataRequest(topics=wanted or () if version < _NULL_IS_ALL_SINCE else wanted)


def _topic(topic: MetadataResponseTopic) -> TopicMetadata:
    partitions = {
        partition.partition_index: PartitionMetadata(
            NO_LEADER if partition.error_code == ErrorCode.LEADER_NOT_AVAILABLE else partition.leader_id,
            partition.leader_epoch,
            tuple(partition.replica_nodes),
        )
        for partition in topic.partitions
    }
    return TopicMetadata(
        topic.name or "",
        topic.topic_id,
        topic.error_code,
        dict(sorted(partitions.items())),
        topic.is_internal or topic.name in INTERNAL_TOPICS,
    )
