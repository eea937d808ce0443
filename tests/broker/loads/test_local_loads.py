"""Loads without Spark: tasks in processes of this machine fetch, decode and write Parquet."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import pyspark_kafkalog as kafkalog
from kafkalog_broker.embedded import EmbeddedBroker
from pyspark_kafkalog.clock import parse_iso_time
from pyspark_kafkalog.errors import InvalidConfig, LoadBusy, LoadError
from pyspark_kafkalog.ledger.ledger import Ledger
from pyspark_kafkalog.loads.engines.engine import Tell
from pyspark_kafkalog.loads.engines.local_engine import LocalEngine
from pyspark_kafkalog.loads.manifest import listed_files
from pyspark_kafkalog.loads.output_files import table_store
from pyspark_kafkalog.loads.verification import verify_outputs
from tests.support.command_line import COMMAND
from tests.support.command_line import kafkalog as kafkalog_command
from tests.support.datasource.spark_topics import Topic
from tests.support.loads.local_lake import FileLake
from tests.support.protocol.raw_client import RawClient
from tests.support.until import until

ROOT = Path(__file__).parents[3]


@pytest.fixture
def lake(running_broker: EmbeddedBroker, client: RawClient, topic: str, tmp_path: Path) -> FileLake:
    return FileLake(running_broker.bootstrap_servers, Topic(client, topic), tmp_path)


def values(numbers: Any, load: int = 1) -> list[tuple[bytes, int]]:
    return sorted((str(n).encode(), load) for n in numbers)


def test_each_load_writes_what_came_since_the_last_one(lake: FileLake) -> None:
    first = lake.run()
    assert first.commit is not None
    assert (first.commit.mode, first.commit.records) == ("dir", 15)
    (output,) = first.commit.outputs
    assert (output.rows, output.wrote, len(output.files)) == (15, 15, 2)
    assert lake.run().is_empty
    lake.topic.add(15, 16, partition=1)
    assert lake.run().number == 2
    assert lake.rows("value", "load") == sorted(values(range(15)) + values((15, 16), 2))
    lake.ledger.rewind(1, "again")
    assert lake.run().number == 4
    assert lake.rows("value", "load") == sorted(values(range(15)) + values((15, 16), 4))
    assert lake.ledger.verify() == []
    assert verify_outputs(lake.ledger.lineage()) == []


def test_without_receipts_the_tasks_themselves_tile_the_plan(lake: FileLake) -> None:
    with kafkalog.load(None, name="events", offsets=lake.offsets, receipts=False, **lake.options) as load:
        load.write_parquet(lake.table)
    assert load.commit is not None
    assert load.commit.records == 15
    assert lake.ledger.store.names("receipts") == []
    assert lake.rows("value", "load") == values(range(15))


def test_a_function_makes_the_rows_and_divides_them(lake: FileLake) -> None:
    def halves(batch: pa.RecordBatch) -> pa.Table:
        os.write(1, b"what a task prints is not its answer\n")
        number = pc.cast(pc.cast(batch["value"], pa.string()), pa.int32())
        even = pc.filter(number, pc.equal(pc.bit_wise_and(number, 1), 0))
        return pa.table({"half": pc.divide(even, 2), "n": even})

    load = lake.run({"columns": "value"}, transform=halves, partition_by="n", compression="lz4")
    assert load.commit is not None
    assert load.commit.records == 15
    assert lake.rows("half", "n") == [(n // 2, n) for n in range(0, 15, 2)]


def test_a_table_is_read_as_it_is_or_was_without_spark(lake: FileLake) -> None:
    def coded(batch: pa.RecordBatch) -> pa.RecordBatch:
        codes = ["007" if offset % 2 else None for offset in batch["offset"].to_pylist()]
        columns = {
            "code": pa.array(codes, pa.string()),
            "number": batch["partition"],
            "time": batch["timestamp"],
        }
        return pa.record_batch({"value": batch["value"], **columns})

    how: dict[str, Any] = {
        "transform": coded,
        "partition_by": ["code", "number"],
        "partition_by_time": "time",
    }
    lake.run(**how)
    lake.topic.add(15, partition=1)
    lake.run(**how)
    reader = kafkalog.read_load(None, lake.table)
    assert reader.schema.names == ["value", "time", "day", "code", "number", "load"]
    kinds = [reader.schema.field(name).type for name in ("day", "code", "number", "load")]
    assert kinds == [pa.date32(), pa.string(), pa.int32(), pa.int32()]
    rows = reader.read_all()
    assert (rows.num_rows, rows["code"].null_count) == (16, 8)
    assert rows["day"].to_pylist() == [time.date() for time in rows["time"].to_pylist()]
    assert kafkalog.read_load(None, lake.table, between="commit:1,commit:2").read_all().num_rows == 1
    with pytest.raises(InvalidConfig, match="mergeSchema: options are of Spark's reader, and spark is None"):
        kafkalog.read_load(None, lake.table, mergeSchema=True)  # type: ignore[call-overload]
    file = next(lake.table.rglob("part-*"))
    file.unlink()
    with pytest.raises(LoadError, match=f"{file} is missing; `kafkalog verify` looks for more"):
        kafkalog.read_load(None, lake.table).read_all()


def test_a_database_gets_rows_and_offsets_without_spark(lake: FileLake, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/warehouse.db"
    for number in (1, 2):
        with lake.load() as load:
            load.write_sql(url, "events")
        assert load.number == number
        lake.topic.add(14 + number)
    with closing(sqlite3.connect(tmp_path / "warehouse.db")) as connection:
        found = connection.execute("SELECT value, _kl_load FROM events").fetchall()
    assert sorted(found) == sorted(values(range(15)) + values([15], 2))


def fails(batch: pa.RecordBatch) -> pa.RecordBatch:
    if batch.num_rows:
        raise ValueError(f"no rows of {batch.num_rows}")
    return batch


def dies(batch: pa.RecordBatch) -> pa.RecordBatch:
    if batch.num_rows:
        os.kill(os.getpid(), signal.SIGKILL)
    return batch


@pytest.mark.parametrize(
    ("function", "error", "said"),
    [
        (fails, ValueError, "no rows of"),
        (dies, LoadError, "of task . ended by signal 9: was there too little mem"),
    ],
)
def test_a_task_that_fails_leaves_the_plan_to_the_next_load(
    lake: FileLake, function: Callable[..., Any], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said) as raised:
        lake.run(transform=function)
    assert (raised.value.__cause__ is not None) == (error is ValueError)
    if error is ValueError:
        assert "in fails" in str(raised.value.__cause__)
    assert lake.ledger.head() is None
    lake.topic.add(15, partition=0)
    load = lake.run()
    assert (load.number, load.commit and load.commit.records) == (1, 15)
    assert lake.rows("value", "load") == values(range(15))


def test_what_needs_spark_says_so(lake: FileLake) -> None:
    with lake.load() as load:
        for attempt, said in (
            (lambda: load.df, "load.df needs Spark, and this load has none: kafkalog.load.spark"),
            (lambda: load.write_orc(lake.table), "format=orc needs Spark, and this load has none"),
            (
                lambda: load.write_parquet(lake.table, mergeSchema=True),
                "mergeSchema needs Spark, and this load",
            ),
            (lambda: load.write_delta("flights"), "the name flights needs Spark, and this load has none"),
        ):
            with pytest.raises((LoadError, InvalidConfig), match=said):
                attempt()
        load.keep()


def test_it_never_imports_pyspark(lake: FileLake) -> None:
    program = f"""
        import sys
        asked = []
        class Without:
            def find_spec(self, name, path=None, target=None):
                if name.partition(".")[0] in ("pyspark", "py4j"):
                    asked.append(name)
                    raise ModuleNotFoundError(name)
        sys.meta_path.insert(0, Without())
        import pyspark_kafkalog as kafkalog
        with kafkalog.load(None, name="events", offsets={str(lake.offsets)!r}, **{lake.options!r}) as load:
            load.write_parquet({str(lake.table)!r})
        assert not asked, asked
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True, cwd=ROOT)
    assert lake.rows("value", "load") == values(range(15))


