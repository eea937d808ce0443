"""Creates directories and logs of new partitions, and removes them if the creation fails."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from kafkalog_broker.config.broker_config import LogConfig
from kafkalog_broker.disk.data_directory import DataDirectory
from kafkalog_broker.disk.filesystem import FileSystem, remove_tree, replace_file
from kafkalog_broker.log.family import LogTools
from kafkalog_broker.log.log import Log
from kafkalog_broker.log.segment import segment_name
from kafkalog_broker.logs.removal import remove_if_empty
from kafkalog_broker.logs.startup import open_partition
from kafkalog_broker.logs.topic_store import StoredTopic, directory_name, write_partition_metadata
from pyspark_kafkalog.errors import StorageError
from pyspark_kafkalog.types import TopicPartition

_logger = logging.getLogger(__name__)


class NewPartitions:
    """*Thread-safe: stateless.* Creates a topic's partitions; the caller has reserved its name."""

    def __init__(self, files: FileSystem, tools: Mapping[str, LogTools]) -> None:
        self._files = files
        self._tools = tools

    def make(
        self,
        name: str,
        topic: StoredTopic,
        numbers: Sequence[int],
        config: LogConfig,
        starts: Mapping[int, int],
        load: dict[DataDirectory, int],
    ) -> dict[TopicPartition, Log]:
        """Create directories and logs, each in the data directory with the least ``load``; all or none.
        A log begins at its offset in ``starts``, or 0. Raises `StorageError`.
        """
        made: dict[TopicPartition, Log] = {}
        for number in numbers:
            partition = TopicPartition(name, number)
            directory = min(load, key=lambda place: load[place])
            load[directory] += 1
            path = directory.path / directory_name(partition)
            try:
                self._clear_the_way(path)
                self._files.make_directory(path)
                write_partition_metadata(self._files, path, topic)
                if number in starts:
                    first = path / segment_name(starts[number])
                    replace_file(self._files, first, b"", durable=True)
                made[partition] = open_partition(
                    directory, partition, config, self._tools[topic.generation],
                    clean=None, recovery_point=0,
                )  # fmt: skip
            except OSError as e:
                self.undo(made, path)
                raise directory.refused(f"making {path.name}", e) from e
            except StorageError:
                self.undo(made)
                raise
        return made

    def undo(self, made: Mapping[TopicPartition, Log], *more: Path) -> None:
        """Remove the partitions of a failed creation; the next start removes what remains."""
        for log in made.values():
            log.drop()
        for path in (*(log.path for log in made.values()), *more):
            try:
                remove_tree(self._files, path)
            except OSError as e:
                _logger.warning("%s stays until the next start: %s", path, e)
        for log in made.values():
            log.drop()

    def _clear_the_way(self, path: Path) -> None:
        """Remove an empty directory of a failed creation; refuse one with data."""
        try:
            empty = remove_if_empty(self._files, path)
        except FileNotFoundError:
            return
        if not empty:
            raise StorageError(f"{path} has data and belongs to no topic: move it away first")
