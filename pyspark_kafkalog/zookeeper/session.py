"""A session with ZooKeeper: nodes, watches and connection events. The only import of kazoo."""

from __future__ import annotations

import enum
import logging
import queue
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kazoo.client import KazooClient, KazooState
from kazoo.exceptions import (
    BadVersionError,
    ConnectionClosedError,
    ConnectionLoss,
    KazooException,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    OperationTimeoutError,
    RolledBackError,
    RuntimeInconsistency,
    SessionExpiredError,
)

from pyspark_kafkalog.clock import SYSTEM_CLOCK
from pyspark_kafkalog.config.zookeeper import (
    CONNECTION_TIMEOUT_MS,
    SESSION_TIMEOUT_MS,
    ZooKeeperConfig,
    parse_connect,
)
from pyspark_kafkalog.errors import ConnectionLost, InvalidConfig, KafkaError

_RECONNECT = {"max_tries": -1, "delay": 0.05, "backoff": 2, "max_delay": 1.0}
_RETRY_SECONDS = 0.05
_STOP_SECONDS = 10.0

_READ_AT_ONCE = 200
_CONFLICTS = (
    BadVersionError,
    NoNodeError,
    NodeExistsError,
    NotEmptyError,
    RolledBackError,
    RuntimeInconsistency,
)

_log = logging.getLogger(__name__)


class ZooKeeperError(KafkaError):
    """ZooKeeper refused an operation for a reason without its own class here."""


class NodeExists(KafkaError):
    """A node with that path exists, and is not ours."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{path} exists in ZooKeeper")
        self.path = path


class SessionEvent(enum.Enum):
    """Changes of a session's state."""

    SUSPENDED = "suspended"
    """No server is reached. The session, and with it our ephemeral nodes, may or may not survive."""
    RESUMED = "resumed"
    """A server is reached again in the same session: its ephemeral nodes still exist."""
    LOST = "lost"
    """The session has expired: our ephemeral nodes are gone, and others may have created theirs."""
    RENEWED = "renewed"
    """A new session after a lost one. Our ephemeral nodes must be created again."""


@dataclass(frozen=True, slots=True)
class Node:
    """A node as it was read; ``owner`` is the session of an ephemeral node, else 0."""

    data: bytes
    version: int
    owner: int
    created_ms: int = field(default=-1, compare=False)


class Creation(NamedTuple):
    """Part of a `Session.commit`: a persistent node; in a ``sequence`` its name gets a number at the end."""

    path: str
    data: bytes
    sequence: bool = False


class Replacement(NamedTuple):
    """Part of a `Session.commit`: the new value of a node that still has this version."""

    path: str
    data: bytes
    version: int


class Removal(NamedTuple):
    """Part of a `Session.commit`: a node that still has this version goes."""

    path: str
    version: int


_NOTHING = object()


class Watch:
    """*Thread-safe.* Calls back with a value whenever it may have changed, until `cancel`."""

    def __init__(self, look: Callable[[Watch], Any], tell: Callable[[Any], object]) -> None:
        self._look = look
        self._tell = tell
        self._last: Any = _NOTHING
        self.cancelled = False

    def cancel(self) -> None:
        """Stop calling back, except for a call that has begun."""
        self.cancelled = True

    def run(self) -> None:
        """Read, and call back with the result. On the session's own thread only."""
        if self.cancelled:
            return
        found = self._look(self)
        if found != self._last:
            self._last = found
            self._tell(found)


