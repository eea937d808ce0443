"""``verify-log``: checks every segment and reports torn and damaged parts."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from kafkalog_broker.cli.commands import (
    DONE,
    FAILED,
    Advance,
    Commands,
    add_command,
    add_generation,
    byte_progress,
    directories_of,
    is_properties,
)
from pyspark_kafkalog.errors import InvalidConfig
from pyspark_kafkalog.types import TopicPartition

if TYPE_CHECKING:
    from kafkalog_broker.disk.filesystem import FileSystem
    from kafkalog_broker.inspect.inspection import Finding
    from kafkalog_broker.inspect.verify import PartitionReport

_EXAMPLES = """\
examples:
  python -m kafkalog_broker verify-log kafkalog-data
  python -m kafkalog_broker verify-log conf/server.properties
      every directory of its log.dirs
  python -m kafkalog_broker verify-log kafkalog-data/my_topic_0
  python -m kafkalog_broker verify-log --deep kafkalog-data/my_topic_0/00000000000.kafka
      decompress every batch, too, and parse its records
  python -m kafkalog_broker verify-log --generation 0.7 old/00000000000.kafka
      a segment of Kafka 0.7, copied without the files that say so

Nothing is written and no lock is taken: a broker may run meanwhile.
Exit codes: 0 sound, 1 damaged, 2 there is nothing to check. Notes, a torn tail among them, are not damage.
"""


def add_parser(commands: Commands) -> None:
    parser = add_command(
        commands, "verify-log", _run,
        summary="check every segment: lengths, checksums, offsets, indexes, records of topics",
        description="Check logs: length, checksum and offsets of each entry, names, indexes, topics.",
        examples=_EXAMPLES,
    )  # fmt: skip
    parser.add_argument(
        "places", nargs="+", type=Path, metavar="PLACE",
        help="a data directory, a properties file, a partition's directory or a segment",
    )  # fmt: skip
    parser.add_argument(
        "--deep", action="store_true", help="also decompress each entry and parse its records"
    )
    add_generation(parser)


def _run(options: argparse.Namespace) -> int:
    from kafkalog_broker.disk.filesystem import ReadOnlyFiles

    files = ReadOnlyFiles()
    jobs = [job for place in options.places for job in _jobs(place, options.deep, options.generation, files)]
    damages = notes = size = partitions = 0
    with byte_progress("checking", sum(job.size for job in jobs)) as advance:
        for job in jobs:
            report = job.run(advance)
            findings = job.findings if report is None else report.findings
            _tell(report, findings)
            damages += sum(finding.damage for finding in findings)
            notes += sum(not finding.damage for finding in findings)
            if report is not None:
                partitions += 1
                size += report.size_bytes
    verdict = f"damaged: {damages} findings" if damages else "sound"
    said = f", {notes} notes" if notes else ""
    sys.stdout.write(f"{partitions} logs checked, {size} bytes: {verdict}{said}\n")
    return FAILED if damages else DONE


class _Job(msgspec.Struct, frozen=True):
    """One log to check, of ``size`` bytes; or the findings of a directory, whose ``run`` returns None."""

    size: int
    run: Callable[[Advance], PartitionReport | None]
    findings: Sequence[Finding] = ()


def _jobs(place: Path, deep: bool, generation: str, files: FileSystem) -> Iterator[_Job]:
    from kafkalog_broker.inspect.contents import Expected, expected_of, read_contents
    from kafkalog_broker.inspect.inspection import (
        PartitionPlace,
        SegmentPlace,
        inspection_of,
        kind_of,
        partition_place,
        segment_place,
        segments_in,
    )
    from kafkalog_broker.inspect.verify import verify_log

    def job(found: PartitionPlace | SegmentPlace, expected: Expected, expect: Callable[[], Expected]) -> _Job:
        segments: list[SegmentPlace] = []
        last = True
        if isinstance(found, SegmentPlace):
            directory, segments = found.path.parent, [found]
            newest = segments_in(directory, files)[-1:]
            last = not newest or newest[0].base_offset <= found.base_offset
        else:
            directory = found.path
            with suppress(FileNotFoundError):  # it is being deleted
                segments = segments_in(directory, files)
        inspection = inspection_of(directory, generation, files)
        return _Job(
            sum(segment.size for segment in segments),
            lambda advance: verify_log(
                files, found, inspection, expected, last=last, deep=deep, progress=advance, expect=expect
            ),
        )

    kind = "properties" if is_properties(place) else kind_of(place, files)
    if kind in ("data", "properties"):
        for directory in directories_of(place):
            contents = read_contents(directory, files)
            yield _Job(0, lambda _: None, contents.findings)
            for found in contents.partitions:
                yield job(found, contents.expected(found), partial(expected_of, found, files))
        return
    place = place.absolute()
    segment = None if kind == "partition" else segment_place(place)
    if segment is None and kind != "partition":
        raise InvalidConfig(f"{place} is not a segment but an index; name its segment")
    named = partition_place(place if segment is None else place.parent)
    expect = Expected if named is None else partial(expected_of, named, files)
    unnamed = PartitionPlace(place, TopicPartition(place.name, 0))
    yield job(segment or named or unnamed, expect(), expect)


def _tell(report: PartitionReport | None, findings: Sequence[Finding]) -> None:
    if report is not None:
        offsets = (
            f"offsets {report.start_offset} to {report.end_offset - 1}"
            if report.end_offset > report.start_offset
            else f"empty at offset {report.end_offset}"
        )
        words = report.inspection
        known = f" {report.record_count} {words.records}," if report.record_count is not None else ""
        sys.stdout.write(
            f"{report.name}: {offsets}, {report.entry_count} {words.entries},{known}"
            f" {report.segment_count} segments, {report.size_bytes} bytes:"
            f" {'sound' if report.sound else 'DAMAGED'}\n"
        )
    for finding in findings:
        sys.stdout.write(f"  {finding}\n")
    sys.stdout.flush()
