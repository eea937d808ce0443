"""Reads a data directory offline and checks that its parts agree: topic records, partitions, notes."""

from __future__ import annotations

from pathlib import Path

import msgspec

from kafkalog_broker.disk.data_directory import (
    CLEAN_SHUTDOWN_NAME,
    META_NAME,
    RECOVERY_POINTS_NAME,
    read_table,
)
from kafkalog_broker.disk.filesystem import FileSystem, read_file
from kafkalog_broker.inspect.inspection import (
    Finding,
    PartitionPlace,
    damage_in,
    files_in,
    is_data_directory,
    look_again,
    note,
    partitions_in,
)
from kafkalog_broker.logs import topic_store
from pyspark_kafkalog.clock import SYSTEM_CLOCK, Clock
from pyspark_kafkalog.config.properties import parse_properties
from pyspark_kafkalog.errors import InvalidConfig, StorageError
from pyspark_kafkalog.types import TopicPartition


class Notes(msgspec.Struct, frozen=True):
    """Notes about logs in a data directory, by partition directory. ``clean``: end offset, last segment's
    base offset and size; None unless stopped cleanly. ``points``: topic number, durable offset.
    """

    clean: dict[str, tuple[int, ...]] | None
    points: dict[str, tuple[int, ...]]
    faults: tuple[tuple[Path, str], ...] = ()


def read_notes(data_directory: Path, files: FileSystem) -> Notes:
    faults = []
    tables: list[dict[str, tuple[int, ...]] | None] = []
    for name in (CLEAN_SHUTDOWN_NAME, RECOVERY_POINTS_NAME):
        path = data_directory / name
        table = read_table(files, path)
        if table is None and path.exists():
            faults.append((path, "it is cut short or changed"))
        tables.append(table)
    clean, points = tables
    return Notes(clean, points or {}, tuple(faults))


class Expected(msgspec.Struct, frozen=True):
    """What else is known of a log. ``gaps_allowed``: it is compacted, so gaps may be the cleaner's."""

    stopped_cleanly: bool | None = None
    clean_state: tuple[int, ...] = ()
    durable_offset: int = 0
    gaps_allowed: bool = False

    @property
    def end_offset(self) -> int:
        closed = self.clean_state[0] if len(self.clean_state) >= 3 else 0
        return max(closed, self.durable_offset)


class Contents(msgspec.Struct, frozen=True):
    path: Path
    partitions: tuple[PartitionPlace, ...]
    topics: dict[str, topic_store.StoredTopic]
    deleting: frozenset[str]
    notes: Notes
    findings: tuple[Finding, ...]

    def expected(self, place: PartitionPlace) -> Expected:
        topic, notes, name = self.topics.get(place.partition.topic), self.notes, place.path.name
        # A recovery point counts only for the topic it was noted for.
        noted, point = notes.points.get(name, (0, 0))[:2]
        return Expected(
            notes.clean is not None,
            (notes.clean or {}).get(name, ()),
            point if topic is not None and noted == topic.topic_id.int else 0,
            topic is not None and "compact" in topic.overrides.get("cleanup.policy", ""),
        )


def expected_of(place: PartitionPlace, files: FileSystem) -> Expected:
    """Facts about a partition from the data directory above it, if any. Raises `OSError`."""
    above = place.path.absolute().parent
    if not is_data_directory(above):
        return Expected()
    topics, _, _ = _read_topics(above, files)
    return Contents(above, (), topics, frozenset(), read_notes(above, files), ()).expected(place)


def read_contents(path: Path, files: FileSystem, clock: Clock = SYSTEM_CLOCK) -> Contents:
    """Read a data directory and compare its parts, without opening segments; see `look_again`."""
    return look_again(
        lambda: _contents(path, files),
        lambda contents: damage_in(contents.findings),
        lambda: (files_in(path, files), files_in(path / topic_store.TOPICS_DIRECTORY, files)),
        path,
        clock,
    )


