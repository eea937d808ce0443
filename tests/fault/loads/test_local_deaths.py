"""Loads without Spark, killed at each of their durable steps: what readers see is all of a load or
nothing, and the next run leaves every record once.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from kafkalog_broker.embedded import EmbeddedBroker, start_broker
from pyspark_kafkalog.ledger.ledger import Ledger
from pyspark_kafkalog.ledger.stores.locations import open_store
from pyspark_kafkalog.loads.manifest import FILES
from pyspark_kafkalog.loads.verification import verify_outputs
from tests.support.datasource.spark_topics import Topic
from tests.support.loads.dying_local_load import catalog
from tests.support.loads.iceberg_threads import end_threads
from tests.support.protocol.raw_client import RawClient

REPOSITORY = Path(__file__).parents[3]
VALUES = range(20)


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with start_broker() as running:
        yield running


@pytest.fixture(scope="module")
def load() -> Iterator[Callable[..., str]]:
    """``load(3, "delta", root, servers, topic)`` dies at its third step; the answer says so."""
    program = [sys.executable, "-m", "tests.support.loads.dying_local_load"]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(program, cwd=REPOSITORY, **pipes) as process:

        def run(*order: object) -> str:
            assert process.stdin is not None
            assert process.stdout is not None
            print(*order, file=process.stdin, flush=True)
            return process.stdout.readline().strip()

        yield run
        assert process.stdin is not None
        process.stdin.close()
    end_threads()


def seen(kind: str, root: Path) -> list[int]:
    """The values that readers see."""
    if kind == "delta":
        there = DeltaTable.is_deltatable(str(root / "table"))
        columns = [pa.table(DeltaTable(str(root / "table")).to_pyarrow_table())] if there else []
    elif kind == "iceberg":
        lake = load_catalog("default", **catalog(root))
        columns = [lake.load_table("db.events").scan().to_arrow()] if lake.table_exists("db.events") else []
        lake.close()
    else:
        urls = (open_store(root / "table").read(FILES) or b"").decode().splitlines()
        columns = [pq.ParquetFile(url.removeprefix("file://")).read(["value"]) for url in urls]
    return sorted(int(value) for one in columns for value in one["value"].to_pylist())


@pytest.mark.parametrize("kind", ["parquet", "delta", "iceberg"])
@pytest.mark.parametrize(
    "stride",
    [37, pytest.param(23, marks=pytest.mark.long("many steps")), pytest.param(1, marks=pytest.mark.soak)],
)
def test_a_load_that_died_anywhere_is_all_there_or_not_and_then_there_once(
    kind: str, stride: int, load: Callable[..., str], broker: EmbeddedBroker, tmp_path: Path
) -> None:
    with RawClient(broker.port) as client:
        topic = f"deaths-{kind}-{stride}"
        assert client.create_topic(topic, 2).error_code == 0
        rows = Topic(client, topic)
        rows.add(*VALUES[:12], partition=0)
        rows.add(*VALUES[12:], partition=1)
    where, states = (broker.bootstrap_servers, topic), Counter[str]()
    steps = int(load(0, kind, tmp_path / "undisturbed", *where))
    assert steps > 20
    for at in [*range(1, steps, stride), steps]:
        root = tmp_path / str(at)
        assert load(at, kind, root, *where) == "died"
        ledger = Ledger.at(root / "offsets", "events")
        committed = ledger.known() and ledger.head() is not None
        found = seen(kind, root)
        assert found in ([], [*VALUES])
        states[f"{'committed' if committed else 'not committed'}, {len(found)} rows"] += 1
        assert load(0, kind, root, *where).isdecimal()
        assert seen(kind, root) == [*VALUES]
        assert ledger.verify() == []
        assert verify_outputs(ledger.lineage()) == []
    # A manifest may lag; the table of a lake may be ahead of the ledger.
    other = "committed, 0 rows" if kind == "parquet" else "not committed, 20 rows"
    assert states.keys() <= {"not committed, 0 rows", "committed, 20 rows", other}
    assert {"not committed, 0 rows", "committed, 20 rows"} <= states.keys()
    assert other in states or stride > 1
