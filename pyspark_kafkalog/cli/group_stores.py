"""Where ``kafkalog groups`` finds groups: at the cluster's coordinators, or in ZooKeeper."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import cached_property

from pyspark_kafkalog.cli.arguments import (
    Back,
    Offset,
    Position,
    chosen_partitions,
    command_properties,
    connected,
    properties,
    resolve,
)
from pyspark_kafkalog.cli.offsets import Rows, partition_rows, position_row, stored_offsets
from pyspark_kafkalog.client.discovery import Cluster
from pyspark_kafkalog.client.groups import (
    DEAD,
    GroupDescription,
    GroupListing,
    MemberDescription,
    commit_offsets,
    describe_group,
    list_groups,
)
from pyspark_kafkalog.config.classic_config import ConnectorConfig
from pyspark_kafkalog.config.definition import parse
from pyspark_kafkalog.datasource.options.read_options import parse_batch_options
from pyspark_kafkalog.datasource.reading.kafka import open_cluster
from pyspark_kafkalog.datasource.reading.source_cluster import SourceCluster
from pyspark_kafkalog.errors import InvalidConfig, KafkaError, UnknownTopicOrPartition
from pyspark_kafkalog.types import PROTOCOL_07, PROTOCOL_08, TopicPartition
from pyspark_kafkalog.zookeeper import registries
from pyspark_kafkalog.zookeeper.paths import layout_of
from pyspark_kafkalog.zookeeper.session import ZooKeeperSession, session_of


class LogPositions08:
    """*Not thread-safe.* Partitions and offsets of logs on today's wire."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def chosen(self, topic: str, numbers: Sequence[int] | None) -> list[TopicPartition]:
        """All partitions, or those with these numbers, which must exist."""
        return chosen_partitions(self._cluster, topic, numbers)

    def resolve(
        self, partitions: Sequence[TopicPartition], position: Position
    ) -> Mapping[TopicPartition, int]:
        return resolve(self._cluster, partitions, position)

    def check(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Does nothing: every offset may be committed."""

    def rows(self, known: Iterable[TopicPartition]) -> Rows:
        known = list(known)
        return partition_rows(self._cluster, {tp.topic for tp in known}, known)


class LogPositions07:
    """*Not thread-safe.* The same for 0.7, whose offsets count bytes."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given, self._opened = given, ExitStack()

    def close(self) -> None:
        self._opened.close()

    def chosen(self, topic: str, numbers: Sequence[int] | None) -> list[TopicPartition]:
        found = sorted(self._source([topic]).leaders())
        missing = sorted(set(numbers or ()) - {tp.partition for tp in found})
        if missing:
            raise UnknownTopicOrPartition(f"topic {topic!r} has no partition {', '.join(map(str, missing))}")
        return [tp for tp in found if not numbers or tp.partition in numbers]

    def resolve(
        self, partitions: Sequence[TopicPartition], position: Position
    ) -> Mapping[TopicPartition, int]:
        if isinstance(position, Offset):
            return dict.fromkeys(partitions, position.offset)
        if isinstance(position, Back):
            raise InvalidConfig("-N before the end: offsets of Kafka 0.7 count bytes, not messages")
        topics = {tp.topic for tp in partitions}
        return self._source(topics).offsets(dict.fromkeys(partitions, position.timestamp_ms))

    def check(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Raise `InvalidConfig` for offsets at which no message begins."""
        self._source({tp.topic for tp in offsets}).check_positions(offsets)

    def rows(self, known: Iterable[TopicPartition]) -> Rows:
        known = set(known)
        if not known:
            return []
        source = self._source({tp.topic for tp in known})
        there = set(source.leaders(missing_ok=True))
        ranges = {tp: source.log_range(tp) if tp in there else (None, None) for tp in there | known}
        return [position_row(tp, *ranges[tp]) for tp in sorted(ranges)]

    def _source(self, topics: Iterable[str]) -> SourceCluster:
        options = parse_batch_options({**self._given, "subscribe": ",".join(sorted(topics))})
        return self._opened.enter_context(closing(open_cluster(options)))


LogPositions = LogPositions08 | LogPositions07


class CoordinatorGroups:
    """*Not thread-safe.* Groups of the brokers' coordinators."""

    def __init__(self, cluster: Cluster, place: str) -> None:
        self._cluster, self.place, self.logs = cluster, place, LogPositions08(cluster)

    def list(self) -> Sequence[GroupListing]:
        return list_groups(self._cluster)

    def describe(self, group: str) -> GroupDescription:
        return describe_group(self._cluster, group)

    def stored(self, group: str) -> Mapping[TopicPartition, int]:
        return stored_offsets(self._cluster, group)

    def commit(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        commit_offsets(self._cluster, group, offsets)


class ZooKeeperGroups:
    """*Not thread-safe.* Groups of `ConsumerConnector` and of Kafka's old consumers, on either wire."""

    def __init__(
        self, given: Mapping[str, str], config: ConnectorConfig, session: ZooKeeperSession, opened: ExitStack
    ) -> None:
        self._given, self._config, self._session, self._opened = given, config, session, opened
        self._layout = layout_of(config, config.protocol)
        self.place = f"ZooKeeper at {config.connect}"

    @cached_property
    def logs(self) -> LogPositions:
        config = self._config
        if config.protocol == PROTOCOL_07:
            own = ("protocol", "zookeeper.connect", "zk.connect")  # of a read; the others have a prefix
            logs = LogPositions07(
                {name if name in own else f"kafka.{name}": text for name, text in self._given.items()}
            )
            self._opened.callback(logs.close)
            return logs
        servers = [(one.host, one.port) for one in registries.brokers(self._session, self._layout).values()]
        if not servers:
            raise KafkaError(f"no broker is registered in {self.place}")
        return LogPositions08(self._opened.enter_context(closing(Cluster(config.for_todays_wire(*servers)))))

    def list(self) -> Sequence[GroupListing]:
        names = sorted(registries.groups(self._session, self._layout))
        return [GroupListing(name, "", self._state(name), "zookeeper") for name in names]

    def describe(self, group: str) -> GroupDescription:
        session, layout = self._session, self._layout
        owned: dict[str, list[TopicPartition]] = {
            consumer: [] for consumer in registries.consumers(session, layout, group)
        }
        for topic in session.children(layout.owned_topics(group)):
            for name, thread in registries.owners(session, layout, group, topic).items():
                tp = registries.partition_named(topic, name)
                if tp is not None:
                    owned.setdefault(thread.rpartition("-")[0], []).append(tp)
        members = tuple(MemberDescription(one, one, "", tuple(sorted(owned[one]))) for one in sorted(owned))
        return GroupDescription(group, self._state(group), "", "", members, "zookeeper")

    def stored(self, group: str) -> Mapping[TopicPartition, int]:
        return registries.ZooKeeperGroup(self._config, group, self._config.protocol).offsets()

    def commit(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        registries.ZooKeeperGroup(self._config, group, self._config.protocol).commit(offsets)

    def _state(self, group: str) -> str:
        if registries.consumers(self._session, self._layout, group):
            return "Stable"
        return "Empty" if group in registries.groups(self._session, self._layout) else DEAD


GroupStore = CoordinatorGroups | ZooKeeperGroups


@contextmanager
def group_store(server: str, option: Iterable[str] | None) -> Iterator[GroupStore]:
    """With ``option`` in ZooKeeper: properties of `ConnectorConfig`, by default for today's wire."""
    given = properties(option, "--option")
    if not given:
        with connected(server) as cluster:
            yield CoordinatorGroups(cluster, server)
        return
    given = {"protocol": PROTOCOL_08, **command_properties(), **given}
    config = parse(ConnectorConfig, given, source="--option")
    with ExitStack() as opened:
        yield ZooKeeperGroups(given, config, opened.enter_context(session_of(config)), opened)
