"""A commit: the record that publishes a load, and the only one that counts. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from pyspark_kafkalog.ledger.plan import Position, decode_position, encode_position, of_brokers
from pyspark_kafkalog.ledger.records import Fields, seal, unseal
from pyspark_kafkalog.types import TopicPartition

LOAD_MODES = ("job", "dir", "stage", "sql", "sink")
"""Modes of commits that publish what a plan read."""

MODES = (*LOAD_MODES, "rewind", "discard")

PARQUET = "parquet"
ORC = "orc"
FILE_FORMATS = (PARQUET, ORC)
"""Formats of outputs whose files the commit lists, and only they count."""

NOT_COUNTED = -1
"""``records`` and ``bytes`` of a commit that was made without receipts."""


@dataclass(frozen=True, slots=True)
class OutputFile:
    """A file that a load wrote: its name below the directory, its size, its rows."""

    name: str
    bytes: int
    rows: int


@dataclass(frozen=True, slots=True)
class Output:
    """What a load wrote to one place.

    Files: those in ``directory``, for example ``load=00000042``, of the absolute ``path``. Anything else: the
    place's name in ``path``, without secrets, and in ``evidence`` how what was written is found there: texts
    and whole numbers, among them ``rows``.
    """

    path: str
    directory: str = ""
    files: tuple[OutputFile, ...] = ()
    format: str = PARQUET
    evidence: Mapping[str, str | int] = field(default_factory=dict)

    @property
    def place(self) -> str:
        """Where it is, for people."""
        if self.format in FILE_FORMATS:
            return f"{self.path}/{self.directory}"
        return f"{self.path} table {self.evidence['table']}" if "table" in self.evidence else self.path

    @property
    def rows(self) -> int | None:
        """How many rows were written; None where nobody counted them."""
        if self.format in FILE_FORMATS:
            return sum(file.rows for file in self.files)
        counted = self.evidence.get("rows")
        return counted if isinstance(counted, int) else None


@dataclass(frozen=True, slots=True)
class Commit:
    """The end of load ``number``; ``positions`` are where the next load begins, of every known partition.

    ``parent`` is the commit whose positions this one went on from, 0 before the first; ``run`` names the
    attempt that made it; ``plan_sha256`` is None for a rewind. ``skipped`` counts the offsets that were left
    out as corrupt, ``missing`` all others without a record; None where that was not counted.
    """

    number: int
    parent: int
    plan_sha256: str | None
    created: str
    mode: str
    run: str
    positions: tuple[Position, ...]
    records: int
    bytes: int
    outputs: tuple[Output, ...] = ()
    note: str = ""
    sha256: str = ""
    skipped: int = 0
    missing: int | None = None

    @property
    def stored(self) -> dict[TopicPartition, Position]:
        """The positions by partition, as `make_plan` takes them."""
        return {p.key: p for p in self.positions}


def encode_commit(commit: Commit) -> bytes:
    """The sealed record of a commit. What was added later is left out where there is nothing to say."""
    added = {"skipped": commit.skipped or None, "missing": commit.missing}
    return seal(
        "commit",
        {
            "number": commit.number,
            "parent": commit.parent,
            "plan_sha256": commit.plan_sha256,
            "created": commit.created,
            "mode": commit.mode,
            "run": commit.run,
            "records": commit.records,
            "bytes": commit.bytes,
            **{name: value for name, value in added.items() if value is not None},
            "note": commit.note,
            "positions": [encode_position(p) for p in commit.positions],
            "outputs": [_encode_output(one) for one in commit.outputs],
        },
        of_brokers=of_brokers(commit.positions),
    )


def decode_commit(data: bytes, where: str) -> Commit:
    """The commit in a record.

    Raises:
        DamagedRecord: it is torn or edited, or holds what no commit does.
    """
    fields = Fields(unseal("commit", data, where), where)
    commit = Commit(
        number=fields.number("number", 1),
        parent=fields.number("parent"),
        plan_sha256=fields.optional_text("plan_sha256"),
        created=fields.text("created"),
        mode=fields.text("mode"),
        run=fields.text("run"),
        positions=tuple(decode_position(one) for one in fields.entries("positions")),
        records=fields.number("records", NOT_COUNTED),
        bytes=fields.number("bytes", NOT_COUNTED),
        outputs=tuple(_decode_output(one) for one in fields.entries("outputs")),
        note=fields.text("note"),
        sha256=fields.text("sha256"),
        skipped=fields.optional_number("skipped") or 0,
        missing=fields.optional_number("missing"),
    )
    keys = [p.key for p in commit.positions]
    if commit.mode not in MODES or commit.parent >= commit.number or keys != sorted(set(keys)):
        raise fields.refuse(
            f"mode {commit.mode!r}, parent {commit.parent}: modes are {', '.join(MODES)}, a parent comes "
            "before, and each partition has one position, in order"
        )
    return commit


def _encode_output(output: Output) -> dict[str, object]:
    """What is as it is for Parquet files is left out."""
    fields: dict[str, object] = {"path": output.path}
    if output.format != PARQUET:
        fields["format"] = output.format
    if output.format in FILE_FORMATS:
        fields |= {"directory": output.directory, "files": [asdict(file) for file in output.files]}
    else:
        fields["evidence"] = dict(output.evidence)
    return fields


def _decode_output(fields: Fields) -> Output:
    kind = fields.optional_text("format") or PARQUET
    if kind not in FILE_FORMATS:
        return Output(fields.text("path"), format=kind, evidence=fields.facts("evidence"))
    files = tuple(
        OutputFile(one.text("name"), one.number("bytes"), one.number("rows"))
        for one in fields.entries("files")
    )
    return Output(fields.text("path"), fields.text("directory"), files, kind)
