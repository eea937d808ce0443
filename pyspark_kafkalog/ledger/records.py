"""The ledger's records as text: JSON that a person can read, with a seal that shows damage. Pure.

``sha256`` is the last field: SHA-256, in hexadecimal, of the canonical JSON of all others (keys sorted, no
blanks, UTF-8). docs/loads.md, "The ledger as a format", describes each record.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from typing import NoReturn, TypeGuard

from pyspark_kafkalog.ledger.load_errors import DamagedRecord, LoadError, NewerFormat
from pyspark_kafkalog.types import NO_BROKER, TopicPartition

FORMAT_VERSION = 1
"""The version of a record of today's partitions."""

BROKERS_VERSION = 2
"""The version of a record of 0.7's partitions, which says ``broker`` of each; the newest that we read.

Two brokers' partitions may have one number: who passed over the field would take one for the other.
"""

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def seal(kind: str, fields: Mapping[str, object], *, of_brokers: bool = False) -> bytes:
    """The record of this kind with these fields, as the bytes to store.

    ``of_brokers``: its partitions belong to brokers.

    Raises:
        LoadError: a text in it cannot be written as UTF-8, for example a file's name that is not.
    """
    body = {"record": kind, "version": BROKERS_VERSION if of_brokers else FORMAT_VERSION, **fields}
    try:
        body["sha256"] = _digest(body)
        return (_spread(body) + "\n").encode()
    except UnicodeEncodeError as e:
        raise LoadError(f"cannot write a {kind} record: {e.object!r} is not Unicode; rename it") from e


def unseal(kind: str, data: bytes, where: str) -> dict[str, object]:
    """The fields of a sealed record, ``sha256`` included; ``where`` is its path, for messages.

    Raises:
        DamagedRecord: it is torn, was edited, or is a record of another kind.
        NewerFormat: a newer release wrote it.
    """
    try:
        body = json.loads(data)
        if not isinstance(body, dict):
            raise DamagedRecord(f"{where} is not a record: JSON, but no object. {_REMEDY}")
        version = body.get("version")
        if type(version) is int and version > BROKERS_VERSION:
            raise NewerFormat(
                f"{where} has format version {version}; this release reads up to {BROKERS_VERSION}: "
                "update pyspark-kafkalog"
            )
        digest = _digest({name: value for name, value in body.items() if name != "sha256"})
    except (ValueError, RecursionError) as e:  # also UnicodeDecodeError and JSONDecodeError
        raise DamagedRecord(f"{where} is torn or not a record ({e}). {_REMEDY}") from e
    if body.get("sha256") != digest:
        raise DamagedRecord(f"{where} was changed after it was written: its sha256 does not fit. {_REMEDY}")
    if body.get("record") != kind or version not in (FORMAT_VERSION, BROKERS_VERSION):
        raise DamagedRecord(
            f"{where} is a record {body.get('record')!r} of version {version!r}, not {kind!r} of version "
            f"{FORMAT_VERSION} or {BROKERS_VERSION}. {_REMEDY}"
        )
    return body


_REMEDY = "Restore the file from a copy; docs/loads.md, 'Damaged records', says what else can be done"


