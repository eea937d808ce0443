"""The loads of the ledgers in one place, as a snapshot of a cluster shows them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from pyspark_kafkalog.client.discovery import ClusterMetadata, TopicMetadata
from pyspark_kafkalog.config.client07 import PROTOCOL_08
from pyspark_kafkalog.errors import InvalidConfig, KafkaError
from pyspark_kafkalog.ledger.commit import NOT_COUNTED
from pyspark_kafkalog.ledger.ledger import Ledger
from pyspark_kafkalog.ledger.plan import Position
from pyspark_kafkalog.status.snapshot import LoadStatus, PartitionStatus, lag_of
from pyspark_kafkalog.stores.local_store import LocalStore
from pyspark_kafkalog.stores.locations import open_store
from pyspark_kafkalog.types import TopicPartition, encode_id

Known = Mapping[TopicPartition, PartitionStatus]


class LedgerLoads:
    """*Thread-safe: its only state is its place.* The loads that have a ledger there."""

    def __init__(self, place: str) -> None:
        """Raises `KafkaError`: nothing can be read at ``place``."""
        store = open_store(place)
        if isinstance(store, LocalStore) and not Path(store.location).is_dir():
            raise InvalidConfig(f"--ledger={place}: there is no such directory")
        store.names("")
        self._place = place

    def take(self, metadata: ClusterMetadata, known: Known, problems: list[str]) -> Iterable[LoadStatus]:
        """The loads; what one of them does not tell goes to the ``problems``."""
        try:
            names = Ledger.at(self._place, "any").known_beside()
        except KafkaError as e:
            problems.append(f"loads: {e}")
            return
        if not names:
            problems.append(f"loads: there is no ledger at {self._place}")
        for name in names:
            try:
                load = self._load(Ledger.at(self._place, name), metadata, known)
            except KafkaError as e:
                problems.append(f"load {name}: {e}")
                continue
            if load is not None:
                yield load

    def _load(self, ledger: Ledger, metadata: ClusterMetadata, known: Known) -> LoadStatus | None:
        begun, head = ledger.begun(), ledger.head()
        if begun is None or head is None:
            return None
        is_of_this = begun.protocol == PROTOCOL_08 and begun.cluster_id in ("", metadata.cluster_id)
        ours = is_of_this and all(_is_same_topic(position, metadata) for position in head.positions)
        positions = {TopicPartition(p.topic, p.partition): p.next for p in head.positions}
        return LoadStatus(
            ledger.name,
            head.number,
            head.created,
            None if head.records == NOT_COUNTED else head.records,
            ledger.pending() is not None,
            lag_of(positions, known) if ours else None,
        )


def _is_same_topic(position: Position, metadata: ClusterMetadata) -> bool:
    """Whether the cluster has the topic that the load read, as far as topic ids say so."""
    topic = metadata.topics.get(position.topic)
    return topic is not None and ("" in (position.topic_id, _id(topic)) or position.topic_id == _id(topic))


def _id(topic: TopicMetadata) -> str:
    return encode_id(topic.topic_id) if topic.topic_id.int else ""