def test_tasks_end_with_a_driver_that_was_killed(lake: FileLake, tmp_path: Path) -> None:
    program = f"""
        import pyspark_kafkalog as kafkalog
        def waits(batch):
            import os, threading
            if batch.num_rows:
                open({str(tmp_path)!r} + f"/task-{{os.getpid()}}", "x")
                threading.Event().wait()
            return batch
        with kafkalog.load(None, name="events", offsets={str(lake.offsets)!r}, **{lake.options!r}) as load:
            load.write_parquet({str(lake.table)!r}, transform=waits)
    """
    driver = subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)], cwd=ROOT)
    try:
        until(lambda: list(tmp_path.glob("task-*")))
        tasks = psutil.Process(driver.pid).children(recursive=True)
        assert tasks
    finally:
        driver.kill()
        driver.wait()
    until(lambda: not any(task.is_running() and task.status() != psutil.STATUS_ZOMBIE for task in tasks))
    assert lake.run().number == 1
    assert lake.rows("value", "load") == values(range(15))


def test_tasks_say_how_far_they_are(tmp_path: Path) -> None:
    engine, end = LocalEngine(1), tmp_path / "end"

    def task(index: int, tell: Tell) -> list[str]:
        while not end.exists():
            tell(7)
        return [str(index)]

    with ThreadPoolExecutor(1) as pool:
        said = pool.submit(engine.run, task, 1)
        until(lambda: engine.progress() == 7)
        end.touch()
        assert said.result() == ["0"]


