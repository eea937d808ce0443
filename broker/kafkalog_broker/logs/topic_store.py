"""Topic records, one file each: ``.topics/<name>.topic``.

A topic exists from when its record is durable until that says ``deleting``; directories are created before
and removed after, so a start can complete or undo them. Properties: ``topic.id``, ``partitions`` (over all
brokers), ``partitions.here`` if others have some, ``leader.epochs`` of partitions here (``3:1``; 0 is left
out), ``generation``, ``deleting``, ``config.<name>``.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from uuid import UUID

import msgspec
from msgspec.structs import force_setattr

from kafkalog_broker.disk.filesystem import FileSystem, read_file, replace_file
from kafkalog_broker.log.generations import FAMILIES, SINCE_08, file_name, topic_of_file
from pyspark_kafkalog.config.properties import format_properties, parse_properties
from pyspark_kafkalog.errors import KafkaError, StorageError
from pyspark_kafkalog.types import TopicPartition, decode_id, encode_id

TOPICS_DIRECTORY = ".topics"
PARTITION_METADATA = "partition.metadata"

TOPIC_SUFFIX = ".topic"
_CONFIG = "config."


class StoredTopic(msgspec.Struct, frozen=True):
    """A stored topic: ``partitions`` here, ascending; ``total`` over all brokers; its own ``overrides``;
    the leader ``epochs`` of partitions here that are not 0.
    """

    topic_id: UUID
    partitions: tuple[int, ...]
    overrides: Mapping[str, str] = msgspec.field(default_factory=dict)
    generation: str = SINCE_08.generation
    total: int = 0
    epochs: Mapping[int, int] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        force_setattr(self, "total", max(self.total, max(self.partitions, default=-1) + 1))
        here = self.epochs.keys() & set(self.partitions) if self.epochs else ()
        force_setattr(self, "epochs", {number: self.epochs[number] for number in sorted(here)})

    def epoch(self, number: int) -> int:
        """A partition's leader epoch: how often `forget` has given it to another broker."""
        return self.epochs.get(number, 0)


def directory_name(partition: TopicPartition) -> str:
    return f"{file_name(partition.topic)}_{partition.partition}"


def partition_of(name: str) -> TopicPartition | None:
    stem, _, number = name.rpartition("_")
    topic = topic_of_file(stem)
    if topic is None or not (number.isascii() and number.isdigit()) or number != str(int(number)):
        return None
    return TopicPartition(topic, int(number))


class TopicStore:
    """*Not thread-safe: under the manager's lock.* Topic records of a data directory, written durably."""

    def __init__(self, data_directory: Path, files: FileSystem) -> None:
        self.path = data_directory / TOPICS_DIRECTORY
        self._files = files

    def open(self) -> None:
        self._files.make_directory(self.path)
        self._files.sync_directory(self.path.parent)

    def load(self) -> tuple[dict[str, StoredTopic], list[str]]:
        """All topics by name, and the names being deleted. Raises `StorageError`: unreadable; `OSError`."""
        topics: dict[str, StoredTopic] = {}
        deleting = []
        for entry in self._files.scan(self.path):
            if not entry.name.endswith(TOPIC_SUFFIX):
                continue
            name = topic_of_record(entry.name)
            if name is None:
                raise StorageError(f"{self.path / entry.name}: no topic's record has this name")
            topic, ended = parse_topic(read_file(self._files, self.path / entry.name), self.path / entry.name)
            if ended:
                deleting.append(name)
            else:
                topics[name] = topic
        return topics, deleting

    def put(self, name: str, topic: StoredTopic, *, deleting: bool = False) -> None:
        fields = {
            "topic.id": encode_id(topic.topic_id),
            "partitions": str(topic.total),
            "generation": topic.generation,
        }
        if len(topic.partitions) < topic.total:
            fields["partitions.here"] = ",".join(map(str, topic.partitions))
        if topic.epochs:
            fields["leader.epochs"] = ",".join(f"{number}:{epoch}" for number, epoch in topic.epochs.items())
        if deleting:
            fields["deleting"] = "true"
        fields |= {_CONFIG + key: value for key, value in topic.overrides.items()}
        data = format_properties(fields).encode("utf-8")
        replace_file(self._files, self._record(name), data, durable=True)

    def remove(self, name: str) -> None:
        with suppress(FileNotFoundError):  # an attempt that failed later
            self._files.remove(self._record(name))
        self._files.sync_directory(self.path)

    def set_aside(self, name: str, target: Path) -> None:
        data = read_file(self._files, self._record(name))
        replace_file(self._files, target / (file_name(name) + TOPIC_SUFFIX), data, durable=True)

    def _record(self, name: str) -> Path:
        return topic_record(self.path.parent, name)


def topic_record(data_directory: Path, name: str) -> Path:
    return data_directory / TOPICS_DIRECTORY / (file_name(name) + TOPIC_SUFFIX)


def topic_of_record(name: str) -> str | None:
    stem = name.removesuffix(TOPIC_SUFFIX)
    return topic_of_file(stem) if stem != name else None


def write_partition_metadata(files: FileSystem, directory: Path, topic: StoredTopic) -> None:
    """Write the owner into a partition's directory. The file can be recreated from the topic's record."""
    data = _partition_metadata(topic.topic_id, topic.generation)
    replace_file(files, directory / PARTITION_METADATA, data, durable=False)


def is_partition_metadata(files: FileSystem, directory: Path, topic: StoredTopic) -> bool:
    """Whether the file is as written, which saves parsing it. Raises `OSError`, `NotADirectoryError`."""
    try:
        data = read_file(files, directory / PARTITION_METADATA)
        return data == _partition_metadata(topic.topic_id, topic.generation)
    except FileNotFoundError:
        return False


@lru_cache(1)
def _partition_metadata(topic_id: UUID, generation: str) -> bytes:
    """Cached, as a topic's partitions are created and opened one after another."""
    fields = {"version": "1", "topic.id": encode_id(topic_id), "generation": generation}
    return format_properties(fields).encode("utf-8")


def read_partition_metadata(files: FileSystem, directory: Path) -> tuple[UUID, str] | None:
    try:
        text = read_file(files, directory / PARTITION_METADATA).decode("utf-8")
        if not text.endswith("\n"):
            return None
        fields = parse_properties(text)
        return decode_id(fields["topic.id"]), fields["generation"]
    except (FileNotFoundError, KeyError, ValueError, KafkaError):
        return None


def parse_topic(data: bytes, path: Path) -> tuple[StoredTopic, bool]:
    try:
        fields = parse_properties(data.decode("utf-8"))
        here, total = fields.get("partitions.here"), int(fields["partitions"])
        numbers = range(total) if here is None else map(int, here.split(","))
        epochs = (each.partition(":") for each in fields.get("leader.epochs", "").split(",") if each)
        topic = StoredTopic(
            decode_id(fields["topic.id"]),
            tuple(numbers),
            {key.removeprefix(_CONFIG): value for key, value in fields.items() if key.startswith(_CONFIG)},
            fields["generation"],
            total,
            {int(number): int(epoch) for number, _, epoch in epochs},
        )
    except (KeyError, ValueError, KafkaError) as e:
        raise StorageError(f"{path} is not a topic's record: {e!r}") from e
    if topic.generation not in FAMILIES:
        raise StorageError(f"{path}: generation {topic.generation} is not known here")
    return topic, fields.get("deleting") == "true"
