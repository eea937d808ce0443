"""Loads into Delta Lake and Iceberg: one commit holds rows and position, whatever dies around it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kafkalog_broker
from kafkalog_broker.embedded import EmbeddedBroker
from pyspark_kafkalog.ledger.ledger import Ledger
from tests.support.datasource.spark_topics import Topic
from tests.support.foreign.clients07 import ClientError
from tests.support.foreign.fetched import NotAvailable
from tests.support.formats.avro_bytes import avro_bytes
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
