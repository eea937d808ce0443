"""The registries of brokers and groups in a real ZooKeeper, in both spellings."""

from __future__ import annotations

import queue
import threading

import pytest

from pyspark_kafkalog.errors import InvalidConfig
from pyspark_kafkalog.zookeeper import registries
from pyspark_kafkalog.zookeeper.paths import (
    BrokerNode,
    ConsumerSubscription,
    JsonLayout,
    MalformedNode,
    PartitionNode,
    RegistryLayout,
    V07Layout,
)
from pyspark_kafkalog.zookeeper.session import ZooKeeperSession
from tests.support.until import until
from tests.support.zookeeper import expire, patient_session

CONSUMER = "g_host-1300000000123-0123abcd"


@pytest.fixture(params=[V07Layout("/"), JsonLayout("/kafka")], ids=["plain", "json"])
def layout(request: pytest.FixtureRequest) -> RegistryLayout:
    found: RegistryLayout = request.param
    return found


def show(session: ZooKeeperSession, layout: RegistryLayout, node: BrokerNode, **topics: int) -> None:
    """Register a broker with its topics."""
    session.create(layout.broker(node.id), layout.write_broker(node), ephemeral=True)
    for topic, count in topics.items():
        for path, data in layout.topic_nodes(topic, node.id, count).items():
            session.create(path, data, ephemeral=True)


def test_brokers_and_their_partitions_are_found_while_they_live(
    session: ZooKeeperSession, other: ZooKeeperSession, layout: RegistryLayout
) -> None:
    assert registries.brokers(session, layout) == {}
    assert registries.partitions(session, layout, "clicks") == []
    node = BrokerNode(2, "kafka2", 9092, 7)
    show(other, layout, node, clicks=2, views=1)
    assert registries.brokers(session, layout) == {2: node}
    assert registries.topics(session, layout) == ["clicks", "views"]
    names = [layout.partition_name(2, n) for n in (0, 1)]
    assert registries.partitions(session, layout, "clicks") == [
        PartitionNode(names[0], 2, 0), PartitionNode(names[1], 2, 1),
    ]  # fmt: skip
    other.close()
    assert registries.brokers(session, layout) == {}
    assert registries.partitions(session, layout, "clicks") == []


def test_in_07_each_broker_brings_its_own_partitions(session: ZooKeeperSession) -> None:
    layout = V07Layout()
    show(session, layout, BrokerNode(10, "b", 9092), clicks=1)
    show(session, layout, BrokerNode(2, "a", 9092), clicks=2)
    assert [p.name for p in registries.partitions(session, layout, "clicks")] == ["10-0", "2-0", "2-1"]


def test_what_cannot_be_read_is_left_out_and_reported(
    session: ZooKeeperSession, caplog: pytest.LogCaptureFixture
) -> None:
    layout = V07Layout()
    show(session, layout, BrokerNode(1, "a", 9092), clicks=1)
    session.create(layout.broker(2), b"nonsense")
    session.create(f"{layout.topic('clicks')}/2", b"many")
    session.create(f"{layout.brokers}/x", b"h:1")
    assert list(registries.brokers(session, layout)) == [1]
    assert [p.name for p in registries.partitions(session, layout, "clicks")] == ["1-0"]
    assert "/brokers/ids/2 is skipped" in caplog.text
    assert "/brokers/topics/clicks/2 is skipped" in caplog.text