class Session:
    """*Thread-safe.* One session with a ZooKeeper ensemble, renewed whenever it expires.

    Threads: any thread may call the methods; each waits for its answer up to ``connection_timeout_ms``,
    through a lost connection too, and then raises `ConnectionLost`: its request may have been carried out.
    Listeners and watches are called on one thread of the session, ``zookeeper-events``, one at a
    time and in the order of events. They may block and may call the session; the others wait meanwhile.
    An exception in a callback is logged. kazoo's own threads only put work into our queue.

    On `SessionEvent.RENEWED` create ephemeral nodes again; watches continue by themselves. Between SUSPENDED
    and its end it is unknown whether the session lives: code that must not act without its nodes stops after
    ``session_timeout_ms``.

    ``connect`` is ``host:port,host:port/chroot``; all paths are below the chroot, which is created if needed.
    """

    def __init__(
        self,
        connect: str,
        *,
        session_timeout_ms: int = SESSION_TIMEOUT_MS,
        connection_timeout_ms: int = CONNECTION_TIMEOUT_MS,
    ) -> None:
        """Does not connect yet. Raises `InvalidConfig` for an invalid ``connect``."""
        try:
            self.hosts, self.chroot = parse_connect(connect)
        except ValueError as e:
            raise InvalidConfig(f"zookeeper.connect: {e}") from None
        self._connect_ms = connection_timeout_ms
        self._client: Any = KazooClient(
            hosts=self.hosts, timeout=session_timeout_ms / 1000, connection_retry=dict(_RECONNECT)
        )
        self._client.add_listener(self._state_changed)
        self._lock = threading.Lock()  # guards the two lists, which are replaced and never modified
        self._listeners: list[Callable[[SessionEvent], object]] = []
        self._watches: list[Watch] = []
        self._credentials = (0, b"")
        self._closed = False
        self._events: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="zookeeper-events", daemon=True)

    @property
    def credentials(self) -> tuple[int, bytes]:
        """Id and password of the newest session; an ephemeral node's `Node.owner` is the id."""
        return self._credentials

    @property
    def connected(self) -> bool:
        """Whether there is a connection at the moment; without one a call waits for it."""
        return bool(self._client.connected)

    def start(self) -> Session:
        try:
            self._client.start(timeout=self._connect_ms / 1000)
        except self._client.handler.timeout_exception:
            self._closed = True
            raise ConnectionLost(
                f"no ZooKeeper answers at {self.hosts} within {self._connect_ms} ms "
                "(zookeeper.connection.timeout.ms)"
            ) from None
        self._thread.start()
        return self

    def close(self) -> None:
        """End the session: its ephemeral nodes go at once. May be called again, also from a callback."""
        if self._closed:
            return
        self._closed = True
        self._events.put(None)
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(_STOP_SECONDS)
        self._client.stop()
        self._client.close()

    def __enter__(self) -> Session:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def listen(self, listener: Callable[[SessionEvent], object]) -> None:
        """Call ``listener`` with events from now on."""
        with self._lock:
            self._listeners = [*self._listeners, listener]

    def create(self, path: str, data: bytes, *, ephemeral: bool = False) -> None:
        """Create a node and its parents; an ephemeral one ends with the session.

        `NodeExists` unless it is ephemeral and this session's: then the answer to an earlier attempt was
        lost.
        """
        while True:
            try:
                self._do(lambda c, p: c.create_async(p, data, ephemeral=ephemeral, makepath=True), path)
            except NodeExists:
                node = self.read(path) if ephemeral else None
                if node is None or node.owner != self.credentials[0] or node.data != data:
                    raise
            except _NoNode:  # the parents are removed as fast as we create them
                continue
            return

    def read(self, path: str) -> Node | None:
        """The node; None if there is none."""
        try:
            data, stat = self._do(lambda c, p: c.get_async(p), path)
        except _NoNode:
            return None
        return _node(data, stat)

    def read_all(self, paths: Iterable[str]) -> dict[str, Node]:
        """The nodes that exist, by path: `read` for many, `_READ_AT_ONCE` of them on their way at a time."""
        found: dict[str, Node] = {}
        wanted = list(paths)
        for start in range(0, len(wanted), _READ_AT_ONCE):
            part = wanted[start : start + _READ_AT_ONCE]
            asked = [self._client.get_async(self.chroot + path or "/") for path in part]
            for path, answer in zip(part, asked, strict=True):
                try:
                    node = _node(*answer.get(timeout=self._connect_ms / 1000))
                except (KazooException, self._client.handler.timeout_exception):
                    again = self.read(path)
                    if again is None:
                        continue
                    node = again
                found[path] = node
        return found

    def commit(self, *changes: Creation | Replacement | Removal) -> bool:
        """Make all changes or none; False if one of them is impossible: the node has another version, exists
        already or not, or has no parent. A lost answer is asked for again: then False may mean that they were
        made, so read before another attempt.
        """

        def ask(client: Any, _path: str) -> Any:
            transaction = client.transaction()
            for change in changes:
                path = self.chroot + change.path
                if isinstance(change, Creation):
                    transaction.create(path, change.data, sequence=change.sequence)
                elif isinstance(change, Replacement):
                    transaction.set_data(path, change.data, change.version)
                else:
                    transaction.delete(path, change.version)
            return transaction.commit_async()

        failed = [each for each in self._do(ask, changes[0].path) if isinstance(each, Exception)]
        for each in failed:
            if not isinstance(each, _CONFLICTS):
                raise ZooKeeperError(f"{changes[0].path}: ZooKeeper refused: {type(each).__name__} {each}")
        return not failed

    def write(self, path: str, data: bytes) -> None:
        """Set a node's value; a persistent node is created if there is none."""
        while True:
            try:
                self._do(lambda c, p: c.set_async(p, data), path)
            except _NoNode:
                try:
                    self.create(path, data)
                except NodeExists:
                    continue
            return

    def replace(self, path: str, data: bytes, version: int) -> bool:
        """Set the value of a node whose version is ``version``; False if it has another or does not exist."""
        try:
            self._do(lambda c, p: c.set_async(p, data, version), path)
        except (_NoNode, _Refused):
            return False
        return True

    def delete(self, path: str, version: int = -1) -> bool:
        """Remove a node; False if it does not exist, has children, or another ``version``."""
        try:
            self._do(lambda c, p: c.delete_async(p, version), path)
        except (_NoNode, _Refused):
            return False
        return True

    def children(self, path: str) -> list[str]:
        """The names below a node, sorted; empty if it does not exist."""
        try:
            return sorted(self._do(lambda c, p: c.get_children_async(p), path))
        except _NoNode:
            return []

    def watch_children(self, path: str, tell: Callable[[list[str]], object]) -> Watch:
        """Call ``tell`` with the sorted names below a node (none: missing), soon and after changes."""

        def look(watch: Watch) -> list[str]:
            again = self._again(watch)
            while True:
                try:
                    return sorted(
                        self._do(lambda c, p: c.get_children_async(p, watch=again), path, once=True)
                    )
                except _NoNode:
                    if self._do(lambda c, p: c.exists_async(p, watch=again), path, once=True) is None:
                        return []

        return self._add(Watch(look, tell))

    def watch_node(self, path: str, tell: Callable[[bytes | None], object]) -> Watch:
        """The same for a node's value; None while it does not exist."""

        def look(watch: Watch) -> bytes | None:
            again = self._again(watch)
            while True:
                try:
                    return bytes(self._do(lambda c, p: c.get_async(p, watch=again), path, once=True)[0])
                except _NoNode:
                    if self._do(lambda c, p: c.exists_async(p, watch=again), path, once=True) is None:
                        return None

        return self._add(Watch(look, tell))

    def _add(self, watch: Watch) -> Watch:
        with self._lock:
            self._watches = [w for w in self._watches if not w.cancelled] + [watch]
        self._look(watch)
        return watch

    def _look(self, watch: Watch) -> None:
        """Queue the watch's next read. Without a connection it waits for the next one."""

        def run() -> None:
            if not self._client.connected:
                return
            try:
                watch.run()
            except _NotNow:
                if self._client.connected and not self._closed:
                    self._look(watch)

        self._events.put(run)

    def _again(self, watch: Watch) -> Callable[[Any], None]:
        """The callback for kazoo when a watch fires; an event without a path only concerns the connection."""

        def fired(event: Any) -> None:
            if event.path is not None:
                self._look(watch)

        return fired

    def _do(self, ask: Callable[[Any, str], Any], path: str, *, once: bool = False) -> Any:
        """Run ``ask``, kazoo's errors converted; ``once`` for watches, which must not block and read again
        anyway.
        """
        deadline = SYSTEM_CLOCK.monotonic() + self._connect_ms / 1000
        client = self._client
        while True:
            left = deadline - SYSTEM_CLOCK.monotonic()
            try:
                return ask(client, self.chroot + path or "/").get(timeout=max(left, 0.001))
            except NoNodeError:
                raise _NoNode(path) from None
            except NodeExistsError:
                raise NodeExists(path) from None
            except (BadVersionError, NotEmptyError):
                raise _Refused(path) from None
            except ConnectionClosedError:
                if self._closed:
                    raise ConnectionLost(f"{path}: the session with ZooKeeper is closed") from None
                reason = "the connection was closed"
            except (ConnectionLoss, OperationTimeoutError, SessionExpiredError) as e:
                reason = type(e).__name__
            except client.handler.timeout_exception:
                reason = "no answer"
            except KazooException as e:
                raise ZooKeeperError(f"{path}: ZooKeeper refused: {type(e).__name__} {e}".rstrip()) from e
            if once:
                raise _NotNow(path)
            if SYSTEM_CLOCK.monotonic() + _RETRY_SECONDS >= deadline:
                raise ConnectionLost(
                    f"{path}: ZooKeeper at {self.hosts} did not answer within {self._connect_ms} ms: {reason}"
                )
            SYSTEM_CLOCK.sleep(_RETRY_SECONDS)

    def _state_changed(self, state: str) -> None:
        """On kazoo's connection thread, which must not block: queue the event."""
        if state == KazooState.CONNECTED:
            before, self._credentials = self._credentials, self._client.client_id
            if before[0]:
                same = before[0] == self._credentials[0]
                self._events.put(
                    lambda: self._reached(SessionEvent.RESUMED if same else SessionEvent.RENEWED)
                )
        elif not self._closed:
            event = SessionEvent.LOST if state == KazooState.LOST else SessionEvent.SUSPENDED
            self._events.put(lambda: self._tell(event))

    def _reached(self, event: SessionEvent) -> None:
        self._tell(event)
        # In both cases kazoo has dropped its watches: read again, for changes in between.
        for watch in self._watches:
            self._look(watch)

    def _tell(self, event: SessionEvent) -> None:
        _log.log(
            logging.WARNING if event in (SessionEvent.LOST, SessionEvent.SUSPENDED) else logging.INFO,
            "the session with ZooKeeper at %s is %s", self.hosts, event.value,
        )  # fmt: skip
        for listener in self._listeners:
            try:
                listener(event)
            except Exception:
                _log.exception("a listener failed on %s", event)

    def _run(self) -> None:
        while (act := self._events.get()) is not None:
            try:
                act()
            except Exception:
                _log.exception("a ZooKeeper callback failed")


