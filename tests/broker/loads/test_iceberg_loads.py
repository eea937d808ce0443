"""Iceberg tables that tasks write: each load once, whatever happens between its files and its commits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.expressions import And, EqualTo, GreaterThan
from pyiceberg.table import Table
from pyiceberg.table.update.snapshot import UpdateSnapshot
from pyiceberg.transforms import BucketTransform
from pyiceberg.utils.config import Config

from kafkalog_broker.embedded import EmbeddedBroker
from pyspark_kafkalog.errors import InvalidConfig, LoadError
from pyspark_kafkalog.loads.lake_cleaning import removable_lake_files
from pyspark_kafkalog.loads.load import Load
from pyspark_kafkalog.loads.output_cleaning import remove_files
from tests.support.command_line import kafkalog
from tests.support.datasource.spark_topics import Topic, record
from tests.support.loads.iceberg_threads import end_threads
from tests.support.loads.local_lake import LocalLake
from tests.support.protocol.raw_client import RawClient

pytestmark = pytest.mark.usefixtures("tasks_here")

NAME = "db.events"


class Lake(LocalLake):
    """An Iceberg table in a catalog of its own."""

    @property
    def properties(self) -> dict[str, str]:
        places = {"uri": f"sqlite:///{self.root}/catalog.db", "warehouse": f"file://{self.root}/lake"}
        return {"name": "test", "type": "sql", **places}

    @property
    def catalog(self) -> Catalog:
        return load_catalog(**self.properties)

    @property
    def table(self) -> Table:
        return self.catalog.load_table(NAME)

    def write(self, load: Load, **how: Any) -> None:
        load.write_iceberg(NAME, catalog=self.properties, **how)

    def values(self) -> list[int]:
        return sorted(int(value) for value in self.table.scan().to_arrow()["value"].to_pylist())

    def snapshots(self) -> int:
        return len(self.table.snapshots())


@pytest.fixture(scope="module", autouse=True)
def threads_ended() -> Iterator[None]:
    yield
    end_threads()


@pytest.fixture
def lake(running_broker: EmbeddedBroker, client: RawClient, topic: str, tmp_path: Path) -> Lake:
    return Lake(running_broker.bootstrap_servers, Topic(client, topic), tmp_path)


def test_each_load_is_one_snapshot_with_statistics_and_without_a_name_mapping(lake: Lake) -> None:
    assert lake.run().number == 1
    lake.topic.add(15)
    commit = lake.run().commit
    assert commit is not None
    assert (commit.mode, commit.records, commit.outputs[0].evidence["rows"]) == ("sink", 1, 1)
    assert lake.values() == list(range(16))
    table = lake.table
    assert len(table.snapshots()) == 2
    assert "schema.name-mapping.default" not in table.properties
    found = table.scan(row_filter=And(EqualTo("partition", 0), GreaterThan("offset", 9)))
    assert [len(list(found.plan_files())), found.to_arrow()["value"].to_pylist()] == [1, [b"15"]]
    assert lake.run().is_empty


def test_the_command_appends_to_it(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("type", "uri", "warehouse"):
        monkeypatch.setenv(f"PYICEBERG_CATALOG__TEST__{name.upper()}", lake.properties[name])
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())
    for loaded in (15, 1):
        ran = kafkalog(*lake.command("--to", NAME, "--catalog", "test"))
        said = f"load {lake.ledger.head_number()}: {loaded} record"
        assert (ran.returncode, said in ran.stdout) == (0, True), ran.stderr
        lake.topic.add(15)
    assert lake.values() == list(range(16))
    both = kafkalog(*lake.command("--to", NAME, "--catalog", "test", "--format", "delta"))
    assert both.returncode == 2
    assert "--catalog and --format contradict each other" in both.stderr


def test_a_load_that_is_in_the_table_is_only_committed(lake: Lake) -> None:
    lake.unfinished()
    lake.topic.add(15)
    assert lake.run().number == 1
    assert (lake.values(), lake.snapshots()) == (list(range(15)), 1)
    assert lake.run().number == 2
    assert (lake.values(), lake.snapshots()) == (list(range(16)), 2)


def between(
    monkeypatch: pytest.MonkeyPatch, happens: Callable[[], object], *, then: BaseException | None = None
) -> None:
    """Let something happen between a load's look at the table and its commit, once."""
    commit, struck = SqlCatalog.commit_table, list[bool]()

    def late(self: SqlCatalog, *args: Any, **named: Any) -> Any:
        if struck:
            return commit(self, *args, **named)
        struck.append(True)
        happens()
        made = commit(self, *args, **named)
        if then is not None:
            raise then
        return made

    monkeypatch.setattr(SqlCatalog, "commit_table", late)


