"""A list of a table's files for readers that know no commits (DuckDB, Trino, any Spark), and for `read_load`.

    <path>/_manifest/files.txt       one URL per line: the files that `read_load` reads
    <path>/_manifest/_commit.json    the commit's number and seal, and the SHA-256 of the list

Both are hints, written after each commit and rewind; the next load repairs old, missing or damaged ones.
"""

from __future__ import annotations

import hashlib
import json
import logging
from typing import NamedTuple

from pyspark_kafkalog.errors import LoadError
from pyspark_kafkalog.ledger.archive import Archive, live_outputs
from pyspark_kafkalog.ledger.commit import Commit, LoadOutput
from pyspark_kafkalog.ledger.ledger import Ledger
from pyspark_kafkalog.ledger.stores.locations import is_remote, open_store
from pyspark_kafkalog.ledger.stores.store import FileStore, Store, side_by_side
from pyspark_kafkalog.loads import output_files

log = logging.getLogger(__name__)

FILES = "_manifest/files.txt"
_STATE = "_manifest/_commit.json"
"""Hive and Spark ignore names that begin with ``_``."""


class _Manifest(NamedTuple):
    listed: bytes
    number: int
    seal: str


def write_manifests(ledger: Ledger, head: Commit | None) -> None:
    """Update the manifests of a load's tables to ``head``, its newest commit; a failure is only logged."""
    if head is None:
        return
    try:
        for path in ledger.tables():
            _write(ledger, head, path)
    except LoadError as e:
        log.warning("commit %d was made, but a manifest could not be written: %s", head.number, e)


def listed_files(store: FileStore, head: Commit) -> list[str] | None:
    """Files in effect after ``head``, relative to the table, oldest first; None if the manifest is old."""
    found = _read(store)
    if (found.number, found.seal) != (head.number, head.sha256):
        return None
    root = f"{_root(store)}/"
    urls = found.listed.decode().split("\n")[:-1]
    return [url.removeprefix(root) for url in urls] if all(url.startswith(root) for url in urls) else None


def _write(ledger: Ledger, head: Commit, path: str) -> None:
    claim = output_files.read_claim(path)
    if claim is None or (claim.load, claim.ledger) != (ledger.name, ledger.identity()):
        return  # moved or removed: no longer ours
    store = open_store(path)
    found = _read(store)
    if (found.number, found.seal) == (head.number, head.sha256):
        return
    added = _since(ledger, head, found, path)
    listed = found.listed
    if added is None:
        listed, added = b"", [out for _, out in live_outputs(ledger.lineage(head.number), path)]
    names = (f"{out.directory}/{file.name}" for out in added for file in out.files)
    listed += b"".join(f"{_root(store)}/{name}\n".encode() for name in names)
    if listed != found.listed or not found.number:
        store.replace(FILES, listed)
    state = {"commit": head.number, "seal": head.sha256, "sha256": _sha256(listed)}
    store.replace(_STATE, json.dumps(state).encode() + b"\n")


def _read(store: Store) -> _Manifest:
    listed, state = side_by_side(store, store.read, (FILES, _STATE))
    try:
        found = json.loads(state or b"")
        if listed is not None and found["sha256"] == _sha256(listed):
            return _Manifest(listed, int(found["commit"]), str(found["seal"]))
    except (ValueError, TypeError, KeyError, RecursionError):
        pass
    return _Manifest(b"", 0, "")


def _since(archive: Archive, head: Commit, known: _Manifest, path: str) -> list[LoadOutput] | None:
    found: list[LoadOutput] = []
    at: Commit | None = head
    while at is not None and at.number > known.number:
        outputs = [out for out in at.outputs if out.path == path]
        if at.mode == "rewind" or any(out.replaces for out in outputs):
            return None
        found += outputs
        at = archive.commit_at(at.parent) if at.parent and known.number else None
    is_known = at is not None and (at.number, at.sha256) == (known.number, known.seal)
    return found[::-1] if is_known else None


def _root(store: FileStore) -> str:
    return store.url if is_remote(store.location) else f"file://{store.location}"


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