def _contents(path: Path, files: FileSystem) -> Contents:
    partitions = tuple(partitions_in(path, files))
    topics, deleting, findings = _read_topics(path, files)
    notes = read_notes(path, files)
    findings += [Finding(file, f"{fault}: the next start recovers the logs") for file, fault in notes.faults]
    findings += _check_meta(path, files)
    if (path / topic_store.TOPICS_DIRECTORY).is_dir():
        # A copy of partitions alone has no records to compare with.
        for place in partitions:
            findings += _check_owner(place, topics, deleting, files)
    there = {place.partition for place in partitions}
    for name, topic in topics.items():
        for number in topic.partitions:
            partition = TopicPartition(name, number)
            if partition not in there:
                findings.append(_absent(path, topic_store.directory_name(partition), topic, notes))
    return Contents(path, partitions, topics, frozenset(deleting), notes, tuple(findings))


def _read_topics(
    path: Path, files: FileSystem
) -> tuple[dict[str, topic_store.StoredTopic], set[str], list[Finding]]:
    topics: dict[str, topic_store.StoredTopic] = {}
    deleting: set[str] = set()
    findings: list[Finding] = []
    try:
        entries = files.scan(path / topic_store.TOPICS_DIRECTORY)
    except FileNotFoundError:
        return topics, deleting, findings
    for entry in sorted(entries):
        if not entry.name.endswith(topic_store.TOPIC_SUFFIX):
            continue
        name = topic_store.topic_of_record(entry.name) or entry.name.removesuffix(topic_store.TOPIC_SUFFIX)
        record = path / topic_store.TOPICS_DIRECTORY / entry.name
        try:
            topic, ended = topic_store.parse_topic(read_file(files, record), record)
        except FileNotFoundError:
            continue  # just deleted
        except StorageError as e:
            why = str(e).removeprefix(f"{record} ").removeprefix(f"{record}: ")
            findings.append(Finding(record, f"{why}: no broker will start"))
            continue
        if ended:
            deleting.add(name)
            findings.append(note(record, "the next start finishes deleting this topic"))
        else:
            topics[name] = topic
    return topics, deleting, findings


def _check_meta(path: Path, files: FileSystem) -> list[Finding]:
    meta = path / META_NAME
    try:
        fields = parse_properties(read_file(files, meta).decode("utf-8"))
    except FileNotFoundError:
        return []  # a copy of partitions alone; a broker writes a new file
    except (UnicodeDecodeError, InvalidConfig) as e:
        return [Finding(meta, f"cannot be read: {e}")]
    missing = [name for name in ("cluster.id", "node.id") if not fields.get(name)]
    return [Finding(meta, f"says no {' and no '.join(missing)}")] if missing else []


def _check_owner(
    place: PartitionPlace, topics: dict[str, topic_store.StoredTopic], deleting: set[str], files: FileSystem
) -> list[Finding]:
    name, number = place.partition.topic, place.partition.partition
    if name in deleting:
        return []
    topic = topics.get(name)
    if topic is None or number not in topic.partitions:
        return [note(place.path, "belongs to no topic of this directory: it is not served")]
    found = topic_store.read_partition_metadata(files, place.path)
    file = place.path / topic_store.PARTITION_METADATA
    if found is None:
        return [note(file, "is missing or torn: the next start writes it again")]
    if found[0] != topic.topic_id:
        return [Finding(file, f"names topic id {found[0]}, the record of topic {name} has {topic.topic_id}")]
    if found[1] != topic.generation:
        what = f"names generation {found[1]}, the record of topic {name} has {topic.generation}"
        return [Finding(file, what)]
    return []


def _absent(path: Path, name: str, topic: topic_store.StoredTopic, notes: Notes) -> Finding:
    number, point = (notes.points.get(name) or (0, 0))[:2]
    if notes.clean is not None and name in notes.clean:
        return Finding(path / name, "is missing: it was there when the broker closed its logs")
    if point and number == topic.topic_id.int:
        had = f"its offsets up to {point - 1} had been forced to the disk"
        return Finding(path / name, f"is missing, or no segment is in it: {had}")
    return note(path / name, "is not here: it is in another of log.dirs, or the next start creates it")