def test_processes_that_are_ready_do_all_of_a_loads_writes_and_end_with_it() -> None:
    def task(index: int, _tell: Tell) -> list[str]:
        return [str(os.getpid())]

    engine, before = LocalEngine(2), set(psutil.Process().children())
    with engine.ready(3, 10):
        first, second = set(engine.run(task, 3)), set(engine.run(task, 3))
        assert len(first | second) <= 2
        (forking,) = set(psutil.Process().children()) - before
        assert first | second <= {str(one.pid) for one in forking.children()}
    assert not forking.is_running()
    assert not any(psutil.pid_exists(int(pid)) for pid in first | second)


def command(lake: FileLake, *more: str) -> list[str]:
    return [*COMMAND, *lake.command("--to", str(lake.table), *more)]


def test_the_command_loads_here_and_says_what_it_did(lake: FileLake) -> None:
    with pytest.raises(ValueError, match="no rows"):
        lake.run(transform=fails)
    ran = subprocess.run(
        command(lake, "--partition-by", "partition", "--compression", "snappy"),
        capture_output=True, text=True, check=True, cwd=ROOT,
    )  # fmt: skip
    assert re.search(r"^replaying load 1, planned 20.*Z, not committed$", ran.stderr, re.MULTILINE)
    assert re.search(
        rf"^load 1: 15 records in 2 files with .* kB, .* records/s: {lake.table}/load=00000001$",
        ran.stdout, re.MULTILINE,
    )  # fmt: skip
    assert sorted(path.name.rpartition("-")[2] for path in lake.table.rglob("part-*")) == [
        "c000.snappy.parquet", "c000.snappy.parquet",
    ]  # fmt: skip
    assert (
        subprocess.run(command(lake), capture_output=True, text=True, cwd=ROOT).stdout
        == "events: nothing new\n"
    )
    lake.topic.add(*range(15, 30))
    limited = command(lake, "--partition-by", "partition", "--option", "maxRecordsPerLoad=5")
    ran = subprocess.run(limited, capture_output=True, text=True, check=True, cwd=ROOT)
    assert "load 2: 10 offsets left for later loads\n" in ran.stdout
    ran = subprocess.run(command(lake, "--format", "orc"), capture_output=True, text=True, cwd=ROOT)
    assert ran.returncode == 2
    assert "Spark writes orc: add --master" in ran.stderr


def held(ledger: Ledger, stack: ExitStack) -> bool:
    try:
        stack.enter_context(ledger.hold("another driver"))
    except LoadBusy:
        return False
    return True