def test_of_two_drivers_that_both_looked_one_commits(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first slept after its look; its lock expired, and the second wrote the load meanwhile."""
    lake.run()
    lake.topic.add(15)
    with lake.load() as current:

        def second() -> None:
            current.write_iceberg(NAME, catalog=lake.properties)

        between(monkeypatch, second)
        current.write_iceberg(NAME, catalog=lake.properties)
    assert (lake.values(), lake.snapshots()) == (list(range(16)), 2)


def test_another_writer_does_not_disturb(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.run()
    lake.topic.add(15)

    def other() -> None:
        table = lake.table
        with table.transaction() as transaction:
            transaction.set_properties(user="elsewhere")

    between(monkeypatch, other)
    assert lake.run().number == 2
    assert lake.values() == list(range(16))
    assert lake.table.properties["user"] == "elsewhere"


def test_an_answer_that_is_lost_is_looked_for(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.run()
    lake.topic.add(15)
    between(monkeypatch, lambda: None, then=OSError("connection reset"))
    assert lake.run().number == 2
    assert (lake.values(), lake.snapshots()) == (list(range(16)), 2)


def test_a_commit_that_never_succeeds_is_told(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError("no route to host")

    monkeypatch.setattr(UpdateSnapshot, "fast_append", fail)
    monkeypatch.setattr("pyspark_kafkalog.loads.writers.task_lake_table._PAUSE_S", 0)
    with pytest.raises(
        LoadError, match=r"cannot commit to db\.events: OSError: no route to host; the plan stays"
    ):
        lake.run()
    monkeypatch.undo()
    assert lake.run().number == 1
    assert lake.values() == list(range(15))


def test_a_load_that_was_rolled_back_is_written_again(lake: Lake) -> None:
    lake.run()
    first = lake.table.current_snapshot()
    lake.topic.add(15)
    lake.unfinished()
    assert first is not None
    lake.table.manage_snapshots().rollback_to_snapshot(first.snapshot_id).commit()
    assert lake.values() == list(range(15))
    assert lake.run().number == 2
    assert lake.values() == list(range(16))


def test_rows_are_in_the_partitions_of_the_table(lake: Lake) -> None:
    hour = 3_600_000
    lake.topic.add_records([record(b"-1", timestamp=-1), record(None, timestamp=25 * hour)], partition=1)

    def words(batch: pa.RecordBatch) -> pa.RecordBatch:
        odd = {b"3": "", b"4": "a/b=%"}
        word = [
            odd.get(value, "two" if partition else None)
            for value, partition in zip(
                batch["value"].to_pylist(), batch["partition"].to_pylist(), strict=True
            )
        ]
        return pa.record_batch(
            {
                "word": pa.array(word, pa.string()),
                "small": pc.cast(batch["offset"], pa.int16()),
                "money": pc.cast(batch["offset"], pa.decimal128(21, 2)),
                "time": batch["timestamp"],
                "day": pc.cast(batch["timestamp"], pa.date32(), safe=False),
            }
        )

    how: dict[str, Any] = {
        "transform": words,
        "partition_by": ["word", "money"],
        "partition_by_time": "time",
        "grain": "hour",
    }
    with pytest.raises(InvalidConfig, match="partition_by_time makes the columns day, hour: rename day"):
        lake.run(**how)
    how["transform"] = lambda batch: words(batch).rename_columns(["word", "small", "money", "time", "on"])
    lake.run(**how)
    lake.topic.add(16, partition=0, timestamp=5)
    lake.run(transform=how["transform"])  # the table knows how it is partitioned
    table = lake.table
    assert str(table.schema().find_type("small")) == "int"
    rows = table.scan().to_arrow()
    assert rows.num_rows == 18
    for word, found in (("", 1), ("a/b=%", 1), ("two", 7), ("none", 0)):
        scan = table.scan(row_filter=EqualTo("word", word))
        assert scan.to_arrow().num_rows == found
        assert len(list(scan.plan_files())) == found
    assert rows["word"].null_count == 9
    early = table.scan(row_filter=EqualTo("time", datetime(1969, 12, 31, 23, 59, 59, 999000, timezone.utc)))
    assert early.to_arrow()["on"].to_pylist() == [date(1969, 12, 31)]
    assert {file["partition"]["money"] for file in table.inspect.files().to_pylist()} >= {Decimal("3.00")}
    lake.topic.add(17)
    said = r"partitioned by hour\(time\), identity\(word\), identity\(money\), and this load by \['word'\]:"
    with pytest.raises(LoadError, match=said):
        lake.run(transform=how["transform"], partition_by="word")


def test_what_tasks_cannot_write_is_refused_by_name_before_anything_is_read(lake: Lake) -> None:
    lake.run()
    lake.topic.add(15)
    with lake.table.update_spec() as spec:
        spec.add_field("offset", BucketTransform(4))
    with pytest.raises(
        LoadError,
        match=r"partitioned by bucket\[4\]\(offset\); tasks write columns as they are, and one day or hour:",
    ):
        lake.run()
    assert lake.load().ledger.store.names("receipts/00000002") == []


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"transform": lambda batch: batch.append_column("more", batch["offset"])},
            "has no column more; it has key",
        ),
        (
            {"transform": lambda batch: pa.record_batch({"offset": batch["partition"]})},
            "column offset is bigint, and",
        ),
        ({"catalog": 7}, "catalog= is int; it must be the name of a pyiceberg catalog"),
        ({"catalog": "nowhere"}, "cannot open the catalog of db.events: .*NOWHERE"),
        ({"catalog": None}, "a table without catalog= needs Spark, and this load has none"),
        ({"engine": "spark"}, "catalog= is for tasks that write, and engine='spark' for Spark's writers"),
    ],
)
def test_what_does_not_fit_is_told(lake: Lake, given: dict[str, Any], said: str) -> None:
    lake.run()
    lake.topic.add(15)
    with pytest.raises((LoadError, InvalidConfig), match=said), lake.load() as load:
        load.write_iceberg(NAME, **{"catalog": lake.properties, **given})


def test_a_catalog_of_the_users_and_loads_of_a_rewound_ledger(lake: Lake) -> None:
    catalog = lake.catalog
    with lake.load() as load:
        load.write_iceberg(NAME, catalog=catalog)
    lake.topic.add(15)
    lake.run()
    lake.ledger.rewind(1, "a rewind")
    with pytest.raises(
        LoadError, match=r"holds load 2 of 'events', in its version \d+, and the ledger was rewound"
    ):
        lake.run()
    first = lake.table.snapshots()[0]
    lake.table.manage_snapshots().rollback_to_snapshot(first.snapshot_id).commit()
    assert lake.run().number == 4
    assert lake.values() == list(range(16))


ALL = 10**13  # milliseconds: later than any file


def test_only_files_that_no_snapshot_has_are_removed(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a run that died before its commit; not what an older snapshot still has."""

    def die(*_: Any, **__: Any) -> None:
        raise InterruptedError("power cut")

    lake.run()
    lake.topic.add(15)
    with monkeypatch.context() as patch:
        patch.setattr(SqlCatalog, "commit_table", die)
        patch.setattr("pyspark_kafkalog.loads.writers.task_lake_table._PAUSE_S", 0)
        with pytest.raises(LoadError, match="power cut"):
            lake.run()
    (pending,) = removable_lake_files(lake.ledger, ALL, lake.properties)
    assert (pending.unlisted, pending.refused) == ((), "a plan is pending, and its files may be there")
    lake.run()
    lake.table.delete("partition = 0")
    (unknown,) = removable_lake_files(lake.ledger, ALL)
    assert unknown.refused == "it is an Iceberg table: say which catalog has it"
    (found,) = removable_lake_files(lake.ledger, ALL, lake.properties)
    assert len(found.unlisted) == 1
    remove_files(lake.ledger, found, ALL)
    assert removable_lake_files(lake.ledger, ALL, lake.properties)[0].unlisted == ()
    assert lake.values() == list(range(10, 15))
    second = lake.table.snapshots()[1].snapshot_id
    assert len(lake.table.scan(snapshot_id=second).to_arrow()) == 16
