"""A session with ZooKeeper: nodes, watches, connection events. Only this and `protection` import kazoo."""

from __future__ import annotations

import contextlib
import enum
import logging
import math
import queue
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, NamedTuple

from kazoo import exceptions as kazoo_errors
from kazoo.client import KazooClient, KazooState, KeeperState
from kazoo.security import ACL, CREATOR_ALL_ACL, OPEN_ACL_UNSAFE, READ_ACL_UNSAFE

from pyspark_kafkalog.clock import SYSTEM_CLOCK
from pyspark_kafkalog.config.zookeeper_config import (
    CONNECTION_TIMEOUT_MS,
    SESSION_TIMEOUT_MS,
    ZooKeeperConfig,
    parse_connect,
)
from pyspark_kafkalog.errors import ConnectionLost, InvalidConfig, KafkaError
from pyspark_kafkalog.zookeeper.protection import UNPROTECTED, Access, Connector, Protection, protection_of

_RECONNECT = {"max_tries": -1, "delay": 0.05, "backoff": 2, "max_delay": 1.0}
_RETRY_SECONDS = 0.05
_STOP_SECONDS = 10.0
_LOGIN_AGAIN_SECONDS = 1.0
_LEAST_ANSWER_SECONDS = 2.0  # give a busy server at least this long before another attempt

_READ_AT_ONCE = 200
_CONFLICTS = (
    kazoo_errors.BadVersionError, kazoo_errors.NoNodeError, kazoo_errors.NodeExistsError,
    kazoo_errors.NotEmptyError, kazoo_errors.RolledBackError, kazoo_errors.RuntimeInconsistency,
)  # fmt: skip

_REFUSALS = {
    kazoo_errors.NoAuthError: "{path} belongs to another login or certificate in ZooKeeper: use that one "
    "(zookeeper.sasl.jaas.config, zookeeper.ssl.keystore.location), or another chroot",
    kazoo_errors.InvalidACLError: "{path}: ZooKeeper does not know who we are, which zookeeper.set.acl=true "
    "needs: it takes no logins (zookeeper.sasl.jaas.config) or does not ask for certificates "
    "(ssl.clientAuth)",
    kazoo_errors.AuthFailedError: "ZooKeeper at {at} refused the login of {user!r}: check "
    "zookeeper.sasl.jaas.config",
}

_log = logging.getLogger(__name__)


class ZooKeeperError(KafkaError): ...


class NodeExists(KafkaError):
    def __init__(self, path: str) -> None:
        super().__init__(f"{path} exists in ZooKeeper")
        self.path = path


class SessionEvent(enum.Enum):
    SUSPENDED = "suspended"
    """No server can be reached. The session and its ephemeral nodes may or may not survive."""
    RESUMED = "resumed"  # reconnected in the same session: its ephemeral nodes still exist
    LOST = "lost"  # the session expired: our ephemeral nodes are gone, and others may have created theirs
    RENEWED = "renewed"  # a new session after a lost one: ephemeral nodes must be created again


@dataclass(frozen=True, slots=True)
class Node:
    """A node's value; ``owner`` is the session id of an ephemeral node, else 0."""

    data: bytes
    version: int
    owner: int
    created_ms: int = field(default=-1, compare=False)


class Creation(NamedTuple):
    """Create a persistent node; ``sequence`` appends a number. A change for `ZooKeeperSession.commit`."""

    path: str
    data: bytes
    sequence: bool = False


class Replacement(NamedTuple):
    path: str
    data: bytes
    version: int


class NodeRemoval(NamedTuple):
    path: str
    version: int


_NOTHING = object()


class Watch:
    """*Thread-safe.* Calls back with a value when it may have changed, until `cancel`."""

    def __init__(self, look: Callable[[Watch], Any], tell: Callable[[Any], object]) -> None:
        self._look = look
        self._tell = tell
        self._last: Any = _NOTHING
        self.cancelled = False

    def cancel(self) -> None:
        """Stop calling back; a call in progress finishes."""
        self.cancelled = True

    def run(self) -> None:
        if self.cancelled:
            return
        value = self._look(self)
        if value != self._last:
            self._last = value
            self._tell(value)


