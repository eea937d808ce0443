"""What the planner asks the cluster, and what it makes of the answers, good and bad."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from pyspark_kafkalog.datasource.batch.batch_reader import BatchReader, KafkaInputPartition
from pyspark_kafkalog.datasource.options.read_options import parse_batch_options
from pyspark_kafkalog.datasource.reading.kafka import KafkaCluster
from pyspark_kafkalog.errors import ErrorCode, KafkaError, ServerError, UnknownTopicOrPartition
from pyspark_kafkalog.protocol.api.metadata import MetadataResponseTopic
from pyspark_kafkalog.protocol.exchange import ApiKey
from pyspark_kafkalog.types import TopicPartition
from tests.support.client.scripted_broker import ScriptedBroker
from tests.support.client.scripted_log import ScriptedLog, batches, serving
from tests.support.client.scripted_server import Close

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.fixture
def broker() -> Iterator[ScriptedBroker]:
    with serving(ScriptedLog(batches(range(3, 30)), start=3)) as scripted:
        scripted.layout.leaders["t"] = {0: 0, 1: -1}
        yield scripted


def options(broker: ScriptedBroker, **given: str) -> Any:
    known = {"kafka.bootstrap.servers": broker.address, "kafka.retry.backoff.ms": "1"}
    if not given.keys() & {"assign", "subscribePattern"}:
        known["subscribe"] = "t"
    return parse_batch_options({**known, "fetchOffset.retryIntervalMs": "1", **given})


@pytest.fixture
def lookup(broker: ScriptedBroker) -> Iterator[KafkaCluster]:
    asked = options(broker)
    opened = KafkaCluster(asked, asked.consumer)
    yield opened
    opened.close()


def leaders(broker: ScriptedBroker, **given: str) -> Any:
    asked = options(broker, **given)
    lookup = KafkaCluster(asked, asked.consumer)
    try:
        return lookup.leaders()
    finally:
        lookup.close()


def test_every_partition_comes_with_its_leader_or_none(broker: ScriptedBroker) -> None:
    assert leaders(broker) == {T0: 0, T1: -1}
    assert leaders(broker, assign='{"t":[1]}') == {T1: -1}
    assert leaders(broker, subscribePattern="t|u") == {T0: 0, T1: -1}
    assert leaders(broker, subscribePattern="nothing") == {}


def test_a_pattern_does_not_match_internal_topics(broker: ScriptedBroker) -> None:
    broker.layout.leaders["__consumer_offsets"] = {0: 0}

    def with_internal(request: Any) -> Any:
        answer = broker.layout.metadata(request)
        topics = tuple(replace(t, is_internal=t.name.startswith("__")) for t in answer.topics)
        return replace(answer, topics=topics)

    broker.default(ApiKey.METADATA, with_internal)
    assert set(leaders(broker, subscribePattern=".*")) == {T0, T1}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"subscribe": "t,gone"}, "topic 'gone' is not on 127.0.0.1:"),
        ({"assign": '{"t":[0,7],"gone":[1]}'}, "topic 'gone' is not on"),
        ({"assign": '{"t":[0,7,9]}'}, "assigned partitions are not there: t-7, t-9"),
    ],
)
def test_what_is_not_there_is_named_after_all_retries(
    broker: ScriptedBroker, given: dict[str, str], said: str
) -> None:
    with pytest.raises(UnknownTopicOrPartition) as raised:
        leaders(broker, **given)
    assert said in str(raised.value)
    assert broker.connection_count == 1 + 3
    with pytest.raises(UnknownTopicOrPartition):
        leaders(broker, **given, **{"fetchOffset.numRetries": "1"})
    assert broker.connection_count == 4 + 2


def test_r16_a_topic_without_partitions_is_an_error(broker: ScriptedBroker) -> None:
    broker.layout.leaders["t"] = {}
    with pytest.raises(UnknownTopicOrPartition, match="topic 't' is not on"):
        leaders(broker)


def test_a_topic_that_appears_meanwhile_is_found_over_a_new_connection(broker: ScriptedBroker) -> None:
    late = replace(broker.layout.metadata(_Everything), topics=(
        MetadataResponseTopic(name="t", error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ))  # fmt: skip
    broker.script(ApiKey.METADATA, late, late)
    assert leaders(broker) == {T0: 0, T1: -1}
    assert broker.connection_count == 3


def test_what_will_not_pass_is_not_asked_again(broker: ScriptedBroker) -> None:
    answer = replace(broker.layout.metadata(_Everything), topics=(
        MetadataResponseTopic(name="t", error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED),
    ))  # fmt: skip
    broker.default(ApiKey.METADATA, answer)
    with pytest.raises(ServerError, match=r"topic 't' on 127.*: this needs Describe on topic t$"):
        leaders(broker)
    assert broker.connection_count == 1


def test_a_lost_connection_during_a_look_up_is_recreated(
    broker: ScriptedBroker, lookup: KafkaCluster
) -> None:
    broker.script(ApiKey.LIST_OFFSETS, Close())
    assert lookup.offsets({T0: -1}) == {T0: 30}
    assert broker.connection_count == 2


def test_a_plan_names_each_partition_with_its_leader_and_keeps_placeholders(broker: ScriptedBroker) -> None:
    assert BatchReader(options(broker), ("value",)).partitions() == [
        KafkaInputPartition("t", 0, -2, -1, 0),
        KafkaInputPartition("t", 1, -2, -1, -1),
    ]
    assert broker.received(ApiKey.LIST_OFFSETS) == []


def test_a_plan_that_splits_asks_for_each_end_of_all_logs_at_once(broker: ScriptedBroker) -> None:
    broker.layout.leaders["t"] = dict.fromkeys(range(50), 0)
    split = BatchReader(options(broker, maxRecordsPerPartition="9"), ("value",)).partitions()
    assert len(split) == 150
    assert [(p.start, p.end) for p in split[:3]] == [(-2, 12), (12, 21), (21, -1)]  # type: ignore[attr-defined]
    assert len(broker.received(ApiKey.METADATA)) == 1
    asked = [request.topics[0].partitions for request in broker.received(ApiKey.LIST_OFFSETS)]
    assert [len(partitions) for partitions in asked] == [50, 50]


def test_a_plan_of_no_topic_is_empty(broker: ScriptedBroker) -> None:
    empty = BatchReader(options(broker, subscribePattern="nothing", minPartitions="4"), ("value",))
    assert empty.partitions() == []


def test_a_partition_without_a_leader_is_read_once_there_is_one(broker: ScriptedBroker) -> None:
    leaderless = broker.layout.metadata(_Everything)
    leaderless = replace(leaderless, topics=(replace(
        leaderless.topics[0],
        partitions=tuple(replace(p, leader_id=-1) for p in leaderless.topics[0].partitions),
    ),))  # fmt: skip
    broker.script(ApiKey.METADATA, leaderless, leaderless)
    rows = BatchReader(options(broker), ("offset",)).read(KafkaInputPartition("t", 0, 10, 20, -1))
    assert [offset for batch in rows for offset in batch["offset"].to_pylist()] == list(range(10, 20))


@pytest.mark.usefixtures("pauses_take_no_time")
def test_a_partition_that_never_gets_a_leader_is_reported_when_time_is_up(broker: ScriptedBroker) -> None:
    patience = options(broker, **{"kafkaConsumer.pollTimeoutMs": "30000"})
    rows = BatchReader(patience, ("offset",)).read(KafkaInputPartition("t", 1, 10, 20, -1))
    with pytest.raises(KafkaError, match="t-1 has no leader"):
        list(rows)


class _Everything:
    """A request for all topics."""

    topics = None
