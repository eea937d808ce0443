"""Clients of 0.7's listener that send anything but what they should: it serves others, and stays small."""

from __future__ import annotations

import gzip
import random
import struct
from collections.abc import Iterator

import pytest

from kafkalog_broker.embedded import EmbeddedBroker, start_broker
from tests.support.network.broker_process import MIB, growing_less_than
from tests.support.protocol.wire07 import (
    GZIP,
    LATEST,
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

GROWTH_LIMIT = 96 * MIB
"""A set may decompress to 32 MiB, which its inner walk sees as a whole."""

HERE = entry(b"still here")
SETTINGS = {"listeners": "KAFKA07://127.0.0.1:0", "log.flush.interval": 1, "message.max.bytes": 4 * MIB}


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with start_broker(SETTINGS) as running:
        with Wire07(running.port) as wire:
            wire.send(produce("t", 0, HERE))
            assert wire.ask(fetch("t", 0, 0, 100)) == b"\0\0" + HERE
        yield running


@pytest.fixture(autouse=True)
def unharmed(broker: EmbeddedBroker) -> Iterator[None]:
    """After each test the same process serves a good client, and has at no moment been much larger."""
    with growing_less_than(broker.pid, GROWTH_LIMIT):
        yield
        assert broker.running
        with Wire07(broker.port) as wire:
            assert wire.ask(fetch("t", 0, 0, len(HERE))) == b"\0\0" + HERE


def latest(broker: EmbeddedBroker, topic: str) -> int:
    with Wire07(broker.port) as wire:
        return offsets_in(wire.ask(offsets(topic, 0, LATEST, 1)))[0]


def test_requests_with_a_changed_byte_are_answered_or_closed(broker: EmbeddedBroker) -> None:
    rng = random.Random(8)
    whole = [
        fetch("t", 0, 0, 100),
        multi_fetch(("t", 0, 0, 100), ("u", 0, 5, 100)),
        offsets("t", 0, LATEST, 5),
        produce("t", 0, entry(b"x") + zipped(entry(b"y"))),
        multi_produce(("t", 0, entry(b"x")), ("t", 0, entry(b"y"))),
    ]
    for number in range(400):
        request = bytearray(whole[number % len(whole)])
        request[rng.randrange(4, len(request))] ^= 1 << rng.randrange(8)
        with Wire07(broker.port) as wire:
            wire.send(bytes(request))
            answer = wire.ask(fetch("t", 0, 0, len(HERE)))
            assert answer is None or len(answer) >= 2


@pytest.mark.long("thousands of hostile requests")
@pytest.mark.parametrize("depth", [1, 2])
def test_a_bomb_is_dropped_before_it_is_unfolded(broker: EmbeddedBroker, depth: int) -> None:
    bomb = entry(bytes(100 * MIB))
    for _ in range(depth):
        bomb = entry(gzip.compress(bomb, mtime=0), attributes=GZIP)
    with Wire07(broker.port) as wire:
        wire.send(produce("bomb", 0, bomb))
        assert wire.ask(offsets("bomb", 0, LATEST, 1)) is not None
    assert latest(broker, "bomb") == 0


def test_many_small_bombs_in_a_set_are_one_large_one(broker: EmbeddedBroker) -> None:
    bomb = entry(gzip.compress(entry(bytes(8 * MIB)), mtime=0), attributes=GZIP)
    with Wire07(broker.port) as wire:
        wire.send(produce("bombs", 0, bomb * 500))
        assert wire.ask(offsets("bombs", 0, LATEST, 1)) is not None
    assert latest(broker, "bombs") == 0


def test_sets_nested_a_thousand_deep_are_walked_without_harm(broker: EmbeddedBroker) -> None:
    nested = entry(b"core")
    for _ in range(1000):
        nested = entry(gzip.compress(nested, 1, mtime=0), attributes=GZIP)
    with Wire07(broker.port) as wire:
        wire.send(produce("nested", 0, nested))
        assert wire.ask(fetch("nested", 0, 0, MIB)) == b"\0\0" + nested


def test_a_client_that_asks_and_never_reads_costs_no_memory(broker: EmbeddedBroker) -> None:
    with Wire07(broker.port) as filler:
        for _ in range(40):
            filler.send(produce("full", 0, entry(bytes(MIB))))
        assert filler.ask(fetch("full", 0, 0, 0)) == b"\0\0"
    wires = [Wire07(broker.port) for _ in range(20)]
    try:
        for wire in wires:
            wire.send(b"".join(fetch("full", 0, 0, 40 * MIB) for _ in range(50)))
        assert latest(broker, "full") == 40 * len(entry(bytes(MIB)))
    finally:
        for wire in wires:
            wire.close()


@pytest.mark.parametrize("kind", [2, 3])
def test_a_count_without_parts_takes_no_memory(broker: EmbeddedBroker, kind: int) -> None:
    with Wire07(broker.port) as wire:
        assert wire.ask(framed(struct.pack(">hh", kind, 32767))) is None


def test_the_largest_multi_fetch_is_answered_part_by_part(broker: EmbeddedBroker) -> None:
    with Wire07(broker.port) as wire:
        answer = wire.ask(multi_fetch(*[("t", 0, 0, len(HERE))] * 32767))
    assert answer == b"\0\0" + 32767 * (struct.pack(">ih", 2 + len(HERE), 0) + HERE)
