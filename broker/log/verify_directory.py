"""Checks what a data directory says of its logs against the logs that are there."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from broker.log.data_directory import META_NAME
from broker.log.filesystem import FileSystem, read_file
from broker.log.places import Notes, PartitionPlace, is_data_directory, partitions_in, read_notes
from broker.log.topic_store import (
    PARTITION_METADATA,
    TOPIC_SUFFIX,
    TOPICS_DIRECTORY,
    StoredTopic,
    directory_name,
    parse_topic,
    read_partition_metadata,
    topic_of_record,
)
from broker.log.verify import Expected, Finding
from pyspark_kafkalog.config.properties import parse_properties
from pyspark_kafkalog.errors import InvalidConfig, StorageError
from pyspark_kafkalog.types import TopicPartition


@dataclass(frozen=True, slots=True)
class Contents:
    """A data directory as it was found: its partitions, the topics' records, what the stop noted."""

    path: Path
    partitions: tuple[PartitionPlace, ...]
    topics: dict[str, StoredTopic]
    deleting: frozenset[str]
    notes: Notes
    findings: tuple[Finding, ...]

    def expected(self, place: PartitionPlace) -> Expected:
        """What is known of one of its partitions."""
        topic = self.topics.get(place.partition.topic)
        policy = topic.overrides.get("cleanup.policy", "") if topic is not None else ""
        return Expected.of(
            self.notes,
            place,
            topic.topic_id.int if topic is not None else None,
            gaps_allowed="compact" in policy,
        )


def expected_of(place: PartitionPlace, files: FileSystem) -> Expected:
    """What is known of a partition from the data directory it lies in, if it does. Raises `OSError`."""
    above = place.path.absolute().parent
    if not is_data_directory(above):
        return Expected()
    topics, _, _ = _read_topics(above, files)
    return Contents(above, (), topics, frozenset(), read_notes(above, files), ()).expected(place)


def read_contents(path: Path, files: FileSystem) -> Contents:
    """Look at a data directory, and compare its parts with each other; the segments are not opened.

    Raises:
        OSError: the disk refused to read.
    """
    partitions = tuple(partitions_in(path, files))
    topics, deleting, findings = _read_topics(path, files)
    notes = read_notes(path, files)
    findings += [
        Finding(file, None, f"{fault}: the next start recovers the logs") for file, fault in notes.faults
    ]
    findings += _check_meta(path, files)
    if (path / TOPICS_DIRECTORY).is_dir():
        # A copy of partitions alone has no records, and nothing to compare them with.
        for place in partitions:
            findings += _check_owner(place, topics, deleting, files)
    there = {place.partition for place in partitions}
    for name, topic in topics.items():
        for number in topic.partitions:
            partition = TopicPartition(name, number)
            if partition not in there:
                findings.append(_absent(path, directory_name(partition), topic, notes))
    return Contents(path, partitions, topics, frozenset(deleting), notes, tuple(findings))


def _read_topics(path: Path, files: FileSystem) -> tuple[dict[str, StoredTopic], set[str], list[Finding]]:
    topics: dict[str, StoredTopic] = {}
    deleting: set[str] = set()
    findings: list[Finding] = []
    try:
        entries = files.scan(path / TOPICS_DIRECTORY)
    except FileNotFoundError:
        return topics, deleting, findings
    for entry in sorted(entries):
        if not entry.name.endswith(TOPIC_SUFFIX):
            continue
        name = topic_of_record(entry.name) or entry.name.removesuffix(TOPIC_SUFFIX)
        record = path / TOPICS_DIRECTORY / entry.name
        try:
            topic, ended = parse_topic(read_file(files, record), record)
        except StorageError as e:
            told = str(e).removeprefix(f"{record} ").removeprefix(f"{record}: ")
            findings.append(Finding(record, None, f"{told}: no broker will start"))
            continue
        if ended:
            deleting.add(name)
            findings.append(
                Finding(record, None, "the next start finishes deleting this topic", damage=False)
            )
        else:
            topics[name] = topic
    return topics, deleting, findings


def _check_meta(path: Path, files: FileSystem) -> list[Finding]:
    meta = path / META_NAME
    try:
        fields = parse_properties(read_file(files, meta).decode("utf-8"))
    except FileNotFoundError:
        return []  # a copy of partitions alone; a broker writes a new one
    except (UnicodeDecodeError, InvalidConfig) as e:
        return [Finding(meta, None, f"cannot be read: {e}")]
    missing = [name for name in ("cluster.id", "node.id") if not fields.get(name)]
    return [Finding(meta, None, f"says no {' and no '.join(missing)}")] if missing else []


def _check_owner(
    place: PartitionPlace, topics: dict[str, StoredTopic], deleting: set[str], files: FileSystem
) -> list[Finding]:
    name, number = place.partition.topic, place.partition.partition
    if name in deleting:
        return []
    topic = topics.get(name)
    if topic is None or number not in topic.partitions:
        return [
            Finding(place.path, None, "belongs to no topic of this directory: it is not served", damage=False)
        ]
    found = read_partition_metadata(files, place.path)
    file = place.path / PARTITION_METADATA
    if found is None:
        return [Finding(file, None, "is missing or torn: the next start writes it again", damage=False)]
    if found[0] != topic.topic_id:
        return [
            Finding(file, None, f"names topic id {found[0]}, the record of topic {name} has {topic.topic_id}")
        ]
    if found[1] != topic.generation:
        told = f"names generation {found[1]}, the record of topic {name} has {topic.generation}"
        return [Finding(file, None, told)]
    return []


def _absent(path: Path, name: str, topic: StoredTopic, notes: Notes) -> Finding:
    number, point = (notes.points.get(name) or (0, 0))[:2]
    if notes.clean is not None and name in notes.clean:
        return Finding(path / name, None, "is missing: it was there when the broker closed its logs")
    if point and number == topic.topic_id.int:
        had = f"its offsets up to {point - 1} had been forced to the disk"
        return Finding(path / name, None, f"is missing, or no segment is in it: {had}")
    return Finding(
        path / name,
        None,
        "is not here: it lies in another of log.dirs, or is made by the next start",
        damage=False,
    )
