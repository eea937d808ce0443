"""Where a query began is kept until its first batch is done (S6), and its group is told each batch's end."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kafkalog_broker.embedded import EmbeddedBroker
from pyspark_kafkalog.client.admin import create_partitions, delete_topics
from pyspark_kafkalog.client.discovery import Cluster
from pyspark_kafkalog.client.groups import commit_offsets, committed_offsets
from pyspark_kafkalog.datasource.reading.kafka import KafkaCluster
from pyspark_kafkalog.datasource.stream.lag_listener import LagListener
from pyspark_kafkalog.datasource.stream.stream_batches import OffsetsLost
from pyspark_kafkalog.errors import InvalidConfig
from pyspark_kafkalog.types import TopicPartition
from pyspark_kafkalog.zookeeper.paths import JsonLayout
from pyspark_kafkalog.zookeeper.session import ZooKeeperSession
from tests.support.datasource.spark_stream import Checkpoint, Died, Run
from tests.support.datasource.spark_topics import Topic

NewTopic = Callable[..., Topic]
Start = Callable[..., Run]

LATEST = {"startingOffsets": "latest"}


@pytest.fixture(params=["file", "group"])
def kept(request: pytest.FixtureRequest, tmp_path: Path, topic_name: str) -> dict[str, str]:
    """Options that keep a start: in a file, or among a group's offsets."""
    if request.param == "file":
        return {"offsetsPath": str(tmp_path / "starts"), "streamName": "query"}
    return {"kafka.group.id": topic_name, "commitOffsets": "group"}


def values(run: Run) -> list[list[int]]:
    return [b.values for b in run.batches()]


def committed(cluster: Cluster, group: str) -> dict[str, tuple[int, str]]:
    found = committed_offsets(cluster, group)
    return {str(p.partition): (one.offset, one.metadata) for p, one in sorted(found.items())}


@pytest.mark.parametrize(("begins", "dies"), [("latest", "running"), ("time", "committing")])
def test_s6_a_first_batch_is_repeated_from_where_it_began(
    new_topic: NewTopic, start: Start, kept: dict[str, str], begins: str, dies: str
) -> None:
    topic, checkpoint = new_topic(2), Checkpoint()
    topic.add(1, 2)
    late = {"startingTimestamp": "5000", "startingOffsetsByTimestampStrategy": "latest"}
    options = {"subscribe": topic.name, **(LATEST if begins == "latest" else late), **kept}
    run = start(checkpoint, **options)
    first = run.reader.initialOffset()
    topic.add(3, 4)  # between the two: it is in the first batch
    with pytest.raises(Died):
        run.batch(dies=dies)
    topic.add(5)
    again = start(checkpoint, **options)
    assert values(again) == [[3, 4], [5]]
    assert again.reader.initialOffset()["offsets"] == first["offsets"]


def test_a_first_batch_of_a_topic_recreated_since_its_start_was_kept(
    new_topic: NewTopic, start: Start, tmp_path: Path, running_broker: EmbeddedBroker
) -> None:
    topic = new_topic()
    topic.add(1, 2)
    options = {"subscribe": topic.name, **LATEST, "offsetsPath": str(tmp_path), "streamName": "query"}
    with pytest.raises(Died):
        start(Checkpoint(), **options).batch(dies="planning")
    delete_topics(running_broker.bootstrap_servers, [topic.name])
    new_topic().add(3, 4, 5)
    with pytest.raises(OffsetsLost, match=r"TOPIC_RECREATED\]"):
        start(Checkpoint(), **options).batch()
    assert values(start(Checkpoint(), **options, failOnDataLoss="false")) == [[3, 4, 5]]


