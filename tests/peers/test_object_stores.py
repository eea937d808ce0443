"""What `Store` promises, at servers that others wrote for Azure and Google Cloud; one of S3 breaks it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import obstore
import pytest

from pyspark_kafkalog.errors import LoadBusy, LoadError
from pyspark_kafkalog.ledger.ledger import Ledger
from pyspark_kafkalog.ledger.stores import object_clients, object_store
from pyspark_kafkalog.ledger.stores.locations import open_store
from pyspark_kafkalog.ledger.stores.store import FileStore
from tests.support.command_line import kafkalog
from tests.support.foreign.fetched import NotAvailable
from tests.support.foreign.object_stores import ForeignStore, azurite, gcs_server, s3mock

SERVERS: dict[str, Callable[[Path], AbstractContextManager[ForeignStore]]] = {
    "azurite": azurite, "fake-gcs-server": gcs_server,
}  # fmt: skip
ROUNDS = 10
PROCESSES, THREADS = 5, 10

CREATE = """
import sys, threading
from pyspark_kafkalog.ledger.stores.locations import open_store
store, who, rounds, threads = open_store(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
store.exists("ready")
for number in range(rounds):
    won, start = [], threading.Barrier(threads)
    def create(racer):
        start.wait()
        data = f"{who}-{racer}"
        if store.create(f"commits/{number}.json", data.encode()):
            won.append(data)
    racers = [threading.Thread(target=create, args=(racer,)) for racer in range(threads)]
    print("ready", flush=True)
    sys.stdin.readline()
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()
    print(*won, flush=True)
"""

HOLD = """
import sys, time
from pyspark_kafkalog.ledger.stores import object_store
from pyspark_kafkalog.ledger.stores.locations import open_store
object_store._RENEWAL_S = 0.1
with open_store(sys.argv[1]).hold(".lock", "driver 17 on host-a"):
    print("held", flush=True)
    time.sleep(600)
"""


def opened(
    start: Callable[[Path], AbstractContextManager[ForeignStore]], directory: Path
) -> Iterator[ForeignStore]:
    """The server, with the environment that names it."""
    try:
        with start(directory / "server.log") as server, pytest.MonkeyPatch.context() as environment:
            environment.setattr(object_clients, "_given", {})
            for name, value in server.environment.items():
                environment.setenv(name, value)
            yield server
    except NotAvailable as e:
        pytest.skip(str(e))


@pytest.fixture(scope="module", params=[*SERVERS])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ForeignStore]:
    yield from opened(SERVERS[request.param], tmp_path_factory.mktemp(request.param))


@pytest.fixture
def store(server: ForeignStore) -> FileStore:
    return open_store(f"{server.url}/{uuid.uuid4()}/a b")


def process(script: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


def line(running: subprocess.Popen[str]) -> str:
    assert running.stdout is not None
    return running.stdout.readline().strip()


def test_of_fifty_creators_in_five_processes_one_wins(store: FileStore) -> None:
    racing = [
        process(CREATE, store.location, str(who), str(ROUNDS), str(THREADS)) for who in range(PROCESSES)
    ]
    try:
        for number in range(ROUNDS):
            assert [line(one) for one in racing] == ["ready"] * PROCESSES
            for one in racing:
                assert one.stdin is not None
                one.stdin.write("\n")
                one.stdin.flush()
            won = [data for one in racing for data in line(one).split()]
            assert len(won) == 1
            assert store.read(f"commits/{number}.json") == won[0].encode()
    finally:
        for one in racing:
            one.kill()
            one.communicate()
    assert store.names("commits") == sorted(f"{number}.json" for number in range(ROUNDS))


def test_the_check_passes_and_leaves_nothing(store: FileStore) -> None:
    found = kafkalog("verify", "--store", store.location)
    assert (found.returncode, found.stderr) == (0, "")
    assert store.names("") == []


def test_records_hints_and_files(store: FileStore) -> None:
    store.create("plans/1.json", b"first")
    assert not store.create("plans/1.json", b"first")
    assert (store.exists("plans/1.json"), store.exists("plans/2.json")) == (True, False)
    store.replace("HEAD.json", b"long\n")
    store.replace("HEAD.json", b"1\n")
    assert store.read("HEAD.json") == b"1\n"
    assert (store.names(""), store.names("commits")) == (["HEAD.json", "plans"], [])
    store.remove("HEAD.json")
    store.remove("HEAD.json")
    assert store.read("HEAD.json") is None
    data = os.urandom(200_000)
    store.replace("table/load=1/a.parquet", data)
    (file,) = store.files("table")
    assert (file.name, file.bytes, store.file(file.name)) == ("table/load=1/a.parquet", len(data), file)
    with store.open_file(file) as opened:
        opened.seek(-70_000, os.SEEK_END)
        assert opened.read() == data[-70_000:]
    assert store.file("table/load=1") is None
    client = object_clients.client(object_clients.address_of(store.location), store.location)
    for name in ("load=1", "load=2", "load=2/_SUCCESS", "load=2/b.parquet"):
        marker = {"hdi_isfolder": "true"} if name == "load=1" else {}
        key = f"{object_clients.address_of(store.location).prefix}/table/{name}"
        obstore.put(client, key, b"", attributes=marker, use_multipart=False)
    names = [file.name for file in store.files("table")]
    assert sorted(names) == [f"table/load={n}" for n in ("1/a.parquet", "2/_SUCCESS", "2/b.parquet")]


def test_a_lock_is_taken_over_by_one_of_those_who_wait(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_store, "_RENEWAL_S", 0.1)
    monkeypatch.setattr(object_store, "_LEASE_S", 1.0)
    other = process(HOLD, store.location)
    try:
        assert line(other) == "held"
        with pytest.raises(LoadBusy, match="held by driver 17 on host-a: wait"), store.hold(".lock", "18"):
            pass
    finally:
        other.kill()
        other.communicate()
    with store.hold(".lock", "driver 18"):
        pass
    assert not store.exists(".lock")
    store.create(".lock", b"left by a driver that died")
    stale = store.get(".lock")  # type: ignore[attr-defined]
    won: list[object] = []
    racers = [
        threading.Thread(target=lambda n=n: won.append(store.put_if(".lock", b"%d" % n, stale.version)))  # type: ignore[attr-defined,misc]
        for n in range(20)
    ]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()
    assert len([version for version in won if version is not None]) == 1


def test_a_ledger_there_is_sound_and_an_absent_bucket_is_named(
    store: FileStore, server: ForeignStore
) -> None:
    ledger = Ledger(store, "flights")
    ledger.identify("cluster-a", {"subscribe": "clicks"})
    assert (ledger.rewind(0, "run").number, ledger.verify()) == (1, [])
    absent = server.url.replace("ledgers", "absent")
    with pytest.raises(LoadError, match=r"cannot write .*absent.*load\.json.*bucket or container exists"):
        open_store(f"{absent}/x").create("load.json", b"data")


def test_a_store_where_several_creators_win_is_refused(tmp_path: Path) -> None:
    refused = "cannot hold a ledger: of 4 concurrent creates of one name"
    for server in opened(s3mock, tmp_path):
        for _ in range(5):  # it also tears objects, and then cannot be read
            found = kafkalog("verify", "--store", f"{server.url}/x")
            assert found.returncode == 1
            if refused in " ".join(found.stderr.split()):
                return
        pytest.fail(found.stderr)
