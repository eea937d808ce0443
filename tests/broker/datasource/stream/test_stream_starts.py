"""Where streams begin, and that they go on there: checklist S39-S72, each start with each subscription."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from pyspark_kafkalog.client.admin import create_partitions
from pyspark_kafkalog.errors import InvalidConfig
from tests.support.datasource.spark_stream import Checkpoint, Run
from tests.support.datasource.spark_topics import Topic

NewTopic = Callable[..., Topic]
Start = Callable[..., Run]

TIMES = {0: 1000, 1: 2000, 2: 2500, 3: 3000, 4: 1500}
STARTS = {
    "latest": ({"startingOffsets": "latest"}, {}),
    "earliest": ({"startingOffsets": "earliest"}, dict.fromkeys(range(5), 0)),
    "offsets": ({"startingOffsets": {0: -2, 1: -1, 2: 0, 3: 1, 4: 2}}, {0: 0, 2: 0, 3: 1, 4: 2}),
    "times": ({"startingOffsetsByTimestamp": TIMES}, {0: 0, 1: 1, 2: 2, 3: 2, 4: 1}),
    "time": ({"startingTimestamp": "2000"}, dict.fromkeys(range(5), 1)),
}
"""Options, and the first record that is read of each partition; each has three, at 1000, 2000 and 3000 ms."""


def subscription(kind: str, topic: Topic) -> dict[str, str]:
    if kind == "assign":
        return {"assign": json.dumps({topic.name: list(range(5))})}
    return {"subscribe": topic.name} if kind == "subscribe" else {"subscribePattern": topic.name[:-3] + ".*"}


def options_of(start: str, topic: Topic) -> dict[str, str]:
    return {
        name: value if isinstance(value, str) else json.dumps({topic.name: value})
        for name, value in STARTS[start][0].items()
    }


def filled(topic: Topic) -> Topic:
    for partition in range(5):
        topic.add(*(100 * partition + i for i in range(3)), partition=partition, timestamp=1000, step=1000)
    return topic


@pytest.mark.long("a query beside topics that come and go")
@pytest.mark.parametrize("fail_on_data_loss", ["true", "false"])
@pytest.mark.parametrize("begins", list(STARTS))
@pytest.mark.parametrize("subscribes", ["assign", "subscribe", "subscribePattern"])
def test_s39_to_s68_a_stream_begins_where_configured_and_continues(
    new_topic: NewTopic, start: Start, subscribes: str, begins: str, fail_on_data_loss: str
) -> None:
    topic = filled(new_topic(5))
    options = {
        **subscription(subscribes, topic), **options_of(begins, topic), "failOnDataLoss": fail_on_data_loss
    }  # fmt: skip
    checkpoint = Checkpoint()
    first = start(checkpoint, **options).batches()
    expected = [100 * p + i for p, begin in STARTS[begins][1].items() for i in range(begin, 3)]
    assert [batch.values for batch in first] == [expected]  # an empty one too, where it begins at latest
    run = start(checkpoint, **options)
    assert run.batches() == []
    topic.add(7001, partition=0)
    topic.add(7002, partition=4)
    assert [b.values for b in run.batches()] == [[7001, 7002]]
    # Stopped; and records come meanwhile.
    topic.add(8001, partition=1)
    run = start(checkpoint, **options)
    assert [b.values for b in run.batches()] == [[8001]]
    create_partitions(options_servers(run), {topic.name: 10})
    topic.add(9001, partition=0)
    topic.add(9005, 9006, partition=5)
    topic.add(9009, partition=9)
    new = [] if subscribes == "assign" else [9005, 9006, 9009]
    assert [b.values for b in run.batches()] == [[9001, *new]]
    topic.add(9100, partition=9)
    assert [b.values for b in start(checkpoint, **options).batches()] == ([[9100]] if new else [])


def options_servers(run: Run) -> str:
    return run.reader._options.consumer.bootstrap_servers


def test_s69_offsets_by_partition_may_mix_numbers_and_placeholders(new_topic: NewTopic, start: Start) -> None:
    topic, checkpoint = filled(new_topic(5)), Checkpoint()
    run = start(checkpoint, subscribe=topic.name, **options_of("offsets", topic))
    assert [(r.partition, r.offset) for r in run.rows()] == [
        (0, 0), (0, 1), (0, 2), (2, 0), (2, 1), (2, 2), (3, 1), (3, 2), (4, 2)
    ]  # fmt: skip
    assert checkpoint.end() == {topic.name: {str(p): 3 for p in range(5)}}


def test_s70_a_whole_topic_may_be_named_earliest_or_latest(new_topic: NewTopic, start: Start) -> None:
    old, new = filled(new_topic(5, "-old")), filled(new_topic(5, "-new"))
    run = start(
        Checkpoint(),
        subscribe=f"{old.name},{new.name}",
        startingOffsets=json.dumps({old.name: "earliest", new.name: "latest"}),
    )
    assert {r.topic for r in run.rows()} == {old.name}
    new.add(5, partition=2)
    old.add(6, partition=2)
    assert [b.values for b in run.batches()] == [[5, 6]]


@pytest.mark.parametrize(
    ("strategy", "subscribes", "by_partition"),
    [
        ({}, "subscribe", True),
        ({"startingOffsetsByTimestampStrategy": "error"}, "subscribePattern", False),
    ],
)
def test_s71_no_record_at_the_time_is_an_error(
    new_topic: NewTopic, start: Start, strategy: dict[str, str], subscribes: str, by_partition: bool
) -> None:
    topic = filled(new_topic(5))
    run = start(Checkpoint(), **subscription(subscribes, topic), **after_all(topic, by_partition), **strategy)
    with pytest.raises(
        InvalidConfig, match=r"No offset matched from request of topic-partition .*-0 and tim"
    ):
        run.batches()


@pytest.mark.parametrize(("subscribes", "by_partition"), [("subscribe", False), ("subscribePattern", True)])
def test_s72_strategy_latest_begins_at_the_end_instead(
    new_topic: NewTopic, start: Start, subscribes: str, by_partition: bool
) -> None:
    topic = filled(new_topic(5))
    run = start(
        Checkpoint(),
        **subscription(subscribes, topic),
        **after_all(topic, by_partition),
        startingOffsetsByTimestampStrategy="latest",
    )
    assert [b.values for b in run.batches()] == [[]]
    topic.add(5, partition=3)
    assert [b.values for b in run.batches()] == [[5]]


def after_all(topic: Topic, by_partition: bool) -> dict[str, str]:
    if not by_partition:
        return {"startingTimestamp": "5000"}
    return {"startingOffsetsByTimestamp": json.dumps({topic.name: dict.fromkeys(range(5), 5000)})}
