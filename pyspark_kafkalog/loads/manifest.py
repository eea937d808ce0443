"""A list of a table's files for readers that know no commits: DuckDB, Hive's symlink format, any Spark.

    <path>/_manifest/files.txt       a URL a line: the files that `read_load` reads
    <path>/_manifest/_commit.json    the commit it was written after, and its SHA-256

Both are hints: written after each commit and rewind, and by the next load if they are old or missing.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable

from pyspark_kafkalog.errors import LoadError
from pyspark_kafkalog.ledger.archive import Archive
from pyspark_kafkalog.ledger.commit import FILE_FORMATS, Commit, Output
from pyspark_kafkalog.ledger.in_effect import live_outputs
from pyspark_kafkalog.ledger.ledger import Ledger
from pyspark_kafkalog.loads import output_files
from pyspark_kafkalog.stores.locations import is_remote, open_store
from pyspark_kafkalog.stores.store import Store

log = logging.getLogger(__name__)

FILES = "_manifest/files.txt"
_STATE = "_manifest/_commit.json"
"""Hive and Spark ignore names that begin with ``_``."""


def write_manifests(ledger: Ledger, head: Commit | None) -> None:
    """Bring the manifests of a load's tables up to date with ``head``, its newest commit.

    A failure is only logged: the commit counts, and the next load writes them.
    """
    if head is None:
        return
    try:
        for path in _paths(ledger, head):
            _write(ledger, head, path)
    except LoadError as e:
        log.warning("commit %d was made, but a manifest could not be written: %s", head.number, e)


def _paths(ledger: Ledger, head: Commit) -> list[str]:
    """The tables of the last load that wrote some; after a rewind all that any load wrote."""
    commits: Iterable[Commit] = [head]
    if head.mode == "rewind":
        commits = ledger.history()
    elif not head.outputs and head.parent:
        commits = [ledger.commit_at(head.parent)]
    return sorted({out.path for commit in commits for out in commit.outputs if out.format in FILE_FORMATS})


def _write(ledger: Ledger, head: Commit, path: str) -> None:
    if output_files.read_claim(path) is None:
        return  # moved or removed: it is not ours any more
    store = open_store(path)
    number, seal = _state(store)
    if number == head.number and store.exists(FILES):
        return
    listed = store.read(FILES) if number else None
    added = _since(ledger, head, number, path) if listed is not None and _sha256(listed) == seal else None
    if listed is None or added is None:
        listed, added = b"", [out for _, out in live_outputs(ledger.lineage(head.number), path)]
    listed += b"".join(f"{url}\n".encode() for out in added for url in _urls(out))
    store.replace(FILES, listed)
    store.replace(_STATE, json.dumps({"commit": head.number, "sha256": _sha256(listed)}).encode() + b"\n")


def _state(store: Store) -> tuple[int, str]:
    """After which commit the manifest was written, 0 if nobody knows, and its SHA-256."""
    try:
        found = json.loads(store.read(_STATE) or b"")
        return int(found["commit"]), str(found["sha256"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return 0, ""


def _since(archive: Archive, head: Commit, number: int, path: str) -> list[Output] | None:
    """What came after a commit, oldest first; None if it is not in effect, or some files were replaced."""
    found: list[Output] = []
    at: Commit | None = head
    while at is not None and at.number > number:
        outputs = [out for out in at.outputs if out.path == path]
        if at.mode == "rewind" or any(out.replaces for out in outputs):
            return None
        found += outputs
        at = archive.commit_at(at.parent) if at.parent else None
    return found[::-1] if at is not None and at.number == number else None


def _urls(output: Output) -> list[str]:
    store = open_store(output.path)
    root = store.url if is_remote(store.location) else f"file://{store.location}"
    return [f"{root}/{output.directory}/{file.name}" for file in output.files]


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