def metrics_in(text: str) -> dict[str, float]:
    """The metrics of the load, by their names without the beginning that they share."""
    lines = re.findall(r'^kafkalog_load_(\w+)\{load="events"\} (\S+)$', text, re.MULTILINE)
    return {name: float(value) for name, value in lines if not name.endswith("_created")}


def metrics_at(url: str) -> dict[str, float]:
    with urlopen(url) as answer:
        return metrics_in(answer.read().decode())


def test_each_load_leaves_its_metrics_in_a_file(lake: FileLake, tmp_path: Path) -> None:
    file = tmp_path / "flights.prom"

    def run(*more: str) -> tuple[int, dict[str, float]]:
        ended = kafkalog_command(*lake.command("--to", str(lake.table), "--metrics-file", str(file), *more))
        return ended.returncode, metrics_in(file.read_text())

    code, found = run("--option", "maxRecordsPerLoad=10")
    head = lake.ledger.head()
    assert head is not None
    assert (code, found["number"], found["records_total"], found["lag"], found["failed"]) == (0, 1, 10, 5, 0)
    assert found["committed_timestamp_seconds"] == parse_iso_time(head.created).timestamp()
    assert found["success_timestamp_seconds"] >= found["committed_timestamp_seconds"]
    assert found["bytes_total"] == head.bytes > 0
    code, found = run()
    assert (code, found["number"], found["records_total"], found["lag"]) == (0, 2, 15, 0)
    code, found = run()
    assert (code, found["number"], found["records_total"], found["runs_total"]) == (0, 2, 15, 3)
    with lake.ledger.hold():
        code, busy = run()
    assert (code, busy["failed"], busy["failures_total"], busy["runs_total"]) == (1, 1, 1, 4)
    changed = {"failed", "failures_total", "runs_total"}
    same = busy.keys() - changed
    assert {name: busy[name] for name in same} == {name: found[name] for name in found.keys() - changed}
    ended = kafkalog_command(*lake.command("--to", str(lake.table), "--metrics-file", "/no/such/f.prom"))
    assert (ended.returncode, "there is no directory /no/such" in ended.stderr) == (2, True)


def test_a_repeated_load_follows_the_topic_until_it_is_told_to_end(lake: FileLake) -> None:
    process = subprocess.Popen(
        command(lake, "--every", "1s", "--compact-every", "0s", "--metrics-listener", "127.0.0.1:0"),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
    )  # fmt: skip
    try:
        assert process.stderr is not None
        url = process.stderr.readline().removeprefix("metrics: ").strip()
        until(lambda: lake.ledger.head_number() == 2)
        with ExitStack() as stack:
            until(lambda: held(lake.ledger, stack))
            assert "LoadBusy" in process.stderr.readline()
            until(lambda: metrics_at(url)["failures_total"] >= 1)
            lake.topic.add(15, 16)
        until(lambda: lake.ledger.head_number() == 4)
        until(lambda: metrics_at(url)["records_total"] == 17)
        assert lake.rows("value", "load") == sorted(values(range(15)) + values((15, 16), 3))
        head = lake.ledger.head()
        assert head is not None
        files = [*(listed_files(table_store(lake.table), head) or ())]
        assert len(files) == 1
        before = metrics_at(url)["compaction_failures_total"]  # not 0 if one above found the ledger held
        (lake.table / files[0]).unlink()
        lake.topic.add(17)
        until(lambda: metrics_at(url)["compaction_failures_total"] > before)
        process.terminate()
        said, _ = process.communicate()
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0
    lines = [line.partition(" in ")[0] for line in said.splitlines()]
    # In one step or in two: the first may have found the ledger held.
    removed = [int(line.split()[1]) for line in lines if line.startswith("removed ")]
    assert sum(removed) == 3
    assert [line for line in lines if not line.startswith("removed ")] == [
        "load 1: 15 records",
        "commit 2: 1 file",
        "load 3: 2 records",
        "commit 4: 1 file",
        "load 5: 1 record",
    ]
