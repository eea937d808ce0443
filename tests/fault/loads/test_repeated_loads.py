"""A load that is repeated for days keeps its memory and the number of its files."""

from __future__ import annotations

import gc
from pathlib import Path

import psutil
import pytest

import pyspark_kafkalog as kafkalog
from kafkalog_broker import start_broker
from pyspark_kafkalog.cli.housekeeping import collect_garbage
from pyspark_kafkalog.ledger.ledger import Ledger
from tests.support.datasource.spark_topics import Topic
from tests.support.loads.tasks_here import run_tasks_here
from tests.support.protocol.raw_client import RawClient

pytestmark = pytest.mark.soak

LOADS, WARM_UP, BETWEEN = 2_000, 200, 50
MORE_BYTES = 16 << 20
"""What the allocator may keep between the first and the last look."""


def test_memory_and_files_stay_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_tasks_here(monkeypatch.setattr)
    offsets, table = str(tmp_path / "offsets"), tmp_path / "table"
    resident: list[int] = []
    counts: list[int] = []
    with start_broker() as broker, RawClient(broker.port) as client:
        assert client.create_topic("repeated", 1, {}).error_code == 0
        topic = Topic(client, "repeated")
        options = {"kafka.bootstrap.servers": broker.bootstrap_servers, "subscribe": "repeated"}
        for number in range(1, LOADS + 1):
            topic.add(number)
            with kafkalog.load(None, name="repeated", offsets=offsets, **options) as load:
                load.write_parquet(table)
            if number % BETWEEN == 0:
                kafkalog.compact(None, table)
                collect_garbage(Ledger.at(offsets, "repeated"), keep=1, older_than="0s", is_quiet=True)
                gc.collect()
                resident.append(psutil.Process().memory_info().rss)
                counts.append(sum(1 for _ in table.rglob("*.parquet")))
    warm, last = resident[WARM_UP // BETWEEN], resident[-1]
    assert last < warm + MORE_BYTES, [one >> 20 for one in resident]
    assert max(counts) <= 2
    values = kafkalog.read_load(None, table).read_all()["value"].to_pylist()
    assert sorted(map(int, values)) == list(range(1, LOADS + 1))