def test_s6_without_a_place_a_warning_says_what_may_happen(
    new_topic: NewTopic, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    topic = new_topic()
    for options, warned in (({}, 0), (LATEST, 1), ({"startingOffsets": topic.offsets(p0=0)}, 0)):
        caplog.clear()
        start(Checkpoint(), subscribe=topic.name, **options).batch()
        assert caplog.text.count("is resolved now and kept nowhere") == warned


def test_a_repeated_first_batch_whose_start_nobody_kept_is_data_loss(
    new_topic: NewTopic, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    topic, checkpoint = new_topic(), Checkpoint()
    topic.add(1)
    options = {"subscribe": topic.name, **LATEST}
    with pytest.raises(Died):
        start(checkpoint, **options).batch(dies="running")
    topic.add(2)
    said = r"START_OF_FIRST_BATCH_NOT_KEPT\] .* It ends at \[1\] in .*, and startingOffsets now means \[2\]"
    with pytest.raises(OffsetsLost, match=said):
        start(checkpoint, **options).batch()
    assert values(start(checkpoint, **options, failOnDataLoss="false")) == [[], [2]]
    assert "the start of the query was not kept" in caplog.text


def test_a_query_with_a_new_checkpoint_starts_over(
    new_topic: NewTopic, start: Start, kept: dict[str, str]
) -> None:
    topic = new_topic()
    topic.add(1)
    options = {"subscribe": topic.name, **LATEST, **kept}
    run = start(Checkpoint(), **options)
    assert values(run) == [[]]
    topic.add(2)
    assert values(run) == [[2]]
    topic.add(3)
    assert values(start(Checkpoint(), **options)) == [[]]


def test_a_start_is_spent_when_a_restarted_query_continues(
    new_topic: NewTopic, start: Start, kept: dict[str, str]
) -> None:
    topic, checkpoint = new_topic(), Checkpoint()
    topic.add(1)
    options = {"subscribe": topic.name, **kept}
    assert start(checkpoint, **options).batch() is not None
    # The process ended before Spark asked again; the next one is asked for the second batch at once.
    assert values(start(checkpoint, **options)) == []
    topic.add(2)
    assert values(start(Checkpoint(), **{**options, **LATEST})) == [[]]


def test_a_query_that_died_before_anything_was_planned_begins_where_it_began(
    new_topic: NewTopic, start: Start, kept: dict[str, str]
) -> None:
    topic, checkpoint = new_topic(), Checkpoint()
    options = {"subscribe": topic.name, **LATEST, **kept}
    with pytest.raises(Died):
        start(checkpoint, **options).batch(dies="planning")
    topic.add(1)
    assert values(start(checkpoint, **options)) == [[1]]


def test_s6_partitions_that_came_since_do_not_change_a_first_batch_that_was_kept(
    new_topic: NewTopic, start: Start, kept: dict[str, str]
) -> None:
    topic, checkpoint = new_topic(2), Checkpoint()
    topic.add(1, 2)
    options = {"subscribe": topic.name, **LATEST, **kept}
    run = start(checkpoint, **options)
    run.reader.initialOffset()
    topic.add(3)
    with pytest.raises(Died):
        run.batch(dies="running")
    create_partitions(run.reader._options.consumer.bootstrap_servers, {topic.name: 3})
    topic.add(4, partition=2)
    assert values(start(checkpoint, **options)) == [[3], [4]]


def test_s6_a_half_stored_start_does_not_count(
    new_topic: NewTopic,
    start: Start,
    cluster: Cluster,
    topic_name: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is missing is no new partition, to be read from its first record on."""
    topic, checkpoint = new_topic(2), Checkpoint()
    topic.add(1)
    topic.add(2, partition=1)
    options = {"subscribe": topic.name, **LATEST, "kafka.group.id": topic_name, "commitOffsets": "group"}

    def half(
        lookup: KafkaCluster, group: str, positions: dict[TopicPartition, int], *, metadata: str = ""
    ) -> None:
        commit_offsets(cluster, group, {p: positions[p] for p in list(positions)[:1]}, metadata=metadata)
        raise Died

    with monkeypatch.context() as cut:
        cut.setattr(KafkaCluster, "commit_group", half)
        with pytest.raises(Died):
            start(checkpoint, **options).batch()
    assert committed(cluster, topic_name) == {"0": (1, "kafkalog start 2:2")}
    run = start(checkpoint, **options)
    begun = run.reader.initialOffset()["offsets"]
    assert begun == {topic.name: {"0": 1, "1": 1}}
    assert "has 1 of 2 partitions and does not count" in caplog.text
    topic.add(3)
    with pytest.raises(Died):
        run.batch(dies="running")
    topic.add(4)
    assert values(start(checkpoint, **options)) == [[3], [4]]


def test_a_start_of_a_newer_version_is_reported(
    new_topic: NewTopic, start: Start, cluster: Cluster, topic_name: str
) -> None:
    topic = new_topic(2)
    options = {"subscribe": topic.name, **LATEST, "kafka.group.id": topic_name, "commitOffsets": "group"}
    places = {TopicPartition(topic.name, 0): 1, TopicPartition(topic.name, 1): 0}
    commit_offsets(cluster, topic_name, places, metadata="kafkalog start 3:x")
    with pytest.raises(InvalidConfig, match=r"in version 3 .* knows 2 at most: use the newer one"):
        start(Checkpoint(), **options).batch()


def test_partitions_that_came_before_the_repeated_first_batch_are_not_a_loss(
    new_topic: NewTopic, start: Start
) -> None:
    """Without a place the start is resolved anew, and has the new topic; the planned end has not."""
    topic, checkpoint = new_topic(1, "-a"), Checkpoint()
    topic.add(1)
    pattern = {"subscribePattern": topic.name[:-1] + "."}
    with pytest.raises(Died):
        start(checkpoint, **pattern).batch(dies="running")
    new_topic(1, "-b").add(2)
    assert values(start(checkpoint, **pattern)) == [[1], [2]]


def test_a_name_of_a_load_is_refused(new_topic: NewTopic, start: Start, tmp_path: Path) -> None:
    (tmp_path / "query").mkdir()
    (tmp_path / "query" / "load.json").write_text("{}")
    run = start(
        Checkpoint(), subscribe=new_topic().name, offsetsPath=str(tmp_path), streamName="query", **LATEST
    )
    with pytest.raises(InvalidConfig, match="is the ledger of a load; give the stream another name"):
        run.batch()


def test_a_damaged_start_stops_the_query(new_topic: NewTopic, start: Start, tmp_path: Path) -> None:
    topic = new_topic()
    options = {"subscribe": topic.name, "offsetsPath": str(tmp_path), "streamName": "query"}
    with pytest.raises(Died):
        start(Checkpoint(), **options).batch(dies="running")
    (record,) = (tmp_path / "query").glob("*.json")
    assert record.name == "start-00000001.json"
    assert json.loads(record.read_text())["offsets"] == {topic.name: {"0": 0}}
    record.write_text("{")
    with pytest.raises(InvalidConfig, match=r"start-00000001\.json does not say where the stream began"):
        start(Checkpoint(), **options).batch()


def test_the_group_gets_the_offsets_of_each_finished_batch(
    new_topic: NewTopic, start: Start, cluster: Cluster, topic_name: str
) -> None:
    topic, checkpoint = new_topic(2), Checkpoint()
    topic.add(*range(6))
    options = {
        "subscribe": topic.name, "kafka.group.id": topic_name, "commitOffsets": "group",
        "maxOffsetsPerTrigger": "4",
    }  # fmt: skip
    run = start(checkpoint, **options)
    assert run.batch() is not None
    assert committed(cluster, topic_name) == dict.fromkeys("01", (0, "kafkalog start 2:2"))
    assert run.batch() is not None
    assert committed(cluster, topic_name) == {"0": (4, ""), "1": (0, "")}
    assert run.batch() is None  # Spark has asked for more, so the second one is done
    assert committed(cluster, topic_name) == {"0": (6, ""), "1": (0, "")}


def test_a_stream_may_begin_where_its_group_is(
    new_topic: NewTopic, start: Start, cluster: Cluster, topic_name: str
) -> None:
    topic = new_topic(2)
    topic.add(*range(5))
    topic.add(10, partition=1)
    commit_offsets(cluster, topic_name, {TopicPartition(topic.name, 0): 3})
    run = start(
        Checkpoint(),
        subscribe=topic.name,
        startingOffsets="group",
        commitOffsets="group",
        **{"kafka.group.id": topic_name},
    )
    assert values(run) == [[3, 4, 10]]


def test_the_listener_tells_the_group_the_last_batch(
    new_topic: NewTopic, start: Start, cluster: Cluster, topic_name: str
) -> None:
    topic, other = new_topic(2, "-a"), new_topic(1, "-b")
    topic.add(*range(6))
    options = {"subscribe": topic.name, "kafka.group.id": topic_name}
    run = start(Checkpoint(), **options)
    batch = run.batch()
    assert batch is not None
    assert run.batches() == []
    assert committed(cluster, topic_name) == {}, "without commitOffsets"
    listener = LagListener(commit=run._options)
    with_others = json.loads(run.checkpoint.ends[-1])
    with_others["offsets"][other.name] = {"0": 7}
    listener.onQueryProgress(progress(json.dumps(with_others), json.dumps(batch.latest)))
    assert committed(cluster, topic_name) == {"0": (6, ""), "1": (0, "")}
    assert [lag.max_offsets_behind for lag in listener.lags()] == [0]


def progress(end: str, latest: str) -> Any:
    source = SimpleNamespace(endOffset=end, latestOffset=latest)
    return SimpleNamespace(progress=SimpleNamespace(id="q", name=None, batchId=0, sources=[source]))


def test_a_group_commit_that_fails_does_not_stop_the_query(
    new_topic: NewTopic, start: Start, topic_name: str, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    topic = new_topic()
    topic.add(*range(2))
    place = {"offsetsPath": str(tmp_path), "streamName": "q", "commitOffsets": "group"}
    nowhere = {"offsetStore": "zookeeper", "zookeeper.connect": "127.0.0.1:1"}
    patience = {"kafka.zookeeper.connection.timeout.ms": "300"}
    run = start(
        Checkpoint(), subscribe=topic.name, **place, **nowhere, **patience, **{"kafka.group.id": topic_name}
    )
    assert values(run) == [[0, 1]]
    assert f"the offsets of this query are not committed to group {topic_name}" in caplog.text


def test_a_groups_offsets_may_be_in_zookeeper(
    new_topic: NewTopic, start: Start, topic_name: str, session: ZooKeeperSession, zookeeper_connect: str
) -> None:
    topic = new_topic()
    topic.add(*range(5))
    options = {
        "subscribe": topic.name, "kafka.group.id": topic_name, "commitOffsets": "group",
        "offsetStore": "zookeeper", "zk.connect": zookeeper_connect, "kafka.zookeeper.prefix": "/papers",
    }  # fmt: skip
    assert values(start(Checkpoint(), **options)) == [[0, 1, 2, 3, 4]]
    node = session.read(JsonLayout("/papers").offset(topic_name, topic.name, "0"))
    assert node is not None
    assert node.data == b"5"
    topic.add(5)
    assert values(start(Checkpoint(), **{**options, "startingOffsets": "group"})) == [[5]]
