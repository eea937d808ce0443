"""``export``: a copy of the logs under Apache Kafka's names, for its tools and its brokers."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from kafkalog_broker.cli.commands import DONE, Commands, add_command, byte_progress, directories_of, say
from kafkalog_broker.disk.data_directory import LOCK_NAME
from kafkalog_broker.disk.process_lock import hold_off
from pyspark_kafkalog.errors import InvalidConfig, StorageError

if TYPE_CHECKING:
    from kafkalog_broker.disk.filesystem import FileSystem
    from kafkalog_broker.inspect.contents import Contents
    from kafkalog_broker.inspect.export import Source

_EXAMPLES = """\
examples:
  python -m kafkalog_broker export kafkalog-data /srv/for-kafka
  python -m kafkalog_broker export conf/server.properties /srv/for-kafka --topic flights --topic delays
  python -m kafkalog_broker export --live kafkalog-data /srv/for-kafka
      while the broker runs: each partition as far as it was written when its turn came

Each partition becomes <topic>-<number>/ with segments of 20 digits, .index, .timeindex,
leader-epoch-checkpoint and partition.metadata. The target must be absent or empty; it gets
its name when all of it is there. Topics of Kafka 0.7 cannot be exported: choose others with --topic.
Exit codes: 0 exported, 1 a log is damaged or the disk refused, 2 wrong arguments.
"""


def add_parser(commands: Commands) -> None:
    parser = add_command(
        commands, "export", _run,
        summary="copy the logs under Apache Kafka's names",
        description="Copy logs, byte for byte, to a directory that Apache Kafka's tools and brokers read.",
        examples=_EXAMPLES,
    )  # fmt: skip
    parser.add_argument(
        "source", type=Path, metavar="DATA_DIR", help="a data directory, or a properties file with log.dirs"
    )
    parser.add_argument("target", type=Path, metavar="TARGET", help="the directory to make")
    parser.add_argument(
        "--topic", action="append", default=[], dest="topics", metavar="TOPIC",
        help="only this topic; may be repeated (default: all, __consumer_offsets too)",
    )  # fmt: skip
    parser.add_argument("--live", action="store_true", help="also when a broker runs on the directory")


def _run(options: argparse.Namespace) -> int:
    from kafkalog_broker.disk.filesystem import FileSystem, ReadOnlyFiles
    from kafkalog_broker.inspect.contents import read_contents
    from kafkalog_broker.inspect.export import check_target, export
    from kafkalog_broker.inspect.inspection import kind_of, segments_in

    directories = directories_of(options.source)
    check_target(options.target)
    for directory in directories:
        if options.target.absolute().is_relative_to(directory.absolute()):
            raise InvalidConfig(f"{options.target} is inside {directory}, which is to be exported")
    reading = ReadOnlyFiles()
    with _undisturbed(directories, live=options.live):
        for directory in directories:
            if kind_of(directory, reading) != "data":
                raise InvalidConfig(f"{directory} is the directory of one partition, not a data directory")
        contents = [read_contents(directory, reading) for directory in directories]
        sources = _sources(contents, options.topics, options.live, reading)
        size = sum(segment.size for source in sources for segment in segments_in(source.place.path, reading))
        with byte_progress("exporting", size) as advance:
            done = export(sources, options.target, reading=reading, writing=FileSystem(), progress=advance)
    for each in done:
        sys.stdout.write(f"{each}\n")
        if each.left_bytes and not options.live:
            say(f"{each.name}: {each.left_bytes} bytes of a torn tail were left out, as a start would do")
    total = sum(each.size_bytes for each in done)
    sys.stdout.write(f"{len(done)} partitions, {total} bytes exported to {options.target}\n")
    return DONE


@contextmanager
def _undisturbed(directories: Sequence[Path], *, live: bool) -> Iterator[None]:
    """Keep brokers from starting on the directories meanwhile. Raises `StorageError`: one is running."""
    with ExitStack() as held:
        for directory in () if live else directories:
            try:
                lock = hold_off(directory / LOCK_NAME)
            except BlockingIOError:
                raise StorageError(
                    f"a broker runs on {directory}: stop it, or export with --live what is written so far"
                ) from None
            if lock is not None:
                held.callback(lock.close)
        yield


def _sources(
    contents: Sequence[Contents], topics: Sequence[str], live: bool, files: FileSystem
) -> list[Source]:
    from kafkalog_broker.inspect.export import Source
    from kafkalog_broker.inspect.inspection import inspection_of
    from kafkalog_broker.log.generations import SINCE_08
    from kafkalog_broker.logs.topic_store import read_partition_metadata

    damaged = [finding for each in contents for finding in each.findings if finding.damage]
    if damaged:
        raise StorageError(f"{damaged[0].path}: {damaged[0].what}")
    records = {name: topic for each in contents for name, topic in each.topics.items()}
    deleting = {name for each in contents for name in each.deleting}
    there = {place.partition.topic for each in contents for place in each.partitions} - deleting
    missing = [topic for topic in topics if topic not in there]
    if missing:
        known = f"there are {', '.join(sorted(there))}" if there else "there are no topics"
        raise InvalidConfig(f"no topic {', '.join(missing)}: {known}")
    sources = []
    unreadable: dict[str, str] = {}
    for each in contents:
        for place in each.partitions:
            name = place.partition.topic
            if name in deleting or (topics and name not in topics):
                continue
            found = read_partition_metadata(files, place.path)
            topic_id = records[name].topic_id if name in records else found[0] if found is not None else None
            if topic_id is None:
                say(f"{place.path} belongs to no topic that is known here: left out")
                continue
            inspection = inspection_of(place.path, SINCE_08.generation, files)
            if not inspection.kafka_reads_it:
                unreadable[name] = inspection.generation
                continue
            expected = each.expected(place)
            torn_from = expected.durable_offset if live or not expected.stopped_cleanly else None
            sources.append(Source(place, topic_id, expected.gaps_allowed, torn_from))
    if unreadable:
        named = ", ".join(f"{name!r} of Kafka {of}" for name, of in sorted(unreadable.items()))
        raise InvalidConfig(
            f"cannot export {named}: Apache Kafka's tools and brokers do not read such logs;"
            " name the topics to export, without these, with --topic"
        )
    return sources
