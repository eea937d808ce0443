"""Reading Kafka 0.7 from a broker that hangs up, has less than it said, or answers something else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from pyspark_kafkalog.datasource.options.read_options import parse_batch_options
from pyspark_kafkalog.datasource.reading.kafka import open_cluster
from pyspark_kafkalog.datasource.reading.source_cluster import DataLoss, OffsetRange
from pyspark_kafkalog.errors import (
    ConnectionLost,
    CorruptMessage,
    ErrorCode,
    KafkaError,
)
from pyspark_kafkalog.formats.v07 import encode_set
from pyspark_kafkalog.protocol.v07 import FetchRequest, FetchResponse, OffsetsRequest, OffsetsResponse
from pyspark_kafkalog.types import TopicPartition
from tests.support.client.broker07 import Broker07
from tests.support.client.scripted_server import Close
from tests.support.datasource.source07 import QUICK, reader07, rows, tasks
from tests.support.protocol.wire07 import entry


@pytest.fixture
def odd() -> Iterator[Broker07]:
    with Broker07(partitions=1) as broker:
        broker.append("t", 0, encode_set([b"a", b"b", b"c"]))
        yield broker


def odd_reader(broker: Broker07, **options: str) -> Any:
    return reader07(**{"broker.list": f"1:127.0.0.1:{broker.port}", "subscribe": "t", **options})


def test_a_lost_connection_is_recreated_where_the_reading_stood(odd: Broker07) -> None:
    reader = odd_reader(odd, **{"kafka.fetch.size": "11"})
    planned = tasks(reader)
    odd.script(
        FetchRequest, lambda r: FetchResponse(ErrorCode.NONE, bytes(odd.logs["t", 0][:11])), Close(), Close()
    )
    assert [row.value for row in rows(reader, planned)] == [b"a", b"b", b"c"]


def test_a_planner_asks_again_where_a_broker_hangs_up(odd: Broker07) -> None:
    odd.script(OffsetsRequest, Close(), Close(), Close())
    assert [row.value for row in rows(odd_reader(odd, minPartitions="2"))] == [b"a", b"b", b"c"]
    odd.script(OffsetsRequest, *[Close()] * 20)
    with pytest.raises(ConnectionLost, match="a partition that it does not have, here t-0"):
        odd_reader(odd, minPartitions="2").partitions()


def test_a_log_that_ends_before_the_range_is_lost(odd: Broker07) -> None:
    quick = {"kafkaConsumer.pollTimeoutMs": "150", "endingOffsets": '{"t":{"1-0":44}}'}
    with pytest.raises(DataLoss, match=r"\[33, 44\) of t-1-0: the log holds \[0, 33\)"):
        rows(odd_reader(odd, **quick))
    assert len(rows(odd_reader(odd, **quick, failOnDataLoss="false"))) == 3


def test_a_damaged_message_after_the_start_is_reported_with_its_entry(odd: Broker07) -> None:
    odd.append("t", 0, entry(b"bad", crc=1))
    with pytest.raises(CorruptMessage, match=r"t-1-0, entry at offset 33.*set .* onCorruptBatch to skip"):
        rows(odd_reader(odd))


def test_an_answer_of_another_kind_ends_the_read(odd: Broker07) -> None:
    odd.script(FetchRequest, FetchResponse(ErrorCode.UNKNOWN_SERVER_ERROR))
    with pytest.raises(KafkaError, match="t-0 at offset 0: UNKNOWN_SERVER_ERROR"):
        rows(odd_reader(odd))


def test_retention_between_two_fetches_loses_what_lies_between(odd: Broker07) -> None:
    where, lost = TopicPartition("t", 0, 1), []

    def first(_: FetchRequest) -> FetchResponse:
        return FetchResponse(ErrorCode.NONE, bytes(odd.logs["t", 0][:11]))

    def read(fail: str) -> list[bytes]:
        odd.script(FetchRequest, first, FetchResponse(ErrorCode.OFFSET_OUT_OF_RANGE))
        odd.script(OffsetsRequest, *(OffsetsResponse(ErrorCode.NONE, (n,)) for n in (22, 33)))
        place = {"broker.list": f"1:127.0.0.1:{odd.port}", "subscribe": "t", "failOnDataLoss": fail}
        lookup = open_cluster(parse_batch_options({"protocol": "0.7", **QUICK, **place}))
        try:
            asked = OffsetRange(where, 0, 33)
            return [
                v
                for batch in lookup.rows(asked, ("value",), lambda start, end: lost.append((start, end)))
                for v in batch.column("value").to_pylist()
            ]
        finally:
            lookup.close()

    assert read("false") == [b"a", b"c"]
    assert lost == [(11, 22)]
    with pytest.raises(DataLoss, match=r"\[11, 33\) of t-1-0: the log holds \[22, 33\)"):
        read("true")
    assert lost == [(11, 22)]
