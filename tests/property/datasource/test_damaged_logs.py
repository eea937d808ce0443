"""A log with flipped bits anywhere: what a reader that may skip gives is right, and all that is sound."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pyspark_kafkalog.cli.consume import read_ranges
from pyspark_kafkalog.client.discovery import Cluster
from pyspark_kafkalog.config.client_config import ConsumerConfig
from pyspark_kafkalog.formats.batch import encode_batch
from pyspark_kafkalog.formats.compression import Codec
from pyspark_kafkalog.formats.legacy import encode_set
from pyspark_kafkalog.protocol.exchange import ApiKey
from pyspark_kafkalog.types import NewRecord, TopicPartition
from tests.support.client.scripted_broker import Layout, ScriptedBroker
from tests.support.client.scripted_log import TOPIC, DamagedLog

EACH, COUNT = 4, 10
END = EACH * COUNT


@pytest.fixture(scope="module")
def broker() -> Iterator[ScriptedBroker]:
    with ScriptedBroker(Layout(leaders={TOPIC: {0: 0}})) as running:
        yield running


def entry(base: int, magic: int, codec: Codec) -> bytes:
    records = [NewRecord(b"%d" % offset, timestamp=1) for offset in range(base, base + EACH)]
    if magic == 2:
        return encode_batch(records, codec=codec, base_offset=base)
    return encode_set(records, magic=magic, codec=codec or Codec.GZIP, base_offset=base)


entries = st.lists(
    st.tuples(st.sampled_from([0, 1, 2, 2]), st.sampled_from([Codec.NONE, Codec.GZIP])),
    min_size=COUNT,
    max_size=COUNT,
)
flips = st.lists(st.tuples(st.integers(0, COUNT - 1), st.integers(0, 1 << 30), st.integers(0, 7)), max_size=3)


@example(formats=[(2, Codec.NONE)] * COUNT, flips=[(1, 7, 1)], finds="all", start=6)
@example(formats=[(0, Codec.GZIP)] * COUNT, flips=[(1, 7, 3)], finds="all", start=0)
@example(formats=[(0, Codec.GZIP)] * COUNT, flips=[(1, 7, 1)], finds="sound", start=4)
@example(
    formats=[(0, Codec.GZIP)] * 7 + [(2, Codec.NONE)] + [(0, Codec.GZIP)] * 2,
    flips=[(7, 7, 0)],
    finds="sound",
    start=28,
)
@example(
    formats=[(0, Codec.NONE)] * 5 + [(1, Codec.NONE)] + [(0, Codec.NONE)] * 4,
    flips=[(3, 0, 0), (5, 0, 7)],
    finds="all",
    start=0,
)
@given(formats=entries, flips=flips, finds=st.sampled_from(["all", "sound"]), start=st.integers(0, END - 1))
def test_what_is_given_is_right_and_what_is_sound_is_given(
    broker: ScriptedBroker,
    formats: list[tuple[int, Codec]],
    flips: list[tuple[int, int, int]],
    finds: str,
    start: int,
) -> None:
    good = [entry(number * EACH, *form) for number, form in enumerate(formats)]
    log = DamagedLog(good, finds=finds)
    for number, byte, bit in flips:
        log.flip(number, byte % len(good[number]), bit)
    broker.default(ApiKey.FETCH, log.fetch)
    broker.default(ApiKey.LIST_OFFSETS, log.list_offsets)
    tp, found, told = TopicPartition(TOPIC, 0), {}, []
    cluster = Cluster(ConsumerConfig(bootstrap_servers=broker.address, retry_backoff_ms=1))
    try:
        ranges, config = {tp: (start, END)}, cluster.config
        for _, records in read_ranges(cluster, ranges, config, lambda _, *gone: told.append(gone)):
            found |= {record.offset: record.value for record in records}
    finally:
        cluster.close()
    wrong = {offset for offset, value in found.items() if value != b"%d" % offset}
    damaged = {number for number, _, _ in flips}
    # Of two batches of v2 or v1 that overlap, a reader cannot tell which one is damaged if it did not see
    # where the first should begin: it began within it, or the one before is damaged as well.
    damaged |= {
        offset // EACH
        for number in damaged
        if start > number * EACH or number - 1 in damaged
        for offset in range(log.claimed_end(number) - EACH, log.claimed_end(number))
        if number * EACH <= offset < (number + 2) * EACH
    }
    assert {offset // EACH for offset in wrong} <= damaged, "only an entry that a gap hides"
    missing = {offset for offset in range(start, END) if offset not in found}
    assert {offset // EACH for offset in missing} <= damaged, "what is sound is given"
    assert not [gone for gone in told if any(offset in found for offset in range(*gone))]