def _node(data: bytes, stat: Any) -> Node:
    return Node(data, stat.version, stat.ephemeralOwner, stat.ctime)


class _NoNode(KafkaError):
    """The node does not exist."""


class _NotNow(KafkaError):
    """No answer, or no connection."""


class _Refused(KafkaError):
    """A node with children, or of another version."""


def session_of(config: ZooKeeperConfig) -> Session:
    """The session of a configuration, not started yet; `InvalidConfig` without ``zookeeper.connect``."""
    return Session(
        config.zookeeper_connect or "",
        session_timeout_ms=config.zookeeper_session_timeout_ms,
        connection_timeout_ms=config.zookeeper_connection_timeout_ms,
    )


class RegistryWatch:
    """*Not thread-safe: lives on its session's thread, except `cancel`.* A node's children and their values.

    ``changed`` is called on that thread when a child comes, goes or has a new value; sometimes also without a
    change. A child that went and came back in between has the same name: its value shows the change, of a
    broker its address and its time.
    """

    def __init__(
        self, session: Session, parent: str, child: Callable[[str], str], changed: Callable[[], object]
    ) -> None:
        """``child`` gives the path to watch for a name below ``parent``."""
        self._session = session
        self._child = child
        self._changed = changed
        self._below: dict[str, Watch] = {}
        self._children = session.watch_children(parent, self._found)

    def cancel(self) -> None:
        """Stop calling back."""
        self._children.cancel()
        for watch in list(self._below.values()):
            watch.cancel()

    def _found(self, names: list[str]) -> None:
        for name in self._below.keys() - set(names):
            self._below.pop(name).cancel()
        for name in set(names) - self._below.keys():
            self._below[name] = self._session.watch_node(self._child(name), lambda _data: self._changed())
        self._changed()
