"""The local store, and the proof that a store must stand."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from pyspark_kafkalog.errors import LoadBusy, LoadError, UnsafeStore
from pyspark_kafkalog.formats.base import crc32c
from pyspark_kafkalog.ledger.stores.local_store import LocalStore
from pyspark_kafkalog.ledger.stores.locations import check_store, open_store
from pyspark_kafkalog.ledger.stores.store import SubStore
from tests.support.ledger.memory_store import ForgetfulStore, MemoryStore


def files(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def failing(number: int) -> Any:
    def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    return fail


def test_the_file_is_synced_before_it_gets_its_name_and_the_directory_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    fsync, link = os.fsync, os.link

    def noted_fsync(fd: int) -> None:
        target = Path(f"/proc/self/fd/{fd}").readlink()
        steps.append(f"fsync {'directory ' + target.name if target.is_dir() else 'file'}")
        fsync(fd)

    def noted_link(*names: Any) -> None:
        steps.append("link")
        link(*names)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "link", noted_link)
    LocalStore(tmp_path).create("a/b/c", b"data")
    assert steps == [
        f"fsync directory {tmp_path.name}",
        "fsync directory a",
        "fsync file",
        "link",
        "fsync directory b",
    ]


@pytest.mark.parametrize("call", ["write", "fsync", "link"])
def test_nothing_is_left_where_creating_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    store = LocalStore(tmp_path)
    store.create("plans/1.json", b"before")
    monkeypatch.setattr(os, call, failing(errno.ENOSPC))
    with pytest.raises(LoadError, match=r"cannot write .*/plans/2.json: No space left .*; free space there"):
        store.create("plans/2.json", b"data")
    monkeypatch.undo()
    assert files(tmp_path) == ["plans/1.json"]
    assert store.create("plans/2.json", b"data")


def test_a_file_system_without_hard_links_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", failing(errno.EPERM))
    with pytest.raises(UnsafeStore, match="has no hard links"):
        LocalStore(tmp_path).create("load.json", b"data")
    assert files(tmp_path) == []


def test_a_link_whose_answer_was_lost_counts_as_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = os.link

    def link_twice(*names: Any) -> None:
        link(*names)
        raise FileExistsError(errno.EEXIST, "found there when asked again")

    monkeypatch.setattr(os, "link", link_twice)
    assert LocalStore(tmp_path).create("commits/1.json", b"data")


def test_what_a_crash_left_half_written_is_not_listed(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.create("plans/2.json", b"data")
    store.create("plans/1.json", b"data")
    (tmp_path / "plans" / ".tmp-0123").write_bytes(b"da")
    assert store.names("plans") == ["1.json", "2.json"]
    assert store.names("commits") == []
    assert store.names("") == ["plans"]


def test_a_hint_that_cannot_be_replaced_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore(tmp_path)
    store.replace("HEAD.json", b"old")
    monkeypatch.setattr(os, "write", failing(errno.ENOSPC))
    with pytest.raises(LoadError, match=r"cannot write .*/HEAD.json: No space left"):
        store.replace("HEAD.json", b"new")
    monkeypatch.undo()
    assert store.read("HEAD.json") == b"old"
    assert files(tmp_path) == ["HEAD.json"]


def test_a_name_is_held_once_also_in_one_process_and_says_by_whom(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    with store.hold(".lock", "driver 17 on host-a"):
        told = r"\.lock is held by driver 17 on host-a: wait"
        with pytest.raises(LoadBusy, match=told), LocalStore(tmp_path).hold(".lock", "driver 18"):
            pass
        with store.hold("another", "driver 18"):
            pass
    with store.hold(".lock", "driver 18"):
        assert store.read(".lock") == b"driver 18"


def test_a_path_below_a_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    store = LocalStore(tmp_path / "file" / "ledger")
    told = r"file/ledger.*: Not a directory; a part of the path is a file"
    with pytest.raises(LoadError, match=f"cannot write .*{told}"):
        store.create("load.json", b"data")
    with pytest.raises(LoadError, match=f"cannot read .*{told}"):
        store.read("load.json")
    with pytest.raises(LoadError, match=f"cannot read .*{told}"):
        store.exists("load.json")
    with pytest.raises(LoadError, match=f"cannot list .*{told}"):
        store.names("plans")
    with pytest.raises(LoadError, match=f"cannot lock .*{told}"), store.hold(".lock", "me"):
        pass


@pytest.mark.parametrize("name", ["", "../load.json", "plans//1.json", "/etc/passwd", "plans/./1.json"])
def test_a_name_that_leaves_the_store_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(LoadError, match="cannot be the name of a record"):
        LocalStore(tmp_path).create(name, b"data")


def test_a_store_is_opened_by_path_and_by_file_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for location in (
        tmp_path / "a b",
        f"file://{tmp_path}/a b/",
        f"FILE:{tmp_path}/x/../a b",
        "a b",
        "x/../a b",
    ):
        assert open_store(location).location == str(tmp_path / "a b")
    assert open_store(f"file://localhost{tmp_path}").location == str(tmp_path)


@pytest.mark.parametrize(
    ("location", "said"),
    [
        ("ftp://host/x", "cannot be at a URL of 'ftp'.*says what another store must offer"),
        ("wasb:x", "cannot be at a URL of 'wasb'"),
        ("file://host/x", "'host' is another host"),
        ("file:///a%20b", "must not contain %; give the path instead"),
    ],
)
def test_other_places_are_refused_with_what_is_allowed(location: str, said: str) -> None:
    with pytest.raises(UnsafeStore, match=said):
        open_store(location)


@pytest.mark.parametrize("location", ["/Volumes/c/s/v/x", "/dbfs/x", "//dbfs/x", "file:///Volumes/c/s/v"])
def test_mounts_of_databricks_are_refused_there_only(location: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert open_store(location).location.endswith(location.removeprefix("file:").lstrip("/"))
    monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", "17.3")
    with pytest.raises(UnsafeStore, match=r"Use the cloud URL behind it.*DESCRIBE VOLUME"):
        open_store(location)
    assert open_store("/lake/dbfs/x").location == "/lake/dbfs/x"


def test_urls_of_dbfs_are_refused_everywhere() -> None:
    with pytest.raises(UnsafeStore, match="a Databricks volume or DBFS path cannot hold a ledger or a load"):
        open_store("dbfs:/x")


@pytest.mark.parametrize("make", [MemoryStore, lambda: None])
def test_a_good_store_passes_the_check_and_is_left_clean(tmp_path: Path, make: Any) -> None:
    store = make() or LocalStore(tmp_path)
    check_store(SubStore(store, "flights"))
    if isinstance(store, MemoryStore):
        assert store.records == {}
    else:
        assert files(tmp_path) == []


def test_a_store_whose_create_overwrites_is_refused() -> None:
    store = ForgetfulStore()
    with pytest.raises(UnsafeStore, match="memory cannot hold a ledger: create accepts a name that is taken"):
        check_store(store)
    assert store.records == {}


def test_a_store_whose_create_only_looks_before_it_writes_is_refused() -> None:
    class Looks(MemoryStore):
        def __init__(self) -> None:
            super().__init__()
            self._all_looked = threading.Barrier(4)

        def create(self, name: str, data: bytes) -> bool:
            free = name not in self.records
            if "race" in name:
                self._all_looked.wait(timeout=60)
            if free:
                self.records[name] = data
            return free

    with pytest.raises(UnsafeStore, match="of 4 concurrent creates of one name, 4 succeeded"):
        check_store(Looks())


def test_a_store_that_shows_half_a_record_is_refused() -> None:
    class Torn(MemoryStore):
        def read(self, name: str) -> bytes | None:
            whole = super().read(name)
            return whole[:4096] if whole else whole

    with pytest.raises(UnsafeStore, match="a reader saw half a record"):
        check_store(Torn())


def test_a_store_whose_lock_excludes_nobody_is_refused() -> None:
    class Open(MemoryStore):
        def hold(self, name: str, holder: str) -> Any:
            return MemoryStore().hold(name, holder)

    with pytest.raises(UnsafeStore, match="two callers hold one name at the same time"):
        check_store(Open())


def test_a_store_that_says_taken_of_a_free_name_is_refused() -> None:
    class Full(MemoryStore):
        def create(self, name: str, data: bytes) -> bool:
            return False

    with pytest.raises(UnsafeStore, match="create reports a new name as taken"):
        check_store(Full())


def test_a_file_is_durable_once_closed_and_gone_once_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(tmp_path)
    synced: list[str] = []
    fsync = os.fsync

    def noted(fd: int) -> None:
        synced.append(Path(f"/proc/self/fd/{fd}").readlink().name)
        fsync(fd)

    monkeypatch.setattr(os, "fsync", noted)
    kept, left = store.new_file("a/kept"), store.new_file("a/left")
    synced.clear()
    for file in (kept, left):
        file.write(b"half ")
        file.write(b"and whole")
    kept.close()
    kept.abort()
    assert synced == ["kept", "a"]
    left.abort()
    assert files(tmp_path) == ["a/kept"]
    assert (kept.bytes, kept.crc32c) == (14, crc32c(b"half and whole"))
    assert store.read("a/kept") == b"half and whole"
    with pytest.raises(LoadError, match=r"cannot write .*a/kept: File exists"):
        store.new_file("a/kept")


def test_a_file_that_cannot_be_made_durable_is_not_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = open_store(tmp_path).new_file("a")
    file.write(b"x")
    monkeypatch.setattr(os, "fsync", failing(errno.EIO))
    with pytest.raises(LoadError, match=r"cannot write .*/a: Input/output error"):
        file.close()
    assert files(tmp_path) == []
