"""``kafkalog consume``: write records of a topic or group member to standard output, without Spark."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import groupby
from operator import attrgetter
from typing import Annotated

import typer

from pyspark_kafkalog.cli.arguments import (
    DEFAULT_SERVER,
    EARLIEST,
    FORMS,
    LATEST,
    ClusterCommands,
    Offset,
    Partitions,
    Position,
    Quiet,
    Servers,
    Topic,
    chosen_partitions,
    client_config,
    examples,
    found_topic,
    group_names,
    parse_position,
    properties,
    resolve,
)
from pyspark_kafkalog.cli.record_text import Format, RecordOutput, writer
from pyspark_kafkalog.cli.terminal_output import counted, progress, size
from pyspark_kafkalog.client.corrupt_batches import CORRUPT, Detour
from pyspark_kafkalog.client.discovery import Cluster
from pyspark_kafkalog.client.fetcher import POLL_TIMEOUT_MS, Fetched, PartitionFetcher
from pyspark_kafkalog.columnar.batch_walk import BatchWalk, block_records
from pyspark_kafkalog.columnar.column_types import Answer
from pyspark_kafkalog.config.client_config import ConsumerConfig, GroupConsumerConfig
from pyspark_kafkalog.consumer.consumer import Consumer
from pyspark_kafkalog.errors import (
    CorruptMessage,
    InvalidConfig,
    KafkaError,
    MessageTooLarge,
    OffsetOutOfRange,
    UnknownTopicOrPartition,
)
from pyspark_kafkalog.formats import message_set
from pyspark_kafkalog.formats.message_set import MAX_BATCH_BYTES, AbortedTransactions, ExpectedOffsets
from pyspark_kafkalog.types import IsolationLevel, Record, TopicPartition

Ranges = Mapping[TopicPartition, tuple[int, int]]
"""First offset (inclusive) and end offset (exclusive) by partition."""

Batches = Iterator[list[Record]]

Skipped = Callable[[TopicPartition, int, int], object]
"""Called with a partition and the range ``[start, end)`` of skipped corrupt offsets."""

_FETCHED_BYTES = 128 << 20
_ANSWERS = 3  # a fetcher keeps its last two responses while it fetches the next
_LEAST_FETCH_BYTES = 64 << 10
_POLL_SECONDS = 0.2
_NEW_PARTITIONS_SECONDS = 10.0  # how often ``--follow`` looks for records, and for partitions
_GROUP_POLL_SECONDS = 0.5
_PATIENCE_SECONDS = 10.0  # how long a member without partitions waits for some

consuming = ClusterCommands()


class Isolation(str, Enum):
    READ_UNCOMMITTED = "read_uncommitted"
    READ_COMMITTED = "read_committed"


class OnCorrupt(str, Enum):
    FAIL = "fail"
    SKIP = "skip"


From = Annotated[str, typer.Option("--from", help=f"Position to start at: {FORMS}.")]
To = Annotated[str | None, typer.Option(help="Stop at this position; default: the current end.")]
Follow = Annotated[
    bool, typer.Option("--follow", "-f", help="Wait for more records until Ctrl-C or SIGTERM.")
]
Most = Annotated[int | None, typer.Option("--max", "-n", min=0, help="Stop after this many records.")]
Form = Annotated[Format, typer.Option("--format", help="value, json: one per line; raw: no separators.")]
KeySeparator = Annotated[
    str | None, typer.Option(help="Print the key and this separator (\\t: tab) before each value.")
]
Seen = Annotated[Isolation, typer.Option(help="read_committed: no records of open or aborted transactions.")]
Corrupt = Annotated[OnCorrupt, typer.Option(help="Fail at a corrupt batch, or report and skip it.")]
InGroup = Annotated[
    str | None,
    typer.Option(
        "--group",
        "-g",
        help="Join this group: start at its offsets, else at --from; commit.",
        autocompletion=group_names,
    ),
]
Property = Annotated[
    list[str] | None, typer.Option("--property", help="Property name=value; may be repeated.")
]


@consuming.command(
    epilog=examples(
        "consume flights --max 5",
        "consume flights --from -100 --follow",
        "consume flights --from 2026-11-21 --to 2026-11-22 --format json > day.jsonl",
        "kafkalog consume flights --format json | kafkalog produce flights-copy --json",
        "consume flights --group dashboard --follow",
    )
)
def consume(
    topic: Topic,
    from_: From = "earliest",
    to: To = None,
    follow: Follow = False,
    partition: Partitions = None,
    most: Most = None,
    group: InGroup = None,
    form: Form = Format.VALUE,
    key_separator: KeySeparator = None,
    isolation_level: Seen = Isolation.READ_UNCOMMITTED,
    on_corrupt_batch: Corrupt = OnCorrupt.FAIL,
    property_: Property = None,
    quiet: Quiet = False,
    server: Servers = DEFAULT_SERVER,
) -> None:
    """Write the records of a topic to standard output, in offset order within each partition.

    Partitions are read in turn. JSON output can be sent with "produce --json": key, value and header values
    are text if they are UTF-8, else an object with their bytes in base64.
    """
    if follow and to is not None:
        raise InvalidConfig("--to and --follow cannot be combined: --follow has no end")
    if key_separator is not None and form is not Format.VALUE:
        raise InvalidConfig(f"--key-separator needs --format value, not {form.value}")
    if group is not None:
        _check_for_group(from_, to, partition, on_corrupt_batch)
    start = parse_position(from_, "--from")
    end = LATEST if to is None else parse_position(to, "--to")
    given = {"isolation.level": isolation_level.value, **properties(property_, "--property")}
    if group is not None:
        given = {"auto.offset.reset": from_.strip().lower(), **given, "group.id": group}
    config = client_config(ConsumerConfig if group is None else GroupConsumerConfig, server, given, "consume")
    # Not sys.stdout.buffer: with PYTHONUNBUFFERED it is unbuffered and may write only part of the data.
    file = open(sys.stdout.fileno(), "wb", closefd=False)  # noqa: SIM115  (flushed below)
    output = RecordOutput(file, writer(form, key_separator), most)
    try:
        if isinstance(config, GroupConsumerConfig):
            _copy_group(config, topic, output, follow=follow)
        else:
            skips = on_corrupt_batch is OnCorrupt.SKIP
            with closing(Cluster(config)) as cluster:
                reader = _Reader(cluster, config, topic, partition, skips=skips)
                _copy(reader, start, end, output, follow=follow, quiet=quiet)
            if reader.skipped_count:
                typer.echo(f"{topic}: skipped {counted(reader.skipped_count, 'corrupt offset')}", err=True)
    except BrokenPipeError:
        # The reader, such as head, is done: discard the buffer, or Python fails on it again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return
    if not quiet:
        typer.echo(f"{topic}: {counted(output.records, 'record')}, {size(output.bytes)} written", err=True)


def _check_for_group(
    from_: str, to: str | None, partition: list[int] | None, on_corrupt_batch: OnCorrupt
) -> None:
    if from_.strip().lower() not in ("earliest", "latest"):
        raise InvalidConfig(
            f"--from {from_}: with --group it is earliest or latest, where nothing is committed; "
            "to move a group: kafkalog groups reset"
        )
    for name, given in (
        ("--to", to is not None),
        ("--partition", bool(partition)),
        ("--on-corrupt-batch skip", on_corrupt_batch is OnCorrupt.SKIP),
    ):
        if given:
            raise InvalidConfig(f"--group and {name} cannot be combined")


def _copy(
    reader: _Reader, start: Position, end: Position, output: RecordOutput, *, follow: bool, quiet: bool
) -> None:
    ranges = reader.ranges(start, end, follow)
    try:
        if not output.full:
            reader.read(ranges, output, quiet=quiet or follow)
        if follow:
            reader.follow({tp: end for tp, (_, end) in ranges.items()}, output)
    except KeyboardInterrupt:
        if not follow:
            raise
    except (CorruptMessage, MessageTooLarge) as e:
        raise type(e)(f"{e}. To skip corrupt data: --on-corrupt-batch skip") from e
    finally:
        output.flush()


class _Reader:
    def __init__(
        self, cluster: Cluster, config: ConsumerConfig, topic: str, numbers: list[int] | None, *, skips: bool
    ) -> None:
        self._cluster, self._config, self._topic = cluster, config, topic
        self._on_skip = self._skipped if skips else None
        self.skipped_count = 0
        self._all = not numbers
        self.partitions = chosen_partitions(cluster, topic, numbers)

    def _skipped(self, tp: TopicPartition, start: int, end: int) -> None:
        self.skipped_count += end - start
        typer.echo(f"{tp}: skipped corrupt offsets [{start}, {end})", err=True)

    def ranges(self, start: Position, end: Position, follow: bool) -> dict[TopicPartition, tuple[int, int]]:
        """At most up to the current end. Raises `OffsetOutOfRange`."""
        begins, stops, firsts, lasts = (self._at(p) for p in (start, end, EARLIEST, LATEST))
        for tp in self.partitions:
            if not isinstance(start, Offset):
                # Retention may have advanced since; a time may be in an open transaction.
                begins[tp] = min(max(begins[tp], firsts[tp]), lasts[tp])
            if begins[tp] < firsts[tp] or (follow and begins[tp] > lasts[tp]):
                raise OffsetOutOfRange(str(tp), begins[tp], firsts[tp], lasts[tp])
        return {tp: (begins[tp], min(stops[tp], lasts[tp])) for tp in self.partitions}

    def read(self, ranges: Ranges, output: RecordOutput, *, quiet: bool) -> None:
        total = sum(max(end - start, 0) for start, end in ranges.values())
        reached = {tp: start for tp, (start, _) in ranges.items()}
        done = 0
        # No progress bar among records on the same terminal.
        with progress(self._topic, total, quiet=quiet or sys.stdout.isatty()) as show:
            for tp, records in read_ranges(self._cluster, ranges, self._config, self._on_skip):
                output.add(tp, records)
                if output.full:
                    return
                if records:
                    done += records[-1].offset + 1 - reached[tp]
                    reached[tp] = records[-1].offset + 1
                    show(done)

    def follow(self, reached: dict[TopicPartition, int], output: RecordOutput) -> None:
        """Raises `OffsetOutOfRange` if a log was truncated."""
        look = time.monotonic() + _NEW_PARTITIONS_SECONDS
        while not output.full:
            output.flush()
            if self._all and time.monotonic() >= look:
                look = time.monotonic() + _NEW_PARTITIONS_SECONDS
                reached.update(self._new_partitions())
            firsts, lasts = self._at(EARLIEST), self._at(LATEST)
            for tp in self.partitions:
                if lasts[tp] < reached[tp]:
                    raise OffsetOutOfRange(str(tp), reached[tp], firsts[tp], lasts[tp])
            news = {tp: (reached[tp], lasts[tp]) for tp in self.partitions if lasts[tp] > reached[tp]}
            if not news:
                time.sleep(_POLL_SECONDS)
                continue
            self.read(news, output, quiet=True)
            reached.update({tp: end for tp, (_, end) in news.items()})

    def _new_partitions(self) -> dict[TopicPartition, int]:
        now = found_topic(self._cluster, self._topic, refresh=True).partitions
        new = [tp for number in now if (tp := TopicPartition(self._topic, number)) not in self.partitions]
        self.partitions += new
        return resolve(self._cluster, new, EARLIEST) if new else {}

    def _at(self, position: Position) -> dict[TopicPartition, int]:
        return resolve(self._cluster, self.partitions, position, isolation=self._config.isolation)


def _copy_group(config: GroupConsumerConfig, topic: str, output: RecordOutput, *, follow: bool) -> None:
    """Up to the end at assignment, or SIGTERM. Commits what is written, so that nothing is lost for a reader
    such as head that ends.
    """
    # On SIGTERM too the member leaves, so that others need not wait for its session to end.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with Consumer(replace(config, enable_auto_commit=False)) as consumer:
        if not consumer.partitions_for(topic):
            raise UnknownTopicOrPartition(f"topic {topic!r} does not exist on {config.bootstrap_servers}")
        ends: dict[TopicPartition, int] = {}

        def got(partitions: list[TopicPartition]) -> None:
            ends.update({} if follow else consumer.end_offsets(partitions))

        consumer.subscribe(topic, on_assigned=got)
        give_up = time.monotonic() + _PATIENCE_SECONDS
        try:
            while not output.full:
                for tp, records in groupby(
                    consumer.poll(_GROUP_POLL_SECONDS, max_records=output.room), attrgetter("topic_partition")
                ):
                    output.add(tp, list(records))
                output.flush()
                held = consumer.assignment
                if held:
                    give_up = time.monotonic() + _PATIENCE_SECONDS
                    consumer.commit()
                    if not follow and all(consumer.position(tp) >= ends[tp] for tp in held):
                        return
                elif not follow and consumer.member_id and time.monotonic() > give_up:
                    typer.echo(f"{topic}: other members of the group have all its partitions", err=True)
                    return
        except KeyboardInterrupt:
            if not follow:
                raise


def read_ranges(
    cluster: Cluster, ranges: Ranges, config: ConsumerConfig, on_skip: Skipped | None = None
) -> Iterator[tuple[TopicPartition, list[Record]]]:
    """The records of all ``ranges`` in batches, from one fetch response per partition in turn.

    Fetches up to 128 MiB in all, but 64 KiB per partition. Raises `OffsetOutOfRange` if the log lacks
    offsets, and for corrupt batches unless ``on_skip`` is given.
    """
    share = _FETCHED_BYTES // (_ANSWERS * max(len(ranges), 1))
    least = min(config.max_partition_fetch_bytes, max(share, _LEAST_FETCH_BYTES))
    config = replace(config, max_partition_fetch_bytes=least)
    turns = deque(
        (tp, _Partition(cluster, tp, start, end, config, on_skip).answers())
        for tp, (start, end) in ranges.items()
        if start < end
    )
    while turns:
        tp, answers = turns.popleft()
        batches = next(answers, None)
        if batches is None:
            continue
        for batch in batches:
            yield tp, batch
        turns.append((tp, answers))


@dataclass(slots=True)
class _Partition:
    cluster: Cluster
    tp: TopicPartition
    start: int
    end: int
    config: ConsumerConfig
    on_skip: Skipped | None
    reached: int = -1
    faults: list[KafkaError] = field(default_factory=list)  # corruption found in the current response

    def answers(self) -> Iterator[Batches]:
        """One iterator per fetch response; exhaust it before taking the next."""
        self.reached = self.start
        while self.reached < self.end:
            fetcher = PartitionFetcher(self.cluster, self.tp, self.reached, self.end, config=self.config)
            self.faults.clear()
            try:
                for fetched in fetcher:
                    _check_gap(self.tp, self.reached, fetched)
                    yield self._batches(fetched)
                    if self.faults:
                        break
                    fetcher.advance(self.reached)
            except CORRUPT as e:
                if self.on_skip is None:
                    raise
                self.faults.append(e)
            finally:
                fetcher.close()
            if self.faults:
                yield self._around(self.faults[0])

    def _batches(self, fetched: Fetched) -> Batches:
        data = fetched.data.cast("B")
        aborted = AbortedTransactions(fetched.aborted) if self._committed else None
        answer = self._answer(data, self.reached, aborted, fetched.expected)
        try:
            for block in answer.verified_blocks():
                yield block_records(block)
                self.reached = block.base_offset + block.last_delta + 1
            self.reached = answer.next_offset
        except CORRUPT as e:
            if self.on_skip is None:
                raise
            self.faults.append(e)

    def _around(self, fault: KafkaError) -> Batches:
        detour = Detour(self.cluster, self.tp, self.config, POLL_TIMEOUT_MS, self._decode, self._skip)
        follows = self.reached > self.start
        self.reached = yield from detour.around(self.reached, self.end, fault, follows=follows)

    def _decode(
        self,
        entry: memoryview,
        start: int,
        end: int,  # noqa: ARG002  (`_answer` uses the end of the range)
        aborted: AbortedTransactions,
        expected: ExpectedOffsets,
        broker: int,  # noqa: ARG002  (not part of a record)
    ) -> tuple[list[list[Record]], int]:
        answer = self._answer(entry, start, aborted if self._committed else None, expected)
        return [block_records(block) for block in answer.blocks()], answer.next_offset

    def _skip(self, start: int, end: int) -> None:
        if self.on_skip is not None:
            self.on_skip(self.tp, start, end)

    def _answer(
        self, data: memoryview, start: int, aborted: AbortedTransactions | None, expected: ExpectedOffsets
    ) -> BatchWalk:
        return BatchWalk(
            Answer(data, self.tp, start, self.end, MAX_BATCH_BYTES, aborted=aborted, expected=expected)
        )

    @property
    def _committed(self) -> bool:
        return self.config.isolation is IsolationLevel.READ_COMMITTED


def _check_gap(tp: TopicPartition, position: int, fetched: Fetched) -> None:
    """Raise if retention deleted offsets between two fetches; compaction leaves gaps above the log start."""
    if fetched.log_start_offset <= position:
        return
    first = next(message_set.frames(fetched.data), None)
    if first is not None and first.first_offset > position:
        raise OffsetOutOfRange(str(tp), position, fetched.log_start_offset, fetched.high_watermark)
