"""The ledger's records: their names, and frozen dataclasses as sealed JSON and back. Pure.

    plans/00000042.json    {"record": "plan", "version": 1, ..., "sha256": "..."}

``sha256`` is the last field: the hexadecimal SHA-256 of the canonical JSON of all others (keys sorted, no
blanks, UTF-8). docs/ledger.md describes each record.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields
from functools import partial
from types import NoneType
from typing import Any, ClassVar, NamedTuple, TypeGuard, TypeVar, get_args, get_type_hints

from pyspark_kafkalog.errors import DamagedRecord, LoadError, NewerFormat
from pyspark_kafkalog.types import TopicPartition

FORMAT_VERSION = 1

BROKERS_VERSION = 2
"""Records of 0.7's partitions, each with its ``broker``: partition numbers alone are ambiguous there."""

REPLACING_VERSION = 3
"""Commits whose files replace those of others, which must not be read as well. The newest version we read."""

# ---- names, relative to the ledger's directory

LOAD = "load.json"
START = "start.json"
HEAD = "HEAD.json"
LOCK = ".lock"
PLANS = "plans"
COMMITS = "commits"
RECEIPTS = "receipts"
SUMMARIES = "summaries"
RUNS = "runs"
MIRROR = "offsets"
REMOVALS = "removals"

_NUMBERED = re.compile(r"(\d{8,})\.json")


def plan_name(number: int) -> str:
    return f"{PLANS}/{number:08d}.json"


def commit_name(number: int) -> str:
    return f"{COMMITS}/{number:08d}.json"


def receipts_name(plan: int) -> str:
    return f"{RECEIPTS}/{plan:08d}"


def receipt_name(plan: int, where: TopicPartition, start: int, end: int) -> str:
    """A receipt; a second attempt at the same range has the same name."""
    return f"{receipts_name(plan)}/{where.topic}/{where.number}/{start}-{end}.json"


def summary_name(plan: int) -> str:
    return f"{SUMMARIES}/{plan:08d}.json"


def removal_name(compaction: int) -> str:
    return f"{REMOVALS}/{compaction:08d}.json"


def marks_name(plan: int) -> str:
    return f"{RUNS}/{plan:08d}"


def mark_name(plan: int, run: str, index: int) -> str:
    return f"{marks_name(plan)}/{run}/{index}"


def mirror_name(broker: int, topic: str, partition: int) -> str:
    return f"{MIRROR}/part-{broker}-{topic}-{partition}"


def number_of(name: str) -> int | None:
    """The number in a plan's or commit's file name; None for other files."""
    match = _NUMBERED.fullmatch(name)
    return int(match[1]) if match else None


# ---- dataclasses as records

OPTIONAL = {"since": FORMAT_VERSION}
"""Field metadata: omitted if it has its default. The next two also raise the record's version."""

OF_BROKERS = {"since": BROKERS_VERSION}
OF_REPLACING = {"since": REPLACING_VERSION}

SEAL = {"seal": True}
"""Field metadata: the record's ``sha256``, computed when it is written."""


def at_least(minimum: int) -> dict[str, int]:
    """Field metadata of an integer that may be negative."""
    return {"minimum": minimum}


def only_if(name: str, values: tuple[str, ...], *, holds: bool = True) -> dict[str, object]:
    """Field metadata: present only if an earlier field is, or is not, one of ``values``."""
    return {"if": (name, values, holds)}


class LedgerRecord:
    """Base of the frozen dataclasses in records. JSON has the fields of ``json_order`` first. When read,
    ``int`` is 0 or more, ``int | None`` any integer or null; pairs are ranges ``[start, end]`` in order.
    """

    __slots__ = ()
    kind: ClassVar[str] = ""
    json_order: ClassVar[str] = ""

    def flaw(self) -> str | None:
        return None


R = TypeVar("R", bound=LedgerRecord)


def encode(record: LedgerRecord) -> bytes:
    values, version = _to_json(record)
    return seal(record.kind, values, version=version)


def decode(cls: type[R], data: bytes, where: str) -> R:
    """`DamagedRecord` also for a wrong field: a seal does not prove that the writer knew the format."""
    return _from_json(cls, unseal(cls.kind, data, where), where)


def entry(record: LedgerRecord) -> dict[str, object]:
    return _to_json(record)[0]


def _to_json(record: LedgerRecord) -> tuple[dict[str, object], int]:
    found: dict[str, object] = {}
    version = FORMAT_VERSION
    for field in _fields_of(type(record)):
        if field.is_seal or (field.condition and not field.applies(getattr(record, field.condition[0]))):
            continue
        value = getattr(record, field.name)
        if field.since is not None:
            if value == field.default:
                continue
            version = max(version, field.since)
        if field.entries is not None:
            entries = [_to_json(one) for one in value]
            version = max([version, *(needed for _, needed in entries)])
            value = [one for one, _ in entries]
        found[field.name] = value
    return found, version


def _from_json(cls: type[R], values: Mapping[str, object], where: str) -> R:
    found: dict[str, Any] = {}
    for field in _fields_of(cls):
        if field.condition and not field.applies(found[field.condition[0]]):
            continue
        if field.since is not None and field.name not in values:
            found[field.name] = field.default
            continue
        value = values.get(field.name)
        try:
            if field.entries is None:
                found[field.name] = field.read(value)
            else:
                found[field.name] = _read_entries(field.entries, value, f"{where}, {field.name}")
        except _Unfit as e:
            raise _damaged(where, f"{field.name!r} is {value!r}, expected {e}") from None
    record = cls(**found)
    flaw = record.flaw()
    if flaw is not None:
        raise _damaged(where, flaw)
    return record