class ZooKeeperSession:
    """*Thread-safe.* One session with a ZooKeeper ensemble, renewed whenever it expires.

    Any thread may call the methods; each waits for its response up to ``connection_timeout_ms``, also while
    disconnected, and then raises `ConnectionLost`: the request may have been carried out. Listeners and
    watches run on the session's thread ``zookeeper-events``, one at a time and in order. They may block and
    may call the session. Their exceptions are logged.

    On `SessionEvent.RENEWED` create ephemeral nodes again; watches continue by themselves. After SUSPENDED
    the session may have ended: code that must not act without its nodes stops after ``session_timeout_ms``.

    ``connect`` is ``host:port,host:port/chroot``; paths are below the chroot, which is created if needed.
    """

    def __init__(
        self,
        connect: str,
        *,
        session_timeout_ms: int = SESSION_TIMEOUT_MS,
        connection_timeout_ms: int = CONNECTION_TIMEOUT_MS,
        protection: Protection = UNPROTECTED,
    ) -> None:
        try:
            self.hosts, self.chroot = parse_connect(connect)
        except ValueError as e:
            raise InvalidConfig(f"zookeeper.connect: {e}") from None
        self._connect_ms = connection_timeout_ms
        self._session_ms = session_timeout_ms
        self._cut_off_since: float | None = None
        self._login = protection.login
        self._logged_in = False
        self._refused = False
        """Whether our first login failed. kazoo gives up then, and only reports that it is closed."""
        self._access = protection.access
        # Leaves time for three attempts per session timeout: the first may never be answered.
        self._handler = Connector(
            protection.context, max(session_timeout_ms / 3000, _LEAST_ANSWER_SECONDS), self._connecting
        )
        self._client: Any = KazooClient(
            hosts=self.hosts,
            timeout=session_timeout_ms / 1000,
            connection_retry=dict(_RECONNECT),
            handler=self._handler,
            sasl_options=_sasl_options(protection.login),
        )
        self._client.add_listener(self._state_changed)
        self._lock = threading.Lock()  # guards the two lists, which are replaced and never modified
        self._listeners: list[Callable[[SessionEvent], object]] = []
        self._watches: list[Watch] = []
        self.credentials = (0, b"")
        """Id and password of the newest session; the id is `Node.owner` of its ephemeral nodes."""
        self._closed = threading.Event()
        self._events: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="zookeeper-events", daemon=True)

    @property
    def connected(self) -> bool:
        return bool(self._client.connected)

    def start(self) -> ZooKeeperSession:
        try:
            self._client.start(timeout=self._connect_ms / 1000)
        except self._client.handler.timeout_exception:
            self._closed.set()
            if self._refused:
                raise self._refusal("", kazoo_errors.AuthFailedError()) from None
            raise ConnectionLost(
                f"no ZooKeeper answers at {self.hosts} within {self._connect_ms} ms "
                f"(zookeeper.connection.timeout.ms): {self._handler.problem}; check zookeeper.connect"
            ) from None
        self._thread.start()
        if self._login is not None:
            try:
                # kazoo connects before it logs in, and loses requests made while the login fails.
                self._do(lambda c, _: c.exists_async("/"), "", again_s=_RETRY_SECONDS)
            except ConnectionLost:
                self.close()
                raise ConnectionLost(
                    f"ZooKeeper at {self.hosts} does not answer the login of {self._login[0]!r} within "
                    f"{self._connect_ms} ms: has it a login configuration (java.security.auth.login.config)?"
                ) from None
            except KafkaError:
                self.close()
                raise
            self._logged_in = True
        return self

    def close(self) -> None:
        """End the session and its ephemeral nodes. May be called again, also from a callback."""
        if self._closed.is_set():
            return
        self._closed.set()
        self._events.put(None)
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(_STOP_SECONDS)
        self._client.stop()
        self._client.close()

    def __enter__(self) -> ZooKeeperSession:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def listen(self, listener: Callable[[SessionEvent], object]) -> None:
        with self._lock:
            self._listeners = [*self._listeners, listener]

    def create(self, path: str, data: bytes, *, ephemeral: bool = False) -> None:
        """Creates parents too. `NodeExists`, unless it is this session's own ephemeral node."""
        acl, open_ = self._acl(path), self._access is None
        while True:
            try:
                self._do(
                    lambda c, p: c.create_async(p, data, acl=acl, ephemeral=ephemeral, makepath=open_), path
                )
            except NodeExists:
                node = self.read(path) if ephemeral else None
                if ephemeral and node is None:
                    continue  # deleted meanwhile
                if node is None or node.owner != self.credentials[0] or node.data != data:
                    raise
            except _NoNode:  # no parents, or they are deleted as fast as we create them
                if self._access is not None:
                    self._make_parents(path)
                continue
            return

    def protect(self, path: str) -> None:
        """Restrict a node to the access we create it with. `ZooKeeperError`: it belongs to another login."""
        acl = self._acl(path)
        if acl is None or acl is OPEN_ACL_UNSAFE:
            return
        with contextlib.suppress(_NoNode):
            there, _ = self._do(lambda c, p: c.get_acls_async(p), path)
            allowed = max((each.perms for each in acl if each.id.scheme == "world"), default=0)
            if any(each.id.scheme == "world" and each.perms & ~allowed for each in there):
                self._do(lambda c, p: c.set_acls_async(p, acl), path)

    def read(self, path: str) -> Node | None:
        try:
            data, stat = self._do(lambda c, p: c.get_async(p), path)
        except _NoNode:
            return None
        return _node(data, stat)

    def catch_up(self, path: str) -> None:
        """Have the server we talk to see all changes of ``path`` that were acknowledged before."""
        self._do(lambda c, p: c.sync_async(p), path)

    def read_all(self, paths: Iterable[str]) -> dict[str, Node]:
        """The nodes that exist, by path; up to `_READ_AT_ONCE` requests are in flight."""
        nodes: dict[str, Node] = {}
        all_paths = list(paths)
        for start in range(0, len(all_paths), _READ_AT_ONCE):
            part = all_paths[start : start + _READ_AT_ONCE]
            asked = [self._client.get_async(self.chroot + path or "/") for path in part]
            deadline = SYSTEM_CLOCK.monotonic() + self._connect_ms / 1000
            for path, answer in zip(part, asked, strict=True):
                try:
                    left = max(deadline - SYSTEM_CLOCK.monotonic(), 0.001)
                    node: Node | None = _node(*answer.get(timeout=left))
                except self._client.handler.timeout_exception:
                    raise self._no_answer(path, "no answer") from None
                except kazoo_errors.KazooException:
                    node = self.read(path)
                if node is not None:
                    nodes[path] = node
        return nodes

    def commit(self, *changes: Creation | Replacement | NodeRemoval) -> bool:
        """Make all changes or none; False if a node's version, existence or parent does not allow one.

        Retries after a lost response, so False may also mean that they were made: read before trying again.
        """

        def ask(client: Any, _path: str) -> Any:
            transaction = client.transaction()
            for change in changes:
                path = self.chroot + change.path
                if isinstance(change, Creation):
                    acl = self._acl(change.path)
                    transaction.create(path, change.data, acl=acl, sequence=change.sequence)
                elif isinstance(change, Replacement):
                    transaction.set_data(path, change.data, change.version)
                else:
                    transaction.delete(path, change.version)
            return transaction.commit_async()

        failed = [each for each in self._do(ask, changes[0].path) if isinstance(each, Exception)]
        for each in failed:
            if not isinstance(each, _CONFLICTS):
                raise self._refusal(changes[0].path, each)
        return not failed

    def write(self, path: str, data: bytes) -> None:
        """Creates a missing node as persistent."""
        while not self.replace(path, data, version=-1):
            with contextlib.suppress(NodeExists):
                self.create(path, data)
                return

    def replace(self, path: str, data: bytes, version: int) -> bool:
        """False if the node has another ``version`` or does not exist."""
        return self._accepted(lambda c, p: c.set_async(p, data, version), path)

    def delete(self, path: str, version: int = -1) -> bool:
        """False if the node does not exist, has children, or another ``version``."""
        return self._accepted(lambda c, p: c.delete_async(p, version), path)

    def _accepted(self, ask: Callable[[Any, str], Any], path: str) -> bool:
        try:
            self._do(ask, path)
        except (_NoNode, _Refused):
            return False
        return True

    def children(self, path: str) -> list[str]:
        """Sorted names of the children; empty if the node does not exist."""
        try:
            return sorted(self._do(lambda c, p: c.get_children_async(p), path))
        except _NoNode:
            return []

    def watch_children(self, path: str, tell: Callable[[list[str]], object]) -> Watch:
        """Call ``tell`` with the sorted children (empty if missing), soon and after changes."""
        return self._watch(path, lambda c, p, again: c.get_children_async(p, watch=again), sorted, [], tell)

    def watch_node(self, path: str, tell: Callable[[bytes | None], object]) -> Watch:
        """Call ``tell`` with the node's value (None if missing), soon and after changes."""
        return self._watch(
            path, lambda c, p, again: c.get_async(p, watch=again), lambda found: bytes(found[0]), None, tell
        )

    def _watch(
        self,
        path: str,
        ask: Callable[[Any, str, Callable[[Any], None]], Any],
        value: Callable[[Any], Any],
        missing: Any,
        tell: Callable[[Any], object],
    ) -> Watch:
        def look(watch: Watch) -> Any:
            def fired(event: Any) -> None:
                if event.path is not None:  # else it only concerns the connection
                    self._look(watch)

            while True:
                try:
                    return value(self._do(lambda c, p: ask(c, p, fired), path, once=True))
                except _NoNode:
                    if self._do(lambda c, p: c.exists_async(p, watch=fired), path, once=True) is None:
                        return missing

        watch = Watch(look, tell)
        with self._lock:
            self._watches = [w for w in self._watches if not w.cancelled] + [watch]
        self._look(watch)
        return watch

    def _acl(self, path: str) -> list[ACL] | None:
        """None is ZooKeeper's default, open to everybody."""
        return None if self._access is None else _ACLS[self._access(path)]

    def _make_parents(self, path: str) -> None:
        names = (self.chroot + path).split("/")[1:-1]
        for count in range(1, len(names) + 1):
            parent = "/" + "/".join(names[:count])
            acl = self._acl(parent.removeprefix(self.chroot))
            with contextlib.suppress(NodeExists):
                self._do(lambda c, _, at=parent, acl=acl: c.create_async(at, b"", acl=acl), path)  # type: ignore[misc]

    def _look(self, watch: Watch) -> None:
        """Queue the watch's next read; without a connection, reconnecting queues it again."""

        def run() -> None:
            if not self._client.connected:
                return
            try:
                watch.run()
            except _NotNow:
                if self._client.connected and not self._closed.is_set():
                    self._look(watch)

        self._events.put(run)

    def _do(
        self, ask: Callable[[Any, str], Any], path: str, *, once: bool = False, again_s: float = math.inf
    ) -> Any:
        """Run ``ask`` and convert kazoo's errors; asks again after ``again_s``, unless ``once`` (watches)."""
        deadline = SYSTEM_CLOCK.monotonic() + self._connect_ms / 1000
        client = self._client
        while True:
            left = deadline - SYSTEM_CLOCK.monotonic()
            try:
                return ask(client, self.chroot + path or "/").get(timeout=max(min(left, again_s), 0.001))
            except kazoo_errors.NoNodeError:
                raise _NoNode(path) from None
            except kazoo_errors.NodeExistsError:
                raise NodeExists(path) from None
            except (kazoo_errors.BadVersionError, kazoo_errors.NotEmptyError):
                raise _Refused(path) from None
            except kazoo_errors.ConnectionClosedError:
                if self._closed.is_set():
                    raise ConnectionLost(f"{path}: the session with ZooKeeper is closed") from None
                if self._refused:
                    raise self._refusal(path, kazoo_errors.AuthFailedError()) from None
                reason = "the connection was closed"
            except (
                kazoo_errors.ConnectionLoss,
                kazoo_errors.OperationTimeoutError,
                kazoo_errors.SessionExpiredError,
            ) as e:
                reason = type(e).__name__
            except client.handler.timeout_exception:
                reason = "no answer"
            except kazoo_errors.KazooException as e:
                if not (isinstance(e, kazoo_errors.AuthFailedError) and self._logged_in):
                    raise self._refusal(path, e) from e
                reason = "it refuses the login"
            if once:
                raise _NotNow(path)
            if SYSTEM_CLOCK.monotonic() + _RETRY_SECONDS >= deadline:
                raise self._no_answer(path, reason)
            SYSTEM_CLOCK.sleep(_RETRY_SECONDS)

    def _no_answer(self, path: str, reason: str) -> ConnectionLost:
        return ConnectionLost(
            f"{path}: ZooKeeper at {self.hosts} did not answer within {self._connect_ms} ms: {reason}"
        )

    def _refusal(self, path: str, error: kazoo_errors.KazooException) -> ZooKeeperError:
        text = next((text for kind, text in _REFUSALS.items() if isinstance(error, kind)), None)
        if text is None:
            return ZooKeeperError(f"{path}: ZooKeeper refused: {type(error).__name__} {error}".rstrip())
        return ZooKeeperError(text.format(path=path, at=self.hosts, user=self._login and self._login[0]))

    def _state_changed(self, state: str) -> None:
        if state == KazooState.CONNECTED:
            self._cut_off_since = None
            self._handler.answered = True
            before, self.credentials = self.credentials, self._client.client_id
            if before[0]:
                same = before[0] == self.credentials[0]
                self._events.put(
                    lambda: self._reached(SessionEvent.RESUMED if same else SessionEvent.RENEWED)
                )
        elif not self._closed.is_set():
            if self._cut_off_since is None:
                self._cut_off_since = SYSTEM_CLOCK.monotonic()
            event = SessionEvent.LOST if state == KazooState.LOST else SessionEvent.SUSPENDED
            self._events.put(lambda: self._tell(event))
            if self._client.client_state == KeeperState.AUTH_FAILED:
                self._refused = not self._logged_in
                if self._logged_in:
                    self._events.put(self._log_in_again)

    def _connecting(self) -> None:
        """After the session timeout connects as a new client: servers refuse one with a zxid newer than
        theirs, and after a wipe of their data would do so for ever. On kazoo's thread, before each attempt.
        """
        since = self._cut_off_since
        if since is not None and SYSTEM_CLOCK.monotonic() - since > self._session_ms / 1000:
            self._client.last_zxid = 0

    def _log_in_again(self) -> None:
        """kazoo gives up after a failed login, but the server may only have stopped in the middle of it."""
        if not self._closed.wait(_LOGIN_AGAIN_SECONDS):
            self._client.start_async()

    def _reached(self, event: SessionEvent) -> None:
        self._tell(event)
        # kazoo has dropped its watches in both cases: read again for changes in between.
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


