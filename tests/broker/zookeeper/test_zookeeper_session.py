"""The session against a real ZooKeeper server: nodes, watches, and connections that come and go."""

from __future__ import annotations

import contextlib
import queue
import shutil
import socket
import threading
import time

import pytest

from pyspark_kafkalog.errors import ConnectionLost, InvalidConfig
from pyspark_kafkalog.zookeeper.server import ZooKeeperServer
from pyspark_kafkalog.zookeeper.session import NodeExists, SessionEvent, ZooKeeperSession
from tests.support.until import until
from tests.support.zookeeper import expire, patient_session


def test_a_node_is_made_with_its_parents_read_changed_and_removed(session: ZooKeeperSession) -> None:
    session.create("/a/b/c", b"1")
    assert session.children("/a/b") == ["c"]
    node = session.read("/a/b/c")
    assert node is not None
    assert (node.data, node.version, node.owner) == (b"1", 0, 0)
    session.write("/a/b/c", b"2")
    session.write("/a/new/node", b"3")
    assert [session.read(path).data for path in ("/a/b/c", "/a/new/node")] == [b"2", b"3"]  # type: ignore[union-attr]
    assert not session.delete("/a/b"), "it has children"
    assert not session.delete("/a/b/c", version=0), "it was changed since"
    assert session.delete("/a/b/c")
    assert not session.delete("/a/b/c")
    assert session.read("/a/b/c") is None
    assert session.children("/nowhere") == []


def test_paths_are_below_the_chroot(zookeeper: ZooKeeperServer, zookeeper_connect: str) -> None:
    with patient_session(zookeeper_connect) as below, patient_session(zookeeper.connect) as root:
        below.create("/node", b"x")
        chroot = "/" + zookeeper_connect.partition("/")[2]
        assert root.children(chroot) == ["node"]
        assert below.children("/") == ["node"]


def test_a_node_that_is_there_is_not_made_again(session: ZooKeeperSession, other: ZooKeeperSession) -> None:
    session.create("/x", b"1")
    with pytest.raises(NodeExists, match="/x exists"):
        session.create("/x", b"1")
    session.create("/e", b"1", ephemeral=True)
    session.create("/e", b"1", ephemeral=True)  # our own: as if the first answer had been lost
    with pytest.raises(NodeExists):
        session.create("/e", b"2", ephemeral=True)
    with pytest.raises(NodeExists):
        other.create("/e", b"1", ephemeral=True)


def test_ephemeral_nodes_go_with_the_session(session: ZooKeeperSession, zookeeper_connect: str) -> None:
    with patient_session(zookeeper_connect) as passing:
        passing.create("/e", b"", ephemeral=True)
        node = session.read("/e")
        assert node is not None
        assert node.owner == passing.credentials[0]
    assert session.read("/e") is None
    passing.close()  # again: nothing happens


def test_children_are_reported_at_first_and_after_each_change(
    session: ZooKeeperSession, other: ZooKeeperSession
) -> None:
    told: queue.Queue[list[str]] = queue.Queue()
    watch = session.watch_children("/p/q", told.put)
    assert told.get(timeout=60) == []  # the node is not there yet
    other.create("/p/q/b", b"")
    assert until(lambda: told.get(timeout=60) == ["b"])
    other.create("/p/q/a", b"")
    assert told.get(timeout=60) == ["a", "b"]
    other.delete("/p/q/a")
    assert told.get(timeout=60) == ["b"]
    other.delete("/p/q/b")
    assert told.get(timeout=60) == []
    other.delete("/p/q")
    other.create("/p/q/c", b"")
    assert told.get(timeout=60) == ["c"]
    watch.cancel()
    later: queue.Queue[list[str]] = queue.Queue()
    session.watch_children("/p/q", later.put)
    assert later.get(timeout=60) == ["c"]
    other.create("/p/q/d", b"")
    assert later.get(timeout=60) == ["c", "d"], "a watch that was set after it is told"
    assert told.empty()


def test_a_nodes_value_is_reported_through_its_removal(
    session: ZooKeeperSession, other: ZooKeeperSession
) -> None:
    told: queue.Queue[bytes | None] = queue.Queue()
    session.watch_node("/v", told.put)
    assert told.get(timeout=60) is None
    for change, seen in (
        (lambda: other.create("/v", b"1"), b"1"),
        (lambda: other.write("/v", b"2"), b"2"),
        (lambda: other.delete("/v"), None),
        (lambda: other.create("/v", b"3"), b"3"),
    ):
        change()
        assert told.get(timeout=60) == seen


def test_callbacks_run_on_one_thread_may_use_the_session_and_may_fail(
    session: ZooKeeperSession, other: ZooKeeperSession
) -> None:
    seen: queue.Queue[tuple[str, str]] = queue.Queue()

    def careless(children: list[str]) -> None:
        session.create(f"/copy/{len(children)}", b"")
        seen.put(("careless", threading.current_thread().name))
        raise ValueError("on purpose")

    session.watch_children("/w", careless)
    session.watch_children("/w", lambda _children: seen.put(("calm", threading.current_thread().name)))
    assert [seen.get(timeout=60)[0] for _ in range(2)] == ["careless", "calm"]
    other.create("/w/1", b"")
    assert {seen.get(timeout=60) for _ in range(2)} == {(n, "zookeeper-events") for n in ("careless", "calm")}
    assert session.children("/copy") == ["0", "1"]


