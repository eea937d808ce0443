"""Offsets of groups in ZooKeeper, stored through the broker by OffsetCommit 0 and OffsetFetch 0."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from broker.offsets.offset_records import CommittedOffset
from pyspark_kafkalog.errors import ConnectionLost, ErrorCode, InvalidConfig, InvalidRequest, ServerError
from pyspark_kafkalog.types import TopicPartition
from pyspark_kafkalog.zookeeper.paths import Layout
from pyspark_kafkalog.zookeeper.registries import read_group_offset, write_group_offset
from pyspark_kafkalog.zookeeper.session import Session


class ZooKeeperOffsets:
    """*Thread-safe.* The ``offsets`` znodes of groups, which consumers that know ZooKeeper themselves share.

    ZooKeeper may take seconds, and a processor thread must serve others: so `in_turn` does the work of a
    request on a thread of its own, ``zookeeper-offsets``, one request after the other.
    Each connection has one request in hand, so no more of them wait than there are connections.
    """

    def __init__(self, session: Session, layout: Layout) -> None:
        self._session = session
        self._layout = layout
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="zookeeper-offsets")

    def in_turn(self, work: Callable[[], None]) -> None:
        """Do the work of one request when its turn comes. Returns at once."""
        self._worker.submit(work)

    def read(self, group: str, partition: TopicPartition) -> CommittedOffset | None:
        """The group's next offset; None where there is none. Blocks.

        Raises:
            ServerError: ZooKeeper does not answer (a code after which clients ask again), or the group has a
                name that no znode can have.
            MalformedNode: the znode has no offset in it.
        """
        try:
            offset = read_group_offset(
                self._session, self._layout, group, partition.topic, self._name(partition)
            )
        except (ConnectionLost, InvalidConfig) as e:
            raise _as_server_error(e) from e
        return None if offset is None else CommittedOffset(offset)

    def write(self, group: str, partition: TopicPartition, offset: int) -> None:
        """Store the group's next offset. Blocks.

        Raises:
            InvalidRequest: the offset is negative.
            ServerError: as `read`.
        """
        if offset < 0:
            raise InvalidRequest(f"{partition}: offset {offset}")
        try:
            write_group_offset(
                self._session, self._layout, group, partition.topic, self._name(partition), offset
            )
        except (ConnectionLost, InvalidConfig) as e:
            raise _as_server_error(e) from e

    def close(self) -> None:
        """Take no more work; what waits is dropped."""
        self._worker.shutdown(wait=False, cancel_futures=True)

    def _name(self, partition: TopicPartition) -> str:
        return self._layout.partition_name(partition.broker, partition.partition)


def _as_server_error(error: ConnectionLost | InvalidConfig) -> ServerError:
    """The error with a code that clients of Kafka 0.8 know."""
    lost = isinstance(error, ConnectionLost)
    return ServerError(ErrorCode.REQUEST_TIMED_OUT if lost else ErrorCode.INVALID_GROUP_ID, str(error))