_ACLS: dict[Access, list[ACL]] = {
    Access.OPEN: OPEN_ACL_UNSAFE,
    Access.READ: [*CREATOR_ALL_ACL, *READ_ACL_UNSAFE],
    Access.PRIVATE: CREATOR_ALL_ACL,
}


def _sasl_options(login: tuple[str, str] | None) -> dict[str, str] | None:
    if login is None:
        return None
    if find_spec("puresasl") is None:  # kazoo would only log that, in its own thread
        raise InvalidConfig("zookeeper.sasl.jaas.config needs the package pure-sasl: pip install pure-sasl")
    return {"mechanism": "DIGEST-MD5", "username": login[0], "password": login[1]}


def _node(data: bytes, stat: Any) -> Node:
    return Node(data, stat.version, stat.ephemeralOwner, stat.ctime)


class _NoNode(KafkaError): ...


class _NotNow(KafkaError):
    """No response, or no connection."""


class _Refused(KafkaError): ...


def session_of(config: ZooKeeperConfig) -> ZooKeeperSession:
    """An unstarted session. Raises `InvalidConfig` without ``zookeeper.connect``."""
    return ZooKeeperSession(
        config.zookeeper_connect or "",
        protection=protection_of(config),
        session_timeout_ms=config.zookeeper_session_timeout_ms,
        connection_timeout_ms=config.zookeeper_connection_timeout_ms,
    )
