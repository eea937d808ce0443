"""A topic that is deleted under kills and stops, and made again: it is whole, or gone for good."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import UUID

import pytest

from kafkalog_broker.embedded import EmbeddedCluster, start_cluster
from kafkalog_broker.logs.offset_records import CommittedOffset
from pyspark_kafkalog.client.admin import NewTopic, create_topics, delete_topics
from pyspark_kafkalog.client.groups import commit_offsets, committed_offsets
from pyspark_kafkalog.errors import KafkaError, TopicAlreadyExists, UnknownTopicOrPartition
from pyspark_kafkalog.types import TopicPartition
from tests.support.cluster_faults import LONG_SESSIONS, end_session
from tests.support.group.coordinators import Coordinators
from tests.support.log.faulty_files import PowerCut, VolatileFiles
from tests.support.log.logs import crash
from tests.support.stopping import stopped
from tests.support.until import until

PARTITIONS = [TopicPartition("r", number) for number in range(3)]
GROUPS = [f"group-{number}" for number in range(8)]


def test_a_broker_killed_at_any_step_of_a_deletion_has_all_of_the_topic_or_nothing(tmp_path: Path) -> None:
    ends = [_killed_after(step, tmp_path / str(step)) for step in range(60)]
    # Killed before anything was durable, in between, and not at all.
    assert ends == sorted(ends, key=["there", "gone", "deleted"].index)
    assert set(ends) == {"there", "gone", "deleted"}


def _killed_after(steps: int, directory: Path) -> str:
    """Delete a topic, with a kill after so many changes of the disk, and make it again."""
    directory.mkdir()
    files = VolatileFiles(directory)
    bench = Coordinators(directory, files=files)
    bench.logs.create_topic("r", topic_id := UUID(int=1), len(PARTITIONS))
    offsets = bench.restart().offsets
    for group in GROUPS[:2]:
        offsets.commit(group, {p: CommittedOffset(777, topic_id=topic_id) for p in PARTITIONS})
    files.stop_after, deleted = steps, False
    with contextlib.suppress(PowerCut):
        bench.logs.delete_topic("r", lambda: offsets.forget_topic("r", topic_id))
        deleted = True
    files.stop_after = None
    crash(bench.logs)

    bench = Coordinators(directory)
    offsets = bench.restart().offsets
    if "r" in bench.logs.topics:
        assert not deleted
        assert {p: v.offset for p, v in offsets.fetch(GROUPS[0]).items()} == dict.fromkeys(PARTITIONS, 777)
        bench.logs.close()
        return "there"
    bench.logs.create_topic("r", topic_id := UUID(int=2), len(PARTITIONS))
    for group in GROUPS[:2]:
        assert offsets.fetch(group) == {}
        offsets.commit(group, {PARTITIONS[0]: CommittedOffset(5, topic_id=topic_id)})
    offsets = bench.restart().offsets
    assert [offsets.fetch(group)[PARTITIONS[0]].offset for group in GROUPS[:2]] == [5, 5]
    bench.logs.close()
    return "deleted" if deleted else "gone"


@pytest.mark.long("brokers that are killed and stopped")
def test_a_new_topic_has_no_offsets_of_the_deleted_one_at_any_broker() -> None:
    _delete_under_faults(seed=1, rounds=5)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 104))
def test_many_new_topics_have_no_offsets_of_the_deleted_ones(seed: int) -> None:
    _delete_under_faults(seed, rounds=25)


def _delete_under_faults(seed: int, rounds: int) -> None:
    rng = random.Random(seed)
    own = {"auto.create.topics.enable": False, "offsets.topic.num.partitions": 8, **LONG_SESSIONS}
    with start_cluster(2, own) as cluster, ThreadPoolExecutor(1) as other:
        servers = cluster.bootstrap_servers
        for number in range(rounds):
            create_topics(servers, [NewTopic("r", len(PARTITIONS))])
            for group in GROUPS:
                commit_offsets(servers, group, dict.fromkeys(PARTITIONS, 777))
            deletion = other.submit(_delete, servers)
            time.sleep(rng.uniform(0, 0.03))  # no event is waited for: any step of the deletion may be hit
            _strike(cluster, rng.choice((1, 2)), rng)
            deletion.result(120)
            _until_done(lambda: create_topics(servers, [NewTopic("r", len(PARTITIONS))]), TopicAlreadyExists)
            for group in GROUPS:
                assert committed_offsets(servers, group) == {}, f"round {number} of seed {seed}"
                commit_offsets(servers, group, dict.fromkeys(PARTITIONS, 5))
            for broker in cluster.brokers.values():
                broker.restart()
            for group in GROUPS:
                found = committed_offsets(servers, group)
                assert {p: one.offset for p, one in found.items()} == dict.fromkeys(PARTITIONS, 5)
            _delete(servers)


def _delete(servers: str) -> None:
    _until_done(lambda: delete_topics(servers, ["r"]), UnknownTopicOrPartition)


def _strike(cluster: EmbeddedCluster, number: int, rng: random.Random) -> None:
    broker = cluster.brokers[number]
    if rng.random() < 0.5:
        with stopped(broker.pid):
            time.sleep(rng.uniform(0, 0.5))  # as long as the deletion goes on without it
    else:
        broker.kill()
        end_session(cluster, number)
        broker.start()


def _until_done(ask: Callable[[], object], done_before: type[KafkaError]) -> None:
    """Ask until it is acknowledged, or an earlier attempt that was not turns out to have succeeded."""

    def attempt() -> bool:
        try:
            ask()
        except done_before:
            return True
        except KafkaError as e:
            return not e.retriable
        return True

    until(attempt, seconds=120)