class Fields:
    """A record's fields, each read as what it must be. *Not changed after it was made.*

    A seal proves that nobody changed a record, not that whoever sealed it knew the format: so a field that is
    missing or of another type is a `DamagedRecord` as well.
    """

    def __init__(self, values: Mapping[str, object], where: str) -> None:
        self._values = values
        self.where = where

    def text(self, name: str) -> str:
        """A string."""
        value = self._values.get(name)
        return value if isinstance(value, str) else self._wrong(name, "a text")

    def optional_text(self, name: str) -> str | None:
        """A string or null; null where it is missing."""
        return None if self._values.get(name) is None else self.text(name)

    def number(self, name: str, minimum: int = 0) -> int:
        """A whole number, ``minimum`` or more."""
        value = self._values.get(name)
        if type(value) is int and value >= minimum:  # a bool is an int, but no number
            return value
        return self._wrong(name, f"a whole number from {minimum} on")

    def optional_number(self, name: str) -> int | None:
        """A whole number of any sign, or null."""
        value = self._values.get(name)
        if value is None or type(value) is int:
            return value
        return self._wrong(name, "a whole number or null")

    def broker(self) -> int:
        """Whose partition this is of; `NO_BROKER` where it is no broker's."""
        return self.number("broker") if "broker" in self._values else NO_BROKER

    def texts(self, name: str) -> dict[str, str]:
        """An object whose values are strings."""
        value = self._values.get(name)
        if isinstance(value, dict) and all(isinstance(one, str) for one in value.values()):
            return value
        return self._wrong(name, "an object of texts")

    def facts(self, name: str) -> dict[str, str | int]:
        """An object whose values are strings and whole numbers."""
        value = self._values.get(name)
        if isinstance(value, dict) and all(type(one) in (str, int) for one in value.values()):
            return value
        return self._wrong(name, "an object of texts and whole numbers")

    def pairs(self, name: str) -> tuple[tuple[int, int], ...]:
        """A list of ranges ``[start, end]``, in order, none empty and none overlapping another."""
        value, found, last = self._values.get(name), [], 0
        for pair in value if isinstance(value, list) else self._wrong(name, "a list"):
            start, end = pair if isinstance(pair, list) and len(pair) == 2 else (None, None)
            if type(start) is not int or type(end) is not int or not last <= start < end:
                self._wrong(name, "a list of ranges [start, end] in order")
            found.append((start, end))
            last = end
        return tuple(found)

    def optional_pairs(self, name: str) -> tuple[tuple[int, int], ...]:
        """The same; none where it is missing."""
        return self.pairs(name) if name in self._values else ()

    def entries(self, name: str) -> list[Fields]:
        """A list of objects."""
        value = self._values.get(name)
        if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
            self._wrong(name, "a list of objects")
        return [Fields(one, f"{self.where}, {name}[{at}]") for at, one in enumerate(value)]

    def refuse(self, why: str) -> DamagedRecord:
        """The error that says why this record cannot be right."""
        return DamagedRecord(f"{self.where}: {why}. {_REMEDY}")

    def _wrong(self, name: str, wanted: str) -> NoReturn:
        raise self.refuse(f"{name!r} is {self._values.get(name)!r}, where {wanted} must be")


def utc_text(time_ms: int) -> str:
    """Milliseconds since the epoch as ISO 8601 in UTC: ``2026-11-21T18:00:00.123Z``."""
    moment = _EPOCH + timedelta(milliseconds=time_ms)
    return moment.replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"


def _digest(body: Mapping[str, object]) -> str:
    canonical = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()


def _spread(value: object, indent: str = "") -> str:
    """JSON with one line for each field of the record and each object in a list."""
    inner = indent + "  "
    if isinstance(value, dict) and (not indent or any(map(_is_spread, value.values()))):
        lines = [f"{inner}{_plain(name)}: {_spread(one, inner)}" for name, one in value.items()]
        return "{\n" + ",\n".join(lines) + "\n" + indent + "}"
    if _is_spread(value):
        return "[\n" + ",\n".join(inner + _spread(one, inner) for one in value) + "\n" + indent + "]"
    return _plain(value)


def _is_spread(value: object) -> TypeGuard[list[object]]:
    return isinstance(value, list) and any(isinstance(one, dict) for one in value)


def _plain(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


LOAD = "load.json"
HEAD = "HEAD.json"
LOCK = ".lock"
PLANS = "plans"
COMMITS = "commits"
RECEIPTS = "receipts"
SUMMARIES = "summaries"
RUNS = "runs"
MIRROR = "offsets"

_NUMBERED = re.compile(r"(\d{8,})\.json")


def plan_name(number: int) -> str:
    """The record of a plan."""
    return f"{PLANS}/{number:08d}.json"


def commit_name(number: int) -> str:
    """The record of a commit."""
    return f"{COMMITS}/{number:08d}.json"


def receipts_name(plan: int) -> str:
    """The directory of a plan's receipts."""
    return f"{RECEIPTS}/{plan:08d}"


def receipt_name(plan: int, where: TopicPartition, start: int, end: int) -> str:
    """The record of a receipt: a second attempt at the same range has the same name."""
    return f"{receipts_name(plan)}/{where.topic}/{where.number}/{start}-{end}.json"


def summary_name(plan: int) -> str:
    """The record that takes the place of a plan's receipts."""
    return f"{SUMMARIES}/{plan:08d}.json"


def marks_name(plan: int) -> str:
    """The directory of the marks of a plan's runs."""
    return f"{RUNS}/{plan:08d}"


def mark_name(plan: int, run: str, index: int) -> str:
    """The mark that a run read the range of this index."""
    return f"{marks_name(plan)}/{run}/{index}"


def mirror_name(broker: int, topic: str, partition: int) -> str:
    """The text file with the next offset of a partition."""
    return f"{MIRROR}/part-{broker}-{topic}-{partition}"


def number_of(name: str) -> int | None:
    """The number that a plan's or commit's file is named by; None for another file."""
    match = _NUMBERED.fullmatch(name)
    return int(match[1]) if match else None