class _Field(NamedTuple):
    """How a field is written and read: by ``read``, or as ``entries`` of this class."""

    name: str
    read: Callable[[object], object]
    entries: type[LedgerRecord] | None
    default: object
    since: int | None
    condition: tuple[str, tuple[str, ...], bool] | None
    is_seal: bool

    def applies(self, value: object) -> bool:
        assert self.condition is not None
        _, values, holds = self.condition
        return (value in values) is holds


_FIELDS: dict[object, list[_Field]] = {}


def _fields_of(cls: type[LedgerRecord]) -> list[_Field]:
    if cls not in _FIELDS:
        hints, known = get_type_hints(cls), {field.name: field for field in fields(cls)}  # type: ignore[arg-type]
        names = dict.fromkeys([*cls.json_order.split(), *known])
        _FIELDS[cls] = [_field(known[name], hints[name]) for name in names]
    return _FIELDS[cls]


def _field(field: Field[Any], hint: Any) -> _Field:
    about, of = field.metadata, get_args(hint)
    entries = (
        of[0] if of[1:] == (...,) and isinstance(of[0], type) and issubclass(of[0], LedgerRecord) else None
    )
    read = partial(_number, about.get("minimum", 0)) if hint is int or entries else _READERS[hint]
    default = None if field.default is MISSING else field.default
    return _Field(field.name, read, entries, default, about.get("since"), about.get("if"), "seal" in about)


class _Unfit(Exception):
    """A value does not fit its field; the text says what fits."""


def _number(minimum: int, value: object) -> int:
    if type(value) is int and value >= minimum:
        return value
    raise _Unfit(f"a whole number, {minimum} or more")


def _one_of(types: tuple[type, ...], what: str, value: object) -> object:
    if type(value) in types:  # exactly: a bool is an int, but no number
        return value
    raise _Unfit(what)


def _object_of(types: tuple[type, ...], what: str, value: object) -> object:
    if isinstance(value, dict) and all(type(one) in types for one in value.values()):
        return value
    raise _Unfit(what)


def _pairs(value: object) -> tuple[tuple[int, int], ...]:
    found, last = [], 0
    for pair in value if isinstance(value, list) else [None]:
        start, end = pair if isinstance(pair, list) and len(pair) == 2 else (None, None)
        if type(start) is not int or type(end) is not int or not last <= start < end:
            raise _Unfit("a list of ranges [start, end] in order")
        found.append((start, end))
        last = end
    return tuple(found)


def _read_entries(cls: type[R], value: object, where: str) -> tuple[R, ...]:
    if isinstance(value, list) and all(isinstance(one, dict) for one in value):
        return tuple(_from_json(cls, one, f"{where}[{at}]") for at, one in enumerate(value))
    raise _Unfit("a list of objects")


_READERS: dict[object, Callable[[object], object]] = {
    str: partial(_one_of, (str,), "a string"),
    str | None: partial(_one_of, (str, NoneType), "a string or null"),
    int | None: partial(_one_of, (int, NoneType), "a whole number or null"),
    Mapping[str, str]: partial(_object_of, (str,), "an object of strings"),
    Mapping[str, str | int]: partial(_object_of, (str, int), "an object of strings and whole numbers"),
    tuple[tuple[int, int], ...]: _pairs,
}


# ---- sealed JSON


def seal(kind: str, values: Mapping[str, object], *, version: int = FORMAT_VERSION) -> bytes:
    body = {"record": kind, "version": version, **values}
    try:
        body["sha256"] = _digest(body)
        return (_spread(body) + "\n").encode()
    except UnicodeEncodeError as e:
        raise LoadError(f"cannot write a {kind} record: {e.object!r} is not Unicode; rename it") from e


def unseal(kind: str, data: bytes, where: str) -> dict[str, object]:
    """All fields of a sealed record, with ``sha256``, unchecked. Raises like `decode`."""
    try:
        body = json.loads(data)
        if not isinstance(body, dict):
            raise DamagedRecord(f"{where} is not a record: JSON, but not an object. {_REMEDY}")
        version = body.get("version")
        if type(version) is int and version > REPLACING_VERSION:
            raise NewerFormat(
                f"{where} has format version {version}; this release reads up to {REPLACING_VERSION}: "
                "update pyspark-kafkalog"
            )
        digest = _digest({name: value for name, value in body.items() if name != "sha256"})
    except (ValueError, RecursionError) as e:  # also UnicodeDecodeError and JSONDecodeError
        raise DamagedRecord(f"{where} is torn or not a record ({e}). {_REMEDY}") from e
    if body.get("sha256") != digest:
        raise DamagedRecord(f"{where} was changed after it was written: its sha256 does not match. {_REMEDY}")
    if body.get("record") != kind or version not in (FORMAT_VERSION, BROKERS_VERSION, REPLACING_VERSION):
        raise DamagedRecord(
            f"{where} is a record {body.get('record')!r} of version {version!r}, not {kind!r} of version "
            f"{FORMAT_VERSION} to {REPLACING_VERSION}. {_REMEDY}"
        )
    return body


_REMEDY = "Restore the file from a copy; docs/loads.md, 'Damaged records', says what else can be done"


def _damaged(where: str, why: str) -> DamagedRecord:
    return DamagedRecord(f"{where}: {why}. {_REMEDY}")


def _digest(body: Mapping[str, object]) -> str:
    canonical = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()


def _spread(value: object, indent: str = "") -> str:
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
