"""Cluster data in data directories: the note of their registry, and partitions set aside."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

import msgspec
from msgspec.structs import replace

from kafkalog_broker.disk.data_directory import META_NAME, DataDirectory
from kafkalog_broker.disk.filesystem import FileSystem
from kafkalog_broker.log.log import Log
from kafkalog_broker.logs.startup import OfflineLog
from kafkalog_broker.logs.topic_store import StoredTopic, TopicStore
from pyspark_kafkalog.errors import StorageError
from pyspark_kafkalog.types import encode_id

ASIDE_DIRECTORY = ".aside"
"""Directory for partitions that other brokers own; nothing in it is ever removed."""

_ID = "registry.id"
_VERSION = "registry.version"
_BROKERS = "registry.brokers"


class RegistryNote(msgspec.Struct, frozen=True):
    """The cluster's registry as last seen, in ``meta.properties``; ``version`` is a lower bound."""

    registry: str
    version: int
    brokers: frozenset[int]


def read_note(directory: DataDirectory) -> RegistryNote | None:
    meta = _meta(directory)
    if _ID not in meta:
        return None
    brokers, version = meta.get(_BROKERS, "missing"), meta.get(_VERSION, "missing")
    try:
        members = frozenset(int(each) for each in brokers.split(",") if each)
        return RegistryNote(meta[_ID], int(version), members)
    except ValueError:
        raise StorageError(
            f"{directory.path / META_NAME}: {_VERSION}={version} and {_BROKERS}={brokers} must be "
            "numbers: the file is damaged"
        ) from None


def write_note(directory: DataDirectory, note: RegistryNote) -> None:
    fields = {
        _ID: note.registry,
        _VERSION: str(note.version),
        _BROKERS: ",".join(map(str, sorted(note.brokers))),
    }
    with directory.refusing("writing meta.properties"):
        directory.write_meta({**_meta(directory), **fields})


def _meta(directory: DataDirectory) -> Mapping[str, str]:
    with directory.refusing("reading meta.properties"):
        return directory.read_meta()


def set_partitions_aside(
    files: FileSystem,
    records: TopicStore,
    name: str,
    topic: StoredTopic,
    leaving: Iterable[Log | OfflineLog],
    staying: Collection[int],
) -> StoredTopic | None:
    """Move partitions to ``.aside/<topic id>``; returns the record for those ``staying``. May be repeated."""
    for each in leaving:
        aside = each.directory.path / ASIDE_DIRECTORY / encode_id(topic.topic_id)
        if not aside.exists():
            files.make_directory(aside.parent)
            files.make_directory(aside)
            records.set_aside(name, aside)
        if isinstance(each, Log):
            each.flush()
            each.drop()
        if each.path.exists():
            files.rename(each.path, _free(aside / each.path.name))
        if isinstance(each, Log):
            each.drop()  # again: a reader may have opened a file before the rename
        files.sync_directory(aside)
        files.sync_directory(each.directory.path)
    if not staying:
        records.remove(name)
        return None
    rest = replace(topic, partitions=tuple(sorted(staying)))
    records.put(name, rest)
    return rest


def _free(path: Path) -> Path:
    found, number = path, 1
    while found.exists():
        found, number = path.with_name(f"{path.name}~{number}"), number + 1
    return found
