"""``dump-log``: prints the content of segments and indexes, with damage, as text or JSON."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from kafkalog_broker.cli.commands import DONE, FAILED, Commands, add_command, add_generation

_EXAMPLES = """\
examples:
  python -m kafkalog_broker dump-log kafkalog-data/my_topic_0
      a line for each batch of each segment; for each entry where the topic is of Kafka 0.7
  python -m kafkalog_broker dump-log --records kafkalog-data/my_topic_0/00000000000.kafka
  python -m kafkalog_broker dump-log --records --json kafkalog-data/my_topic_0 | jq .value
  python -m kafkalog_broker dump-log --offsets-decoder kafkalog-data/__consumer_offsets_0
  python -m kafkalog_broker dump-log --index kafkalog-data/my_topic_0
  python -m kafkalog_broker dump-log --generation 0.7 old/00000000000.kafka
      a segment of Kafka 0.7, copied without the files that say so

Nothing is written and no lock is taken: a broker may run meanwhile. Segments of Apache Kafka are read too.
Exit codes: 0 all of it could be read, 1 something is damaged, 2 there is nothing to show.
"""


def add_parser(commands: Commands) -> None:
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
    from kafkalog_broker.disk.filesystem import ReadOnlyFiles
    from kafkalog_broker.inspect.dump import Dump, files_of
    from kafkalog_broker.inspect.inspection import segment_place

    files = ReadOnlyFiles()
    dump = Dump(
        files,
        lambda line: sys.stdout.write(f"{line}\n"),
        json=options.json,
        records=options.records,
        offsets_decoder=options.offsets_decoder,
        generation=options.generation,
    )
    for path in [path for place in options.places for path in files_of(place, options.index, files)]:
        segment = segment_place(path)
        dump.file(path)
        if segment is None:
            dump.index(path)
        else:
            dump.segment(segment)
    return FAILED if dump.damaged else DONE
