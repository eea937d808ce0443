"""onCorruptBatch with Kafka 0.7, where an entry is found by the length of the one before."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from pyspark_kafkalog.errors import MessageTooLarge
from pyspark_kafkalog.formats.compression import Codec, compress
from pyspark_kafkalog.formats.v07 import encode_message, encode_set
from tests.support.client.broker07 import Broker07
from tests.support.datasource.source07 import reader07, rows
from tests.support.protocol.wire07 import entry

VALUES = [b"value %02d" % number for number in range(20)]
SETS = [
    *(encode_set([value]) for value in VALUES[:8]),
    encode_set(VALUES[8:12], codec=Codec.GZIP),
    *(encode_set([value]) for value in VALUES[12:]),
]
STARTS = [sum(map(len, SETS[:number])) for number in range(len(SETS) + 1)]


@pytest.fixture
def broker() -> Iterator[Broker07]:
    with Broker07(partitions=1) as running:
        yield running


def read(broker: Broker07, sets: list[bytes], **options: str) -> list[bytes | None]:
    broker.append("t", 0, b"".join(sets))
    where = {"broker.list": f"1:127.0.0.1:{broker.port}", "subscribe": "t", "onCorruptBatch": "skip"}
    reader: Any = reader07(**{**where, "kafka.max.message.size": "1000", **options})
    return [row.value for row in rows(reader)]


def flipped(number: int, byte: int, bit: int) -> list[bytes]:
    damaged = bytearray(SETS[number])
    damaged[byte] ^= 1 << bit
    return [*SETS[:number], bytes(damaged), *SETS[number + 1 :]]


@pytest.mark.long("every kind of damage in every format")
@pytest.mark.parametrize("fetch_size", ["30", "100000"])
@pytest.mark.parametrize(("byte", "bit"), [(-1, 0), (-2, 3), (0, 7), (1, 4), (2, 1), (3, 6), (3, 2), (4, 6)])
@pytest.mark.parametrize("number", [0, 8, 16])
def test_one_entry_is_left_out_whatever_is_wrong_with_it(
    broker: Broker07, number: int, byte: int, bit: int, fetch_size: str, caplog: pytest.LogCaptureFixture
) -> None:
    first = number if number <= 8 else number + 3
    gone = range(8, 12) if number == 8 else [first]
    with caplog.at_level(logging.WARNING):
        found = read(broker, flipped(number, byte, bit), **{"kafka.fetch.size": fetch_size})
    assert found == [value for at, value in enumerate(VALUES) if at not in gone]
    (warning,) = [r.getMessage() for r in caplog.records if "skipped as corrupt" in r.getMessage()]
    assert warning.startswith(f"t-1-0: offsets [{STARTS[number]}, {STARTS[number + 1]}) are skipped")


def test_rubbish_in_a_compressed_entry_is_left_out_with_all_of_the_entry(broker: Broker07) -> None:
    bad = encode_message(b"this is no gzip", codec=Codec.GZIP)
    assert read(broker, [*SETS[:3], bad, *SETS[3:]]) == VALUES
    half = encode_set([b"first", b"second"], codec=Codec.NONE)[:-1] + b"?"
    nested = encode_message(compress(Codec.GZIP, half), codec=Codec.GZIP)
    assert read(broker, [nested]) == VALUES, "nothing of the entry is given, not what is sound in it either"


def test_several_in_a_row_are_left_out(broker: Broker07) -> None:
    bad = entry(b"bad", crc=1)
    assert read(broker, [bad, *SETS[:3], bad, bad, b"\xff" * 40, *SETS[3:], bad]) == VALUES


def test_a_message_that_is_too_large_is_not_damage(broker: Broker07) -> None:
    large = encode_set([bytes(5000)])
    with pytest.raises(MessageTooLarge):
        read(broker, [*SETS[:2], large, *SETS[2:]], **{"kafka.fetch.size": "100"})
