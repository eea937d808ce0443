"""Each probe that a real 0.7.2 broker was asked, with the answer that it gave, asked of our broker.

The set-up is the recorded one: two partitions per topic, 2,000 bytes a message, segments of 400 bytes, a
flush after every message. A PRODUCE has no answer, so each is followed by a request on the same connection:
what that gets, or that the connection is closed, is the answer to the produce.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator

import pytest
import snappy

from kafkalog_broker.embedded import EmbeddedBroker, start_broker
from tests.support.formats.captures_07 import captured, captures
from tests.support.protocol.wire07 import (
    EARLIEST,
    GZIP,
    LATEST,
    SNAPPY,
    Wire07,
    entry,
    fetch,
    framed,
    multi_fetch,
    multi_produce,
    offsets,
    offsets_in,
    produce,
    zipped,
)

SETTINGS = {
    "listeners": "PLAINTEXT://127.0.0.1:0,KAFKA07://127.0.0.1:0",
    "num.partitions": 2,
    "max.message.size": 2000,
    "log.file.size": 400,
    "log.flush.interval": 1,
}
ZERO = bytes.fromhex("0000000900abdef192") + b"zero"
ONE = bytes.fromhex("0000000901007a6c86f1") + b"one"
CLOSED = None
EMPTY = b"\0\0"
OUT_OF_RANGE = b"\0\1"
WRONG_PARTITION = b"\0\3"
UNKNOWN = b"\xff\xff"
LIMIT = 1 << 20
PLAIN_SEGMENT = captured("broker-0.7.2-segment-plain-0")
SNAPPY_SEGMENT = captured("broker-0.7.2-segment-sn-0")
MP2 = entry(b"mp2")

_numbers = itertools.count()


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with start_broker(SETTINGS) as broker:
        with Wire07(broker.port_of("KAFKA07")) as wire:
            wire.send(produce("pr", 0, ZERO + ONE))
            assert offsets_in(wire.ask(offsets("pr", 0, LATEST, 1))) == [26]
            wire.send(captured("scala-0.7.2-produce") + captured("scala-0.7.2-multiproduce"))
            wire.send(captured("scala-0.7.2-produce-4") + produce("sn", 0, entry(b"after")))
            assert wire.ask(fetch("other", 1, 0, 100)) == EMPTY + MP2
        yield broker


@pytest.fixture
def wire(broker: EmbeddedBroker) -> Iterator[Wire07]:
    with Wire07(broker.port_of("KAFKA07")) as wire:
        yield wire


@pytest.fixture
def topic() -> str:
    """One that nobody has produced to."""
    return f"topic{next(_numbers)}"


def counted(*values: int) -> bytes:
    return EMPTY + struct.pack(f">i{len(values)}q", len(values), *values)


@pytest.mark.long("thousands of requests")
@pytest.mark.parametrize(
    ("request_frame", "answer"),
    [
        pytest.param(offsets("pr", 0, LATEST, 1), counted(26), id="OFFSETS latest, max 1"),
        pytest.param(fetch("pr", 0, 0, 1000), EMPTY + ZERO + ONE, id="FETCH at 0, max 1000"),
        pytest.param(fetch("pr", 0, 26, 1000), EMPTY, id="FETCH at the end"),
        pytest.param(fetch("pr", 0, 27, 1000), OUT_OF_RANGE, id="FETCH one past the end"),
        pytest.param(fetch("pr", 0, -1, 1000), OUT_OF_RANGE, id="FETCH at -1"),
        pytest.param(fetch("pr", 0, 3, 1000), EMPTY + (ZERO + ONE)[3:], id="FETCH inside an entry"),
        pytest.param(fetch("pr", 0, 0, 5), EMPTY + ZERO[:5], id="FETCH at 0, max 5"),
        pytest.param(fetch("pr", 0, 0, 15), EMPTY + ZERO + ONE[:2], id="FETCH at 0, max 15"),
        pytest.param(fetch("pr", 0, 0, 0), EMPTY, id="FETCH at 0, max 0"),
        # The real broker's frame is broken here, which is not to be copied.
        pytest.param(fetch("pr", 0, 0, -5), EMPTY, id="FETCH at 0, max -5"),
        pytest.param(fetch("nobody", 0, 0, 1000), EMPTY, id="FETCH unknown topic at 0"),
        pytest.param(fetch("nobody", 0, 50, 1000), EMPTY, id="FETCH unknown topic at 50"),
        pytest.param(fetch("pr", 9, 0, 1000), WRONG_PARTITION, id="FETCH partition 9"),
        pytest.param(fetch("pr", -1, 0, 1000), WRONG_PARTITION, id="FETCH partition -1"),
        pytest.param(fetch("nobody", 2, 0, 1000), WRONG_PARTITION, id="FETCH partition 2 of no topic"),
        pytest.param(fetch("", 0, 0, 1000), UNKNOWN, id="FETCH topic without a name"),
        pytest.param(fetch("a/b", 0, 0, 1000), UNKNOWN, id="FETCH topic a/b"),
        pytest.param(offsets("pr", 9, LATEST, 1), CLOSED, id="OFFSETS partition 9"),
        pytest.param(offsets("pr", -1, LATEST, 1), CLOSED, id="OFFSETS partition -1"),
        pytest.param(offsets("pr", 0, LATEST, 0), counted(), id="OFFSETS latest, max 0"),
        pytest.param(offsets("pr", 0, LATEST, -1), CLOSED, id="OFFSETS latest, max -1"),
        pytest.param(offsets("pr", 0, -3, 5), counted(), id="OFFSETS time -3, max 5"),
        pytest.param(offsets("pr", 0, EARLIEST, 5), counted(0), id="OFFSETS earliest, max 5"),
        pytest.param(offsets("nobody", 0, LATEST, 5), counted(0), id="OFFSETS latest of no topic"),
        pytest.param(offsets("nobody", 0, EARLIEST, 5), counted(0), id="OFFSETS earliest of no topic"),
        pytest.param(offsets("nobody", 0, 1 << 50, 5), counted(), id="OFFSETS by time of no topic"),
        pytest.param(
            multi_fetch(("pr", 0, 0, 13), ("pr", 9, 0, 1000)),
            EMPTY + struct.pack(">ih", 15, 0) + ZERO + struct.pack(">ih", 2, 3),
            id="MULTIFETCH a good part and a bad one",
        ),
        pytest.param(multi_fetch(), EMPTY, id="MULTIFETCH with count 0"),
        pytest.param(framed(b"\0\x09"), CLOSED, id="request type 9"),
        pytest.param(struct.pack(">i", 0), CLOSED, id="size 0"),
        pytest.param(struct.pack(">i", -1), CLOSED, id="size -1"),
        pytest.param(struct.pack(">i", 200 << 20), CLOSED, id="size 200 MiB"),
    ],
)
def test_a_request_gets_the_recorded_answer(wire: Wire07, request_frame: bytes, answer: bytes | None) -> None:
    assert wire.ask(request_frame) == answer


def test_a_topic_with_another_name_than_ascii_is_served(wire: Wire07) -> None:
    wire.send(produce("té", 1, ONE))
    assert wire.ask(fetch("té", 1, 0, LIMIT)) == EMPTY + ONE


BIG = b"x" * 2000
ODD = bytes.fromhex("000000090184c3273dca") + b"zzz"
MIXED = zipped(entry(b"a", magic=0), entry(b"b"))
NESTED = zipped(zipped(entry(b"a"), entry(b"b")), entry(b"c"))
BARE = entry(snappy.compress(entry(b"abc")), attributes=SNAPPY)
HOLLOW = zipped()


@pytest.mark.parametrize(
    ("messages", "kept"),
    [
        pytest.param(entry(b"bad", crc=1), CLOSED, id="bad crc"),
        pytest.param(entry(b"good") + entry(b"bad", crc=1), CLOSED, id="good entry, then one with bad crc"),
        pytest.param(entry(BIG + b"x"), b"", id="payload one byte above the limit"),
        pytest.param(entry(BIG), entry(BIG), id="payload exactly at the limit"),
        pytest.param(entry(b"small") + entry(BIG + b"x"), b"", id="small entry, then one too large"),
        pytest.param(entry(b"bad", crc=1) + entry(BIG + b"x"), b"", id="bad crc, then one too large"),
        pytest.param(b"", b"", id="empty message set"),
        pytest.param(entry(b"good") + entry(b"cut off")[:-1], entry(b"good"), id="whole entry, a cut one"),
        pytest.param(entry(b"good") + b"\0\0", entry(b"good"), id="whole entry, two bytes of a length"),
        pytest.param(entry(b"cut off")[:-1], CLOSED, id="incomplete entry only"),
        pytest.param(struct.pack(">i", 0) + bytes(20), CLOSED, id="length field 0"),
        pytest.param(entry(b"x", magic=2), CLOSED, id="magic 2"),
        pytest.param(entry(b"x", attributes=3), CLOSED, id="codec 3"),
        pytest.param(ODD, ODD, id="attributes 0x84"),
        pytest.param(entry(b"not gzip", attributes=GZIP), CLOSED, id="gzip bit, payload not gzip"),
        pytest.param(MIXED, MIXED, id="gzip with inner magic 0 and 1"),
        pytest.param(NESTED, NESTED, id="gzip inside gzip"),
        pytest.param(zipped(entry(b"a"), entry(b"b", crc=1)), CLOSED, id="gzip entry, inner bad crc"),
        pytest.param(BARE, BARE, id="snappy without xerial framing"),
        pytest.param(entry(b"") + entry(b"", magic=0), entry(b"") + entry(b"", magic=0), id="empty payloads"),
        pytest.param(HOLLOW, b"", id="gzip entry, empty inner set"),
    ],
)
def test_produced_messages_are_stored_as_they_are_or_not_at_all(
    wire: Wire07, broker: EmbeddedBroker, topic: str, messages: bytes, kept: bytes | None
) -> None:
    wire.send(produce(topic, 0, messages))
    latest = wire.ask(offsets(topic, 0, LATEST, 1))
    if kept is CLOSED:
        assert latest is CLOSED
        with Wire07(broker.port_of("KAFKA07")) as again:
            assert again.ask(offsets(topic, 0, LATEST, 1)) == counted(0)
            assert again.ask(fetch(topic, 0, 0, LIMIT)) == EMPTY
    else:
        assert latest == counted(len(kept))
        assert wire.ask(fetch(topic, 0, 0, LIMIT)) == EMPTY + kept


@pytest.mark.parametrize("partition", [2, 9, -2])
def test_a_wrong_partition_closes_and_makes_no_topic(
    wire: Wire07, broker: EmbeddedBroker, topic: str, partition: int
) -> None:
    assert wire.ask(produce(topic, partition, ONE) + offsets(topic, 0, LATEST, 1)) is CLOSED
    assert not list(broker.data_dir.glob(f"{topic}_*"))


def test_all_partitions_of_a_topic_have_their_logs_from_the_first_produce_on(
    wire: Wire07, topic: str
) -> None:
    """On purpose: in 0.7.2 partition 1 would be empty at any offset until something is produced to it."""
    assert wire.ask(fetch(topic, 1, 50, LIMIT)) == EMPTY
    wire.send(produce(topic, 0, ONE))
    assert wire.ask(fetch(topic, 1, 0, LIMIT)) == EMPTY
    assert wire.ask(fetch(topic, 1, 50, LIMIT)) == OUT_OF_RANGE
    assert wire.ask(offsets(topic, 1, LATEST, 5)) == wire.ask(offsets(topic, 1, EARLIEST, 5)) == counted(0)


def test_an_empty_set_makes_the_log(wire: Wire07, topic: str) -> None:
    assert wire.ask(offsets(topic, 0, 1 << 50, 5)) == counted()
    wire.send(produce(topic, 0, b""))
    assert wire.ask(offsets(topic, 0, 1 << 50, 5)) == counted(0)
    assert wire.ask(fetch(topic, 0, 1, LIMIT)) == OUT_OF_RANGE


def test_partition_minus_1_is_one_at_random(wire: Wire07, topic: str) -> None:
    for _ in range(40):
        wire.send(produce(topic, -1, ONE))
    ends = [offsets_in(wire.ask(offsets(topic, partition, LATEST, 1)))[0] for partition in (0, 1)]
    assert sum(ends) == 40 * len(ONE)
    assert min(ends) > 0  # 1 in 10**12 that chance has it otherwise


def test_of_a_multi_produce_the_parts_after_the_bad_one_are_lost(
    wire: Wire07, broker: EmbeddedBroker, topic: str
) -> None:
    wire.send(multi_produce((topic, 0, ONE), (topic, 9, ONE), (topic, 1, ONE)))
    assert wire.receive() is CLOSED
    with Wire07(broker.port_of("KAFKA07")) as again:
        assert again.ask(fetch(topic, 0, 0, LIMIT)) == EMPTY + ONE
        assert again.ask(offsets(topic, 1, LATEST, 1)) == counted(0)


def test_of_a_multi_produce_a_part_that_is_too_large_is_skipped(wire: Wire07, topic: str) -> None:
    wire.send(multi_produce((topic, 0, ONE), (topic, 0, entry(BIG + b"x")), (topic, 0, ZERO)))
    assert wire.ask(fetch(topic, 0, 0, LIMIT)) == EMPTY + ONE + ZERO


def test_requests_of_todays_protocol_are_closed(wire: Wire07) -> None:
    # Metadata, version 1, of all topics.
    assert wire.ask(framed(struct.pack(">hhih", 3, 1, 7, 2) + b"me" + struct.pack(">i", -1))) is CLOSED


# --- what 0.7's own clients sent


@pytest.mark.parametrize(
    ("capture", "answer"),
    [
        ("scala-0.7.2-fetch", EMPTY + PLAIN_SEGMENT),
        ("scala-0.7.2-fetch-3", EMPTY + SNAPPY_SEGMENT),
        (
            "scala-0.7.2-multifetch",
            EMPTY
            + struct.pack(">ih", 2 + len(PLAIN_SEGMENT), 0) + PLAIN_SEGMENT
            + struct.pack(">ih", 2 + len(MP2), 0) + MP2
            + struct.pack(">ih", 2, 0)  # nobody has produced there
            + struct.pack(">ih", 2, 1)  # out of range
            + struct.pack(">ih", 2, 3),  # no such partition
        ),
        ("scala-0.7.2-offsets", EMPTY + struct.pack(">iqq", 2, 43, 0)),
        ("scala-0.7.2-offsets-2", EMPTY + struct.pack(">iq", 1, 0)),
        ("scala-0.7.2-offsets-4", EMPTY + struct.pack(">i", 0)),  # at a time before all segments
    ],
)  # fmt: skip
def test_a_captured_request_gets_what_the_recorded_broker_held(
    wire: Wire07, capture: str, answer: bytes
) -> None:
    assert wire.ask(captured(capture)) == answer


def test_segments_hold_the_bytes_that_the_recorded_broker_wrote(broker: EmbeddedBroker) -> None:
    assert (broker.data_dir / "plain_0" / "00000000000.kafka").read_bytes() == PLAIN_SEGMENT
    assert (broker.data_dir / "sn_0" / "00000000000.kafka").read_bytes() == SNAPPY_SEGMENT


@pytest.mark.parametrize("segment", captures("segment"))
def test_a_recorded_segment_is_taken_whole_and_given_back(wire: Wire07, segment: str) -> None:
    data = captured(segment)
    wire.send(produce(segment, 0, data))
    assert wire.ask(fetch(segment, 0, 0, 1000)) == EMPTY + data