def test_an_expired_session_is_reported_and_renewed_and_its_watches_look_again(
    session: ZooKeeperSession, other: ZooKeeperSession
) -> None:
    events: queue.Queue[SessionEvent] = queue.Queue()
    told: queue.Queue[list[str]] = queue.Queue()
    session.listen(events.put)
    other.create("/mine/other", b"")
    session.create("/mine/e", b"", ephemeral=True)
    session.watch_children("/mine", told.put)
    assert told.get(timeout=60) == ["e", "other"]
    before = session.credentials[0]
    expire(session)
    seen = [events.get(timeout=60)]
    while seen[-1] is not SessionEvent.RENEWED:
        seen.append(events.get(timeout=60))
    assert seen == [SessionEvent.SUSPENDED, SessionEvent.LOST, SessionEvent.RENEWED]
    assert session.credentials[0] != before
    assert told.get(timeout=60) == ["other"]
    session.create("/mine/e", b"", ephemeral=True)
    assert told.get(timeout=60) == ["e", "other"]


@pytest.mark.long("ZooKeeper, stopped and started")
def test_a_session_outlives_its_server_if_it_is_back_in_time(own_zookeeper: ZooKeeperServer) -> None:
    events: queue.Queue[SessionEvent] = queue.Queue()
    told: queue.Queue[list[str]] = queue.Queue()
    with patient_session(own_zookeeper.connect) as session:
        session.listen(events.put)
        session.create("/p/e", b"1", ephemeral=True)
        session.watch_children("/p", told.put)
        assert told.get(timeout=60) == ["e"]
        own_zookeeper.kill()
        assert events.get(timeout=60) is SessionEvent.SUSPENDED
        own_zookeeper.start()
        assert events.get(timeout=60) is SessionEvent.RESUMED
        node = session.read("/p/e")
        assert node is not None
        assert node.data == b"1"
        session.create("/p/later", b"")
        assert told.get(timeout=60) == ["e", "later"], "the watch was set again"
        assert events.empty()


def test_a_connection_that_nobody_answers_is_left_while_a_session_would_live() -> None:
    """ZooKeeper 3.9 treats a client so that connects just before it begins to read its data."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        silent.setblocking(False)

        def came_again() -> bool:
            session = ZooKeeperSession(
                f"127.0.0.1:{port}", session_timeout_ms=6000, connection_timeout_ms=5500
            )
            with pytest.raises(ConnectionLost, match="no ZooKeeper answers"):
                session.start()
            count = 0
            with contextlib.suppress(BlockingIOError):
                while True:
                    silent.accept()[0].close()
                    count += 1
            return count >= 2

        until(came_again)  # another time, if this process stood still for most of the first


@pytest.mark.long("ZooKeeper, stopped and started")
def test_a_call_waits_for_a_server_that_comes_back_and_gives_up_in_time(
    own_zookeeper: ZooKeeperServer,
) -> None:
    with patient_session(own_zookeeper.connect) as session:
        session._connect_ms = 1000  # from now on: the start was to wait for its answers
        own_zookeeper.kill()
        began = time.monotonic()
        with pytest.raises(
            ConnectionLost, match=r"/x: ZooKeeper at 127.0.0.1:\d+ did not answer within 1000 ms"
        ):
            session.create("/x", b"")
        assert time.monotonic() - began > 0.5
        restart = threading.Thread(target=own_zookeeper.start)
        restart.start()
        found = until(lambda: _try_to_write(session))
        restart.join()
        assert found
        assert session.read("/y").data == b"1"  # type: ignore[union-attr]


@pytest.mark.long("ZooKeeper, stopped and started")
def test_a_server_that_was_emptied_is_used_once_the_session_must_have_ended(
    own_zookeeper: ZooKeeperServer,
) -> None:
    """It refuses clients that have seen more than it knows."""
    with ZooKeeperSession(
        own_zookeeper.connect, session_timeout_ms=2000, connection_timeout_ms=60_000
    ) as session:
        events: queue.SimpleQueue[SessionEvent] = queue.SimpleQueue()
        session.listen(events.put)
        for number in range(50):
            session.create(f"/x{number}", b"")
        own_zookeeper.kill()
        shutil.rmtree(own_zookeeper.data_dir)
        own_zookeeper.start()
        seen = [events.get(timeout=60)]
        while seen[-1] is not SessionEvent.RENEWED or session.read("/x0") is not None:
            seen.append(events.get(timeout=60))
        # If the machine stood still before, a session of before has ended too.
        assert seen[-3:] == [SessionEvent.SUSPENDED, SessionEvent.LOST, SessionEvent.RENEWED]
        assert session.read("/x0") is None
        session.create("/x0", b"again")


def _try_to_write(session: ZooKeeperSession) -> bool:
    try:
        session.write("/y", b"1")
    except ConnectionLost:
        return False
    return True


def test_a_closed_session_says_so(zookeeper_connect: str) -> None:
    session = patient_session(zookeeper_connect).start()
    session.close()
    with pytest.raises(ConnectionLost, match="is closed"):
        session.read("/x")


@pytest.mark.parametrize("text", ["", "host", "host:0", "host:2181//x", "host:2181/a/../b", "h:1;h:2"])
def test_an_invalid_connect_string_is_refused(text: str) -> None:
    with pytest.raises(InvalidConfig, match=r"zookeeper\.connect"):
        ZooKeeperSession(text)
