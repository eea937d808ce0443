"""The parts of a ledger that may be stale or missing: which commit is newest, and positions as plain text."""

from __future__ import annotations

import json
import logging

from pyspark_kafkalog.loads.commit import Commit
from pyspark_kafkalog.loads.errors import LoadError
from pyspark_kafkalog.loads.layout import HEAD, MIRROR, commit_name, mirror_name
from pyspark_kafkalog.loads.plan import Position
from pyspark_kafkalog.loads.store import Store

logger = logging.getLogger(__name__)

_PREFIX = "part-"
_NUMBER_MAX = (1 << 63) - 1


def newest_hinted(data: bytes | None) -> int:
    """The number of the newest commit that ``HEAD.json`` tells; 0 where it tells none."""
    try:
        newest = json.loads(data or b"")["newest"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return 0
    # Beyond that the number is no name of a file.
    return newest if type(newest) is int and 0 < newest <= _NUMBER_MAX else 0


def write_hints(store: Store, commit: Commit) -> None:
    """Write the hints after a commit. Failing is logged only: the load is committed, readers need none."""
    try:
        if store.exists(commit_name(commit.number + 1)):
            return  # somebody is further, and writes those hints
        store.replace(HEAD, b'{"newest": %d}\n' % commit.number)
        lines = {mirror_name(p.leader, p.topic, p.partition): mirror_line(p) for p in commit.positions}
        for name, line in lines.items():
            store.replace(name, line)
        for name in store.names(MIRROR):  # of partitions whose leader is another one now
            if name.startswith(_PREFIX) and f"{MIRROR}/{name}" not in lines:
                store.remove(f"{MIRROR}/{name}")
    except LoadError as e:
        logger.warning("commit %d is made, but not the hints that go with it: %s", commit.number, e)


def mirror_line(position: Position) -> bytes:
    """Broker, topic, partition and next offset, separated by tabs: the line of Kafka's Hadoop loaders."""
    return f"tcp://{position.address}\t{position.topic}\t{position.partition}\t{position.next}\n".encode()
