"""A commit: the record that publishes a load. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pyspark_kafkalog.ledger.plan import Position, unsorted
from pyspark_kafkalog.ledger.records import OF_REPLACING, OPTIONAL, SEAL, LedgerRecord, at_least, only_if
from pyspark_kafkalog.types import TopicPartition

LOAD_MODES = ("job", "dir", "stage", "sql", "sink")

COMPACT = "compact"

MODES = (*LOAD_MODES, "rewind", "discard", COMPACT)

PARQUET = "parquet"
ORC = "orc"
FILE_FORMATS = (PARQUET, ORC)
"""Formats of outputs whose files the commit lists; readers ignore other files."""

NOT_COUNTED = -1
"""``records`` and ``bytes`` of a commit made without receipts."""


@dataclass(frozen=True, slots=True)
class OutputFile(LedgerRecord):
    """``crc32c``: of the file's bytes, None if Spark wrote it."""

    name: str
    bytes: int
    rows: int
    crc32c: int | None = field(default=None, metadata=OPTIONAL)


@dataclass(frozen=True, slots=True)
class LoadOutput(LedgerRecord):
    """A load's output in one place.

    Files: those in ``directory``, for example ``load=00000042/kl_run=3d0c``, of the absolute ``path``. Other
    places: ``path`` is their name, without secrets, and ``evidence`` identifies the output there, with its
    ``rows``. ``wrote``: the rows that Spark or the tasks counted as they wrote the files, None if they did
    not. ``replaces``:
    the commits ``[start, end)`` whose files at this path these files replace.
    """

    json_order = "path format"

    path: str
    directory: str = field(default="", metadata=only_if("format", FILE_FORMATS))
    files: tuple[OutputFile, ...] = field(default=(), metadata=only_if("format", FILE_FORMATS))
    format: str = field(default=PARQUET, metadata=OPTIONAL)
    wrote: int | None = field(default=None, metadata=OPTIONAL)
    evidence: Mapping[str, str | int] = field(
        default_factory=dict, metadata=only_if("format", FILE_FORMATS, holds=False)
    )

    replaces: tuple[tuple[int, int], ...] = field(default=(), metadata=OF_REPLACING)

    @property
    def place(self) -> str:
        if self.format in FILE_FORMATS:
            return f"{self.path}/{self.directory.partition('/')[0]}"
        return f"{self.path} table {self.evidence['table']}" if "table" in self.evidence else self.path

    @property
    def rows(self) -> int | None:
        if self.format in FILE_FORMATS:
            return sum(file.rows for file in self.files)
        counted = self.evidence.get("rows")
        return counted if isinstance(counted, int) else None


@dataclass(frozen=True, slots=True)
class Commit(LedgerRecord):
    """The end of load ``number``; the next load begins at its ``positions``, of every known partition.

    ``parent`` is the commit whose positions this one continues, 0 before the first; ``run`` names the attempt
    that made it; ``plan_sha256`` is None for a rewind and a compaction. ``skipped`` counts the offsets
    omitted as corrupt, ``missing`` all others without a record, None if not counted.
    """

    kind = "commit"
    json_order = "number parent plan_sha256 created mode run records bytes skipped missing note"

    number: int = field(metadata=at_least(1))
    parent: int
    plan_sha256: str | None
    created: str
    mode: str
    run: str
    positions: tuple[Position, ...]
    records: int = field(metadata=at_least(NOT_COUNTED))
    bytes: int = field(metadata=at_least(NOT_COUNTED))
    outputs: tuple[LoadOutput, ...] = ()
    note: str = ""
    sha256: str = field(default="", metadata=SEAL)
    skipped: int = field(default=0, metadata=OPTIONAL)
    missing: int | None = field(default=None, metadata=OPTIONAL)

    @property
    def is_load(self) -> bool:
        """Whether it publishes a plan's records, rather than rewind, compact or discard."""
        return self.mode in LOAD_MODES

    @property
    def stored(self) -> dict[TopicPartition, Position]:
        return {p.key: p for p in self.positions}

    def flaw(self) -> str | None:
        if self.mode not in MODES:
            return f"mode {self.mode!r}, expected one of {', '.join(MODES)}"
        if self.parent >= self.number:
            return f"parent {self.parent} does not come before commit {self.number}"
        return unsorted(self.positions)
