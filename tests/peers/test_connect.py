"""Kafka Connect beside our loads: its Iceberg sink reads our broker, with its commits in transactions."""

from __future__ import annotations

from pathlib import Path

import pytest

import pyspark_kafkalog as kafkalog
from kafkalog_broker.embedded import start_broker
from tests.support.foreign.fetched import NotAvailable
from tests.support.foreign.kafka_connect import IcebergSinks
from tests.support.loads.iceberg_threads import end_threads
from tests.support.until import until

RECORDS, PARTITIONS = 1000, 2


def test_icebergs_sink_has_every_record_of_our_broker_once(tmp_path: Path) -> None:
    with start_broker({"num.partitions": PARTITIONS}) as broker:
        try:
            sinks = IcebergSinks(broker.bootstrap_servers, tmp_path)
        except NotAvailable as e:
            pytest.skip(str(e))
        try:
            with kafkalog.Producer({"bootstrap.servers": broker.bootstrap_servers}) as producer:
                for number in range(RECORDS):
                    producer.send("flights", b"%d" % number, partition=number % PARTITIONS)
            sinks.begin("flights", "flights", PARTITIONS, commit_every_ms=1000)
            until(lambda: sinks.rows("flights") == RECORDS, seconds=300)
            table = sinks.table("flights")
            assert table is not None
            found = table.scan(selected_fields=("partition", "offset", "value")).to_arrow().to_pylist()
        finally:
            sinks.stop()
            end_threads()
    rows = sorted((row["partition"], row["offset"], row["value"]) for row in found)
    numbers = [(p, o, o * PARTITIONS + p) for p in range(PARTITIONS) for o in range(RECORDS // PARTITIONS)]
    assert rows == [(partition, offset, b"%d" % number) for partition, offset, number in numbers]