def test_a_producer_watches_four_kinds_of_znodes(session: ZooKeeperSession, other: ZooKeeperSession) -> None:
    """A broker comes, a broker goes, a topic comes, a broker takes up a topic that is there."""
    layout = V07Layout()
    ids: queue.Queue[list[int]] = queue.Queue()
    names: queue.Queue[list[str]] = queue.Queue()
    registries.watch_brokers(session, layout, lambda: ids.put(list(registries.brokers(session, layout))))
    session.watch_children(layout.topics, names.put)
    assert (ids.get(timeout=60), names.get(timeout=60)) == ([], [])
    show(other, layout, BrokerNode(1, "a", 9092), clicks=1)
    assert until(lambda: ids.get(timeout=60) == [1])
    assert until(lambda: names.get(timeout=60) == ["clicks"])
    changed = threading.Event()
    watch = registries.watch_topic(session, layout, "clicks", changed.set)
    assert changed.wait(60)
    with patient_session(session.hosts + session.chroot) as third:
        until(lambda: not _again(changed))
        show(third, layout, BrokerNode(2, "b", 9092), clicks=2)
        assert changed.wait(60), "a broker took the topic up"
        assert until(lambda: ids.get(timeout=60) == [1, 2])
        until(lambda: not _again(changed))
        third.write(f"{layout.topic('clicks')}/2", b"3")
        assert changed.wait(60), "a broker has more partitions of it"
        assert len(registries.partitions(session, layout, "clicks")) == 4
        until(lambda: not _again(changed))
    assert changed.wait(60), "a broker is gone"
    assert until(lambda: ids.get(timeout=60) == [1])
    until(lambda: not _again(changed))
    watch.cancel()
    looked = threading.Event()
    session.watch_node("/nobody", lambda _: looked.set())
    assert looked.wait(60), "by then what was under way when it was cancelled has been told"
    changed.clear()
    other.close()
    assert until(lambda: ids.get(timeout=60) == [])
    assert not changed.is_set()


def test_what_went_and_came_back_while_nobody_could_look_is_reported(
    session: ZooKeeperSession, other: ZooKeeperSession, layout: RegistryLayout
) -> None:
    """A broker at another port, a consumer that reads something else: under the same names as before."""
    show(other, layout, BrokerNode(1, "a", 9092, 5))
    registries.register_consumer(other, layout, "g", CONSUMER, ConsumerSubscription({"clicks": 1}), 5)
    seen: queue.Queue[object] = queue.Queue()
    registries.watch_brokers(session, layout, lambda: seen.put(registries.broker_at(session, layout, 1)))
    registries.watch_consumers(
        session, layout, "g", lambda: seen.put(registries.consumers(session, layout, "g"))
    )
    until(lambda: seen.get(timeout=60) == {CONSUMER: ConsumerSubscription({"clicks": 1})})
    busy, may_go_on = threading.Event(), threading.Event()
    session.watch_node("/busy", lambda _: (busy.set(), may_go_on.wait(120)))
    assert busy.wait(60), "whatever is called back now waits"
    other.delete(layout.broker(1))
    registries.unregister_consumer(other, layout, "g", CONSUMER)
    show(other, layout, BrokerNode(1, "a", 9999, 6))
    registries.register_consumer(other, layout, "g", CONSUMER, ConsumerSubscription({"views": 1}), 6)
    may_go_on.set()
    told = [seen.get(timeout=60) for _ in range(2)]
    until(lambda: told.append(seen.get(timeout=60)) or BrokerNode(1, "a", 9999, 6) in told)
    until(lambda: {CONSUMER: ConsumerSubscription({"views": 1})} in told or told.append(seen.get(timeout=60)))


def _again(changed: threading.Event) -> bool:
    """Whether ``changed`` is set again within a moment after it was cleared: one change may be told twice."""
    changed.clear()
    return changed.wait(0.15)


def test_the_first_broker_names_the_cluster(session: ZooKeeperSession, layout: RegistryLayout) -> None:
    assert registries.agree_on_cluster(session, layout, None, "first-id") == "first-id"
    assert registries.agree_on_cluster(session, layout, None, "second-id") == "first-id"
    assert registries.agree_on_cluster(session, layout, "first-id", "third-id") == "first-id"
    with pytest.raises(InvalidConfig, match=r"belongs to cluster other-id, but .* are cluster first-id"):
        registries.agree_on_cluster(session, layout, "other-id", "fourth-id")
    node = session.read(layout.cluster_id)
    assert node is not None
    assert (node.data, node.owner) == (b'{"version":"1","id":"first-id"}', 0)


def test_a_cluster_id_in_plain_text_holds_as_well(session: ZooKeeperSession) -> None:
    layout = JsonLayout()
    session.create(layout.cluster_id, b"plain-id")
    assert registries.agree_on_cluster(session, layout, None, "fresh") == "plain-id"


