"""Loads into Delta Lake and Iceberg: one commit holds rows and position, whatever dies around it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

import kafkalog_broker
import pyspark_kafkalog as kafkalog
from kafkalog_broker.embedded import EmbeddedBroker
from pyspark_kafkalog.ledger.ledger import Ledger
from tests.support.datasource.spark_topics import Topic
from tests.support.foreign.clients07 import ClientError
from tests.support.foreign.fetched import NotAvailable
from tests.support.formats.avro_bytes import avro_bytes
from tests.support.loads.iceberg_threads import end_threads
from tests.support.protocol.raw_client import RawClient
from tests.support.spark.spark_environments import (
    SparkProcess,
    older_pyspark,
    warehouse_configs,
    warehouse_jars,
)

JOBS = "tests.support.loads.warehouse_jobs"


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkProcess]:
    root = tmp_path_factory.mktemp("warehouses")
    try:
        running = SparkProcess(root / "log", older_pyspark(), warehouse_jars(), warehouse_configs(root))
    except NotAvailable as e:
        pytest.skip(str(e))
    yield running
    running.close()


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedBroker]:
    with kafkalog_broker.start_broker({"log.retention.ms": "-1"}) as running:
        yield running


class Warehouse:
    """A topic of two partitions, and the table of one kind that it is loaded into."""

    def __init__(
        self, process: SparkProcess, server: EmbeddedBroker, topic: Topic, root: Path, kind: str
    ) -> None:
        self._process, self._server, self.topic, self.root = process, server, topic, root
        self.kind = kind
        self.table = str(root / "table") if kind == "delta" else f"ice.db.t{abs(hash(root)) % 10**9}"

    @property
    def ledger(self) -> Ledger:
        return Ledger.at(self.root / "offsets", "events")

    def load(self, **how: Any) -> dict[str, Any]:
        found: dict[str, Any] = self._process.call(
            f"{JOBS}:load", servers=self._server.bootstrap_servers, topic=self.topic.name,
            offsets=str(self.root / "offsets"), table=self.table, kind=self.kind, **how,
        )  # fmt: skip
        return found

    def values(self) -> list[int]:
        return list(self._process.call(f"{JOBS}:values", table=self.table, kind=self.kind))

    def roll_back(self, *, by_time: bool) -> None:
        self._process.call(f"{JOBS}:roll_back", table=self.table, kind=self.kind, by_time=by_time)

    def commits(self) -> int:
        return int(self._process.call(f"{JOBS}:commits", table=self.table, kind=self.kind))


@pytest.fixture(params=["delta", "iceberg"])
def warehouse(
    process: SparkProcess, server: EmbeddedBroker, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Warehouse]:
    with RawClient(server.port) as client:
        name = f"into-{request.node.name.replace('[', '-').replace(']', '')}"[:100]
        assert client.create_topic(name, 2, {}).error_code == 0
        topic = Topic(client, name)
        topic.add(*range(10), partition=0)
        topic.add(*range(10, 15), partition=1)
        yield Warehouse(process, server, topic, tmp_path, request.param)


def test_rows_and_position_are_one_commit_of_the_table(warehouse: Warehouse) -> None:
    first = warehouse.load()
    assert (first["number"], first["mode"], first["records"], first["rows"]) == (1, "sink", 15, 15)
    assert first["format"] == warehouse.kind
    warehouse.topic.add(15, 16)
    assert warehouse.load()["rows"] == 2
    assert warehouse.load() == {}
    assert warehouse.values() == list(range(17))
    assert [out.evidence["rows"] for commit in warehouse.ledger.history() for out in commit.outputs] == [
        15,
        2,
    ]
    assert warehouse.ledger.verify() == []


def by_tasks(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "partition": batch["partition"],
            "offset": batch["offset"],
            "value": pc.cast(batch["value"], pa.string()),
            "time": batch["timestamp"],
        }
    )


def without_spark(warehouse: Warehouse, server: EmbeddedBroker) -> kafkalog.Load:
    options: dict[str, Any] = {"kafka.bootstrap.servers": server.bootstrap_servers}
    options["subscribe"] = warehouse.topic.name
    return kafkalog.load(None, name="events", offsets=warehouse.root / "offsets", **options)


@pytest.mark.parametrize("warehouse", ["delta"], indirect=True)
def test_spark_and_tasks_write_one_table_in_turns(warehouse: Warehouse, server: EmbeddedBroker) -> None:
    warehouse.load()
    for number in (15, 17):
        warehouse.topic.add(number)
        with without_spark(warehouse, server) as load:
            load.write_delta(
                warehouse.table,
                transform=lambda batch: by_tasks(batch).drop_columns("time"),
                partition_by="partition",
            )
        assert load.commit is not None
        warehouse.topic.add(number + 1)
        assert warehouse.load()["rows"] == 1
    assert [commit.number for commit in warehouse.ledger.history()] == [1, 2, 3, 4, 5]
    found = pa.table(DeltaTable(warehouse.table).to_pyarrow_table())["value"].to_pylist()
    assert warehouse.values() == sorted(map(int, found)) == list(range(19))


@pytest.mark.parametrize("warehouse", ["iceberg"], indirect=True)
def test_sparks_runtime_reads_what_tasks_wrote(warehouse: Warehouse, server: EmbeddedBroker) -> None:
    root = warehouse.root
    catalog = {"type": "sql", "uri": f"sqlite:///{root}/catalog.db", "warehouse": f"file://{root}/lake"}
    for number in (15, 16):
        with without_spark(warehouse, server) as load:
            load.write_iceberg(
                "db.judged",
                catalog=catalog,
                transform=by_tasks,
                partition_by="partition",
                partition_by_time="time",
            )
        warehouse.topic.add(number)
    table = load_catalog("default", **catalog).load_table("db.judged")
    kept, *rows = warehouse._process.call(
        f"{JOBS}:registered", table=f"db.t{abs(hash(root)) % 10**9}", metadata=table.metadata_location
    )
    ours = table.scan().to_arrow()
    times = pc.divide(pc.cast(ours["time"], pa.int64()), 1000).to_pylist()
    columns = [ours[name].to_pylist() for name in ("partition", "offset", "value")]
    assert rows == sorted(map(list, zip(*columns, times, strict=True)))
    assert (len(rows), kept) == (16, [1])
    end_threads()


def test_a_driver_that_dies_between_the_two_commits_repeats_nothing(warehouse: Warehouse) -> None:
    with pytest.raises(ClientError, match="before the commit"):
        warehouse.load(fail="before the commit")
    assert warehouse.values() == list(range(15))
    assert warehouse.ledger.head() is None
    before = warehouse.commits()
    warehouse.topic.add(15)
    replayed = warehouse.load()
    assert (replayed["number"], replayed["records"], replayed["rows"]) == (1, 15, 15)
    assert warehouse.commits() == before
    assert warehouse.load()["number"] == 2
    assert warehouse.values() == list(range(16))


def test_what_a_driver_elsewhere_wrote_before_it_died_is_found_at_once(warehouse: Warehouse) -> None:
    warehouse.load()
    assert warehouse.values() == list(range(15))
    warehouse.topic.add(15)
    with pytest.raises(ClientError, match="before the commit"):
        warehouse.load(fail="before the commit", elsewhere=True)
    assert warehouse.load()["number"] == 2
    assert warehouse.values() == list(range(16))


def test_a_load_that_is_in_the_table_cannot_be_discarded_unseen(warehouse: Warehouse) -> None:
    with pytest.raises(ClientError, match="before the commit"):
        warehouse.load(fail="before the commit")
    pending = warehouse.ledger.pending()
    assert pending is not None
    warehouse.ledger.discard(pending, "run")
    with pytest.raises(ClientError, match="the ledger discarded it: its rows would be there twice"):
        warehouse.load()
    assert warehouse.values() == list(range(15))


@pytest.mark.parametrize(
    ("warehouse", "by_time"), [("delta", False), ("delta", True), ("iceberg", False)], indirect=["warehouse"]
)
def test_a_table_that_was_rolled_back_takes_the_rows_of_a_rewound_load_again(
    warehouse: Warehouse, by_time: bool
) -> None:
    warehouse.load()
    warehouse.topic.add(15, 16)
    warehouse.load()
    warehouse.ledger.rewind(1, "back")
    with pytest.raises(
        ClientError, match="the ledger was rewound to before it: its rows would be there twice"
    ):
        warehouse.load()
    warehouse.roll_back(by_time=by_time)
    assert warehouse.values() == list(range(15))
    assert warehouse.load()["rows"] == 2
    assert warehouse.values() == list(range(17))


def test_two_loads_with_one_name_do_not_take_each_others_rows_for_their_own(warehouse: Warehouse) -> None:
    warehouse.load()
    (warehouse.root / "offsets").rename(warehouse.root / "elsewhere")  # begun anew: counts from 1 again
    assert warehouse.load()["rows"] == 15
    assert warehouse.values() == sorted([*range(15)] * 2)


def test_values_are_decoded_in_the_older_pyspark_too(process: SparkProcess) -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "n", "type": "long"}]}
    values = {"avro": avro_bytes(schema, {"n": 5}, 1).hex(), "json": b'{"n": 6}'.hex()}
    assert process.call(f"{JOBS}:decoded", schema=json.dumps(schema), **values) == [5, None, 6, None]
