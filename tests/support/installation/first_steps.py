"""What a new user tries first, in whatever environment runs it: a broker and clients, then a read and a load
without Spark, then both in Spark.

    python first_steps.py broker arrow spark

Prints one line of JSON for each: the step, and the first line of its error, null if it worked.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path

import pyspark_kafkalog as kafkalog
from kafkalog_broker import start_broker

VALUES = [b"%d" % number for number in range(1000)]


def broker(servers: str, _: Path) -> None:
    """Records through the library and through the command."""
    with kafkalog.Producer({"bootstrap.servers": servers, "compression.type": "zstd"}) as producer:
        for value in VALUES:
            producer.send("flights", value)
    with kafkalog.Consumer({"bootstrap.servers": servers, "auto.offset.reset": "earliest"}) as consumer:
        consumer.assign(consumer.partitions_for("flights"))
        found: list[bytes | None] = []
        while len(found) < len(VALUES):
            found += [record.value for record in consumer.poll()]
    assert found == VALUES
    command = [sys.executable, "-m", "pyspark_kafkalog.cli", "consume", "flights", "-b", servers, "--quiet"]
    shown = subprocess.run(command, capture_output=True, check=True, timeout=120).stdout
    assert shown.splitlines() == VALUES


def arrow(servers: str, directory: Path) -> None:
    """Arrow batches, and a load that goes on where the first one ended."""
    read = kafkalog.read_arrow(servers, "flights")
    assert [value for batch in read for value in batch.column("value").to_pylist()] == VALUES
    given = {"kafka.bootstrap.servers": servers, "subscribe": "flights"}
    for goes_on in (False, True):
        with kafkalog.load(None, name="here", offsets=str(directory / "ledger"), **given) as load:
            assert load.is_empty == goes_on
            load.write_parquet(str(directory / "here"))
    found = kafkalog.read_load(None, str(directory / "here"))
    assert sum(batch.num_rows for batch in found) == len(VALUES)


def spark(servers: str, directory: Path) -> None:
    """A read and a load in Spark."""
    from pyspark.sql import SparkSession

    kafkalog.ensure_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    given = {"kafka.bootstrap.servers": servers, "subscribe": "flights"}
    read = session.read.format("kafkalog").options(**given).load()
    assert sorted(bytes(row.value) for row in read.select("value").collect()) == sorted(VALUES)
    with kafkalog.load(session, name="spark", offsets=str(directory / "ledger"), **given) as load:
        load.write_parquet(str(directory / "spark"))
    assert kafkalog.read_load(session, str(directory / "spark")).count() == len(VALUES)
    session.stop()


STEPS: dict[str, Callable[[str, Path], None]] = {"broker": broker, "arrow": arrow, "spark": spark}


def main() -> None:
    with start_broker() as running, tempfile.TemporaryDirectory() as directory:
        for name in sys.argv[1:]:
            error = None
            try:
                STEPS[name](running.bootstrap_servers, Path(directory))
            except Exception as e:
                traceback.print_exc()
                error = f"{type(e).__name__}: {e}".strip().splitlines()[0]
            sys.stdout.write(json.dumps({"step": name, "error": error}) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
