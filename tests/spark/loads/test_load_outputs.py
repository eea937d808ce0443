"""What loads write beside plain Parquet: ORC, directories by event time, dead letters."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from pyarrow import orc
from pyspark.sql import functions as f

import pyspark_kafkalog as kafkalog
from pyspark_kafkalog.errors import InvalidConfig, LoadError, TooManyDead
from pyspark_kafkalog.loads import verification
from tests.support.datasource.spark_topics import Topic, record
from tests.support.loads.file_lake import Lake
from tests.support.spark.frame_rows import assert_rows


@pytest.fixture
def lake(spark: Any, server: Any, new_topic: Callable[..., Topic], tmp_path: Path) -> Lake:
    return Lake(spark, server.bootstrap_servers, new_topic(prefix="outputs"), tmp_path)


@pytest.mark.long("several Spark jobs")
def test_a_table_of_orc_is_written_counted_read_and_checked_like_one_of_parquet(lake: Lake) -> None:
    for values in (range(10), range(10, 12)):
        lake.topic.add(*values)
        with lake.load() as load:
            number = f.col("value").cast("string").cast("int").alias("n")
            load.write_orc(lake.table, load.df.select(number, "timestamp"), compression="zstd")
    assert_rows(
        kafkalog.read_load(lake.spark, lake.table).select("load", "n"),
        "load int, n int",
        [*((1, n) for n in range(10)), (2, 10), (2, 11)],
    )
    without_spark = kafkalog.read_load(None, lake.table).read_all()
    assert without_spark["n"].to_pylist() == [*range(12)]
    assert without_spark["load"].to_pylist() == [1] * 10 + [2] * 2
    (first, second) = (out for commit in lake.ledger.history() for out in commit.outputs)
    assert (first.format, first.rows, second.rows) == ("orc", 10, 2)
    file = Path(second.path, second.directory, second.files[0].name)
    assert orc.ORCFile(file).nrows == second.files[0].rows
    assert verification.verify_outputs(lake.ledger.lineage()) == []
    file.write_bytes(file.read_bytes()[: second.files[0].bytes // 2].ljust(second.files[0].bytes, b"\0"))
    (finding,) = verification.verify_outputs(lake.ledger.lineage())
    assert "is not a complete ORC file" in finding

    lake.topic.add(12)
    said = "holds orc files of load 'events'; parquet files cannot be added"
    with pytest.raises(LoadError, match=said), lake.load() as load:
        load.write_parquet(lake.table)
    said = "since load 1 n was int and is bigint"
    lake.ledger.rewind(1, "run")
    with pytest.raises(LoadError, match=said), lake.load() as load:
        load.write_orc(lake.table, load.df.select(f.col("offset").alias("n")))


@pytest.mark.long("several Spark jobs")
def test_one_load_writes_the_directories_of_the_hours_of_its_records_in_utc(lake: Lake) -> None:
    hour = 3_600_000
    lake.topic.add(0, 1, 2, timestamp=25 * hour - 1, step=1)
    lake.topic.add_records([record(b"3", timestamp=5 * hour), record(b"4", timestamp=-1)])
    lake.spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        with lake.load() as load:
            load.write_parquet(lake.table, partition_by_time="timestamp", grain="hour")
        lake.topic.add(5, timestamp=5 * hour)  # a late one: another load has a directory of its own for it
        with lake.load() as load:
            load.write_parquet(lake.table, partition_by_time="timestamp", grain="hour")
        found = kafkalog.read_load(lake.spark, lake.table)
        first, second = date(1970, 1, 1), date(1970, 1, 2)
        assert_rows(
            found.select("value", "load", "day", "hour"),
            "value binary, load int, day date, hour int",
            [
                (b"0", 1, second, 0), (b"1", 1, second, 1), (b"2", 1, second, 1), (b"3", 1, first, 5),
                (b"4", 1, None, None), (b"5", 2, first, 5),
            ],
        )  # fmt: skip
    finally:
        lake.spark.conf.unset("spark.sql.session.timeZone")
    directories = {str(name.parent.relative_to(lake.table)) for name in lake.table.rglob("part-*")}
    null = "__HIVE_DEFAULT_PARTITION__"
    assert sorted(re.sub("/kl_run=[0-9a-f]{32}", "", name) for name in directories) == [
        "load=00000001/day=1970-01-01/hour=5", "load=00000001/day=1970-01-02/hour=0",
        "load=00000001/day=1970-01-02/hour=1", f"load=00000001/day={null}/hour={null}",
        "load=00000002/day=1970-01-01/hour=5",
    ]  # fmt: skip
    lake.topic.add(6)
    said = r"load 2 is partitioned by \['day', 'hour'\], this one by \['day'\]"
    with pytest.raises(LoadError, match=said), lake.load() as load:
        load.write_parquet(lake.table, partition_by_time="timestamp")
    with (
        pytest.raises(
            InvalidConfig, match="partition_by_time=value is of type binary; it must be a timestamp or a date"
        ),
        lake.load() as load,
    ):
        load.write_parquet(lake.root / "other", partition_by_time="value")


def test_records_that_cannot_be_used_are_kept_as_they_were_with_the_reason(lake: Lake) -> None:
    bad = record(b"\xff", key=b"k", timestamp=7, headers=(("h", b"v"),))
    lake.topic.add_records([record(b"1"), bad, record(None), record(b"4")])

    def run(**limits: Any) -> Any:
        with lake.load(includeHeaders=True) as load:
            number = f.expr("try_cast(cast(value AS string) AS int)")
            why = f.when(number.isNull(), f.concat(f.lit("no number at "), f.col("offset")))
            good = load.dead_letters(
                load.df.withColumn("n", number).withColumn("why", why), reason="why", **limits
            )
            load.write_parquet(lake.table, good.select("n"))
        return load.commit

    said = (
        r"load 1 has 2 dead letters, more than max_dead=0\.4 of 4 records\. First reasons: no number at 1; no"
    )
    with pytest.raises(TooManyDead, match=said):
        run(max_dead=0.4)
    with pytest.raises(TooManyDead, match=r"more than max_dead=1\. "):
        run(max_dead=1)
    with pytest.raises(LoadError, match="no load was committed yet"):
        kafkalog.read_dead(lake.spark, "events", offsets=lake.offsets)
    commit = run(max_dead=2)
    assert (commit.number, commit.mode, [out.rows for out in commit.outputs]) == (1, "dir", [2, 2])
    assert_rows(kafkalog.read_load(lake.spark, lake.table), "n int, load int", [(1, 1), (4, 1)])
    lake.topic.add(5)
    run()
    found = kafkalog.read_dead(lake.spark, "events", offsets=lake.offsets)
    without_spark = kafkalog.read_dead(None, "events", offsets=lake.offsets).read_all()
    assert sorted(without_spark["reason"].to_pylist()) == sorted(row.reason for row in found.collect())
    assert_rows(
        found.select("key", "value", "topic", "partition", "offset", "headers", "reason", "load"),
        "key binary, value binary, topic string, partition int, offset bigint, "
        "headers array<struct<key:string,value:binary>>, reason string, load int",
        [
            (b"k", b"\xff", lake.topic.name, 0, 1, [("h", b"v")], "no number at 1", 1),
            (None, None, lake.topic.name, 0, 2, None, "no number at 2", 1),
        ],
    )
    assert found.where("offset = 1").first().timestamp.timestamp() == 0.007
    assert lake.ledger.verify() == verification.verify_outputs(lake.ledger.lineage()) == []

    lake.topic.add(6)
    with pytest.raises(InvalidConfig, match=r"columns key, value, .* are missing"), lake.load() as load:
        load.dead_letters(load.df.select("topic", f.lit("x").alias("reason")))


@pytest.mark.long("several Spark jobs")
def test_an_earlier_load_is_read_again_from_the_topic_and_from_the_table(lake: Lake) -> None:
    for values in (range(3), range(3, 5), range(5, 9)):
        lake.topic.add(*values)
        with lake.load() as load:
            load.write_parquet(lake.table)
    lake.topic.add(9)

    def topic(**options: str) -> list[int]:
        given = {"kafka.bootstrap.servers": lake.servers, "subscribe": lake.topic.name, **options}
        given |= {"loadName": "events", "offsetsPath": str(lake.offsets)}
        return [
            int(row.value) for row in lake.spark.read.format("kafkalog").options(**given).load().collect()
        ]

    def table(**options: str) -> list[int]:
        rows = kafkalog.read_load(lake.spark, lake.table, **options).collect()
        return sorted(int(row.value) for row in rows)

    second = lake.ledger.commit_at(2).created
    assert topic() == [9]
    assert topic(startingOffsets="commit:2") == [5, 6, 7, 8, 9]
    assert topic(between="commit:1,commit:3") == [3, 4, 5, 6, 7, 8]
    assert topic(asOf=second) == [0, 1, 2, 3, 4]
    assert table() == list(range(9))
    assert table(between="commit:1,commit:3") == [3, 4, 5, 6, 7, 8]
    assert table(as_of=second) == [0, 1, 2, 3, 4]
    lake.ledger.rewind(1, "run")
    assert (table(), table(as_of=second)) == ([0, 1, 2], [0, 1, 2, 3, 4])
    with pytest.raises(InvalidConfig, match="to load it again, rewind"), lake.load(asOf=second):
        pass
    audit = kafkalog.audit(lake.spark, "events", offsets=lake.offsets)
    assert_rows(
        audit.select("load", "in_effect", "start", "end", "records", "broker"),
        "load bigint, in_effect boolean, start bigint, end bigint, records bigint, broker int",
        [(1, True, 0, 3, 3, None), (2, False, 3, 5, 2, None), (3, False, 5, 9, 4, None)],
    )
    assert audit.where("load = 1").first().first_timestamp.timestamp() == 1.0


@pytest.mark.long("several Spark jobs")
def test_a_compaction_leaves_rows_loads_and_values_as_they_are(lake: Lake) -> None:
    """Values of directories that look like numbers too, and columns that came later."""

    def run(*values: int, code: str, **more: str) -> None:
        lake.topic.add(*values)
        with lake.load() as load:
            columns = [f.lit(text).alias(name) for name, text in {"code": code, **more}.items()]
            load.write_parquet(lake.table, load.df.select("value", *columns), partition_by="code")

    run(0, code="007")
    run(1, code="007")
    run(2, 3, code="7b:", added="x")
    run(4, code="7b:")
    everything = [
        (b"0", None, 1, "007"), (b"1", None, 2, "007"), (b"2", "x", 3, "7b:"), (b"3", "x", 3, "7b:"),
        (b"4", None, 4, "7b:"),
    ]  # fmt: skip
    schema = "value binary, added string, load int, code string"

    def assert_same() -> None:
        found = kafkalog.read_load(lake.spark, lake.table, mergeSchema=True)
        assert_rows(found.select("value", "added", "load", "code"), schema, everything)

    assert_same()
    commit = kafkalog.compact(lake.spark, lake.table)
    assert (commit.number, commit.mode) == (5, "compact")
    assert sorted(file.name.rpartition("/")[0] for file in commit.outputs[0].files) == [
        "code=007",
        "code=7b%3A",
    ]
    assert_same()
    assert kafkalog.compact(lake.spark, lake.table) is None
    run(5, code="8")
    everything.append((b"5", None, 6, "8"))
    assert_same()
    later = kafkalog.read_load(lake.spark, lake.table, between="commit:2,commit:5")
    assert sorted(row.load for row in later.collect()) == [3, 3, 4]
    assert kafkalog.read_load(lake.spark, lake.table, as_of=lake.ledger.commit_at(2).created).count() == 2
    run(6, code="8")
    everything.append((b"6", None, 7, "8"))
    assert kafkalog.compact(lake.spark, lake.table).outputs[0].replaces == ((6, 8),)
    assert_same()
    assert lake.ledger.verify() == verification.verify_outputs(lake.ledger.lineage()) == []
    with lake.load() as load:
        assert load.is_empty
    files = (lake.table / "_manifest" / "files.txt").read_text().splitlines()
    assert lake.spark.read.parquet(*files).count() == 7


def test_a_table_of_orc_without_partitions_is_compacted(lake: Lake) -> None:
    for n in range(3):
        lake.topic.add(n)
        with lake.load() as load:
            load.write_orc(lake.table)
    commit = kafkalog.compact(lake.spark, lake.table, target_bytes=1 << 20)
    assert len(commit.outputs[0].files) == 1
    lake.assert_published([(1, 0), (2, 1), (3, 2)])
    lake.ledger.rewind(2, "run")
    lake.assert_published([(1, 0), (2, 1)])
