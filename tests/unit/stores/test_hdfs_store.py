"""HDFS as a store, as far as it goes without one: its URLs, and renames whose answer was lost.

A real one is in tests/peers/test_hdfs.py; no server loses the answer to a rename when it is told to.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pyspark_kafkalog.errors import LoadError, UnsafeStore
from pyspark_kafkalog.ledger.stores import hdfs_store
from pyspark_kafkalog.ledger.stores.hdfs_store import HdfsStore, hdfs_place
from pyspark_kafkalog.ledger.stores.locations import is_remote, open_store
from pyspark_kafkalog.ledger.stores.object_clients import is_object_store


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("hdfs://namenode:8020/lake/_offsets/", ("namenode:8020", "/lake/_offsets")),
        ("hdfs://lake-ha/a b/day=1", ("lake-ha", "/a b/day=1")),
        ("HDFS:///lake", ("", "/lake")),
        ("hdfs://namenode/", ("namenode", "/")),
        ("hdfs:/lake", ("", "/lake")),
    ],
)
def test_a_url_names_a_cluster_and_a_directory(url: str, place: tuple[str, str]) -> None:
    assert hdfs_place(url) == place
    assert (is_remote(url), is_object_store(url)) == (True, False)
    assert isinstance(open_store(url), HdfsStore)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("hdfs://alice:hush@namenode/lake", "takes no user"),
        ("hdfs://namenode/lake?user=alice", "takes no user, query"),
        ("hdfs://namenode", "it must be hdfs://namenode:8020/path"),
        ("hdfs://namenode/../lake", r"no \. or \.\."),
    ],
)
def test_any_other_url_is_refused_without_a_secret(url: str, said: str) -> None:
    with pytest.raises(UnsafeStore, match=said) as e:
        hdfs_place(url)
    assert "hush" not in str(e.value)


class Faulty:
    """A client whose renames take effect or not, and answer as told."""

    def __init__(self, *answers: BaseException | None, takes: bool = True, is_taken: bool = False) -> None:
        self.answers, self.takes, self.is_taken = list(answers), takes, is_taken
        self.is_renamed = False

    def rename(self, source: str, target: str) -> None:
        answer = self.answers.pop(0)
        if self.is_renamed:
            raise FileNotFoundError(source)
        if self.is_taken:
            raise FileExistsError(target)
        self.is_renamed = self.takes
        if answer is not None:
            raise answer

    def get_file_info(self, path: str) -> object:
        if self.is_renamed:
            raise FileNotFoundError(path)
        return path


LOST = OSError("Connection reset by peer")


@pytest.mark.parametrize(
    ("client", "won"),
    [
        (Faulty(None), True),
        (Faulty(LOST, None), None),
        (Faulty(FileExistsError("the client of HDFS asked twice")), True),
        (Faulty(None, is_taken=True), False),
        (Faulty(RuntimeError("RPCError(StandbyException)"), None), None),
    ],
    ids=["answered", "answer lost", "asked twice", "taken", "standby"],
)
def test_a_rename_succeeded_if_the_temporary_file_has_another_name(
    client: Any, won: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None: it is gone, which also another program may have done."""
    monkeypatch.setattr(hdfs_store, "_WAITS_S", (0.0,))
    assert hdfs_store._rename(client, "/x/.tmp-1", "/x/1.json") is won


@pytest.mark.parametrize(("there", "created"), [(b"data", True), (b"of another driver", False), (None, None)])
def test_what_is_there_decides_if_the_temporary_file_is_gone(
    there: bytes | None, created: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = HdfsStore("hdfs://nn:8020/x")
    monkeypatch.setattr(hdfs_store, "_client", lambda *_: SimpleNamespace(delete=lambda _: None))
    monkeypatch.setattr(hdfs_store, "_write_beside", lambda *_, **__: "/x/.tmp-1")
    monkeypatch.setattr(hdfs_store, "_rename", lambda *_: None)
    monkeypatch.setattr(store, "read", lambda _: there)
    if created is None:
        with pytest.raises(LoadError, match=r"does another program remove \.tmp-\* files\?"):
            store.create("1.json", b"data")
    else:
        assert store.create("1.json", b"data") is created


def test_a_cluster_that_does_not_answer_is_an_error_that_says_what_to_check(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(hdfs_store._ATTEMPTS_AT_ONE, "dfs.client.failover.max.attempts", "1")
    with pytest.raises(
        LoadError, match=r"cannot read hdfs://127\.0\.0\.1:1/lake/load\.json: .*HADOOP_CONF_DIR"
    ):
        open_store("hdfs://127.0.0.1:1/lake").read("load.json")
