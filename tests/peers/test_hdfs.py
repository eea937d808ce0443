"""HDFS as a place of ledgers: one name has one creator, a lock ends with its process."""

from __future__ import annotations

import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from pyspark_kafkalog.errors import LoadBusy, LoadError
from pyspark_kafkalog.formats.base import crc32c
from pyspark_kafkalog.ledger.ledger import Ledger
from pyspark_kafkalog.ledger.stores.locations import check_store, open_store
from pyspark_kafkalog.ledger.stores.store import FileStore
from tests.support.command_line import kafkalog
from tests.support.foreign.fetched import NotAvailable
from tests.support.foreign.mini_hdfs import MiniHdfs
from tests.support.ledger.plans import P0, P1, begun, facts, read_all

CREATORS, PROCESSES = 50, 5


@pytest.fixture
def store(hdfs: MiniHdfs) -> FileStore:
    return open_store(f"{hdfs.url}/{uuid.uuid4()}/a b")


def test_it_passes_the_check_and_is_left_clean(store: FileStore) -> None:
    check_store(store)
    assert list(store.files("")) == []
    found = kafkalog("verify", "--store", store.location)
    assert (found.returncode, f"{store.location} can keep ledgers" in found.stdout) == (0, True)


def test_of_fifty_creators_in_five_processes_one_wins(store: FileStore) -> None:
    code = (
        "import sys, threading\n"
        "from pyspark_kafkalog.ledger.stores.locations import open_store\n"
        "store, start = open_store(sys.argv[1]), threading.Barrier(int(sys.argv[3]))\n"
        "def create(n):\n"
        "    data = f'{sys.argv[2]}.{n} '.encode() * 100\n"
        "    start.wait()\n"
        "    if store.create('commits/1.json', data):\n"
        "        print(data[:8].decode().split()[0])\n"
        "threads = [threading.Thread(target=create, args=(n,)) for n in range(int(sys.argv[3]))]\n"
        "[thread.start() for thread in threads]\n"
        "[thread.join() for thread in threads]\n"
    )
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", code, store.location, str(n), str(CREATORS // PROCESSES)],
            stdout=subprocess.PIPE, text=True,
        )
        for n in range(PROCESSES)
    ]  # fmt: skip
    won = [line for racer in racers for line in racer.communicate(timeout=120)[0].split()]
    assert [racer.returncode for racer in racers] == [0] * PROCESSES
    assert len(won) == 1
    assert store.read("commits/1.json") == f"{won[0]} ".encode() * 100
    assert store.names("commits") == ["1.json"]


def test_records_files_and_hints(store: FileStore) -> None:
    assert store.read("load.json") is None
    assert store.names("") == []
    assert store.file("a/x") is None
    store.replace("a/day=1/x", b"long, for a hint")
    store.replace("a/day=1/x", b"short")
    store.replace("a/y", b"")
    assert (store.read("a/day=1/x"), store.read("a/y"), store.read("a")) == (b"short", b"", None)
    assert sorted((file.name, file.bytes) for file in store.files("a")) == [("a/day=1/x", 5), ("a/y", 0)]
    found = store.file("a/day=1/x")
    assert found is not None
    with store.open_file(found) as opened:
        opened.seek(-3, 2)
        assert opened.read() == b"ort"
    for name in ("a/y", "a/y"):
        store.remove(name)
    assert store.names("a") == ["day=1"]
    store.remove_directory("a")
    store.remove_directory("a")
    assert store.names("") == []


def test_a_file_of_a_table_is_there_whole_or_not_at_all(store: FileStore) -> None:
    data = bytes(range(256)) * 40_000  # 10 MB: copied in two steps
    kept, left = store.new_file("t/day=1/a b.parquet"), store.new_file("t/other")
    for file in (kept, left):
        file.write(data[:5_000_000])
        file.write(data[5_000_000:])
    kept.close()
    left.abort()
    assert [(file.name, file.bytes) for file in store.files("t")] == [("t/day=1/a b.parquet", len(data))]
    assert store.read("t/day=1/a b.parquet") == data
    assert (kept.bytes, kept.crc32c) == (len(data), crc32c(data))


def test_a_lock_names_its_holder_and_ends_with_his_process(store: FileStore) -> None:
    code = (
        "import sys, time\n"
        "from pyspark_kafkalog.ledger.stores.locations import open_store\n"
        "with open_store(sys.argv[1]).hold('.lock', 'driver 17 on host-a'):\n"
        "    print('held', flush=True)\n"
        "    time.sleep(600)\n"
    )
    other = subprocess.Popen([sys.executable, "-c", code, store.location], stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with (
            pytest.raises(LoadBusy, match=r"a b/\.lock is held by driver 17 on host-a"),
            store.hold(".lock", "we"),
        ):
            pass
    finally:
        other.kill()
        other.communicate()
    with (
        store.hold(".lock", "we"),
        pytest.raises(LoadBusy, match="held by we"),
        store.hold(".lock", "we again"),
    ):
        pass
    with store.hold(".lock", "we once more"):
        pass


def test_a_ledger_outlives_its_namenode(tmp_path: Path) -> None:
    """Also what a call says while it is away, and that the client finds it again."""
    try:
        own = MiniHdfs(tmp_path).start()
    except NotAvailable as e:
        pytest.skip(f"HDFS is not here: {e}")
    try:
        ledger = Ledger.at(f"{own.url}/offsets", "flights")
        ledger.identify("cluster-a", {"subscribe": "clicks"})
        plan = begun(ledger, {P0: facts(0, 10), P1: facts(0, 4)})
        own.kill()
        with pytest.raises(LoadError, match=r"cannot (read|write|list) hdfs://.*refused.*check the NameNode"):
            read_all(ledger, plan)
        own.start()
        assert ledger.pending() == plan
        read_all(ledger, plan)
        ledger.commit(plan, mode="job", run="a-run")
        assert ledger.verify() == []
    finally:
        own.kill()