def test_consumers_join_are_seen_and_leave(
    session: ZooKeeperSession, other: ZooKeeperSession, layout: RegistryLayout
) -> None:
    told: queue.Queue[list[str]] = queue.Queue()
    registries.watch_consumers(
        session, layout, "g", lambda: told.put([*registries.consumers(session, layout, "g")])
    )
    assert told.get(timeout=60) == []
    wanted = ConsumerSubscription({"clicks": 2})
    registries.register_consumer(other, layout, "g", CONSUMER, wanted, 5)
    assert until(lambda: told.get(timeout=60) == [CONSUMER])
    assert registries.consumers(session, layout, "g") == {CONSUMER: wanted}
    assert registries.groups(session, layout) == ["g"]
    with pytest.raises(registries.ConsumerIdInUse, match=CONSUMER):
        registries.register_consumer(session, layout, "g", CONSUMER, ConsumerSubscription({"views": 1}), 6)
    registries.unregister_consumer(other, layout, "g", CONSUMER)
    registries.unregister_consumer(other, layout, "g", CONSUMER)
    assert until(lambda: told.get(timeout=60) == [])
    assert registries.groups(session, layout) == ["g"]


def test_a_consumer_that_cannot_be_read_takes_no_part(
    session: ZooKeeperSession, layout: RegistryLayout, caplog: pytest.LogCaptureFixture
) -> None:
    session.create(layout.consumer("g", "odd"), b"\xff")
    registries.register_consumer(session, layout, "g", CONSUMER, ConsumerSubscription({"a": 1}), 5)
    assert list(registries.consumers(session, layout, "g")) == [CONSUMER]
    assert "consumer odd of group g is skipped" in caplog.text


def test_a_partition_has_one_owner_until_that_lets_go(
    session: ZooKeeperSession, other: ZooKeeperSession, layout: RegistryLayout
) -> None:
    name = layout.partition_name(1, 0)
    assert registries.claim(session, layout, "g", "clicks", name, "a-0")
    assert registries.claim(session, layout, "g", "clicks", name, "a-0"), "it is ours"
    assert not registries.claim(session, layout, "g", "clicks", name, "a-1")
    assert not registries.claim(other, layout, "g", "clicks", name, "b-0")
    assert registries.owner(other, layout, "g", "clicks", name) == "a-0"
    assert not registries.release(other, layout, "g", "clicks", name, "b-0"), "not theirs to release"
    assert registries.owners(other, layout, "g", "clicks") == {name: "a-0"}
    assert registries.release(session, layout, "g", "clicks", name, "a-0")
    assert not registries.release(session, layout, "g", "clicks", name, "a-0")
    assert registries.owner(session, layout, "g", "clicks", name) is None
    assert registries.claim(other, layout, "g", "clicks", name, "b-0")
    assert session.children(layout.owned_topics("g")) == ["clicks"]
    other.close()
    assert registries.owners(session, layout, "g", "clicks") == {}


def test_what_was_owned_before_the_session_expired_is_free(
    session: ZooKeeperSession, other: ZooKeeperSession
) -> None:
    layout = V07Layout()
    assert registries.claim(session, layout, "g", "clicks", "1-0", "a-0")
    expire(session)
    until(lambda: registries.owner(other, layout, "g", "clicks", "1-0") is None)
    assert registries.claim(other, layout, "g", "clicks", "1-0", "b-0")
    assert not registries.claim(session, layout, "g", "clicks", "1-0", "a-0")


def test_offsets_stay_when_everybody_is_gone(
    session: ZooKeeperSession, other: ZooKeeperSession, layout: RegistryLayout
) -> None:
    first, second = (layout.partition_name(1, n) for n in (2, 10))
    assert registries.read_group_offset(session, layout, "g", "clicks", first) is None
    registries.write_group_offset(other, layout, "g", "clicks", first, 0)
    registries.write_group_offset(other, layout, "g", "clicks", first, 2**62)
    registries.write_group_offset(other, layout, "g", "clicks", second, 7)
    other.close()
    assert registries.read_group_offset(session, layout, "g", "clicks", first) == 2**62
    assert registries.group_offsets(session, layout, "g", "clicks") == {first: 2**62, second: 7}
    assert session.children(layout.stored_topics("g")) == ["clicks"]
    node = session.read(layout.offset("g", "clicks", second))
    assert node is not None
    assert (node.data, node.owner) == (b"7", 0)


def test_an_invalid_offset_is_not_taken_for_a_missing_one(
    session: ZooKeeperSession, layout: RegistryLayout
) -> None:
    session.create(layout.offset("g", "clicks", layout.partition_name(1, 0)), b"seven")
    with pytest.raises(MalformedNode, match="seven"):
        registries.read_group_offset(session, layout, "g", "clicks", layout.partition_name(1, 0))
