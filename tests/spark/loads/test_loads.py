"""The life of a load, with a real session and a real broker: what it reads, publishes and survives."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as f

import kafkalog_broker
import pyspark_kafkalog as kafkalog
from pyspark_kafkalog import errors
from pyspark_kafkalog.client.discovery import Cluster
from pyspark_kafkalog.client.groups import committed_offsets
from pyspark_kafkalog.config.client_config import ClientConfig
from pyspark_kafkalog.errors import InvalidConfig
from pyspark_kafkalog.ledger.records import encode
from pyspark_kafkalog.ledger.stores.local_store import LocalStore
from pyspark_kafkalog.ledger.stores.store import StoredFile
from pyspark_kafkalog.loads import output_files, verification
from pyspark_kafkalog.types import TopicPartition
from tests.support.datasource.spark_topics import Topic
from tests.support.loads.dying_driver import die_before_the_commit
from tests.support.loads.file_lake import NAME, Lake
from tests.support.protocol.raw_client import RawClient
from tests.support.until import until


@pytest.fixture
def lake(spark: Any, server: Any, new_topic: Callable[..., Topic], tmp_path: Path) -> Lake:
    """A topic with 0-9 in partition 0 and 10-14 in partition 1."""
    topic = new_topic(partitions=2)
    topic.add(*range(10), partition=0)
    topic.add(*range(10, 15), partition=1)
    return Lake(spark, server.bootstrap_servers, topic, tmp_path)


def rows(load: int, *ranges: range) -> list[tuple[int, int]]:
    return [(load, n) for r in ranges for n in r]


def ranges_of(plan: Any) -> dict[int, tuple[int, int]]:
    return {p.partition: (p.start, p.end) for p in plan.partitions}


def test_each_load_begins_where_the_last_one_ended(lake: Lake) -> None:
    with lake.load() as load:
        assert (load.number, load.is_empty) == (1, False)
        load.write_parquet(lake.table)
    assert (load.commit.number, load.commit.mode, load.commit.records) == (1, "dir", 15)
    lake.assert_published(rows(1, range(15)))

    lake.topic.add(15, 16, partition=1)
    second = lake.run()
    assert (second.number, second.records) == (2, 2)
    assert {p.partition: p.next for p in second.positions} == {0: 10, 1: 7}
    lake.assert_published(rows(1, range(15)) + rows(2, range(15, 17)))
    assert lake.ledger.verify() == []
    assert verification.verify_outputs(lake.ledger.lineage()) == []


def test_with_nothing_new_no_load_is_made(lake: Lake) -> None:
    lake.run()
    with lake.load() as load:
        assert (load.number, load.plan, load.is_empty) == (None, None, True)
        assert load.df.collect() == []
        assert load.df.columns == "key value topic partition offset timestamp timestampType".split()
        load.write_parquet(lake.table)
    assert load.commit is None
    assert lake.ledger.pending() is None
    assert sorted(p.name for p in lake.table.glob("load=*")) == ["load=00000001"]


def test_actions_inside_the_block_move_nothing_and_done_commits_what_the_user_wrote(
    lake: Lake, capsys: Any
) -> None:
    left = lake.load()

    def look() -> None:
        with left:
            assert left.df.count() == 15
            left.df.show()
            left.df.limit(3).write.parquet(str(lake.root / "three"))

    said = r"load 1 of events was not committed: .*load\.done\(\).*load\.keep\(\)"
    with pytest.raises(errors.LoadError, match=said):
        look()
    assert lake.ledger.head() is None
    lake.topic.add(99)
    with lake.load() as load:
        load.df.write.parquet(str(lake.root / "own"))
        assert lake.ledger.head() is None
        load.done()
    assert load.plan == left.plan
    assert (load.commit.mode, load.commit.records) == ("job", 15)
    assert lake.ledger.head() == load.commit


def test_an_exception_passes_through_and_the_next_load_has_the_same_ranges(lake: Lake) -> None:
    mistake = ZeroDivisionError("of the user")
    first = lake.load()

    def fail() -> None:
        with first:
            first.write_parquet(lake.table)
            raise mistake

    with pytest.raises(ZeroDivisionError) as raised:
        fail()
    assert raised.value is mistake
    assert (first.commit, lake.ledger.head()) == (None, None)
    with pytest.raises(errors.LoadError, match="no load was committed yet"):
        lake.published().collect()

    lake.topic.add(15, 16)
    with lake.load() as again:
        assert again.plan == first.plan
        assert ranges_of(again.plan) == {0: (0, 10), 1: (0, 5)}
        again.write_parquet(lake.table)
    lake.assert_published(rows(1, range(15)))
    lake.run()
    lake.assert_published(rows(1, range(15)) + rows(2, range(15, 17)))


def test_a_block_that_did_not_read_everything_is_not_a_load(lake: Lake) -> None:
    with (
        pytest.raises(errors.IncompleteLoad, match=r"2 of 2 ranges were not read.*-0 \[0, 10\).*-1 \[0, 5\)"),
        lake.load() as load,
    ):
        load.done()
    assert lake.ledger.pending() == load.plan
    assert lake.run().records == 15


def test_what_an_attempt_read_that_failed_does_not_count_for_the_next_one(lake: Lake) -> None:
    with lake.load() as load:
        assert load.df.count() == 15
        load.keep()
    assert load.plan is not None
    assert len(lake.ledger.receipts(load.plan)) == 2
    said = "2 of 2 ranges were not read in this run"
    with pytest.raises(errors.IncompleteLoad, match=said), lake.load() as again:
        again.done()
    assert lake.ledger.head() is None
    assert lake.run().records == 15


def test_a_table_keeps_the_types_of_its_columns_and_may_get_new_ones(lake: Lake) -> None:
    number = f.col("value").cast("string").cast("int")
    with lake.load() as load:
        load.write_parquet(lake.table, df=load.df.select(number.alias("n"), "key"))
    lake.topic.add(15)
    said = "since load 1 n was int and is bigint. Spark cannot read two types of one column"
    with pytest.raises(errors.LoadError, match=said), lake.load() as load:
        load.write_parquet(lake.table, df=load.df.select(number.cast("long").alias("n")))
    with lake.load() as load:
        load.write_parquet(lake.table, df=load.df.select(number.alias("n"), "offset"))
    found = kafkalog.read_load(lake.spark, lake.table, mergeSchema=True)
    assert sorted(found.columns) == ["key", "load", "n", "offset"]
    assert sorted(row.n for row in found.collect()) == list(range(16))


@pytest.mark.long("several Spark jobs")
def test_files_of_another_attempt_are_never_read(lake: Lake) -> None:
    with lake.load() as load:
        load.write_parquet(lake.table, partition_by="partition")
        load.keep()
    (lost,) = (lake.table / "load=00000001").iterdir()
    with lake.load() as load:
        load.write_parquet(lake.table, partition_by="partition")
    assert lost.is_dir()
    lake.assert_published(rows(1, range(15)))


def test_two_tables_are_published_by_one_commit(lake: Lake) -> None:
    with lake.load() as load:
        load.write_parquet(lake.table)
        load.write_parquet(lake.root / "keys", load.df.select("offset"))
        with pytest.raises(errors.LoadError, match="was written in this block already"):
            load.write_parquet(lake.table)
    assert lake.published().count() == 15
    assert kafkalog.read_load(lake.spark, lake.root / "keys").count() == 15


@pytest.mark.long("several Spark jobs")
def test_after_a_rewind_the_same_offsets_are_read_again_and_nothing_is_there_twice(lake: Lake) -> None:
    lake.run()
    lake.topic.add(15, 16)
    lake.run()
    lake.ledger.rewind(1, "a-run")
    lake.assert_published(rows(1, range(15)))
    lake.topic.add(17)
    assert lake.run().number == 4
    lake.assert_published(rows(1, range(15)) + rows(4, range(15, 18)))
    files = (lake.table / "_manifest" / "files.txt").read_text().splitlines()
    assert lake.spark.read.parquet(*files).count() == 18
    lake.ledger.rewind(0, "a-run")
    assert lake.run().number == 6
    lake.assert_published(rows(6, range(18)))


@pytest.mark.long("several Spark jobs")
def test_without_receipts_the_same_ranges_are_read(lake: Lake) -> None:
    with lake.load(receipts=False, minPartitions=4, startingOffsets=lake.topic.offsets(p0=2, p1=-2)) as load:
        assert load.df.rdd.getNumPartitions() >= 4
        lake.topic.add(15)
        load.write_parquet(lake.table)
    assert not (Path(lake.ledger.location) / "receipts").exists()
    lake.assert_published(rows(1, range(2, 15)))
    lake.run(receipts=False)
    lake.assert_published(rows(1, range(2, 15)) + rows(2, range(15, 16)))


def test_after_the_commit_the_group_gets_the_offsets(lake: Lake) -> None:
    with lake.load(**{"kafka.group.id": "watchers"}) as load:
        load.write_parquet(lake.table)
        assert told(lake, "watchers") == {}
    assert told(lake, "watchers") == {0: 10, 1: 5}


def told(lake: Lake, group: str) -> dict[int, int]:
    cluster = Cluster(ClientConfig(bootstrap_servers=lake.servers))
    try:
        found = committed_offsets(cluster, group, [TopicPartition(lake.topic.name, p) for p in (0, 1)])
    finally:
        cluster.close()
    return {tp.partition: committed.offset for tp, committed in found.items()}


def test_a_second_driver_learns_who_has_the_load(lake: Lake) -> None:
    with lake.load() as first:
        said = rf"\.lock is held by a load, process {os.getpid()} on .* since 20\d\d-\d\d-\d\dT"
        with pytest.raises(errors.LoadBusy, match=said), lake.load():
            pass
        first.write_parquet(lake.table)
    lake.topic.add(15)
    assert lake.run().number == 2


@pytest.mark.long("several Spark jobs")
def test_a_driver_killed_between_write_and_commit_leaves_no_duplicate(lake: Lake) -> None:
    lake.run()
    lake.topic.add(15, 16)
    options = {"kafka.bootstrap.servers": lake.servers, "subscribe": lake.topic.name}
    die_before_the_commit(NAME, lake.offsets, lake.table, options)
    written = set((lake.table / "load=00000002").glob("kl_run=*/*.parquet"))
    assert written
    lake.assert_published(rows(1, range(15)))

    lake.topic.add(17)
    assert lake.run().number == 2
    lake.assert_published(rows(1, range(15)) + rows(2, range(15, 17)))
    assert written < set((lake.table / "load=00000002").glob("kl_run=*/*.parquet"))  # until `gc`
    assert lake.run().records == 1
    lake.assert_published(rows(1, range(15)) + rows(2, range(15, 17)) + rows(3, range(17, 18)))
    assert lake.ledger.verify() == []


@pytest.mark.long("several Spark jobs")
def test_hundreds_of_commits_are_read_as_one_table(lake: Lake) -> None:
    lake.run()
    for n in range(15, 315):
        load_without_spark(lake, n)
    lake.assert_published(rows(1, range(15)) + [(n - 13, n) for n in range(15, 315)])


def load_without_spark(lake: Lake, n: int) -> None:
    """A load of one record, ``n``, in partition 0."""
    head = lake.ledger.head()
    assert head is not None
    last = lake.ledger.plan(head.number)
    partitions = []
    for p in last.partitions:
        end = p.end + (p.partition == 0)
        partitions.append(replace(p, start=p.end, end=end, ranges=((p.end, end),) if end > p.end else ()))
    plan = replace(last, number=head.number + 1, parent=head.number, partitions=tuple(partitions))
    plan = lake.ledger.write_plan(plan)
    inside = output_files.load_directory(plan.number, "a-run")
    file = lake.table / inside / "part-0.parquet"
    file.parent.mkdir(parents=True)
    pq.write_table(pa.table({"value": [str(n).encode()]}), file)
    written = (output_files.written_files(lake.table, inside),)
    lake.ledger.commit(plan, mode="dir", run="a-run", outputs=written, receipts=False)


# ---- bad input: a clear error, and nothing lost


@pytest.mark.long("several Spark jobs")
def test_offsets_that_aged_out_stop_the_load_with_their_number(lake: Lake) -> None:
    with (
        kafkalog_broker.start_broker(**{"log.retention.check.interval.ms": "100"}) as own,
        RawClient(own.port) as raw,
    ):
        small = {"segment.bytes": "200", "retention.bytes": "400", "retention.ms": "-1"}
        assert raw.create_topic("short", 1, small).error_code == 0
        lake.topic, lake.servers = Topic(raw, "short"), own.bootstrap_servers
        lake.topic.add(0)
        lake.run()
        for n in range(1, 30):
            lake.topic.add(n)
        first = 24  # the size of these batches makes segments of three; what retention leaves holds 400 bytes
        until(lambda: raw.offset_at("short", -2).offset >= first)
        with pytest.raises(errors.OffsetsAgedOut, match=r"^23 offsets were deleted"), lake.load():
            pass
        assert lake.ledger.pending() is None
        lake.run(failOnDataLoss=False)
    lake.assert_published(rows(1, range(1)) + rows(2, range(first, 30)))
    assert lake.ledger.plan(2).partitions[0].reason == "23 offsets aged out"


def test_an_edited_plan_is_not_replayed(lake: Lake) -> None:
    with lake.load() as load:
        load.keep()
    plan = Path(lake.ledger.location, "plans", "00000001.json")
    plan.write_text(plan.read_text().replace('"start": 0', '"start": 3'))
    with pytest.raises(errors.DamagedRecord, match=r"plans/00000001\.json was changed"), lake.load():
        pass
    plan.unlink()
    assert lake.run().records == 15


def test_a_receipt_that_disagrees_stops_the_load(lake: Lake) -> None:
    with lake.load() as load:
        load.df.count()
        load.keep()
    receipt = lake.ledger.receipts(load.plan)[0]
    path = next(Path(lake.ledger.location, "receipts", "00000001", lake.topic.name, "0").iterdir())
    path.write_bytes(encode(replace(receipt, records=9)))
    with pytest.raises(Exception, match=r"ReceiptMismatch.*records: 9 then, 10 now"), lake.load() as load:
        load.write_parquet(lake.table)
    assert lake.ledger.head() is None
    assert lake.ledger.pending() == load.plan


@pytest.fixture
def stale_lists(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A store whose lists leave out a fresh file, that of the second task."""
    files = LocalStore.files

    def leave_one_out(store: LocalStore, directory: str) -> Iterator[StoredFile]:
        return (file for file in files(store, directory) if "part-00001-" not in file.name)

    monkeypatch.setattr(LocalStore, "files", leave_one_out)
    return monkeypatch


