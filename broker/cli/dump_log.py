"""``dump-log``: what is in segments and their indexes, damaged places included, as text or as JSON."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from broker.cli.commands import add_command, add_generation
from broker.cli.outcome import DONE, FAILED
from pyspark_kafkalog.errors import CorruptMessage, KafkaError

if TYPE_CHECKING:
    from broker.cli.commands import Commands
    from broker.cli.dump_entries import EntryLines
    from broker.log.filesystem import File, FileSystem
    from broker.log.places import SegmentPlace
    from broker.log.salvage import Found
    from pyspark_kafkalog.types import Record

_EXAMPLES = """\
examples:
  python -m broker dump-log kafkalog-data/my_topic_0
      a line for each batch of each segment; for each entry where the topic is of Kafka 0.7
  python -m broker dump-log --records kafkalog-data/my_topic_0/00000000000.kafka
  python -m broker dump-log --records --json kafkalog-data/my_topic_0 | jq .value
  python -m broker dump-log --offsets-decoder kafkalog-data/__consumer_offsets_0
  python -m broker dump-log --index kafkalog-data/my_topic_0
  python -m broker dump-log --generation 0.7 old/00000000000.kafka
      a segment of Kafka 0.7, from a place where nothing tells that it is one

Nothing is written and no lock is taken: a broker may run meanwhile. Segments of Apache Kafka are read too.
Exit codes: 0 all of it could be read, 1 something is damaged, 2 there is nothing to show.
"""


def add_parser(commands: Commands) -> None:
    """Make the command known."""
    parser = add_command(
        commands, "dump-log", _run,
        summary="show the entries, records and index rows of segment files",
        description="Show what is in segments: entries, records, index rows; damaged places where they are.",
        examples=_EXAMPLES,
    )  # fmt: skip
    parser.add_argument(
        "places", nargs="+", type=Path, metavar="FILE_OR_DIR",
        help="a segment, an index, a partition's directory or a data directory",
    )  # fmt: skip
    parser.add_argument(
        "--records", action="store_true", help="show each record, too: key, value and headers"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object for each line")
    parser.add_argument(
        "--index", action="store_true", help="show the rows of the indexes instead of the segments"
    )
    parser.add_argument(
        "--offsets-decoder", action="store_true",
        help="show what records of __consumer_offsets say: group, topic, offset (includes --records)",
    )  # fmt: skip
    add_generation(parser)


def _run(options: argparse.Namespace) -> int:
    from broker.log.filesystem import ReadOnlyFiles
    from broker.log.places import segment_place

    files = ReadOnlyFiles()
    dump = _Dump(files, options)
    for path in [path for place in options.places for path in _files_of(place, options.index, files)]:
        segment = segment_place(path)
        dump.file(path)
        if segment is None:
            dump.index(path)
        else:
            dump.segment(segment)
    return FAILED if dump.damaged else DONE


def _files_of(place: Path, index: bool, files: FileSystem) -> list[Path]:
    """The files to show at ``place``, in order. Raises `InvalidConfig` when it holds none."""
    from broker.log.places import INDEX_SUFFIXES, kind_of, partitions_in, segments_in

    kind = kind_of(place, files)
    if kind == "index":
        return [place]
    if kind == "segment":
        segments = [place]
    else:
        partitions = [place] if kind == "partition" else [found.path for found in partitions_in(place, files)]
        segments = [segment.path for path in partitions for segment in segments_in(path, files)]
    if not index:
        return segments
    beside = [segment.with_suffix(suffix) for segment in segments for suffix in INDEX_SUFFIXES]
    return [path for path in beside if path.exists()]


class _Dump:
    """*Not thread-safe.* Writes the lines; remembers whether one of them told of damage."""

    def __init__(self, files: FileSystem, options: argparse.Namespace) -> None:
        from broker.cli.dump_lines import as_json, as_text

        self.damaged = False
        self._files = files
        self._json = options.json
        self._line = as_json if options.json else as_text
        self._records = options.records or options.offsets_decoder
        self._decode = _decode_offset if options.offsets_decoder else None
        self._generation = options.generation

    def file(self, path: Path) -> None:
        """Say whose lines follow."""
        if self._json:
            self._write("file", {"path": str(path)})
        else:
            sys.stdout.write(f"Dumping {path}\n")

    def segment(self, segment: SegmentPlace) -> None:
        """Every entry, and every place where there is none. Raises `OSError`, and as `inspection_of`."""
        from broker.cli.dump_entries import ENTRY_LINES
        from broker.cli.dump_lines import damage_line
        from broker.log.inspection import inspection_of
        from broker.log.salvage import Damage

        inspection = inspection_of(segment.path.absolute().parent, self._generation, self._files)
        lines = ENTRY_LINES[inspection.generation]
        file = self._files.open(segment.path)
        try:
            if not self._json:
                sys.stdout.write(f"Log starting offset: {segment.base_offset}\n")
            for found in inspection.scan(file, os.fstat(file.fileno()).st_size, segment.base_offset):
                if isinstance(found, Damage):
                    self.damaged = True
                    self._write("damage", damage_line(found))
                    continue
                self.damaged |= not found.sound
                self._write(lines.kind, lines.entry(found))
                if self._records:
                    self._show_records(file, found, lines)
        finally:
            file.close()

    def index(self, path: Path) -> None:
        """The rows of an index of ours. Raises `OSError`."""
        from broker.log.filesystem import read_file
        from broker.log.index import OFFSET_COLUMNS, TIME_COLUMNS, parse_index

        by_offset = path.suffix == ".index"
        try:
            content = parse_index(read_file(self._files, path), OFFSET_COLUMNS if by_offset else TIME_COLUMNS)
        except CorruptMessage as e:
            self.damaged = True
            self._write("damage", {"reason": str(e)})
            return
        base = content.base_offset
        self._write(
            "index", {"baseOffset": base, "segmentSize": content.segment_size, "rows": len(content.first)}
        )
        for first, second in zip(content.first, content.second, strict=True):
            row = (
                {"offset": base + first, "position": second}
                if by_offset
                else {"timestamp": first, "offset": base + second}
            )
            self._write("row", row)

    def _show_records(self, file: File, found: Found, lines: EntryLines[Any]) -> None:
        try:
            # A wrong checksum has been told; what can still be made out is wanted all the same.
            for line in lines.records(found, file, self._decode):
                self._write(lines.record_kind, line)
        except KafkaError as e:
            self.damaged = True
            self._write("damage", {"position": found.position, "size": found.size, "reason": str(e)})

    def _write(self, kind: str, line: dict[str, Any]) -> None:
        sys.stdout.write(self._line(kind, line) + "\n")


def _decode_offset(record: Record) -> dict[str, Any]:
    """What a record of ``__consumer_offsets`` says; its bytes where it says something else."""
    from broker.group.offsets import decode_key, decode_value

    try:
        key = decode_key(record.key or b"")
        if key is None:
            return {"fault": f"group metadata, in a key of {len(record.key or b'')} bytes, is not decoded"}
        line: dict[str, Any] = {
            "group": key.group,
            "topic": key.partition.topic,
            "partition": key.partition.partition,
        }
        if record.value is None:
            return line | {"deleted": True}
        value = decode_value(record.value)
    except CorruptMessage as e:
        return {"fault": str(e)}
    return line | {
        "committedOffset": value.offset,
        "leaderEpoch": value.leader_epoch,
        "metadata": value.metadata,
        "commitTimestamp": value.commit_timestamp_ms,
        "expireTimestamp": value.expire_timestamp_ms,
    }
