"""Whether the files of loads are what their commits say: there and of their size, or read whole."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import BinaryIO, NamedTuple

from pyspark_kafkalog.errors import LoadError
from pyspark_kafkalog.formats.base import crc32c
from pyspark_kafkalog.ledger.archive import Live, live_outputs
from pyspark_kafkalog.ledger.audit import facts_of
from pyspark_kafkalog.ledger.commit import ORC, Commit, LoadOutput, OutputFile
from pyspark_kafkalog.ledger.ledger import Ledger
from pyspark_kafkalog.ledger.receipts import RangeFacts
from pyspark_kafkalog.ledger.stores.locations import open_store
from pyspark_kafkalog.ledger.stores.store import FileStore, StoredFile
from pyspark_kafkalog.loads.output_files import count_rows

_READ_AT_ONCE = 8
"""Footers read in parallel: a cloud store takes some milliseconds for each."""
_CHUNK_BYTES = 1 << 20


class _File(NamedTuple):
    """A file in effect, as a commit lists it."""

    commit: Commit
    output: LoadOutput
    noted: OutputFile

    @property
    def name(self) -> str:
        return f"{self.output.directory}/{self.noted.name}"

    @property
    def where(self) -> str:
        return f"load {self.commit.number}: {self.output.path}/{self.name}"


_Check = Callable[[_File, FileStore, StoredFile], Iterator[str]]


def verify_outputs(commits: Iterable[Commit]) -> list[str]:
    """Problems with the files in effect after these commits, in words; empty if there are none."""
    live = live_outputs(commits)
    with ThreadPoolExecutor(_READ_AT_ONCE) as pool:
        found = pool.map(lambda file: list(_checked(file, _check_footer)), _files(live))
        return [*_incomplete(live), *(finding for some in found for finding in some)]


def read_outputs(ledger: Ledger, commits: Iterable[Commit], tell: Callable[[int], None]) -> list[str]:
    """As `verify_outputs`, by reading each file whole: it is compared with the checksum in its commit, or
    decoded if that has none, and its footer with the commit and the receipts. ``tell`` gets the bytes read
    so far.
    """
    live = live_outputs(commits)
    findings = _incomplete(live)
    facts: dict[int, Mapping[str, RangeFacts]] = {}
    done = 0

    def check(file: _File, store: FileStore, stored: StoredFile) -> Iterator[str]:
        number = file.commit.number
        if number not in facts:
            facts.clear()
            facts[number] = {str(key): one for key, one in facts_of(ledger, file.commit).items()}
        yield from _check_whole(file, store, stored)
        yield from _check_notes(file, _notes(file, store, stored), ledger.name, facts[number])

    for file in _files(live):
        findings += _checked(file, check)
        done += file.noted.bytes
        tell(done)
    return findings


def _incomplete(live: Live) -> list[str]:
    return [
        f"load {commit.number}: {out.place} has files of {out.rows} rows, and {out.wrote} were written"
        for commit, out in live
        if out.wrote not in (None, out.rows)
    ]


def _files(live: Live) -> list[_File]:
    return [_File(commit, out, noted) for commit, out in live for noted in out.files]


def _checked(file: _File, check: _Check) -> Iterator[str]:
    import pyarrow as pa

    try:
        store = open_store(file.output.path)
        stored = store.file(file.name)
        if stored is None:
            yield f"{file.where} is missing; it had {file.noted.rows} rows"
        elif stored.bytes != file.noted.bytes:
            yield f"{file.where} has {stored.bytes} bytes and had {file.noted.bytes} when it was committed"
        else:
            yield from check(file, store, stored)
    except (OSError, LoadError, pa.ArrowException) as e:
        yield f"{file.where} cannot be read: {e}"


def _check_footer(file: _File, store: FileStore, stored: StoredFile) -> Iterator[str]:
    found = count_rows(store, stored, file.output.format)
    if found != file.noted.rows:
        yield f"{file.where} has {found} rows and had {file.noted.rows} when it was committed"


def _check_whole(file: _File, store: FileStore, stored: StoredFile) -> Iterator[str]:
    with store.open_file(stored) as opened:
        if file.noted.crc32c is None:
            found = sum(_row_counts(opened, file.output.format))
            if found != file.noted.rows:
                yield f"{file.where} has {found} rows and had {file.noted.rows} when it was committed"
            return
        sum_of_bytes = 0
        while chunk := opened.read(_CHUNK_BYTES):
            sum_of_bytes = crc32c(chunk, sum_of_bytes)
        if sum_of_bytes != file.noted.crc32c:
            yield (
                f"{file.where} has other bytes than were committed: their CRC-32C is {sum_of_bytes:08x} and "
                f"was {file.noted.crc32c:08x}"
            )


def _row_counts(opened: BinaryIO, format: str) -> Iterator[int]:
    """By decoding everything."""
    if format == ORC:
        from pyarrow import orc

        stripes = orc.ORCFile(opened)
        yield from (stripes.read_stripe(number).num_rows for number in range(stripes.nstripes))
        return
    import pyarrow.parquet as pq

    yield from (batch.num_rows for batch in pq.ParquetFile(opened).iter_batches())


def _notes(file: _File, store: FileStore, stored: StoredFile) -> dict[str, str]:
    """What a task of ours wrote into the footer; empty for files of Spark's."""
    if file.output.format == ORC:
        return {}
    import pyarrow.parquet as pq

    with store.open_file(stored) as opened:
        found = pq.read_metadata(opened).metadata or {}
    return {k.decode(): v.decode() for k, v in found.items() if k.startswith(b"kafkalog.")}


def _check_notes(
    file: _File, notes: Mapping[str, str], load: str, facts: Mapping[str, RangeFacts]
) -> Iterator[str]:
    if not notes:
        return
    ours = {"kafkalog.load": load, "kafkalog.number": str(file.commit.number)}
    for name, value in ours.items():
        if notes.get(name) != value:
            yield f"{file.where} says {name} = {notes.get(name)}, and its commit {value}"
    partition = notes.get("kafkalog.partition")
    if partition is None or not facts:  # of a compaction, or without receipts
        return
    read = facts.get(partition)
    span = [int(notes.get(f"kafkalog.{end}_offset", "-1")) for end in ("first", "last")]
    there = [None, None] if read is None else [read.first_offset, read.last_offset]
    if there[0] is None or there[1] is None or not there[0] <= span[0] <= span[1] <= there[1]:
        yield (
            f"{file.where} has offsets {span[0]} to {span[1]} of {partition}, and its receipts "
            + (f"{there[0]} to {there[1]}" if there[0] is not None else "none of it")
        )
