"""Data directories on disk for what looks at them without a broker: really written, then damaged."""

from __future__ import annotations

from pathlib import Path

from kafkalog_broker.disk.filesystem import ReadOnlyFiles
from kafkalog_broker.inspect.contents import read_contents
from kafkalog_broker.inspect.inspection import inspection_of, partition_place
from kafkalog_broker.inspect.verify import PartitionReport, verify_log
from pyspark_kafkalog.formats.compression import Codec
from tests.support.log.logs import START_MS, batch, crash, message_set, open_log
from tests.support.protocol.wire07 import entry, zipped

BATCHES = 60
RECORDS = 2 * BATCHES
SMALL = {"segment_bytes": 2000, "index_interval_bytes": 200}


def write_log(directory: Path, *, clean: bool = True) -> Path:
    """A topic of one partition, two records a batch, several segments; returns the partition's directory."""
    manager, log = open_log(directory, **SMALL)
    for number in range(BATCHES):
        times = [START_MS + number * 7 % 90, START_MS + number]
        log.append(batch(b"v%d " % number * 5, b"w%d" % number, timestamps=times))
    if clean:
        manager.close()
    else:
        crash(manager)
    return log.path


ENTRIES_07 = 45
MESSAGES_07 = 60


def write_log07(directory: Path, *, clean: bool = True) -> Path:
    """The same of 0.7: plain entries of both magics, and gzip sets of two; no indexes."""
    manager, log = open_log(directory, generation="0.7", segment_bytes=800)
    for number in range(ENTRIES_07 // 3):
        log.append(bytearray(entry(b"v%d " % number * 5, magic=0)))
        log.append(bytearray(entry(b"w%d " % number * 9)))
        log.append(bytearray(zipped(entry(b"x%d" % number), entry(b"y%d" % number, magic=0))))
    if clean:
        manager.close()
    else:
        crash(manager)
    return log.path


MIXED_RECORDS = 200
MIXED_ENTRIES = 100


def write_mixed_log(directory: Path, *, clean: bool = True) -> Path:
    """The same with entries of v0, v1 and v2 in turn: a plain message and a gzip set of three of both old
    formats, then a batch of two.
    """
    manager, log = open_log(directory, **SMALL)
    for number in range(MIXED_ENTRIES // 5):
        times = [START_MS + number, START_MS + number * 7 % 90, START_MS + 3 * number]
        texts = [b"%d of %d " % (n, number) * 5 for n in range(3)]
        for magic in (0, 1):
            log.append(message_set(texts[0], magic=magic, timestamps=times[:1]))
            packed = message_set(*texts, magic=magic, codec=Codec.GZIP, timestamps=times)
            log.append(packed)
        log.append(batch(*texts[:2], timestamps=times[:2]))
    if clean:
        manager.close()
    else:
        crash(manager)
    return log.path


def segments(partition: Path) -> list[Path]:
    """The segment files, oldest first."""
    return sorted(partition.glob("*.kafka"))


def checked(partition: Path, *, deep: bool = False, torn: bool = False) -> PartitionReport:
    """What `verify-log` makes of a partition's directory; ``torn``: of notes beside it too, by a crash."""
    files = ReadOnlyFiles()
    contents = read_contents(partition.parent, files)
    assert torn or contents.findings == ()
    place = partition_place(partition)
    assert place is not None
    inspection = inspection_of(partition, "0.8", files)
    return verify_log(files, place, inspection, contents.expected(place), deep=deep)


def damages(report: PartitionReport) -> list[tuple[str, int | None, str]]:
    """Name, position and text of what it calls damage."""
    return [(f.path.name, f.position, f.what) for f in report.findings if f.damage]


def flip(path: Path, position: int) -> None:
    """Change one bit of a file."""
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def overwrite(path: Path, position: int, data: bytes) -> None:
    """Put other bytes in the middle of a file."""
    old = path.read_bytes()
    path.write_bytes(old[:position] + data + old[position + len(data) :])


def cut(path: Path, size: int) -> None:
    """Keep the first ``size`` bytes; the last ``-size`` go when it is negative."""
    path.write_bytes(path.read_bytes()[:size])
