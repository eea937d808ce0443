"""``kafkalog load`` with Spark, and the commands about its ledger, as their users start them."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from pyspark_kafkalog.datasource.batch.load_planning import begin
from pyspark_kafkalog.datasource.options.read_options import parse_batch_options
from pyspark_kafkalog.datasource.reading.kafka import KafkaCluster
from pyspark_kafkalog.ledger.ledger import Ledger
from pyspark_kafkalog.loads.load import load
from pyspark_kafkalog.loads.reading import read_load
from tests.support.datasource.spark_topics import Topic


class CommandLine:
    """``kafkalog`` for one load: its topic, its ledgers and its table."""

    def __init__(self, server: str, topic: Topic, root: Path) -> None:
        self.topic, self.table, self.offsets = topic, root / "table", root / "_offsets"
        self.options: dict[str, Any] = {"kafka.bootstrap.servers": server, "subscribe": topic.name}
        self.environment = dict(os.environ, COLUMNS="160", NO_COLOR="1", KAFKALOG_BOOTSTRAP_SERVER=server)

    def __call__(self, command: str, *arguments: str, said: str = "") -> subprocess.CompletedProcess[str]:
        line = [
            sys.executable,
            "-m",
            "pyspark_kafkalog.cli",
            command,
            "events",
            "--offsets",
            str(self.offsets),
        ]
        return subprocess.run(
            [*line, *arguments], env=self.environment, input=said,
            capture_output=True, text=True, timeout=150, check=False,
        )  # fmt: skip

    def load(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        to = ["--topic", self.topic.name, "--to", str(self.table), "--master", "local[2]"]
        return self("load", *to, *arguments)

    def values(self, number: int) -> list[int]:
        """What a load published: an attempt that failed may have left files beside it."""
        found = read_load(None, self.table).read_all().select(["load", "value"]).to_pylist()
        return sorted(int(row["value"]) for row in found if row["load"] == number)


@pytest.fixture
def kafkalog(server: Any, new_topic: Any, tmp_path: Path) -> CommandLine:
    topic = new_topic(partitions=2)
    topic.add(*range(10), partition=0)
    topic.add(*range(10, 15), partition=1)
    return CommandLine(server.bootstrap_servers, topic, tmp_path)


def cells(text: str) -> list[list[str]]:
    """The rows of the tables in ``text``, without their headings."""
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in text.splitlines()]
    return [row for row in rows if row]


@pytest.mark.long("Spark drivers of its own")
def test_a_load_its_history_its_check_and_the_way_back(kafkalog: CommandLine, spark: Any) -> None:
    planned = kafkalog("load", "--topic", kafkalog.topic.name, "--dry-run")
    assert planned.returncode == 0, planned.stderr
    assert cells(planned.stdout) == [
        [kafkalog.topic.name, "0", "0", "10", "10", "first load"],
        [kafkalog.topic.name, "1", "0", "5", "5", "first load"],
    ]
    assert "events: load 1 would read 15 offsets in 2 tasks" in planned.stdout
    assert not kafkalog.offsets.exists()

    first = kafkalog.load("--option", "startingOffsets=" + kafkalog.topic.offsets(p0=1, p1=-2))
    assert first.returncode == 0, first.stderr
    assert cells(first.stdout)[0][:3] == [kafkalog.topic.name, "14", "14"]
    said = rf"\nload 1: 14 records in 2 files with \S+ kB, [\d,]+ records/s: {kafkalog.table}/load=00000001\n"
    assert re.search(said, first.stdout)
    assert first.stderr == "starting Spark\n"
    assert kafkalog.values(1) == list(range(1, 15))

    kafkalog.topic.add(15, 16)
    obstacle = kafkalog.offsets / "events" / "receipts" / "00000002"
    obstacle.write_text("a file, where the tasks make a directory")
    failed = kafkalog.load()
    assert failed.returncode == 1
    assert re.search(
        rf"\nkafkalog: LoadError: cannot write {obstacle}.*; a part of the path is a file", failed.stderr
    )
    assert "Traceback" not in failed.stderr
    log = Path(failed.stderr.rpartition("Spark's log: ")[2].strip())
    assert "Traceback" in log.read_text()
    log.unlink()
    obstacle.unlink()

    kafkalog.topic.add(17)
    with load(spark, name="events", offsets=kafkalog.offsets, **kafkalog.options) as replayed:
        replayed.write_parquet(kafkalog.table)
    assert kafkalog.values(2) == [15, 16]

    history = kafkalog("history")
    assert [(row[0], row[2], row[3], row[5], row[6]) for row in cells(history.stdout)] == [
        ("1", "dir", "14", "start", "yes"), ("2", "dir", "2", "1", "yes"),
    ]  # fmt: skip
    assert kafkalog("verify").stdout.startswith("sound: 2 commits in effect with 16 records")

    back = kafkalog("rewind", "--to", "commit:1", said="y\n")
    assert back.returncode == 0, back.stderr
    assert f"{kafkalog.topic.name}-0\t[10, 12)\t2 offsets\n" in back.stdout
    assert "no longer in effect: load 2. read_load leaves their files out" in back.stderr
    assert "rewound: commit 3" in back.stdout
    lines = [json.loads(line) for line in kafkalog("history", "--json").stdout.splitlines()]
    assert [(c["number"], c["mode"], c["in_effect"]) for c in lines] == [
        (1, "dir", True), (2, "dir", False), (3, "rewind", True),
    ]  # fmt: skip

    file = next((kafkalog.table / "load=00000001").glob("kl_run=*/*.parquet"))
    file.unlink()
    found = kafkalog("verify")
    assert found.returncode == 1
    assert re.search(rf"^load 1: {file} is missing; it had \d+ rows\n$", found.stdout)


def test_a_load_into_a_database_and_its_check(kafkalog: CommandLine, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/warehouse.db"
    to = ["--topic", kafkalog.topic.name, "--to", url, "--table", "flights", "--master", "local[2]"]
    loaded = kafkalog("load", *to)
    assert loaded.returncode == 0, loaded.stderr
    assert cells(loaded.stdout)[0][:3] == [kafkalog.topic.name, "15", "15"]
    assert re.search(rf"\nload 1: 15 records, [\d,]+ records/s: {url} table flights\n$", loaded.stdout)
    with closing(sqlite3.connect(tmp_path / "warehouse.db")) as database:
        found = database.execute('SELECT value, "_kl_load" FROM flights').fetchall()
    assert sorted((int(value), load) for value, load in found) == [(n, 1) for n in range(15)]
    checked = kafkalog("verify", "--database", url)
    assert checked.stdout.startswith("sound: 1 commit in effect with 15 records"), checked.stderr


@pytest.mark.long("Spark drivers of its own")
def test_a_plan_that_was_left_is_shown_and_replayed(kafkalog: CommandLine) -> None:
    ours = {"loadName": "events", "offsetsPath": str(kafkalog.offsets)}
    options = parse_batch_options({**kafkalog.options, **ours})
    ledger, lookup = Ledger.at(kafkalog.offsets, "events"), KafkaCluster(options, options.consumer)
    begin(options, lookup, ledger, run="a-run")
    lookup.close()
    assert re.search(
        r"load 1 was planned at 20.* and not committed: 15 offsets\.", kafkalog("history").stderr
    )
    kafkalog.topic.add(15)
    assert "load 1 would read 15 offsets" in kafkalog.load("--dry-run").stdout
    assert "would read 16 offsets" in kafkalog.load("--dry-run", "--on-pending", "discard").stdout
    refused = kafkalog.load("--on-pending", "fail")
    assert (refused.returncode, "onPendingPlan=discard" in refused.stderr) == (1, True)
    assert ledger.head() is None

    pending = ledger.pending()
    assert pending is not None
    ledger.commit(pending, mode="job", run="a-run", receipts=False)
    assert cells(kafkalog("history").stdout)[0][2:5] == ["job", "-", "-"]
    kafkalog.topic.client.create_topic("nothing-in-it", 1, {})
    empty = kafkalog("load", "--topic", "nothing-in-it", "--to", str(kafkalog.table))
    assert (empty.returncode, empty.stdout) == (0, "events: nothing new\n"), empty.stderr


def test_a_wrong_property_of_the_client_is_one_line(kafkalog: CommandLine) -> None:
    ran = kafkalog.load("--option", "kafka.max.partition.fetch.bytes=some")
    assert ran.returncode == 2
    assert ran.stderr.startswith("kafkalog: option: kafka.max.partition.fetch.bytes")
    assert ran.stderr.count("\n") == 1


@pytest.mark.long("Spark drivers of its own")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--option", "nonsense"), "'nonsense' is not name=value"),
        (("--option", "subscrib=x"), "Did you mean 'subscribe'"),
        (("--subscribe-pattern", ".*"), "or --subscribe-pattern"),
        (("--on-pending", "perhaps"), "onPendingPlan is one of"),
        (("--to", "ftp://host/table"), "a ledger or table of loads cannot be at a URL of 'ftp'"),
        (("--format", "csv"), "it must be one of parquet, orc"),
        (("--partition-by-time", "timestamp", "--grain", "week"), "it must be one of day, hour"),
    ],
)
def test_a_wrong_command_is_reported_before_spark_starts(
    kafkalog: CommandLine, arguments: tuple[str, ...], said: str
) -> None:
    kafkalog.environment["SPARK_HOME"] = "/nonexistent"  # no session could start
    ran = kafkalog.load(*arguments)
    assert (ran.returncode, said in " ".join(ran.stderr.split())) == (2, True), ran.stderr
    assert not kafkalog.offsets.exists()


def test_a_cluster_that_is_not_there_is_reported_in_a_line_before_spark_starts(tmp_path: Path) -> None:
    """For how long it is tried: tests/unit/client/test_first_contact.py."""
    nobody = CommandLine("127.0.0.1:1", Topic(None, "t"), tmp_path)  # type: ignore[arg-type]
    nobody.environment["SPARK_HOME"] = "/nonexistent"  # no session could start
    ran = nobody.load("--option", "kafka.request.timeout.ms=2000")
    assert (ran.returncode, ran.stderr.count("\n")) == (1, 1), ran.stderr
    assert "cannot connect to 127.0.0.1:1: connection refused" in ran.stderr


def test_a_load_that_runs_is_not_rewound(kafkalog: CommandLine) -> None:
    ledger = Ledger.at(kafkalog.offsets, "events")
    ledger.identify("a-cluster", {})
    with ledger.hold("somebody's driver"):
        ran = kafkalog("rewind", "--to", "start", "--yes")
    assert (ran.returncode, "is held by somebody's driver" in ran.stderr) == (1, True)
    nothing = kafkalog("rewind", "--to", "start", "--yes")
    assert (nothing.returncode, "nothing was committed yet" in nothing.stderr) == (2, True)


@pytest.mark.parametrize("command", [("history",), ("verify",), ("rewind", "--to", "start")])
def test_a_load_that_nobody_made_is_named_with_those_there_are(
    kafkalog: CommandLine, command: tuple[str, ...]
) -> None:
    Ledger.at(kafkalog.offsets, "other").identify("a-cluster", {})
    ran = kafkalog(*command)
    assert ran.returncode == 2
    assert "no load is called 'events'" in ran.stderr
    assert "there are other" in ran.stderr


def test_asking_a_ledger_imports_neither_spark_nor_arrow(kafkalog: CommandLine) -> None:
    Ledger.at(kafkalog.offsets, "events").identify("a-cluster", {})
    code = (
        "import sys; from pyspark_kafkalog.cli.app import app;"
        f"app(['history', 'events', '--offsets', {str(kafkalog.offsets)!r}], standalone_mode=False);"
        "print(sorted({'pyspark', 'pyarrow', 'pandas', 'numpy'} & set(sys.modules)))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=150
    )
    assert ran.stdout.splitlines()[-1] == "[]"
