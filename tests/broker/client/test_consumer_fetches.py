"""`Consumer` without a group against a scripted log: what it does with what a broker answers."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from pyspark_kafkalog import Consumer, ConsumerRecord, TopicPartition
from pyspark_kafkalog.errors import CorruptMessage, ErrorCode, ServerError
from pyspark_kafkalog.protocol.api.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from pyspark_kafkalog.protocol.exchange import ApiKey
from tests.support.client.scripted_broker import ScriptedBroker
from tests.support.client.scripted_log import TOPIC, DamagedLog, ScriptedLog, batches, serving
from tests.support.until import until

TP = TopicPartition(TOPIC, 0)


@contextmanager
def reading(log: ScriptedLog, **properties: object) -> Iterator[tuple[Consumer, ScriptedBroker]]:
    """A consumer of the log, at its first offset."""
    with serving(log) as broker:
        given = {name.replace("_", "."): value for name, value in properties.items()}
        config = {"bootstrap.servers": broker.address, "fetch.max.wait.ms": 10, **given}
        with Consumer(config) as consumer:
            consumer.assign([TP])
            consumer.seek(TP, 0)
            yield consumer, broker


def polled(consumer: Consumer, count: int) -> list[ConsumerRecord]:
    """So many records, or the more that come with the last of them."""
    found: list[ConsumerRecord] = []
    until(lambda: found.extend(consumer.poll(0.05)) or len(found) >= count)
    return found


def failing(code: ErrorCode, read_at: int = -1) -> FetchResponse:
    partition = PartitionData(error_code=code, records=b"", preferred_read_replica=read_at)
    return FetchResponse(responses=(FetchableTopicResponse(topic=TOPIC, partitions=(partition,)),))


def test_a_poll_gives_no_more_than_it_may_and_continues_where_it_stopped() -> None:
    log = ScriptedLog(batches(range(5), range(5, 12)), at_once=True)
    with reading(log, max_poll_records=3) as (consumer, _):
        assert [r.offset for r in consumer.poll(90.0)] == [0, 1, 2]
        assert consumer.position(TP) == 3
        assert [r.offset for r in consumer.poll(90.0, max_records=7)] == [3, 4, 5, 6, 7, 8, 9]
        assert [r.value for r in consumer.poll(90.0)] == [b"10", b"11"]
        assert consumer.position(TP) == 12


def test_offsets_that_compaction_took_away_are_passed() -> None:
    with reading(ScriptedLog(batches(range(0, 9, 4), range(20, 21)))) as (consumer, _):
        assert [r.offset for r in polled(consumer, 4)] == [0, 4, 8, 20]
        consumer.seek(TP, 5)
        assert [r.offset for r in polled(consumer, 2)] == [8, 20]


def test_the_records_before_a_corrupt_batch_are_given_and_then_it_is_an_error_until_it_is_passed() -> None:
    log = DamagedLog([batches(range(n, n + 2)) for n in range(0, 8, 2)])
    log.flip(2, -1)
    with reading(log) as (consumer, _):
        assert [r.offset for r in polled(consumer, 4)] == [0, 1, 2, 3]
        for _ in range(2):
            with pytest.raises(CorruptMessage, match="reading on from offset 4"):
                consumer.poll(90.0)
        assert consumer.position(TP) == 4
        consumer.seek(TP, 6)
        assert [r.offset for r in polled(consumer, 2)] == [6, 7]


def test_a_position_that_retention_took_away_is_reset_or_an_error() -> None:
    for policy, expected in (("earliest", [6, 7]), ("none", None)):
        log = ScriptedLog(batches(range(4), range(4, 6), range(6, 8)))
        log.keep(start=6)
        with reading(log, auto_offset_reset=policy) as (consumer, _):
            if expected is None:
                with pytest.raises(ServerError, match="has no offset 0"):
                    consumer.poll(90.0)
            else:
                assert [r.offset for r in polled(consumer, 2)] == expected


def test_a_leader_that_moves_and_a_connection_that_breaks_are_tried_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = ScriptedLog(batches(range(2), range(2, 4), range(4, 6)))
    caplog.set_level(logging.INFO)
    with reading(log, retry_backoff_ms=1) as (consumer, broker):
        broker.script(ApiKey.FETCH, failing(ErrorCode.NOT_LEADER_OR_FOLLOWER))
        assert [r.offset for r in polled(consumer, 6)] == list(range(6))
        assert "NOT_LEADER_OR_FOLLOWER; trying again" in caplog.text
        broker.cut_connections()
        log.append(batches(range(6, 8)))
        assert [r.offset for r in polled(consumer, 2)] == [6, 7]


def test_what_cannot_be_mended_is_raised() -> None:
    with reading(ScriptedLog(batches(range(2)))) as (consumer, broker):
        broker.script(ApiKey.FETCH, failing(ErrorCode.TOPIC_AUTHORIZATION_FAILED))
        with pytest.raises(ServerError, match="TOPIC_AUTHORIZATION_FAILED"):
            consumer.poll(90.0)
        assert [r.offset for r in polled(consumer, 2)] == [0, 1]


@pytest.mark.parametrize("failure", [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.OFFSET_OUT_OF_RANGE])
def test_a_client_in_a_rack_reads_where_the_leader_says_until_that_fails(failure: ErrorCode) -> None:
    log = ScriptedLog(batches(range(2), range(2, 4)))
    with (
        reading(log, client_rack="b", retry_backoff_ms=1) as (consumer, leader),
        ScriptedBroker(leader.layout, node_id=1) as follower,
    ):
        leader.script(ApiKey.FETCH, failing(ErrorCode.NONE, read_at=1))
        follower.script(ApiKey.FETCH, log.fetch, log.fetch, failing(failure))
        assert [r.offset for r in polled(consumer, 4)] == [0, 1, 2, 3]
        log.append(batches(range(4, 6)))
        assert [r.offset for r in polled(consumer, 2)] == [4, 5]
        assert [r.rack_id for r in follower.received(ApiKey.FETCH)] == [""] * 3
        assert [r.rack_id for r in leader.received(ApiKey.FETCH)][:2] == ["b", ""]
