"""What is known of a topic besides its logs, one file each: ``.topics/<name>.topic``.

A topic exists from the moment its record is durable until the record says that it is being deleted; its
partition directories are made before and removed after. So whatever a crash leaves of a creation or a
deletion is known for what it is at the next start. Properties: ``topic.id``, ``partitions``,
``generation``, ``deleting``, and the topic's own as ``config.<name>``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

from broker.log.filesystem import FileSystem, read_file, replace_file
from pyspark_kafkalog.config.properties import format_properties, parse_properties
from pyspark_kafkalog.errors import KafkaError, StorageError
from pyspark_kafkalog.types import TopicPartition, decode_id, encode_id

TOPICS_DIRECTORY = ".topics"
PARTITION_METADATA = "partition.metadata"

GENERATION = "0.8"
"""The family of logs from Kafka 0.8 on: offsets count records; v0, v1, v2 entries may be mixed."""

TOPIC_SUFFIX = ".topic"
_CONFIG = "config."


@dataclass(frozen=True, slots=True)
class StoredTopic:
    """A topic as it is kept; ``overrides`` are the properties that it sets for itself."""

    topic_id: UUID
    partitions: tuple[int, ...]
    overrides: Mapping[str, str] = field(default_factory=dict)
    generation: str = GENERATION


def directory_name(partition: TopicPartition) -> str:
    """``my_topic_0``: where a partition's files are."""
    return f"{partition.topic}_{partition.partition}"


def partition_of(name: str) -> TopicPartition | None:
    """The partition whose directory this is; None when it is none's."""
    topic, separator, number = name.rpartition("_")
    if not separator or not topic:
        return None
    if not (number.isascii() and number.isdigit()) or number != str(int(number)):
        return None
    return TopicPartition(topic, int(number))


class TopicStore:
    """*Not thread-safe: under the manager's lock.* The topic records of one data directory."""

    def __init__(self, data_directory: Path, files: FileSystem) -> None:
        self.path = data_directory / TOPICS_DIRECTORY
        self._files = files

    def open(self) -> None:
        """Make the directory for the records. Raises `OSError`."""
        self._files.make_directory(self.path)
        self._files.sync_directory(self.path.parent)

    def load(self) -> tuple[dict[str, StoredTopic], list[str]]:
        """All topics by name, and the names of those that were being deleted.

        Raises:
            StorageError: a record cannot be understood: its topic's logs must not be touched then.
            OSError: the disk refused.
        """
        topics: dict[str, StoredTopic] = {}
        deleting = []
        for entry in self._files.scan(self.path):
            if not entry.name.endswith(TOPIC_SUFFIX):
                continue
            name = entry.name.removesuffix(TOPIC_SUFFIX)
            topic, ended = parse_topic(read_file(self._files, self.path / entry.name), self.path / entry.name)
            if ended:
                deleting.append(name)
            else:
                topics[name] = topic
        return topics, deleting

    def put(self, name: str, topic: StoredTopic, *, deleting: bool = False) -> None:
        """Write a topic's record, durably. Raises `OSError`."""
        fields = {
            "topic.id": encode_id(topic.topic_id),
            "partitions": str(len(topic.partitions)),
            "generation": topic.generation,
        }
        if deleting:
            fields["deleting"] = "true"
        fields |= {_CONFIG + key: value for key, value in topic.overrides.items()}
        data = format_properties(fields).encode("utf-8")
        replace_file(self._files, self.path / (name + TOPIC_SUFFIX), data, durable=True)

    def remove(self, name: str) -> None:
        """Forget a topic, durably. Raises `OSError`."""
        self._files.remove(self.path / (name + TOPIC_SUFFIX))
        self._files.sync_directory(self.path)


def write_partition_metadata(files: FileSystem, directory: Path, topic: StoredTopic) -> None:
    """Say in a partition's directory whose it is. The record of the topic can always replace this file."""
    fields = {"version": "1", "topic.id": encode_id(topic.topic_id), "generation": topic.generation}
    data = format_properties(fields).encode("utf-8")
    replace_file(files, directory / PARTITION_METADATA, data, durable=False)


def read_partition_metadata(files: FileSystem, directory: Path) -> tuple[UUID, str] | None:
    """Topic id and generation; None when the file is missing or torn. Raises `OSError`."""
    try:
        text = read_file(files, directory / PARTITION_METADATA).decode("utf-8")
        if not text.endswith("\n"):
            return None
        fields = parse_properties(text)
        return decode_id(fields["topic.id"]), fields["generation"]
    except (FileNotFoundError, KeyError, ValueError, KafkaError):
        return None


def parse_topic(data: bytes, path: Path) -> tuple[StoredTopic, bool]:
    """A topic's record, and whether the topic is being deleted; ``path`` is for the errors.

    Raises:
        StorageError: it is no topic's record.
    """
    try:
        fields = parse_properties(data.decode("utf-8"))
        topic = StoredTopic(
            decode_id(fields["topic.id"]),
            tuple(range(int(fields["partitions"]))),
            {key.removeprefix(_CONFIG): value for key, value in fields.items() if key.startswith(_CONFIG)},
            fields["generation"],
        )
    except (KeyError, ValueError, KafkaError) as e:
        raise StorageError(f"{path} is not a topic's record: {e!r}") from e
    if topic.generation != GENERATION:
        raise StorageError(f"{path}: generation {topic.generation} is not known here")
    return topic, fields.get("deleting") == "true"
