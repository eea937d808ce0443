"""How fast does a topic become Arrow for a program without Spark, and DuckDB's answer, beside librdkafka?

Topics, sizes and the peer are those of `benchmarks.pipeline`: one partition, keys of 10 bytes, batches of 64
KiB; confluent-kafka's consumer at its best, its messages made into the same seven columns. Ours is
`kafkalog.read_arrow` as a user calls it, with its defaults: each round looks up the topic, connects, and
reads everything. DuckDB counts the rows and adds up the sizes of their values, from either. Ours keeps broker
and reader busy, the peer waits for its own processor: so there is a line by the client's processor seconds,
which others on the machine do not change.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import duckdb
import pyarrow as pa

import kafkalog_broker
import pyspark_kafkalog as kafkalog
from benchmarks.harness import Measurement, Row, compare, interleave
from benchmarks.pipeline import READ_BYTES, SCHEMA, fill, peer_batches

QUERY = "SELECT count(*), sum(octet_length(value)) FROM rows"
PEER = "confluent-kafka"


def counted(reader: pa.RecordBatchReader) -> int:
    return sum(batch.num_rows for batch in reader)


def queried(reader: pa.RecordBatchReader) -> int:
    (found,) = duckdb.from_arrow(reader).query("rows", QUERY).fetchall()
    return int(found[0])


def read_rows(servers: str, value_bytes: int, goal: float | None, rounds: int) -> list[Row]:
    """The lines for one size of value; ``goal`` of the batches, the others are for information."""
    count = READ_BYTES[value_bytes] // (value_bytes + 10)
    topic = f"measured-{value_bytes}"
    fill(servers, topic, count, value_bytes)

    def ours() -> pa.RecordBatchReader:
        return kafkalog.read_arrow(servers, topic)

    def peers() -> pa.RecordBatchReader:
        return pa.RecordBatchReader.from_batches(SCHEMA, peer_batches(servers, topic, count))

    contestants: dict[str, Callable[[], int]] = {
        "ours": lambda: counted(ours()),
        PEER: lambda: counted(peers()),
        "ours, DuckDB": lambda: queried(ours()),
        f"{PEER}, DuckDB": lambda: queried(peers()),
    }
    used = {name: Measurement(name, count) for name in contestants}

    def run_one(name: str) -> None:
        began = time.process_time()
        if contestants[name]() != count:
            raise RuntimeError(f"{name} did not read the whole topic")
        used[name].seconds.append(time.process_time() - began)

    calls = {name: lambda name=name: run_one(name) for name in contestants}
    took = interleave(calls, rounds, count)
    for each in used.values():
        del each.seconds[:-rounds]  # the warm-up
    return [
        compare(f"{what}, {value_bytes} B", measured[f"ours{by}"], measured[PEER + by], unit, wanted)
        for what, measured, by, unit, wanted in (
            ("topic to record batches", took, "", "Mrec/s", goal),
            ("the same by the client's processor time", used, "", "Mrec/CPU s", None),
            ("DuckDB: rows, and bytes of values", took, ", DuckDB", "Mrec/s", None),
        )
    ]


def run(rounds: int = 5) -> list[Row]:
    with kafkalog_broker.start_broker({"log.segment.bytes": 1 << 28}) as running:
        servers = running.bootstrap_servers
        duckdb.execute("SET enable_progress_bar = false")
        return read_rows(servers, 100, 10, rounds) + read_rows(servers, 1024, None, rounds)
