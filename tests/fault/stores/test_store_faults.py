"""The local store among processes: races, and a process that is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pyspark_kafkalog.errors import LoadBusy
from pyspark_kafkalog.ledger.stores.local_store import LocalStore

ROOT = Path(__file__).parents[3]

CREATE = """
import sys
from pyspark_kafkalog.ledger.stores.local_store import LocalStore
store, who = LocalStore(sys.argv[1]), sys.argv[2]
print("ready", flush=True)
sys.stdin.readline()
won = [n for n in range(100) if store.create(f"commits/{n}.json", (who * 20_000).encode())]
print(*won, flush=True)
"""

HOLD = """
import sys
from pyspark_kafkalog.ledger.stores.local_store import LocalStore
with LocalStore(sys.argv[1]).hold(".lock", "the first driver"):
    print("held", flush=True)
    sys.stdin.readline()
"""

CREATE_ON = """
import itertools, sys
from pyspark_kafkalog.ledger.stores.local_store import LocalStore
store = LocalStore(sys.argv[1])
for n in itertools.count():
    if store.create(f"plans/{n:08d}.json", b"x" * 50_000):
        print(n, flush=True)
"""


def started(script: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.mark.long("many writers at one store")
def test_of_four_processes_one_creates_each_record(tmp_path: Path) -> None:
    processes = [started(CREATE, str(tmp_path), who) for who in "abcd"]
    try:
        assert [line(process) for process in processes] == ["ready"] * 4
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        won = {
            who: [int(n) for n in line(process).split()]
            for who, process in zip("abcd", processes, strict=True)
        }
    finally:
        for process in processes:
            process.communicate(timeout=60)
    assert sorted(n for numbers in won.values() for n in numbers) == list(range(100))
    store = LocalStore(tmp_path)
    for who, numbers in won.items():
        assert {store.read(f"commits/{n}.json") for n in numbers} <= {(who * 20_000).encode()}


def test_a_lock_ends_with_the_process_that_held_it(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    process = started(HOLD, str(tmp_path))
    try:
        assert line(process) == "held"
        with pytest.raises(LoadBusy, match="is held by the first driver"), store.hold(".lock", "the second"):
            pass
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=60)
    with store.hold(".lock", "the second"):
        assert store.read(".lock") == b"the second"


@pytest.mark.parametrize("count", [1, 20, 60])
def test_a_kill_leaves_whole_records_only_and_all_that_were_acknowledged(tmp_path: Path, count: int) -> None:
    process = started(CREATE_ON, str(tmp_path))
    try:
        acknowledged = [int(line(process)) for _ in range(count)]
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=60)
    store = LocalStore(tmp_path)
    names = store.names("plans")
    assert names == [f"{n:08d}.json" for n in range(len(names))]
    assert len(names) >= len(acknowledged)
    assert {store.read(f"plans/{name}") for name in names} == {b"x" * 50_000}
