"""Loads of Kafka 0.7's topics with a real session, two brokers and ZooKeeper."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import pyspark_kafkalog as kafkalog
from pyspark_kafkalog.errors import InvalidConfig
from pyspark_kafkalog.loads import verification
from pyspark_kafkalog.zookeeper.paths import V07Layout
from pyspark_kafkalog.zookeeper.registries import group_offsets
from pyspark_kafkalog.zookeeper.session import ZooKeeperSession
from tests.support.classic.two_brokers07 import TwoBrokers07
from tests.support.protocol.wire07 import entry, zipped
from tests.support.spark.frame_rows import assert_rows

NAME, GROUP = "old", "loaders"
SIZE = len(entry(b"a"))
PACKED = zipped(entry(b"b"), entry(b"c"))
END = SIZE + len(PACKED)
_numbers = itertools.count()

Row = tuple[int, str, int, int, int, int]
"""Load, value, broker, partition, offset, place within its entry."""

FIRST: list[Row] = [
    (1, "a", 1, 0, 0, 0),
    (1, "b", 1, 0, SIZE, 0),
    (1, "c", 1, 0, SIZE, 1),
    (1, "d", 2, 0, 0, 0),
    (1, "e", 2, 1, 0, 0),
]


@dataclass
class Lake:
    """A topic, ledgers and tables of its loads."""

    spark: Any
    brokers: TwoBrokers07
    topic: str
    root: Path

    @property
    def options(self) -> dict[str, str]:
        where = {"protocol": "0.7", "zookeeper.connect": self.brokers.place}
        return {**where, "subscribe": self.topic, "includeBroker": "true"}

    @property
    def offsets(self) -> Path:
        return self.root / "_offsets"

    @property
    def mirror(self) -> Path:
        return self.offsets / NAME / "offsets"

    @property
    def ledger(self) -> kafkalog.Ledger:
        return kafkalog.Ledger.at(self.offsets, NAME)

    def table(self, name: str = NAME) -> Path:
        return self.root / name

    def run(self, name: str = NAME, **options: Any) -> Any:
        """A whole load; returns its commit."""
        given = {**self.options, **options}
        with kafkalog.load(self.spark, name=name, offsets=self.offsets, **given) as load:
            load.write_parquet(self.table(name))
        return load.commit

    def assert_published(self, rows: list[Row], name: str = NAME) -> None:
        columns = ("load", "string(value) value", "broker", "partition", "offset", "innerIndex")
        assert_rows(
            kafkalog.read_load(self.spark, self.table(name)).selectExpr(*columns),
            "load int, value string, broker int, partition int, offset bigint, innerIndex int",
            rows,
        )

    def add(self, broker: int, partition: int, *values: bytes) -> None:
        self.brokers.put(broker, self.topic, partition, *map(entry, values))


@pytest.fixture
def lake(spark: Any, brokers07: TwoBrokers07, tmp_path: Path) -> Lake:
    """a and a packed set of b and c in partition 0 of broker 1; d and e in the two of broker 2."""
    lake = Lake(spark, brokers07, f"old-{next(_numbers)}", tmp_path)
    brokers07.put(1, lake.topic, 0, entry(b"a"), PACKED)
    lake.add(2, 0, b"d")
    lake.add(2, 1, b"e")
    return lake


@pytest.mark.long("several Spark jobs")
def test_each_load_begins_where_the_last_one_ended_at_each_broker(lake: Lake) -> None:
    first = lake.run()
    assert (first.mode, first.records) == ("dir", 5)
    assert {p.key.number: p.next for p in first.positions} == {
        "1-0": END, "1-1": 0, "2-0": SIZE, "2-1": SIZE,
    }  # fmt: skip
    lake.assert_published(FIRST)
    lake.add(1, 0, b"f")
    lake.add(1, 1, b"g")
    assert lake.run().records == 2
    lake.assert_published([*FIRST, (2, "f", 1, 0, END, 0), (2, "g", 1, 1, 0, 0)])
    assert lake.run() is None
    assert lake.ledger.verify() == []
    assert verification.verify_outputs(lake.ledger.lineage()) == []


def test_the_mappers_files_and_the_groups_znodes_say_where_the_load_is(lake: Lake) -> None:
    lake.run(**{"kafka.group.id": GROUP, "offsetStore": "zookeeper"})
    one, two = (f"tcp://127.0.0.1:{lake.brokers.port(broker)}" for broker in (1, 2))
    assert {file.name: file.read_text() for file in lake.mirror.iterdir()} == {
        f"part-1-{lake.topic}-0": f"{one}\t{lake.topic}\t0\t{END}\n",
        f"part-1-{lake.topic}-1": f"{one}\t{lake.topic}\t1\t0\n",
        f"part-2-{lake.topic}-0": f"{two}\t{lake.topic}\t0\t{SIZE}\n",
        f"part-2-{lake.topic}-1": f"{two}\t{lake.topic}\t1\t{SIZE}\n",
    }
    with ZooKeeperSession(lake.brokers.place) as session:
        assert group_offsets(session, V07Layout(), GROUP, lake.topic) == {
            "1-0": END, "1-1": 0, "2-0": SIZE, "2-1": SIZE,
        }  # fmt: skip
        node = session.read(f"/consumers/{GROUP}/offsets/{lake.topic}/1-0")
        assert node is not None
        assert node.data == b"%d" % END


@pytest.mark.long("several Spark jobs")
def test_a_hand_edited_file_begins_a_new_load_where_it_says(lake: Lake) -> None:
    lake.run()
    edited = lake.mirror / f"part-1-{lake.topic}-0"
    edited.write_text(edited.read_text().replace(f"\t{END}\n", f"\t{SIZE}\n"))
    assert lake.run("again", startingOffsets=f"file:{lake.mirror}").records == 2
    lake.assert_published(FIRST[1:3], "again")
    edited.write_text(f"tcp://127.0.0.1:1\t{lake.topic}\t0\t{SIZE}\n")
    with pytest.raises(
        InvalidConfig, match=rf"{edited.name}, line 1: no live broker is at 'tcp://127.0.0.1:1'"
    ):
        lake.run("third", startingOffsets=f"file:{lake.mirror}")


def test_a_read_of_mode_stage_commits_in_its_last_task_and_tells_the_group(lake: Lake) -> None:
    def stage() -> list[str]:
        where = {"loadName": NAME, "offsetsPath": str(lake.offsets), "commitOffsets": "stage"}
        given = {**lake.options, **where, "kafka.group.id": f"{GROUP}-of-stage"}
        frame = lake.spark.read.format("kafkalog").options(**given).load()
        return sorted(bytes(row.value).decode() for row in frame.select("value").collect())

    assert stage() == ["a", "b", "c", "d", "e"]
    lake.add(2, 1, b"f")
    assert stage() == ["f"]
    assert stage() == []
    assert [(c.mode, c.records) for c in lake.ledger.history()] == [("stage", 5), ("stage", 1)]
    with ZooKeeperSession(lake.brokers.place) as session:
        told = group_offsets(session, V07Layout(), f"{GROUP}-of-stage", lake.topic)
    assert told == {"1-0": END, "1-1": 0, "2-0": SIZE, "2-1": 2 * SIZE}
