"""ZooKeeper in memory, with sessions that expire when a test says so, noticed or not. One thread."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence

from pyspark_kafkalog.errors import ConnectionLost
from pyspark_kafkalog.zookeeper.session import (
    Creation,
    Node,
    NodeExists,
    NodeRemoval,
    Replacement,
    SessionEvent,
)


class MemoryZooKeeper:
    """The nodes of all sessions."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self._numbers = itertools.count(1)

    def new_session(self) -> int:
        return next(self._numbers)

    def names_below(self, path: str) -> set[str]:
        """The names of a node's children."""
        below = f"{path}/"
        return {name[len(below) :].partition("/")[0] for name in self.nodes if name.startswith(below)}

    def remove(self, path: str) -> None:
        """A node and all that is below it are gone, whoever made them."""
        self.nodes = {
            name: node
            for name, node in self.nodes.items()
            if name != path and not name.startswith(f"{path}/")
        }

    def end(self, session: int) -> None:
        """What a session's end does: its ephemeral nodes are gone."""
        self.nodes = {path: node for path, node in self.nodes.items() if node.owner != session}


class MemorySession:
    """What the registries need of `Session`, without watches: whoever tests says when to look again."""

    def __init__(self, server: MemoryZooKeeper) -> None:
        self._server = server
        self._listeners: list[Callable[[SessionEvent], object]] = []
        self._id = server.new_session()
        self._expired = False
        self.fail_after: int | None = None
        """Operations until one is done whose answer is lost; None is never."""
        self.repeat_after: int | None = None
        """Operations until one is done, and as its answer is lost, asked for again; None is never."""
        self.expire_after: int | None = None
        """Operations until the server ends the session, which the next one finds out; None is never."""
        self.between: tuple[int, Callable[[], object]] | None = None
        """Operations until somebody else does something first, and what; None is never."""
        self.connected = True

    @property
    def credentials(self) -> tuple[int, bytes]:
        return self._id, b""

    @property
    def in_for_trouble(self) -> bool:
        """Whether an answer will be lost, or the session's end is on its way."""
        return self.fail_after is not None or self.expire_after is not None

    def listen(self, listener: Callable[[SessionEvent], object]) -> None:
        self._listeners.append(listener)

    def expire(self) -> None:
        """The server ends the session; the client learns of it when it next asks, or by `notice`."""
        self._server.end(self._id)
        self._expired = True

    def notice(self) -> None:
        """The client hears from the server: of the end of its session, if it has ended."""
        if self.between is not None:
            left, act = self.between
            self.between = (left - 1, act) if left else None
            if not left:
                act()
        if not self.connected:
            raise ConnectionLost("no server is reached")
        if self.expire_after is not None:
            self.expire_after -= 1
            if self.expire_after < 0:
                self.expire_after = None
                self.expire()
        if self._expired:
            self._expired = False
            self._tell(SessionEvent.LOST)
            self._id = self._server.new_session()
            self._tell(SessionEvent.RENEWED)

    def create(self, path: str, data: bytes, *, ephemeral: bool = False) -> None:
        self.notice()
        there = self._server.nodes.get(path)
        if there is not None and not (ephemeral and there.owner == self._id and there.data == data):
            raise NodeExists(path)
        self._make_parents(path)
        self._server.nodes[path] = Node(data, 0, self._id if ephemeral else 0)
        self._answer()

    def read(self, path: str) -> Node | None:
        self.notice()
        self._answer()
        return self._server.nodes.get(path)

    def write(self, path: str, data: bytes) -> None:
        self.notice()
        self._make_parents(path)
        there = self._server.nodes.get(path, Node(b"", -1, 0))
        self._server.nodes[path] = Node(data, there.version + 1, there.owner)
        self._answer()

    def replace(self, path: str, data: bytes, version: int) -> bool:
        return self.commit(Replacement(path, data, version))

    def commit(self, *changes: Creation | Replacement | NodeRemoval) -> bool:
        done = self._commit(changes)
        if self.repeat_after is not None:
            self.repeat_after -= 1
            if self.repeat_after < 0:
                self.repeat_after = None
                return self._commit(changes)
        return done

    def _commit(self, changes: Sequence[Creation | Replacement | NodeRemoval]) -> bool:
        self.notice()
        nodes = dict(self._server.nodes)
        for change in changes:
            there = nodes.get(change.path)
            if isinstance(change, Creation):
                if there is not None or change.path.rpartition("/")[0] not in nodes:
                    return False
                nodes[change.path] = Node(change.data, 0, 0)
            elif there is None or there.version != change.version:
                return False
            elif isinstance(change, Replacement):
                nodes[change.path] = Node(change.data, change.version + 1, there.owner)
            else:
                del nodes[change.path]
        self._server.nodes = nodes
        self._answer()
        return True

    def read_all(self, paths: Iterable[str]) -> dict[str, Node]:
        found = {path: self.read(path) for path in paths}
        return {path: node for path, node in found.items() if node is not None}

    def delete(self, path: str, version: int = -1) -> bool:
        self.notice()
        there = self._server.nodes.get(path)
        if there is None or version not in (-1, there.version) or self._server.names_below(path):
            return False
        del self._server.nodes[path]
        self._answer()
        return True

    def children(self, path: str) -> list[str]:
        self.notice()
        return sorted(self._server.names_below(path))

    def _make_parents(self, path: str) -> None:
        while path := path.rpartition("/")[0]:
            self._server.nodes.setdefault(path, Node(b"", 0, 0))

    def _answer(self) -> None:
        if self.fail_after is not None:
            self.fail_after -= 1
            if self.fail_after < 0:
                self.fail_after = None
                raise ConnectionLost("the answer was lost")

    def _tell(self, event: SessionEvent) -> None:
        for listener in self._listeners:
            listener(event)
