"""What a crash does to a log of 0.7: a lost block, a nonsense block, a kill under load."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest

from kafkalog_broker.embedded import EmbeddedBroker, start_broker
from pyspark_kafkalog.formats.v07 import entries
from tests.support.log.logs import FIRST, contents, crash, open_log
from tests.support.protocol.wire07 import (
    EARLIEST,
    LATEST,
    Wire07,
    entry,
    fetch,
    offsets,
    offsets_in,
    produce,
    zipped,
)
from tests.support.until import until

FIRST_SET = entry(b"first") + entry(b"second", magic=0)
LAST = zipped(entry(b"third"), entry(b"fourth"))
GARBAGE = [bytes(200), b"\xff" * 200, random.Random(1).randbytes(200), entry(b"x")[:-1], entry(b"x", crc=7)]


def _crashed_log(path: Path) -> Path:
    """The segment of a log of two appends after a crash."""
    manager, log = open_log(path, generation="0.7", flush_messages=1)
    log.append(FIRST_SET)
    log.append(LAST)
    crash(manager)
    return log.path / f"{FIRST}.kafka"


def _recovers_to(path: Path, wanted: bytes) -> None:
    """The log is cut to ``wanted``, all of which can be read; it goes on from there, also after a crash."""
    manager, log = open_log(path, flush_messages=1)
    assert log.readable_end == log.end_offset == len(wanted)
    assert contents(log.read(0, 1 << 20, at_least_one=False)) == wanted
    assert log.append(entry(b"next")).base_offset == len(wanted)
    crash(manager)
    manager, log = open_log(path, flush_messages=1)
    assert contents(log.read(0, 1 << 20, at_least_one=False)) == wanted + entry(b"next")
    crash(manager)


def test_a_tail_torn_at_any_byte_loses_only_the_torn_entry(tmp_path: Path) -> None:
    segment = _crashed_log(tmp_path)
    for size in range(len(FIRST_SET), len(FIRST_SET + LAST) + 1):
        segment.write_bytes((FIRST_SET + LAST)[:size])
        _recovers_to(tmp_path, FIRST_SET + LAST if size == len(FIRST_SET + LAST) else FIRST_SET)


@pytest.mark.long("the disk fails at every call")
@pytest.mark.parametrize(
    "garbage", GARBAGE, ids=["zeros", "ones", "random", "half an entry", "an entry with a bad checksum"]
)
def test_a_nonsense_block_is_cut_off_wherever_it_begins(tmp_path: Path, garbage: bytes) -> None:
    segment = _crashed_log(tmp_path)
    for size in range(len(FIRST_SET), len(FIRST_SET + LAST) + 1):
        segment.write_bytes((FIRST_SET + LAST)[:size] + garbage)
        whole = size == len(FIRST_SET + LAST) or garbage.startswith((FIRST_SET + LAST)[size:])
        _recovers_to(tmp_path, FIRST_SET + LAST if whole else FIRST_SET)


def test_a_flipped_bit_in_what_the_checksum_covers_is_found(tmp_path: Path) -> None:
    segment = _crashed_log(tmp_path)
    start = len(FIRST_SET)
    for position in range(start + 10, start + len(LAST)):
        data = bytearray(FIRST_SET + LAST)
        data[position] ^= 0x40
        segment.write_bytes(data)
        _recovers_to(tmp_path, FIRST_SET)


def test_after_a_damaged_segment_nothing_is_served(tmp_path: Path) -> None:
    """Offsets are positions: what follows a hole would be found at offsets that are not its own."""
    manager, log = open_log(tmp_path, generation="0.7", flush_messages=1, segment_bytes=14)
    messages = [entry(b"message %d" % number) for number in range(4)]
    for message in messages:
        log.append(message)
    crash(manager)
    second = log.path / f"{len(messages[0]):011d}.kafka"
    second.write_bytes(messages[1][:-1])
    manager, log = open_log(tmp_path, segment_bytes=14)
    assert (log.start_offset, log.readable_end) == (0, len(messages[0]))
    assert sorted(path.name for path in log.path.glob("*.kafka")) == [f"{FIRST}.kafka", second.name]


def test_a_clean_stop_reads_nothing_but_the_directory(tmp_path: Path) -> None:
    manager, log = open_log(tmp_path, generation="0.7")
    log.append(FIRST_SET)
    manager.close()
    segment = log.path / f"{FIRST}.kafka"
    damaged = b"\xff" + FIRST_SET[1:]
    segment.write_bytes(damaged)  # of the same size: it is not looked into
    _, log = open_log(tmp_path)
    assert log.readable_end == len(FIRST_SET)


# SIGKILL under load. A PRODUCE has no answer: what has been read, or told by OFFSETS, must stay.

FLUSHES = {
    "each message": {"log.flush.interval": 1},
    "every 10 ms": {"log.flush.interval.ms": 10, "log.flush.scheduler.interval.ms": 10},
}
PARTITIONS = 2


class Producer(threading.Thread):
    """*Its number is read after `join`.* Sends numbered messages until the connection breaks."""

    def __init__(self, port: int, partition: int, number: int) -> None:
        super().__init__(daemon=True)
        self.wire = Wire07(port)
        self.partition, self.number = partition, number

    def run(self) -> None:
        try:
            while True:
                self.wire.send(produce("t", self.partition, numbered(self.number)))
                self.number += 1
        except OSError:
            return
        finally:
            self.wire.close()


class Reader(threading.Thread):
    """*What it has seen is read after `join`.* Follows one partition from its beginning."""

    def __init__(self, port: int, partition: int) -> None:
        super().__init__(daemon=True)
        self.wire = Wire07(port)
        self.partition, self.seen, self.latest = partition, b"", 0
        self.failures: list[bytes] = []

    def run(self) -> None:
        try:
            while True:
                found = self.wire.ask(fetch("t", self.partition, len(self.seen), 100_000))
                if found is None:
                    return
                if found[:2] != b"\0\0":
                    self.failures.append(found)
                    return
                self.seen += found[2:]
                answer = self.wire.ask(offsets("t", self.partition, LATEST, 1))
                if answer is None:
                    return
                self.latest = offsets_in(answer)[0]
        except (OSError, AssertionError):
            return  # the kill came in the middle of an answer
        finally:
            self.wire.close()


def numbered(number: int) -> bytes:
    message = entry(b"%d:" % number + b"x" * (number % 7 * 50), magic=number % 2)
    return zipped(message, message) if number % 5 == 0 else message


def log_of(broker: EmbeddedBroker, partition: int) -> bytes:
    """All bytes of a log, fetched."""
    data = b""
    with Wire07(broker.port_of("KAFKA07")) as wire:
        end = offsets_in(wire.ask(offsets("t", partition, LATEST, 1)))[0]
        assert offsets_in(wire.ask(offsets("t", partition, EARLIEST, 1))) == [0]
        while len(data) < end:
            answer = wire.ask(fetch("t", partition, len(data), 1 << 20))
            assert answer is not None
            assert answer[:2] == b"\0\0"
            assert len(answer) > 2
            data += answer[2:]
        assert wire.ask(fetch("t", partition, end, 100)) == b"\0\0"
    return data


@pytest.mark.long("the disk fails at every call")
@pytest.mark.parametrize("flush", FLUSHES)
def test_what_was_read_before_a_kill_stays_and_a_whole_message_is_last(flush: str) -> None:
    rng = random.Random(flush)
    properties: dict[str, object] = {
        "listeners": "KAFKA07://127.0.0.1:0", "num.partitions": PARTITIONS,
        "log.file.size": rng.choice([2_000, 1 << 30]),
    }  # fmt: skip
    with start_broker(properties | FLUSHES[flush]) as broker:
        following, sizes = [0] * PARTITIONS, [0] * PARTITIONS
        for _ in range(3):
            producers = [Producer(broker.port, p, following[p]) for p in range(PARTITIONS)]
            readers = [Reader(broker.port, p) for p in range(PARTITIONS)]
            for thread in (*producers, *readers):
                thread.start()
            # Each partition has grown by as much, some 20 syncs of the disk, and its reader has seen it.
            wanted = [size + rng.randrange(500, 4_000) for size in sizes]
            until(lambda readers=readers, wanted=wanted: all(  # type: ignore[misc]
                len(reader.seen) >= size or not reader.is_alive()
                for reader, size in zip(readers, wanted, strict=True)
            ))  # fmt: skip
            assert all(producer.is_alive() for producer in producers)  # the broker has closed no connection
            broker.kill()
            for thread in (*producers, *readers):
                thread.join(60)
                assert not thread.is_alive()
            broker.start()
            for partition, reader in enumerate(readers):
                assert reader.failures == []
                assert len(reader.seen) >= wanted[partition]
                data = log_of(broker, partition)
                assert data.startswith(reader.seen)
                assert len(data) >= reader.latest
                found = list(entries(data))
                assert sum(each.size for each in found) == len(data)
                count = len(found)
                assert data == b"".join(map(numbered, range(count)))
                assert following[partition] <= count <= producers[partition].number
                following[partition], sizes[partition] = count, len(data)
