"""A worker's memory stays flat over 50 GiB of log. `benchmarks.memory` measures the same over 5 GiB."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest

from benchmarks.memory import GIB, GOAL, VALUE_BYTES, watched
from benchmarks.raw_client import RawClient, batch
from benchmarks.spark_read import BATCH_BYTES, noop, session
from kafkalog_broker.embedded import EmbeddedBroker, start_broker
from pyspark_kafkalog.columnar.decoder import WARM_UP_RECORDS
from tests.support.log.linked_partitions import link_partitions

TOPIC, PARTITIONS = "long", 10
MIB = 1 << 20


def fill(broker: EmbeddedBroker, data_dir: Path) -> int:
    """`GIB` GiB in each of `PARTITIONS` partitions, which take the disk of one; the records of each."""
    data, records = batch(BATCH_BYTES, VALUE_BYTES)
    count = -(-(GIB << 30) // len(data))
    with RawClient(broker.port) as client:
        client.create_topic(TOPIC, PARTITIONS)
        client.produce(TOPIC, data, count)
    broker.stop()
    link_partitions(data_dir, TOPIC, PARTITIONS)
    broker.start()
    return count * records


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_one_worker_reads_fifty_gib_and_its_memory_stays_flat() -> None:
    with (
        tempfile.TemporaryDirectory() as directory,  # gone with the test, unlike pytest's
        start_broker({"log.retention.ms": -1}, data_dir=Path(directory)) as broker,
        session(1) as spark,
    ):
        records = fill(broker, broker.data_dir)

        def frame(end: int) -> Any:
            ends = json.dumps({TOPIC: dict.fromkeys(map(str, range(PARTITIONS)), end)})
            options = {"kafka.bootstrap.servers": broker.bootstrap_servers, "subscribe": TOPIC}
            return spark.read.format("kafkalog").options(**options, endingOffsets=ends).load()

        noop(frame(WARM_UP_RECORDS))  # the worker is there, with its compiled decoder
        whole = frame(records)
        seen = watched(lambda: noop(whole))
    early, late = seen.most(0, 0.1) / MIB, seen.most(0.1, 1) / MIB
    print(  # noqa: T201
        f"{PARTITIONS * GIB} GiB, {PARTITIONS * records} records, in {seen.seconds:.0f} s; "
        f"{len(seen.samples)} samples: {early:.0f} MiB in the first tenth, {late:.0f} MiB in the rest"
    )
    assert early / late >= GOAL
