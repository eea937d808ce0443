"""Topics that come, go and are made anew under a stream: checklist S3-S5, S14-S17, S22, S80."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from kafkalog_broker.embedded import EmbeddedBroker
from pyspark_kafkalog.client.admin import create_partitions, delete_topics
from pyspark_kafkalog.datasource.batch.batch_reader import KafkaInputPartition
from pyspark_kafkalog.datasource.reading.source_cluster import DataLoss
from pyspark_kafkalog.datasource.stream.stream_batches import FixedEndLost, OffsetsLost
from pyspark_kafkalog.errors import InvalidConfig, UnknownTopicOrPartition
from tests.support.client.scripted_log import ScriptedLog, batches, serving
from tests.support.datasource.spark_stream import Checkpoint, Died, Run
from tests.support.datasource.spark_topics import Topic

NewTopic = Callable[..., Topic]
Start = Callable[..., Run]
GoOn = {"failOnDataLoss": "false"}


@pytest.fixture
def delete(running_broker: EmbeddedBroker) -> Callable[[Topic], None]:
    return lambda topic: delete_topics(running_broker.bootstrap_servers, [topic.name])


def values(run: Run) -> list[list[int]]:
    return [b.values for b in run.batches()]


def test_s3_available_now_and_a_recreated_topic_with_fewer_partitions(
    new_topic: NewTopic, start: Start, delete: Callable[[Topic], None]
) -> None:
    topic = new_topic(3)
    topic.add(*range(15), partition=1)
    run = start(Checkpoint(), subscribe=topic.name, trigger="available_now", maxOffsetsPerTrigger="5", **GoOn)
    assert run.batch() is not None
    delete(topic)
    new_topic(1).add(*range(20))
    with pytest.raises(FixedEndLost, match=r"LOST_TOPIC_PARTITIONS_IN_END_OFFSET_WITH_TRIGGER_AVAILABLENOW"):
        run.batch()


def test_s4_available_now_and_a_recreated_topic_with_fewer_records(
    new_topic: NewTopic, start: Start, delete: Callable[[Topic], None]
) -> None:
    topic = new_topic()
    topic.add(*range(15))
    run = start(Checkpoint(), subscribe=topic.name, trigger="available_now", maxOffsetsPerTrigger="5", **GoOn)
    assert run.batch() is not None
    delete(topic)
    new_topic().add(*range(7))
    said = (
        r"THAN_LATEST_WITH_TRIGGER_AVAILABLENOW\] Partition .* of the batch ends at 10, and its log .* at 7"
    )
    with pytest.raises(FixedEndLost, match=said):
        run.batch()


def test_available_now_leaves_a_topic_that_is_recreated_in_its_run_to_the_next_run(
    new_topic: NewTopic, start: Start, delete: Callable[[Topic], None]
) -> None:
    topic, stays, checkpoint = new_topic(1, "-a"), new_topic(1, "-b"), Checkpoint()
    topic.add(1, 2, 3)
    stays.add(4, 5, 6)
    options = {
        "subscribe": f"{topic.name},{stays.name}", "trigger": "available_now", **GoOn,
        "maxOffsetsPerTrigger": "2",
    }  # fmt: skip
    run = start(checkpoint, **options)
    first = run.batch()
    assert first is not None
    assert first.values == [1, 4]
    delete(topic)
    new_topic(1, "-a").add(*range(11, 19))
    assert values(run) == [[5], [6]]
    assert [v for part in values(start(checkpoint, **options)) for v in part] == [*range(11, 19)]


@pytest.mark.parametrize("batch", [0, 1])
def test_s5_a_batch_that_was_not_committed_is_repeated_although_partitions_came(
    new_topic: NewTopic, start: Start, batch: int
) -> None:
    topic, checkpoint = new_topic(), Checkpoint()
    topic.add(*range(4))
    limited = {"trigger": "available_now", "maxOffsetsPerTrigger": "2"}
    run = start(checkpoint, subscribe=topic.name, **limited)
    for _ in range(batch):
        assert run.batch() is not None
    with pytest.raises(Died):
        run.batch(dies="running")
    create_partitions(run.reader._options.consumer.bootstrap_servers, {topic.name: 3})
    topic.add(9, partition=2)
    found = values(start(checkpoint, subscribe=topic.name, **limited))
    assert found[0] == [[0, 1], [2, 3]][batch]
    assert sorted(v for part in found for v in part) == ([0, 1, 2, 3, 9], [2, 3, 9])[batch]


def test_s14_one_topic_of_a_pattern_goes_and_another_comes(
    new_topic: NewTopic, start: Start, delete: Callable[[Topic], None], caplog: pytest.LogCaptureFixture
) -> None:
    first = new_topic(2, "-a")
    first.add(1)
    run = start(Checkpoint(), subscribePattern=first.name[:-1] + ".", **GoOn)
    assert values(run) == [[1]]
    delete(first)
    second = new_topic(1, "-b")
    second.add(2, 3)
    assert values(run) == [[2, 3]]
    assert run.checkpoint.end() == {second.name: {"0": 2}}
    assert f"Partitions [{first.name}-0, {first.name}-1] have been deleted" in caplog.text


def test_deleted_partitions_fail_the_query_if_it_shall_fail(
    new_topic: NewTopic, start: Start, delete: Callable[[Topic], None]
) -> None:
    first, second, checkpoint = new_topic(1, "-a"), new_topic(1, "-b"), Checkpoint()
    run = start(checkpoint, subscribe=f"{first.name},{second.name}")
    assert run.batch() is not None
    delete(first)
    second.add(5)
    with pytest.raises(
        OffsetsLost, match=rf"KAFKA_DATA_LOSS.PARTITIONS_DELETED\] Partitions \[{first.name}-0\]"
    ):
        run.batch()
    # Nothing was written down, so that the same checkpoint goes on once it may.
    assert checkpoint.end().keys() == {first.name, second.name}
    assert values(start(checkpoint, subscribe=f"{first.name},{second.name}", **GoOn)) == [[5]]


def test_s15_no_empty_offset_is_written_when_all_topics_are_gone(
    new_topic: NewTopic, start: Start, delete: Callable[[Topic], None]
) -> None:
    topic, checkpoint = new_topic(), Checkpoint()
    topic.add(1, 2)
    options = {"subscribePattern": topic.name + ".*", **GoOn}
    assert values(start(checkpoint, **options)) == [[1, 2]]
    delete(topic)
    run = start(checkpoint, **options)
    assert run.batches() == []
    assert checkpoint.end() == {topic.name: {"0": 2}}
    other = new_topic(1, "-later")
    other.add(3)
    assert values(run) == [[3]]
    assert checkpoint.end() == {other.name: {"0": 1}}


def test_a_pattern_may_match_nothing_yet(new_topic: NewTopic, start: Start, topic_name: str) -> None:
    run = start(Checkpoint(), subscribePattern=topic_name + ".*", startingOffsets="latest")
    assert values(run) == [[]]
    topic = new_topic(2)
    topic.add(1, partition=1)
    assert values(run) == [[1]]
    assert values(start(run.checkpoint, subscribePattern=topic_name + ".*")) == []


def test_a_topic_that_is_not_there_fails_the_start(start: Start, topic_name: str) -> None:
    with pytest.raises(UnknownTopicOrPartition, match=topic_name):
        start(Checkpoint(), subscribe=topic_name).batch()


@pytest.mark.parametrize("restarts", [False, True])
def test_s16_a_recreated_topic_with_fewer_records(
    new_topic: NewTopic, start: Start, delete: Callable[[Topic], None], restarts: bool
) -> None:
    topic, checkpoint = new_topic(), Checkpoint()
    topic.add(1, 2)
    run = start(checkpoint, subscribe=topic.name)
    assert values(run) == [[1, 2]]
    delete(topic)
    topic = new_topic()
    topic.add(3)
    run = start(checkpoint, subscribe=topic.name) if restarts else run
    with pytest.raises(OffsetsLost, match=r"Partition .*-0 offset was changed from 2 to 1\."):
        run.batch()
    going_on = start(checkpoint, subscribe=topic.name, **GoOn)
    assert values(going_on) == [[3]]  # Spark's connector, which knows no ids, begins after what is there
    topic.add(4)
    assert values(going_on) == [[4]]


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("records", [2, 50])
def test_a_recreated_topic_with_as_many_records_is_noticed_by_its_id(
    new_topic: NewTopic, start: Start, delete: Callable[[Topic], None], restarts: bool, records: int
) -> None:
    topic, checkpoint = new_topic(), Checkpoint()
    topic.add(1, 2)
    run = start(checkpoint, subscribe=topic.name)
    assert values(run) == [[1, 2]]
    delete(topic)
    topic = new_topic()
    topic.add(*range(10, 10 + records))
    run = start(checkpoint, subscribe=topic.name) if restarts else run
    said = rf"KAFKA_DATA_LOSS.TOPIC_RECREATED\] Topic {topic.name} was deleted and created again"
    with pytest.raises(OffsetsLost, match=said):
        run.batch()
    going_on = start(checkpoint, subscribe=topic.name, **GoOn)
    assert values(going_on) == [[*range(10, 10 + records)]]
    topic.add(99)
    assert values(start(checkpoint, subscribe=topic.name)) == [[99]]


@pytest.mark.parametrize("batch", [0, 1])
@pytest.mark.parametrize("trigger", ["processing", "available_now"])
def test_a_planned_batch_of_a_recreated_topic_is_not_read_from_the_new_one(
    new_topic: NewTopic, start: Start, delete: Callable[[Topic], None], batch: int, trigger: str
) -> None:
    gone, stays, checkpoint = new_topic(1, "-a"), new_topic(1, "-b"), Checkpoint()
    gone.add(1, 2)
    stays.add(3, 4)
    options = {"subscribe": f"{gone.name},{stays.name}", "maxOffsetsPerTrigger": "2", "trigger": trigger}
    run = start(checkpoint, **options)
    for _ in range(batch):
        assert run.batch() is not None
    with pytest.raises(Died):
        run.batch(dies="running")
    delete(gone)
    new_topic(1, "-a").add(11, 12, 13)
    with pytest.raises(OffsetsLost, match=rf"TOPIC_RECREATED\] Topic {gone.name} was"):
        start(checkpoint, **options).batch()
    found = values(start(checkpoint, **options, **GoOn))
    assert found[0] == [3 + batch]
    assert sorted(v for part in found[1:] for v in part) == [4, 11, 12, 13][batch:]


def test_a_topic_recreated_while_a_batch_runs_is_read_by_the_next_one(
    new_topic: NewTopic, start: Start, delete: Callable[[Topic], None]
) -> None:
    topic, checkpoint = new_topic(), Checkpoint()
    topic.add(1, 2)
    run = start(checkpoint, subscribe=topic.name, **GoOn)
    begin = run.reader.initialOffset()
    end = run.reader.latestOffset(begin, run.reader.getDefaultReadLimit())
    (task,) = run.reader.partitions(begin, end)
    delete(topic)
    new_topic().add(3, 4, 5)
    assert run._read(task) == []
    careful = start(Checkpoint(), subscribe=topic.name)
    with pytest.raises(DataLoss, match=rf"Could not read offsets \[0, 2\) of {topic.name}-0"):
        careful._read(task)
    checkpoint.ends, checkpoint.committed = [json.dumps(end)], 1
    assert values(start(checkpoint, subscribe=topic.name, **GoOn)) == [[3, 4, 5]]


@pytest.mark.parametrize("go_on", [False, True])
@pytest.mark.parametrize("remade", [None, 1])
def test_available_now_repeats_what_is_left_of_a_batch_whose_topic_is_gone_or_shorter(
    new_topic: NewTopic, start: Start, delete: Callable[[Topic], None], remade: int | None, go_on: bool
) -> None:
    gone, stays, checkpoint = new_topic(1, "-a"), new_topic(1, "-b"), Checkpoint()
    gone.add(0)
    options = {"subscribePattern": gone.name[:-1] + ".", "trigger": "available_now"}
    assert values(start(checkpoint, **options)) == [[0]]
    gone.add(1, 2)
    stays.add(3, 4)
    with pytest.raises(Died):
        start(checkpoint, **options).batch(dies="running")
    delete(gone)
    if remade is not None:
        new_topic(1, "-a").add(remade)
    stays.add(5)
    if go_on:
        assert values(start(checkpoint, **options, **GoOn)) == [
            [3, 4],
            [5] if remade is None else [remade, 5],
        ]
        return
    with pytest.raises(OffsetsLost, match=r"failOnDataLoss to false") as lost:
        start(checkpoint, **options).batch()
    assert ("PARTITIONS_DELETED" if remade is None else "changed from 3 to 1") in str(lost.value)


def test_an_offset_without_partitions_is_refused_where_topics_are_named(
    new_topic: NewTopic, start: Start
) -> None:
    topic = new_topic()
    topic.add(1)
    empty = Checkpoint(['{"version": 2, "offsets": {}, "topicIds": {}}'], committed=1)
    for named in ({"subscribe": topic.name}, {"assign": json.dumps({topic.name: [0]})}):
        with pytest.raises(InvalidConfig, match=rf"offset without partitions, .* reads {topic.name}: begin"):
            start(empty.copy(), **named).batch()
    assert values(start(empty.copy(), subscribePattern=topic.name)) == [[1]]


def test_s16_a_log_that_seems_shorter_for_a_moment_is_asked_again(
    new_topic: NewTopic, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topic()
    topic.add(1, 2, 3)
    run = start(Checkpoint(), subscribe=topic.name)
    assert values(run) == [[1, 2, 3]]
    lookup, asked = run.reader._driver._cluster, 0
    right = lookup.resolve

    def stale(offsets):  # type: ignore[no-untyped-def]
        nonlocal asked
        asked += 1
        return dict.fromkeys(offsets, 1) if asked <= 3 else right(offsets)

    monkeypatch.setattr(lookup, "resolve", stale)
    topic.add(4)
    assert [b.values for b in [run.batch()] if b] == [[4]]
    assert asked == 4  # fetchOffset.numRetries


def test_s17_a_topic_that_matches_later_is_read_from_its_beginning(new_topic: NewTopic, start: Start) -> None:
    first = new_topic(1, "-a")
    run = start(
        Checkpoint(),
        subscribePattern=first.name[:-1] + ".",
        startingOffsets=json.dumps({first.name: "latest"}),
    )
    assert values(run) == [[]]
    new_topic(2, "-b").add(1, 2, partition=1)
    assert values(run) == [[1, 2]]


def test_an_added_partition_that_does_not_begin_at_zero(
    new_topic: NewTopic, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, checkpoint = new_topic(1, "-a"), Checkpoint()
    pattern = {"subscribePattern": first.name[:-1] + "."}
    run = start(checkpoint, **pattern)
    assert values(run) == [[]]
    aged = new_topic(1, "-b")
    aged.add(*range(9))

    def aging(run: Run) -> Run:
        lookup = run.reader._driver._cluster
        right = lookup.resolve
        monkeypatch.setattr(
            lookup,
            "resolve",
            lambda asked: {
                p: 4 if asked[p] == -2 and p.topic == aged.name else o for p, o in right(asked).items()
            },
        )
        return run

    with pytest.raises(OffsetsLost, match=r"Added partition .*-b-0 starts from 4 instead of 0"):
        aging(run).batch()
    assert values(aging(start(checkpoint, **pattern, **GoOn))) == [[4, 5, 6, 7, 8]]


@pytest.mark.usefixtures("pauses_take_no_time")
def test_s22_a_topic_deleted_while_a_batch_runs(
    new_topic: NewTopic, start: Start, delete: Callable[[Topic], None]
) -> None:
    gone, stays = new_topic(1, "-a"), new_topic(1, "-b")
    gone.add(1)
    stays.add(2)
    options = {"subscribe": f"{gone.name},{stays.name}", "kafkaConsumer.pollTimeoutMs": "30000"}
    for go_on in (True, False):
        run = start(Checkpoint(), **options, failOnDataLoss=str(not go_on).lower())
        begin = run.reader.initialOffset()
        end = run.reader.latestOffset(begin, run.reader.getDefaultReadLimit())
        tasks = run.reader.partitions(begin, end)
        delete(gone)
        if go_on:
            assert [len(run._read(task)) for task in tasks] == [0, 1]
            new_topic(1, "-a").add(1)
        else:
            with pytest.raises(DataLoss, match=r"KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE"):
                run._read(tasks[0])


@pytest.mark.usefixtures("standing_clock")
@pytest.mark.parametrize("patience_ms", ["300", "1200"])
def test_s22_a_recreated_topic_with_fewer_records_while_a_batch_runs(
    new_topic: NewTopic, start: Start, delete: Callable[[Topic], None], patience_ms: str
) -> None:
    """The broker waits half a second for records that do not come; that is no broker that says nothing."""
    topic = new_topic()
    topic.add(1, 2, 3)
    run = start(Checkpoint(), subscribe=topic.name, **{"kafkaConsumer.pollTimeoutMs": patience_ms}, **GoOn)
    begin = run.reader.initialOffset()
    (task,) = run.reader.partitions(begin, run.reader.latestOffset(begin, run.reader.getDefaultReadLimit()))
    delete(topic)
    new_topic().add(4)
    assert isinstance(task, KafkaInputPartition)
    without_id = replace(task, topic_id="")  # as from a broker before Kafka 2.8
    assert [row.value for row in run._read(without_id)] == ["4"]


@pytest.fixture
def log() -> Iterator[tuple[ScriptedLog, str]]:
    """Offsets 3 to 29 of topic t: 0 to 2 have aged out."""
    log = ScriptedLog(batches(range(3, 10), range(10, 20), range(20, 30)), start=3)
    with serving(log) as broker:
        yield log, broker.address


def test_s80_what_retention_left_is_read_once(log: tuple[ScriptedLog, str]) -> None:
    options = {"kafka.bootstrap.servers": log[1], "subscribe": "t", "startingOffsets": '{"t":{"0":0}}'}
    columns = ("offset",)
    run = Run({**options, **GoOn}, Checkpoint(), columns=columns)
    run.batches()
    run.reader.stop()
    assert [o for batch in run.tables for o in batch.column("offset").to_pylist()] == list(range(3, 30))
    failing = Run(options, Checkpoint(), columns=columns)
    with pytest.raises(DataLoss, match=r"Could not read offsets \[0, 30\) of t-0: the log holds \[3, 30\)"):
        failing.batches()
    failing.reader.stop()


def test_s20_offsets_of_a_newer_release_stop_the_query(new_topic: NewTopic, start: Start) -> None:
    topic = new_topic()
    newer = Checkpoint([json.dumps({"version": 3, "offsets": {topic.name: {"0": 0}}})], committed=1)
    with pytest.raises(InvalidConfig, match="written by a newer one"):
        start(newer, subscribe=topic.name).batch()


def test_s19_a_checkpoint_of_sparks_own_connector_continues(new_topic: NewTopic, start: Start) -> None:
    topic = new_topic(2)
    topic.add(*range(5), partition=0)
    theirs = Checkpoint([f'{{"{topic.name}":{{"1":0,"0":3}}}}'], committed=1)
    assert values(start(theirs, subscribe=topic.name)) == [[3, 4]]
    kept = json.loads(theirs.ends[-1])
    assert kept["offsets"] == {topic.name: {"0": 5, "1": 0}}
    assert re.fullmatch(r"[\w-]{22}", kept["topicIds"][topic.name])


def test_offsets_without_ids_are_compared_as_sparks_connector_does(
    new_topic: NewTopic, start: Start, delete: Callable[[Topic], None]
) -> None:
    topic = new_topic()
    topic.add(1, 2)
    theirs = Checkpoint([json.dumps({topic.name: {"0": 2}})], committed=1)
    assert values(start(theirs, subscribe=topic.name)) == []
    delete(topic)
    new_topic().add(3)
    with pytest.raises(OffsetsLost, match=r"was changed from 2 to 1\."):
        start(theirs.copy(), subscribe=topic.name).batch()
    topic.add(4, 5)
    assert values(start(theirs, subscribe=topic.name)) == [[5]]
