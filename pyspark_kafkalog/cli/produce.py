"""``kafkalog produce``: send lines, JSON records or whole files to a topic."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, NamedTuple

import typer

from pyspark_kafkalog.cli.arguments import (
    DEFAULT_SERVER,
    ClusterCommands,
    Quiet,
    Servers,
    Topic,
    client_config,
    examples,
    pairs,
    properties,
    separator_bytes,
)
from pyspark_kafkalog.cli.record_text import Draft, from_json
from pyspark_kafkalog.cli.terminal_output import counted, progress, size
from pyspark_kafkalog.errors import InvalidConfig, KafkaError

if TYPE_CHECKING:
    from pyspark_kafkalog.producer.producer import Producer
    from pyspark_kafkalog.producer.producer_batch import RecordMetadata

_STDIN = Path("-")
_SHOWN_FAILURES = 5
_JSON_ROOM = 8
"""A byte may take six characters of JSON (``\\u0000``), and a record has other fields than its value."""

_INTERRUPTED = 130

producing = ClusterCommands()


@producing.command(
    epilog=examples(
        "seq 1000 | kafkalog produce numbers",
        "produce flights flights.csv --key-separator , --compression zstd",
        "produce events events.jsonl --json",
        "produce images *.png --whole --property max.request.size=20000000",
        text="Exit code 1: at least one record was not delivered. Standard error says which, and what was "
        "delivered.",
    )
)
def produce(
    topic: Topic,
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="FILE...", help="Files, in this order; default and -: standard input."),
    ] = None,
    key_separator: Annotated[
        str | None, typer.Option(help="Split each line at this separator (\\t: tab) into key and value.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Lines are objects: key, value, partition, timestamp, headers.")
    ] = False,
    whole: Annotated[bool, typer.Option("--whole", help="Send each file as one record.")] = False,
    key: Annotated[str | None, typer.Option(help="Key of every record.")] = None,
    header: Annotated[
        list[str] | None,
        typer.Option("--header", "-H", help="Header for all records, name=value; may be repeated."),
    ] = None,
    partition: Annotated[
        int | None, typer.Option("--partition", "-p", min=0, help="Partition for all records.")
    ] = None,
    repartition: Annotated[bool, typer.Option("--repartition", help="Ignore partitions in JSON.")] = False,
    compression: Annotated[
        str | None, typer.Option("--compression", "-z", help="Codec: none, gzip, snappy, lz4 or zstd.")
    ] = None,
    property_: Annotated[
        list[str] | None, typer.Option("--property", help="Client property, name=value; may be repeated.")
    ] = None,
    quiet: Quiet = False,
    server: Servers = DEFAULT_SERVER,
) -> None:
    """Send records to a topic, one per line of the input.

    With --json, key, value and header values are text, null, or {"base64": "..."} for any bytes; headers are
    a list of [name, value] pairs; the timestamp is in milliseconds, default now. The output of
    "consume --format json" can be sent unchanged.

    Sending stops at the first line that is invalid or rejected by the cluster; the error has its number.
    """
    _check(as_json, whole, key_separator, key, repartition)
    _check_readable(files or [])
    compressed = {"compression.type": compression} if compression is not None else {}
    given = {**properties(property_, "--property"), **compressed}
    extra = [(name, value.encode()) for name, value in pairs(header, "--header")]
    common = Draft(None, None if key is None else key.encode(), partition, None, extra)
    read = _reader(as_json, whole, key_separator, repartition)
    # Slow to import; --help does not need it.
    from pyspark_kafkalog.config.producer_config import ProducerConfig
    from pyspark_kafkalog.producer.producer import Producer

    with Producer(client_config(ProducerConfig, server, given, "produce")) as producer:
        run = _Run(producer, topic, common, files or [_STDIN], quiet)
        run.send(read)
    run.report()


class InputLine(NamedTuple):
    """Origin of a record; line 0 is the whole file."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file


class _WrongInput(Exception):
    def __init__(self, place: InputLine, why: str) -> None:
        super().__init__(f"{place}: {why}")


Drafts = Iterator[tuple[InputLine, int, Draft]]  # origin of each record, its bytes of input, and the record


