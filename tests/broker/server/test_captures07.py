"""What 0.7's own clients sent, sent to our broker: it stores what the 0.7.2 broker stored, and answers."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest

from broker.embedded import EmbeddedBroker, start_broker
from tests.support.formats.captures_07 import captured, captures
from tests.support.protocol.wire07 import Wire07, entry, fetch, produce

EMPTY = b"\0\0"
PLAIN = captured("broker-0.7.2-segment-plain-0")
SNAPPY = captured("broker-0.7.2-segment-sn-0")
MP2 = entry(b"mp2")


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    """One that has got the produces of the Scala client, as the recorded broker had."""
    with start_broker(
        {"listeners": "KAFKA07://127.0.0.1:0", "log.flush.interval": 1, "num.partitions": 2}
    ) as broker:
        with Wire07(broker.port) as wire:
            wire.send(captured("scala-0.7.2-produce") + captured("scala-0.7.2-multiproduce"))
            wire.send(captured("scala-0.7.2-produce-4") + produce("sn", 0, entry(b"after")))
            assert wire.ask(fetch("other", 1, 0, 100)) == EMPTY + MP2
        yield broker


@pytest.fixture
def wire(broker: EmbeddedBroker) -> Iterator[Wire07]:
    with Wire07(broker.port) as wire:
        yield wire


@pytest.mark.long("a broker that is started more than once")
@pytest.mark.parametrize(
    ("capture", "answer"),
    [
        ("scala-0.7.2-fetch", EMPTY + PLAIN),
        ("scala-0.7.2-fetch-3", EMPTY + SNAPPY),
        (
            "scala-0.7.2-multifetch",
            EMPTY
            + struct.pack(">ih", 2 + len(PLAIN), 0) + PLAIN
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
    assert (broker.data_dir / "plain_0" / "00000000000.kafka").read_bytes() == PLAIN
    assert (broker.data_dir / "sn_0" / "00000000000.kafka").read_bytes() == SNAPPY


@pytest.mark.parametrize("segment", captures("segment"))
def test_a_recorded_segment_is_taken_whole_and_given_back(wire: Wire07, segment: str) -> None:
    data = captured(segment)
    wire.send(produce(segment, 0, data))
    assert wire.ask(fetch(segment, 0, 0, 1000)) == EMPTY + data
