"""``kafkalog groups`` for groups in ZooKeeper, on today's wire and on that of 0.7."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from kafkalog_broker.embedded import EmbeddedBroker, start_broker
from pyspark_kafkalog.classic.consumer.simple_consumer import SimpleConsumer
from pyspark_kafkalog.classic.producer.sync_producer import SyncProducer
from pyspark_kafkalog.zookeeper import registries
from pyspark_kafkalog.zookeeper.paths import ConsumerSubscription, JsonLayout, RegistryLayout, V07Layout
from pyspark_kafkalog.zookeeper.server import ZooKeeperServer
from pyspark_kafkalog.zookeeper.session import ZooKeeperSession
from tests.support.command_line import kafkalog, table
from tests.support.until import until
from tests.support.zookeeper import PATIENT

LAYOUTS: dict[str, RegistryLayout] = {"0.7": V07Layout(), "0.8": JsonLayout()}
NAMES = {"0.7": "1-0", "0.8": "0"}


@pytest.fixture(scope="module")
def connect(zookeeper: ZooKeeperServer) -> str:
    return f"{zookeeper.connect}/groups-of-a-command"


@pytest.fixture(scope="module")
def broker(connect: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """With three messages of 9 bytes each in clicks-0.7, after 0.7's header, and in clicks-0.8."""
    properties = {
        **PATIENT, "zookeeper.connect": connect, "node.id": 1, "num.partitions": 1, "log.flush.interval": 1,
        "listeners": "PLAINTEXT://127.0.0.1:0,KAFKA07://127.0.0.1:0",
    }  # fmt: skip
    with start_broker(properties, data_dir=tmp_path_factory.mktemp("broker")) as broker:
        for protocol, listener in (("0.7", "KAFKA07"), ("0.8", "PLAINTEXT")):
            config = {"protocol": protocol}
            with SyncProducer("127.0.0.1", broker.port_of(listener), config) as producer:
                for number in range(3):
                    producer.send(f"clicks-{protocol}", [b"message %d" % number], 0)
        yield broker


@pytest.fixture
def own(connect: str) -> Iterator[ZooKeeperSession]:
    with ZooKeeperSession(connect, session_timeout_ms=120_000, connection_timeout_ms=120_000) as session:
        yield session


def groups(connect: str, protocol: str, *arguments: str) -> tuple[int, str, str]:
    options = ["--option", f"zookeeper.connect={connect}"]
    options += ["--option", "protocol=0.7"] if protocol == "0.7" else []
    ran = kafkalog("groups", *arguments, *options)
    return ran.returncode, ran.stdout, ran.stderr


@pytest.mark.parametrize("protocol", ["0.7", "0.8"])
def test_a_group_in_zookeeper_is_listed_described_and_moved(
    broker: EmbeddedBroker, connect: str, own: ZooKeeperSession, protocol: str
) -> None:
    layout, name, topic = LAYOUTS[protocol], NAMES[protocol], f"clicks-{protocol}"
    until(lambda: registries.partitions(own, layout, topic))
    with SimpleConsumer("127.0.0.1", broker.port_of("KAFKA07" if protocol == "0.7" else "PLAINTEXT"),
                        {"protocol": protocol}) as consumer:  # fmt: skip
        starts = [0, *(following for _, following in consumer.fetch(topic, 0, 0))]
    group = f"loaders-{protocol}"
    registries.register_consumer(own, layout, group, "c1", ConsumerSubscription({topic: 1}), 1)
    registries.claim(own, layout, group, topic, name, "c1-0")
    registries.write_group_offset(own, layout, group, topic, name, starts[1])

    code, out, _ = groups(connect, protocol, "list", "--json")
    assert code == 0
    assert [json.loads(line) for line in out.splitlines()] == [
        {"group": group, "state": "Stable", "protocol": None, "kind": "zookeeper"}
    ]
    (described,) = map(json.loads, groups(connect, protocol, "describe", group, "--json")[1].splitlines())
    assert described["members"] == [{"member": "c1", "client": "c1", "host": ""}]
    (row,) = described["partitions"]
    assert (row["partition"], row["earliest"], row["latest"]) == (
        0 if protocol == "0.8" else name,
        0,
        starts[3],
    )
    assert (row["committed"], row["lag"], row["member"]) == (starts[1], starts[3] - starts[1], "c1")
    assert "c1" in groups(connect, protocol, "describe", group, "--members")[1]

    code, _, said = groups(connect, protocol, "reset", group, topic, "--to", "latest")
    assert code == 1
    assert "is Stable: the group has members" in said
    registries.unregister_consumer(own, layout, group, "c1")
    registries.release(own, layout, group, topic, name, "c1-0")

    def stored() -> dict[str, int]:
        return registries.group_offsets(own, layout, group, topic)

    assert groups(connect, protocol, "reset", group, topic, "--to", "earliest", "--dry-run")[0] == 0
    assert stored() == {name: starts[1]}
    code, out, _ = groups(connect, protocol, "reset", group, "--all-topics", "--to", "latest", "--csv")
    assert (code, out) == (0, f"{topic},{name},{starts[3]}\n")
    assert stored() == {name: starts[3]}
    assert groups(connect, protocol, "reset", group, topic, "--to", str(starts[2]))[0] == 0
    assert stored() == {name: starts[2]}
    code, _, said = groups(connect, protocol, "reset", group, topic, "--to", str(starts[3] + 1))
    assert code == 1
    assert f"offset {starts[3] + 1} is outside [0, {starts[3]}]" in said
    code, _, said = groups(connect, protocol, "describe", "nobody")
    assert code == 1
    assert f"consumer group 'nobody' does not exist on ZooKeeper at {connect}" in said
    assert table(groups(connect, protocol, "list")[1])[0][:2] == [group, "Empty"]


def test_a_position_of_07_is_where_a_message_begins(
    broker: EmbeddedBroker, connect: str, own: ZooKeeperSession, tmp_path: Path
) -> None:
    until(lambda: registries.partitions(own, V07Layout(), "clicks-0.7"))
    code, _, said = groups(connect, "0.7", "reset", "g", "clicks-0.7", "--to", "5")
    assert code != 0
    assert "no message begins at offset 5" in said
    code, _, said = groups(connect, "0.7", "reset", "g", "clicks-0.7", "--to", "-2")
    assert code == 2
    assert "count bytes" in said
    (tmp_path / "positions.csv").write_text("clicks-0.7,1-0,0\n")
    assert groups(connect, "0.7", "reset", "g", "--from-file", str(tmp_path / "positions.csv"))[0] == 0
    assert registries.group_offsets(own, V07Layout(), "g", "clicks-0.7") == {"1-0": 0}
