"""How ``kafkalog consume`` reads: partitions in turn, exact ranges, and no silence about what is gone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from kafkalog_broker.embedded import EmbeddedBroker
from pyspark_kafkalog.cli.consume import read_ranges
from pyspark_kafkalog.client.discovery import Cluster
from pyspark_kafkalog.config.client_config import ConsumerConfig
from pyspark_kafkalog.errors import CorruptMessage, OffsetOutOfRange
from pyspark_kafkalog.types import TopicPartition
from tests.support.client.scripted_log import ScriptedLog, batches, serving
from tests.support.protocol.raw_client import RawClient, batch

T = TopicPartition("t", 0)


@contextmanager
def opened(server: str) -> Iterator[tuple[Cluster, ConsumerConfig]]:
    config = ConsumerConfig(bootstrap_servers=server, max_partition_fetch_bytes=70_000, retry_backoff_ms=1)
    cluster = Cluster(config)
    try:
        yield cluster, config
    finally:
        cluster.close()


def test_partitions_are_read_in_turn(running_broker: EmbeddedBroker, client: RawClient, topic: str) -> None:
    for partition in (0, 1):
        for _ in range(3):  # each as large as an answer
            client.produce(topic, batch(bytes(60_000)), partition)
    ranges = {TopicPartition(topic, p): (0, 3) for p in (0, 1)}
    with opened(running_broker.bootstrap_servers) as (cluster, config):
        order = [(tp.partition, r.offset) for tp, rs in read_ranges(cluster, ranges, config) for r in rs]
    assert order == [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2)]


@pytest.mark.parametrize(("start", "end"), [(0, 15), (3, 4), (2, 12), (7, 7)])
def test_a_range_is_read_exactly_wherever_batches_end(start: int, end: int) -> None:
    log = ScriptedLog(batches(range(5), range(5, 10), range(10, 15)), at_once=True)
    with serving(log) as broker, opened(broker.address) as (cluster, config):
        found = [r for _, rs in read_ranges(cluster, {T: (start, end)}, config) for r in rs]
    assert [r.offset for r in found] == list(range(start, end))
    assert [r.value for r in found] == [b"%d" % offset for offset in range(start, end)]


def test_gaps_that_compaction_left_are_passed_over() -> None:
    log = ScriptedLog(batches(range(0, 9, 3), range(20, 23)))
    with serving(log) as broker, opened(broker.address) as (cluster, config):
        found = [r.offset for _, rs in read_ranges(cluster, {T: (0, 23)}, config) for r in rs]
    assert found == [0, 3, 6, 20, 21, 22]


def test_what_retention_takes_while_it_is_read_is_an_error() -> None:
    log = ScriptedLog(batches(range(5), range(5, 10), range(10, 15)))
    with serving(log) as broker, opened(broker.address) as (cluster, config):
        reading = read_ranges(cluster, {T: (0, 15)}, config)
        assert [r.offset for r in next(reading)[1]] == list(range(5))
        log.keep(start=12)
        # The answer with offsets 5 to 9 may have been on its way.
        with pytest.raises(OffsetOutOfRange, match=r"t-0: offset (5|10) is outside \[12, 15\]"):
            list(reading)


def test_a_damaged_batch_is_an_error_with_its_place() -> None:
    data = bytearray(batches(range(5), range(5, 10)))
    data[-1] ^= 1
    with serving(ScriptedLog(bytes(data))) as broker, opened(broker.address) as (cluster, config):
        reading = read_ranges(cluster, {T: (0, 10)}, config)
        assert len(next(reading)[1]) == 5
        with pytest.raises(CorruptMessage, match="t-0, reading on from offset 5"):
            next(reading)