class _Run:
    """*Not thread-safe.* The records of a command and their outcome, which only `_settled` changes, on the
    producer's thread for callbacks.
    """

    def __init__(
        self, producer: Producer, topic: str, common: Draft, files: Sequence[Path], quiet: bool
    ) -> None:
        self._producer, self._topic, self._common = producer, topic, common
        self._files, self._quiet = files, quiet
        self.delivered = self.bytes = self.failed = 0
        self.failures: list[str] = []
        self.stopped: str | None = None
        self.interrupted = False
        self._began = time.monotonic()

    def send(self, read: Callable[[str, BinaryIO, int], Drafts]) -> None:
        is_known = all(path.is_file() for path in self._files)
        total = sum(path.stat().st_size for path in self._files) if is_known else None
        done = next_done = 0
        # A progress bar would disturb typing.
        quiet = self._quiet or (total is None and sys.stdin.isatty())
        try:
            with progress(self._topic, total, in_bytes=True, quiet=quiet) as show:
                for place, taken, draft in self._drafts(read):
                    self._one(place, draft)
                    done += taken
                    if done >= next_done:
                        next_done = done + (16 << 10)
                        show(done)
                    if self.failed:
                        self.stopped = f"stopped after {place}; nothing after it was sent"
                        break
        except _WrongInput as e:
            self.stopped = f"{e}; this and everything after it was not sent"
        except KeyboardInterrupt:
            self.interrupted = True
        self._producer.flush()

    def report(self) -> None:
        for failure in self.failures:
            typer.echo(f"kafkalog: not delivered: {failure}", err=True)
        if self.failed > len(self.failures):
            typer.echo(f"kafkalog: and {self.failed - len(self.failures):,} more", err=True)
        if self.stopped is not None:
            typer.echo(f"kafkalog: {self.stopped}", err=True)
        wrong = self.failed or self.stopped is not None
        if wrong or self.interrupted or not self._quiet:
            failed = f", {self.failed:,} not delivered" if self.failed else ""
            seconds = time.monotonic() - self._began
            typer.echo(
                f"{self._topic}: {counted(self.delivered, 'record')}, {size(self.bytes)} delivered{failed}"
                f" in {seconds:.1f} s",
                err=True,
            )
        if wrong or self.interrupted:
            raise typer.Exit(1 if wrong else _INTERRUPTED)

    def _drafts(self, read: Callable[[str, BinaryIO, int], Drafts]) -> Drafts:
        limit = self._producer.config.max_request_size
        for path in self._files:
            if path == _STDIN:
                yield from read("<stdin>", sys.stdin.buffer, limit)
                continue
            try:
                with path.open("rb") as file:
                    yield from read(str(path), file, limit)
            except OSError as e:
                raise _WrongInput(InputLine(str(path), 0), e.strerror or str(e)) from e

    def _one(self, place: InputLine, draft: Draft) -> None:
        common = self._common
        try:
            self._producer.send(
                self._topic,
                draft.value,
                draft.key if common.key is None else common.key,
                partition=draft.partition if common.partition is None else common.partition,
                timestamp_ms=draft.timestamp_ms,
                headers=[*draft.headers, *common.headers],
                on_delivery=partial(self._settled, place, len(draft.value or b"")),
            )
        except KafkaError as e:
            raise _WrongInput(place, str(e)) from e

    def _settled(
        self, place: InputLine, value_bytes: int, _: RecordMetadata | None, error: KafkaError | None
    ) -> None:
        if error is None:
            self.delivered += 1
            self.bytes += value_bytes
            return
        if len(self.failures) < _SHOWN_FAILURES:
            self.failures.append(f"{place}: {error}")
        self.failed += 1


def _check(as_json: bool, whole: bool, key_separator: str | None, key: str | None, repartition: bool) -> None:
    forms = {"--json": as_json, "--whole": whole, "--key-separator": key_separator is not None}
    chosen = [name for name, used in forms.items() if used]
    if len(chosen) > 1:
        raise InvalidConfig(f"{' and '.join(chosen)} cannot be combined: each says what a record is")
    if key is not None and (as_json or key_separator is not None):
        raise InvalidConfig(f"--key and {chosen[0]} cannot be combined: both say what the key is")
    if repartition and not as_json:
        raise InvalidConfig("--repartition needs --json")


def _check_readable(files: Sequence[Path]) -> None:
    for path in files:
        if path != _STDIN and not os.access(path, os.R_OK):
            why = "no permission" if path.exists() else "no such file"
            raise InvalidConfig(f"cannot read {path}: {why}")


def _reader(
    as_json: bool, whole: bool, key_separator: str | None, repartition: bool
) -> Callable[[str, BinaryIO, int], Drafts]:
    if whole:
        return _whole
    if as_json:
        return partial(_json_lines, repartition=repartition)
    return partial(_lines, separator=None if key_separator is None else separator_bytes(key_separator))


def _lines(name: str, file: BinaryIO, limit: int, *, separator: bytes | None) -> Drafts:
    for place, taken, line in _cut(name, file, limit):
        if separator is None:
            yield place, taken, Draft(line)
            continue
        key, found, value = line.partition(separator)
        if not found:
            raise _WrongInput(place, f"no key separator {separator.decode()!r}")
        yield place, taken, Draft(value, key)


def _json_lines(name: str, file: BinaryIO, limit: int, *, repartition: bool) -> Drafts:
    for place, taken, line in _cut(name, file, limit * _JSON_ROOM):
        if not line.strip():
            continue
        try:
            draft = from_json(line)
        except ValueError as e:
            raise _WrongInput(place, str(e)) from None
        yield place, taken, draft._replace(partition=None) if repartition else draft


def _whole(name: str, file: BinaryIO, limit: int) -> Drafts:
    place = InputLine(name, 0)
    data = file.read(limit + 1)
    if len(data) > limit:
        raise _WrongInput(place, f"the record is larger than max.request.size={limit}")
    yield place, len(data), Draft(data)


def _cut(name: str, file: BinaryIO, limit: int) -> Iterator[tuple[InputLine, int, bytes]]:
    number = 0
    while line := file.readline(limit + 2):
        number += 1
        if len(line) > limit and not line.endswith(b"\n"):
            raise _WrongInput(InputLine(name, number), f"the line is longer than {limit} bytes")
        yield InputLine(name, number), len(line), line.removesuffix(b"\n")
