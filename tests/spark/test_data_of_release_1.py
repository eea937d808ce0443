"""Loads and streams that release 1 began are continued from their ledgers and checkpoints."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import pyspark_kafkalog as kafkalog
from kafkalog_broker.embedded import EmbeddedBroker, start_broker
from pyspark_kafkalog.errors import LoadError
from tests.support.protocol.raw_client import RawClient, batch
from tests.support.protocol.wire07 import Wire07, entry, fetch, produce
from tests.support.release_1 import BROKER_PROPERTIES, copied, lines
from tests.support.spark.frame_rows import assert_rows

pytestmark = pytest.mark.long("several Spark jobs")

SECONDS = 150
SCHEMA = "load int, partition int, offset bigint, value string"


def number(offset: int, partition: int = 0) -> str | None:
    """The value that was written at an offset of ``flights``."""
    n = offset + 100 * partition
    return None if n % 10 == 9 else str(n)


class Written:
    """Copies of all that release 1 wrote, and a broker that serves its data directory."""

    def __init__(self, spark: Any, server: EmbeddedBroker, root: Path) -> None:
        self.spark, self.server, self.root = spark, server, root

    @property
    def ledgers(self) -> Path:
        return self.root / "ledgers"

    def today(self, **more: str) -> dict[str, str]:
        return {"kafka.bootstrap.servers": self.server.bootstrap_servers, "subscribe": "flights", **more}

    def of07(self, **more: str) -> dict[str, str]:
        where = f"3:127.0.0.1:{self.server.port_of('KAFKA07')}"
        return {"protocol": "0.7", "broker.list": where, "subscribe": "old", "includeBroker": "true", **more}

    def load(self, name: str, options: dict[str, str]) -> Any:
        return kafkalog.load(self.spark, name=name, offsets=self.ledgers, **options)

    def table(self, name: str) -> Any:
        """Load, partition, offset and value of each row of a table, as a frame."""
        frame = kafkalog.read_load(self.spark, self.root / "lake" / name, offsets=self.ledgers)
        return frame.selectExpr("load", "partition", "offset", "string(value)")

    def values(self, name: str, load: int) -> list[str]:
        """The values of one load in a table, by partition and offset."""
        rows = self.table(name).where(f"load = {load}").orderBy("partition", "offset").collect()
        return [row.value for row in rows]

    def audited(self, name: str) -> list[tuple[int, int, int, int]]:
        """Load, partition, start and end of each range that the audit shows."""
        rows = kafkalog.audit(self.spark, name, offsets=self.ledgers).collect()
        return sorted((r.load, r.partition, r.start, r.end) for r in rows)

    def stream(self, name: str, options: dict[str, str]) -> list[list[tuple[Any, ...]]]:
        """Run a query on its checkpoint until all is read: partition, offset and value, batch by batch."""
        seen = {}

        def take(frame: Any, batch: int) -> None:
            rows = frame.selectExpr("partition", "offset", "string(value)").collect()
            seen[batch] = sorted(map(tuple, rows))

        given = {**options, "offsetsPath": str(self.root / "starts"), "streamName": name}
        frame = self.spark.readStream.format("kafkalog").options(**given).load()
        writer = frame.writeStream.foreachBatch(take).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(self.root / "checkpoints" / name)).start()
        assert query.awaitTermination(SECONDS)
        return [seen[number] for number in sorted(seen)]


@pytest.fixture(scope="module")
def written(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Written]:
    root = tmp_path_factory.mktemp("release-1")
    for name in ("ledgers", "lake", "starts", "checkpoints", "warehouse.db", "stopped"):
        copied(name, root)
    with start_broker(BROKER_PROPERTIES, data_dir=root / "stopped") as server:
        yield Written(spark, server, root)


def rows(load: int, start: int, end: int, partition: int = 0) -> list[tuple[Any, ...]]:
    return [(load, partition, n, number(n, partition)) for n in range(start, end)]


def test_a_table_is_read_as_its_loads_left_it(written: Written) -> None:
    keys = [row for row in rows(2, 20, 28) + rows(2, 10, 13, 1) if (row[2] + 100 * row[1]) % 4 != 3]
    flights = rows(1, 0, 20) + rows(1, 0, 10, 1) + keys + rows(8, 34, 36)
    assert_rows(written.table("flights"), SCHEMA, flights)
    assert_rows(written.table("by-hour"), SCHEMA, rows(2, 20, 28) + rows(2, 10, 13, 1))
    small = rows(1, 0, 5) + rows(1, 0, 5, 1) + rows(2, 5, 10) + rows(3, 10, 15) + rows(5, 15, 20)
    assert_rows(written.table("small"), SCHEMA, small)  # commit 4 compacted the files of the first three
    dead = kafkalog.read_dead(written.spark, "flights", offsets=written.ledgers)
    assert_rows(
        dead.select("load", "partition", "offset", "reason"),
        "load int, partition int, offset bigint, reason string",
        [(2, 0, 23, "no key"), (2, 0, 27, "no key"), (2, 1, 11, "no key")],
    )


def test_a_pending_load_is_replayed_and_the_next_one_follows(written: Written) -> None:
    audited = written.audited("flights")
    assert audited == sorted(
        (row["load"], row["partition"], row["start"], row["end"])
        for row in lines("histories/flights.partitions.jsonl")
    )
    with RawClient(written.server.port) as client:
        client.produce("flights", batch(b"40"))
    with written.load("flights", written.today()) as nine:
        assert nine.number == 9
        nine.write_parquet(written.root / "lake" / "flights")
    assert nine.commit.records == 7
    with written.load("flights", written.today()) as ten:
        ten.write_parquet(written.root / "lake" / "flights")
    assert (ten.number, ten.commit.records, ten.commit.parent) == (10, 1, 9)
    new = written.table("flights").where("load > 8")
    assert_rows(new, SCHEMA, rows(9, 36, 40) + rows(9, 13, 16, 1) + rows(10, 40, 41))
    assert written.audited("flights") == [*audited, (9, 0, 36, 40), (9, 1, 13, 16), (10, 0, 40, 41)]
    assert kafkalog.Ledger.at(written.ledgers, "flights").verify() == []


def test_a_load_continues_after_what_was_lost(written: Written) -> None:
    # Offsets 4 to 7 were corrupt, 20 to 24 never there, 33 to 40 taken by retention.
    left = [(1, n) for n in (*range(4), *range(8, 20), *range(25, 33))] + [(2, n) for n in range(41, 65)]
    assert_rows(written.table("losses").select("load", "offset"), "load int, offset bigint", left)
    with RawClient(written.server.port) as client:
        client.produce("losses", batch(b"next"))
    with written.load("losses", written.today(subscribe="losses")) as three:
        three.write_parquet(written.root / "lake" / "losses")
    assert_rows(written.table("losses").where("load = 3"), SCHEMA, [(3, 0, 65, "next")])
    assert (three.commit.records, three.commit.skipped, three.commit.missing) == (1, 0, 0)


def test_a_load_of_07_continues_where_it_was(written: Written) -> None:
    sixty = [f"message {n} of sixty" for n in range(60)]
    assert written.values("old", 1) == ["a", "b", "c", "d", "n", "o", *sixty]
    assert written.values("old", 2) == []  # it was of mode stage and wrote no table
    assert written.values("old", 3) == ["s"]
    produce07(written, 1, b"next")
    with written.load("old", written.of07()) as four:
        four.write_parquet(written.root / "lake" / "old")
    assert written.values("old", 4) == ["next"]
    assert four.commit.records == 1
    assert kafkalog.Ledger.at(written.ledgers, "old").verify() == []


def produce07(written: Written, partition: int, value: bytes) -> None:
    with Wire07(written.server.port_of("KAFKA07")) as wire:
        wire.send(produce("old", partition, entry(value)))
        assert wire.ask(fetch("old", partition, 0, 0)) is not None


def test_a_load_into_a_database_continues(written: Written) -> None:
    url = f"sqlite:///{written.root}/warehouse.db"
    assert kafkalog.audit_sql("warehouse", written.ledgers, url) == []
    ending = '{"flights":{"0":40,"1":5}}'
    with written.load("warehouse", written.today(endingOffsets=ending)) as five:
        five.write_sql(url, "flights")
    assert (five.number, five.commit.records) == (5, 25)
    with closing(sqlite3.connect(written.root / "warehouse.db")) as database:
        found = database.execute(
            'SELECT _kl_load, "partition", "offset", CAST(value AS TEXT) FROM flights ORDER BY 1, 2, 3'
        ).fetchall()
    assert found == rows(1, 0, 10) + rows(1, 0, 5, 1) + rows(4, 10, 15) + rows(5, 15, 40)


def test_another_load_cannot_write_to_a_claimed_table(written: Written) -> None:
    with pytest.raises(LoadError, match="belongs to load 'flights'"), written.load("x", written.today()) as x:
        x.write_parquet(written.root / "lake" / "flights")


def test_a_stream_repeats_the_batch_that_failed_and_continues(written: Written) -> None:
    batches = written.stream("third", written.today(startingOffsets="earliest", maxOffsetsPerTrigger="12"))
    # 30 records were there, and two batches of 12 were done: eight of twenty and four of ten in each.
    assert batches[0] == [(0, n, number(n)) for n in range(16, 20)] + [
        (1, n, number(n, 1)) for n in range(8, 10)
    ]
    assert all(len(batch) <= 12 for batch in batches)
    rest = sorted(row for batch in batches[1:] for row in batch if row[:2] < (0, 40) or row[0] == 1)
    assert rest == [(0, n, number(n)) for n in range(20, 40)] + [(1, n, number(n, 1)) for n in range(10, 16)]


def test_a_stream_that_failed_in_its_first_batch_begins_where_it_began(written: Written) -> None:
    """Where that was is in the file beside the checkpoint alone: the start given now would have no rows."""
    first, *_ = written.stream("first", written.today(startingOffsets="latest"))
    assert first == [(0, n, number(n)) for n in range(15, 20)] + [(1, n, number(n, 1)) for n in range(10)]


def test_a_stream_of_07_continues(written: Written) -> None:
    batches = written.stream("old", written.of07(startingOffsets="earliest"))
    values = [row[2] for batch in batches for row in batch]
    assert values[:4] == ["s", "p", "q", "r"]
    assert written.stream("old", written.of07(startingOffsets="earliest")) == []
