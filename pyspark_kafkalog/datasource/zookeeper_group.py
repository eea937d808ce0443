"""A group's next offsets in ZooKeeper: where loads tell them with ``offsetStore=zookeeper``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pyspark_kafkalog.config.zookeeper import ZooKeeperConfig
from pyspark_kafkalog.types import TopicPartition
from pyspark_kafkalog.zookeeper.groups import groups, read_group_offset, write_group_offset
from pyspark_kafkalog.zookeeper.paths import layout_of
from pyspark_kafkalog.zookeeper.session import session_of


class ZooKeeperGroup:
    """*Not thread-safe.* One group. Each call has a session of its own: there are one or two in a load.

    Raises `ConnectionLost` when ZooKeeper does not answer.
    """

    def __init__(self, config: ZooKeeperConfig, group: str, protocol: str) -> None:
        """``config.zookeeper_connect`` is set; ``protocol`` chooses the znodes."""
        self._config, self._group = config, group
        self._layout = layout_of(config, protocol)

    def is_known(self) -> bool:
        """Whether there is, or ever was, such a group."""
        with session_of(self._config) as session:
            return self._group in groups(session, self._layout)

    def offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The next offsets that stand there; partitions without one are left out.

        Raises:
            MalformedNode: no offset stands in a znode.
        """
        with session_of(self._config) as session:
            found = {
                p: read_group_offset(session, self._layout, self._group, p.topic, p.number)
                for p in partitions
            }
        return {partition: offset for partition, offset in found.items() if offset is not None}

    def commit(self, positions: Mapping[TopicPartition, int]) -> None:
        """Write the next offsets of these partitions."""
        with session_of(self._config) as session:
            for p, offset in positions.items():
                write_group_offset(session, self._layout, self._group, p.topic, p.number, offset)