@pytest.mark.usefixtures("stale_lists")
def test_files_that_do_not_hold_what_was_read_are_not_published(lake: Lake) -> None:
    said = "load 1: the tasks read 15 records, Spark wrote 15 rows, and .*/load=00000001/.* holds 10 rows"
    with pytest.raises(errors.ReceiptMismatch, match=said), lake.load() as load:
        load.write_parquet(lake.table, engine="spark")
    assert lake.ledger.head() is None


def test_files_that_do_not_hold_what_was_written_are_not_published(
    lake: Lake, stale_lists: pytest.MonkeyPatch
) -> None:
    said = "load 1: Spark wrote 11 rows, and .*/load=00000001/.* holds 8 rows"
    with pytest.raises(errors.ReceiptMismatch, match=said), lake.load() as load:
        load.write_parquet(lake.table, load.df.where("offset > 1").select("value"))
    assert lake.ledger.head() is None
    stale_lists.undo()
    with lake.load() as load:
        load.write_parquet(lake.table, load.df.where("offset > 99"))
    assert [(out.wrote, out.rows) for out in load.commit.outputs] == [(0, 0)]


def test_a_path_of_another_load_is_refused_before_anything_is_written(lake: Lake) -> None:
    lake.run()
    with (
        pytest.raises(errors.LoadError, match=r"belongs to load 'events'"),
        lake.load(name="other") as load,
    ):
        load.write_parquet(lake.table)
    lake.assert_published(rows(1, range(15)))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"loadName": "x"}, "load.. sets this from name="),
        ({"commitOffsets": "stage"}, "load.. sets this from name="),
        ({"on_pending": "perhaps"}, "onPendingPlan is one of replay, fail, discard"),
        ({"subscrib": "x"}, "Did you mean 'subscribe'"),
        ({"name": "a/b"}, "loadName is 'a/b'"),
    ],
)
def test_wrong_options_are_named_before_anything_starts(
    lake: Lake, options: dict[str, str], said: str
) -> None:
    with pytest.raises(InvalidConfig, match=said):
        lake.load(**options)
    assert not lake.offsets.exists()


def test_a_column_called_load_is_refused(lake: Lake) -> None:
    with pytest.raises(InvalidConfig, match="a column is called load"), lake.load() as load:
        load.write_parquet(lake.table, load.df.withColumn("Load", f.lit(1)))


def test_a_load_is_used_once_and_inside_its_block(lake: Lake) -> None:
    load = lake.load()
    with pytest.raises(errors.LoadError, match="inside the with block"):
        load.write_parquet(lake.table)
    with load:
        load.write_parquet(lake.table)
    with pytest.raises(errors.LoadError, match=r"call load\(\) again"), load:
        pass
