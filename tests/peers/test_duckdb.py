"""DuckDB reads the tables of Delta and Iceberg that tasks wrote, and skips files by their bounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyiceberg.catalog import load_catalog

import pyspark_kafkalog as kafkalog
from kafkalog_broker import EmbeddedBroker, start_broker
from pyspark_kafkalog.loads.load import Load
from tests.support.datasource.spark_topics import Topic, record
from tests.support.foreign.duckdb_tables import answers_to, duckdb_tables
from tests.support.foreign.fetched import NotAvailable
from tests.support.loads.iceberg_threads import end_threads
from tests.support.protocol.raw_client import RawClient

HOUR_MS = 3_600_000
COUNT = 60
INNER = pa.struct({"n": pa.int64(), "l": pa.list_(pa.int64())})


@pytest.fixture(scope="module", autouse=True)
def judge() -> None:
    try:
        duckdb_tables()
    except NotAvailable as e:
        pytest.skip(str(e))


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedBroker]:
    with start_broker({"log.retention.ms": "-1"}) as running:
        yield running


def columns(batch: pa.RecordBatch) -> pa.Table:
    """One of each type that tables have; ``text`` also divides the table, and is null or not plain ASCII."""
    offsets = batch["offset"].to_pylist()
    return pa.table(
        {
            "partition": batch["partition"],
            "offset": batch["offset"],
            "key": batch["key"],
            "value": batch["value"],
            "time": batch["timestamp"],
            "day_of": batch["timestamp"].cast(pa.date32()),
            "text": pa.array([("ä b/%", "x", None)[offset % 3] for offset in offsets], pa.string()),
            "share": pc.divide(batch["offset"].cast(pa.float64()), 8),
            "amount": pa.array(map(Decimal, offsets), pa.decimal128(14, 2)),
            "even": pa.array([offset % 2 == 0 for offset in offsets], pa.bool_()),
            "small": batch["offset"].cast(pa.int32()),
            "inner": pa.array([{"n": offset, "l": [offset]} for offset in offsets], INNER),
        }
    )


QUERY = """
SELECT partition, "offset", hex(key), hex(value), epoch_ms("time"), day_of, text, share, amount, even, small,
       "inner".n, "inner".l[1]
FROM {table} WHERE {which} ORDER BY partition, "offset"
"""


def expected(partition: int, offset: int) -> list[Any]:
    value = f"{partition}-{offset}".encode()
    time_ms = offset * HOUR_MS
    key = None if offset % 4 else b"k"
    return [
        partition, offset, None if key is None else key.hex().upper(), value.hex().upper(), time_ms,
        f"1970-01-0{1 + offset // 24}", ("ä b/%", "x", None)[offset % 3], offset / 8, f"{offset}.00",
        offset % 2 == 0, offset, offset, offset,
    ]  # fmt: skip


def load(server: EmbeddedBroker, topic: Topic, root: Path) -> Load:
    options: dict[str, Any] = {"kafka.bootstrap.servers": server.bootstrap_servers, "subscribe": topic.name}
    return kafkalog.load(None, name="judged", offsets=root / "offsets", **options)


def fill(topic: Topic, first: int, last: int) -> None:
    for partition in range(2):
        topic.add_records(
            [
                record(f"{partition}-{offset}".encode(), None if offset % 4 else b"k", offset * HOUR_MS)
                for offset in range(first, last)
            ],
            partition=partition,
        )


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_every_value_is_read_and_none_is_skipped_by_its_bounds(
    server: EmbeddedBroker, tmp_path: Path, kind: str
) -> None:
    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/c.db", "warehouse": f"file://{tmp_path}/lake"}
    with RawClient(server.port) as client:
        assert client.create_topic(f"judged-{kind}", 2, {}).error_code == 0
        topic = Topic(client, f"judged-{kind}")
        how: dict[str, Any] = {
            "transform": columns,
            "partition_by": "text",
            "partition_by_time": "time",
        }
        for first in (0, COUNT // 2):
            fill(topic, first, first + COUNT // 2)
            with load(server, topic, tmp_path) as running:
                if kind == "delta":
                    running.write_delta(str(tmp_path / "table"), **how)
                else:
                    running.write_iceberg("db.judged", catalog=catalog, **how)
    if kind == "delta":
        table = f"delta_scan('{tmp_path / 'table'}')"
    else:
        metadata = load_catalog("default", **catalog).load_table("db.judged").metadata_location
        table = f"iceberg_scan('{metadata}')"
    everything = [expected(partition, offset) for partition in range(2) for offset in range(COUNT)]
    cases: list[tuple[str, Callable[[list[Any]], bool]]] = [
        ("true", lambda row: True),
        ('"offset" = 41', lambda row: row[1] == 41),
        ("text = 'ä b/%' AND \"offset\" < 5", lambda row: row[6] == "ä b/%" and row[1] < 5),
        ("text IS NULL AND share > 7", lambda row: row[6] is None and row[7] > 7),
        ("\"time\" >= '1970-01-03 05:00:00+00'", lambda row: row[4] >= 53 * HOUR_MS),
        ("day_of = '1970-01-02' AND NOT even", lambda row: row[5] == "1970-01-02" and not row[9]),
        ("amount = 33 OR key IS NOT NULL", lambda row: row[8] == "33.00" or row[2] is not None),
    ]
    answers = answers_to(*(QUERY.format(table=table, which=which) for which, _ in cases))
    for (which, holds), found in zip(cases, answers, strict=True):
        assert found == [row for row in everything if holds(row)], which
        assert found
    end_threads()
