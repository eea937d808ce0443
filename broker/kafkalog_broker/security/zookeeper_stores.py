"""SCRAM users and ACLs in ZooKeeper, shared by its brokers, including Apache Kafka's."""

from __future__ import annotations

import contextlib
import logging
import secrets
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, islice
from types import MappingProxyType
from typing import TypeVar

from kafkalog_broker.security.file_stores import (
    SECRET_BYTES,
    CredentialChange,
    Credentials,
    Publish,
    SecurityFile,
    acls_in,
    changed_texts,
    parse_all,
)
from pyspark_kafkalog.clock import SYSTEM_CLOCK, Clock
from pyspark_kafkalog.errors import (
    ConnectionLost,
    ErrorCode,
    InvalidConfig,
    InvalidRequest,
    KafkaError,
    ServerError,
)
from pyspark_kafkalog.security.acls import Acl, PatternType
from pyspark_kafkalog.security.scram import MECHANISMS, ScramCredential
from pyspark_kafkalog.zookeeper.cluster_nodes import (
    CHANGES_KEPT_MS,
    Resource,
    SecurityNodes,
    read_acl_change,
    read_acls,
    read_secret,
    read_user,
    read_user_change,
    resource_of,
    write_acl_change,
    write_acls,
    write_secret,
    write_user,
    write_user_change,
)
from pyspark_kafkalog.zookeeper.paths import JsonLayout, MalformedNode
from pyspark_kafkalog.zookeeper.session import (
    Creation,
    NodeExists,
    NodeRemoval,
    Replacement,
    SessionEvent,
    ZooKeeperSession,
)

_ATTEMPTS = 20
"""Attempts at a change while other brokers' changes come first."""
_AT_ONCE = 100
"""Resources per transaction of ACL changes, so that it fits into one request to ZooKeeper."""
_NODE_BYTES = 900_000
"""ZooKeeper closes connections that send more than 1 MiB."""

_T = TypeVar("_T")

_log = logging.getLogger(__name__)


class ZooKeeperUsers:
    """*Thread-safe: ``_lock`` is held while nodes are read or written; readers see the last whole users.* All
    methods but `all` block on ZooKeeper. Other brokers' changes arrive on the session's thread.
    """

    def __init__(self, session: ZooKeeperSession, layout: JsonLayout, clock: Clock = SYSTEM_CLOCK) -> None:
        self._session = session
        self._nodes = SecurityNodes(layout)
        self._clock = clock
        self._lock = threading.Lock()
        self._users: Credentials = MappingProxyType({})

    def connect(self) -> None:
        """Read all users, and follow changes. Raises `ConnectionLost`."""
        self._make_parents()
        _Changes(self._session, self._nodes.user_changes, self._clock, self._told)
        _after_absence(self._session, self._read_all)
        self._read_all()
        for user in self._users:
            self._session.protect(self._nodes.user(user))

    def all(self) -> Credentials:
        return self._users

    def secret(self, proposed: bytes = b"") -> bytes:
        """The first broker creates it, as ``proposed`` unless that is empty. Raises `ConnectionLost`,
        `MalformedNode`.
        """
        path = self._nodes.secret
        _make(self._session, [path], write_secret(proposed or secrets.token_bytes(SECRET_BYTES)))
        node = self._session.read(path)
        return read_secret(b"" if node is None else node.data)

    def change(self, changes: Sequence[CredentialChange]) -> None:
        """Raises `ServerError`: ZooKeeper does not answer; `KafkaError`: it refuses the change."""
        users = dict.fromkeys(change.user for change in changes)
        with self._lock, _as_server_errors():
            paths = {user: self._nodes.user(user) for user in users}
            for _ in range(_ATTEMPTS):
                there = self._session.read_all(paths.values())
                steps: list[Creation | Replacement] = []
                found = {}
                for user, path in paths.items():
                    node = there.get(path)
                    before = read_user(node.data) if node is not None else {}
                    config = changed_texts(before, (each for each in changes if each.user == user))
                    found[user] = _credentials(config)
                    if config == before:
                        continue
                    data = write_user(config)
                    steps.append(
                        Creation(path, data) if node is None else Replacement(path, data, node.version)
                    )
                    steps.append(
                        Creation(self._nodes.new_user_change, write_user_change(user), sequence=True)
                    )
                if not steps or self._session.commit(*steps):
                    self._keep({**self._users, **found})
                    return
                self._make_parents()
        raise _overtaken()

    def _make_parents(self) -> None:
        _make(self._session, (self._nodes.users, self._nodes.user_changes))

    def _told(self, changes: Sequence[bytes]) -> None:
        users = dict.fromkeys(_read(read_user_change, data) for data in changes)
        with self._lock:
            self._keep({**self._users, **self._read([user for user in users if user is not None])})

    def _read_all(self) -> None:
        with self._lock:
            names = self._session.children(self._nodes.users)
            self._keep(self._read([self._nodes.user_name(name) for name in names]))

    def _read(self, users: Iterable[str]) -> dict[str, Mapping[str, ScramCredential]]:
        paths = {}
        for user in users:
            with contextlib.suppress(InvalidConfig):
                paths[user] = self._nodes.user(user)
        there = self._session.read_all(paths.values())
        found = {}
        for user, path in paths.items():
            found[user] = _credentials(_read(read_user, there[path].data) or {}) if path in there else {}
        return found

    def _keep(self, users: Credentials) -> None:
        self._users = MappingProxyType({user: found for user, found in users.items() if found})


def _credentials(config: Mapping[str, object]) -> Mapping[str, ScramCredential]:
    return parse_all({name: str(value) for name, value in config.items() if name in MECHANISMS})


class ZooKeeperAcls:
    """*Thread-safe: ``_lock`` is held while nodes are read or written, and over the publication.* The methods
    block on ZooKeeper. Other brokers' changes arrive on the session's thread.
    """

    def __init__(self, session: ZooKeeperSession, layout: JsonLayout, clock: Clock = SYSTEM_CLOCK) -> None:
        self._session = session
        self._nodes = SecurityNodes(layout)
        self._clock = clock
        self._lock = threading.Lock()
        self._acls: Mapping[Resource, frozenset[Acl]] = {}
        self._publish: Publish = lambda _acls: None

    def connect(self) -> None:
        """Read all, and follow changes. Raises `ConnectionLost`, and `MalformedNode`: it may be a denial."""
        self._make_parents()
        for pattern_type, parent in self._nodes.acl_changes.items():
            _Changes(self._session, parent, self._clock, partial(self._told, pattern_type))
        _after_absence(self._session, self._read_all)
        self._read_all()
        for resource in self._acls:
            self._session.protect(self._nodes.acls(resource))

    @property
    def all(self) -> frozenset[Acl]:
        return frozenset(chain.from_iterable(self._acls.values()))

    def start(self, publish: Publish) -> None:
        with self._lock:
            self._publish = publish
            publish(self.all)

    def change(self, added: Collection[Acl], removed: Collection[Acl]) -> None:
        """Those of up to `_AT_ONCE` resources in one transaction. Raises `InvalidRequest`: a name is not
        legal for a znode; `ServerError`: ZooKeeper does not answer; `MalformedNode`.
        """
        wanted: dict[Resource, tuple[set[Acl], set[Acl]]] = {}
        for place, acls in enumerate((added, removed)):
            for acl in acls:
                wanted.setdefault(resource_of(acl), (set(), set()))[place].add(acl)
        with self._lock, _as_server_errors():
            paths = {resource: self._nodes.acls(resource) for resource in wanted}
            found: dict[Resource, frozenset[Acl]] = {}
            try:
                for start in range(0, len(paths), _AT_ONCE):
                    part = dict(islice(paths.items(), start, start + _AT_ONCE))
                    found |= self._changed(part, wanted)
            finally:
                self._keep({**self._acls, **found})

    def _changed(
        self, paths: Mapping[Resource, str], wanted: Mapping[Resource, tuple[set[Acl], set[Acl]]]
    ) -> dict[Resource, frozenset[Acl]]:
        for _ in range(_ATTEMPTS):
            there = self._session.read_all(paths.values())
            steps: list[Creation | Replacement | NodeRemoval] = []
            found = {}
            for resource, path in paths.items():
                node = there.get(path)
                before = read_acls(resource, node.data) if node is not None else frozenset()
                added, removed = wanted[resource]
                after = found[resource] = before.union(added).difference(removed)
                if after == before:
                    continue
                data = write_acls(after)
                if len(data) > _NODE_BYTES:
                    raise ServerError(
                        ErrorCode.POLICY_VIOLATION, f"ZooKeeper cannot keep so many ACLs of {resource}"
                    )
                if node is None:
                    steps.append(Creation(path, data))
                elif after:
                    steps.append(Replacement(path, data, node.version))
                else:
                    steps.append(NodeRemoval(path, node.version))
                steps.append(
                    Creation(self._nodes.new_acl_change(resource), write_acl_change(resource), sequence=True)
                )
            if not steps or self._session.commit(*steps):
                return found
            self._make_parents()
        raise _overtaken()

    def _make_parents(self) -> None:
        _make(self._session, [*self._nodes.acl_changes.values(), *self._nodes.acl_parents()])

    def _told(self, pattern_type: PatternType, changes: Sequence[bytes]) -> None:
        said = (_read(partial(read_acl_change, pattern_type), each) for each in changes)
        with self._lock:
            there = self._data({each for each in said if each is not None})
            # Unreadable ACLs stay as they were.
            read = ((resource, _read(partial(read_acls, resource), data)) for resource, data in there.items())
            self._keep({**self._acls, **{resource: found for resource, found in read if found is not None}})

    def _read_all(self) -> None:
        with self._lock:
            there = self._data(
                Resource(kind, name, pattern_type)
                for parent, (kind, pattern_type) in self._nodes.acl_parents().items()
                for name in self._session.children(parent)
            )
            self._keep({resource: read_acls(resource, data) for resource, data in there.items()})

    def _data(self, resources: Iterable[Resource]) -> dict[Resource, bytes]:
        """The nodes' values; that of an empty list for a missing node."""
        paths = {}
        for resource in resources:
            with contextlib.suppress(InvalidConfig):
                paths[resource] = self._nodes.acls(resource)
        there = self._session.read_all(paths.values())
        return {
            resource: there[path].data if path in there else write_acls(())
            for resource, path in paths.items()
        }

    def _keep(self, acls: Mapping[Resource, frozenset[Acl]]) -> None:
        acls = {resource: found for resource, found in acls.items() if found}
        if acls != self._acls:
            self._acls = acls
            self._publish(self.all)


def start_sharing(file: SecurityFile, users: ZooKeeperUsers | None, acls: ZooKeeperAcls | None) -> None:
    """Copies this broker's own there if it has none yet. Raises `InvalidConfig`: it lacks some of ours."""
    if users is not None:
        users.connect()
        _move_users(file, users)
    if acls is not None:
        acls.connect()
        _move_acls(file, acls)


def _move_users(file: SecurityFile, users: ZooKeeperUsers) -> None:
    kept = {user: parse_all(texts) for user, texts in file.kept.users.items()}
    shared = users.all()
    if kept and not shared:
        users.change(
            [
                CredentialChange(user, *found)
                for user, credentials in kept.items()
                for found in credentials.items()
            ]
        )
        users.secret(file.kept.secret)
        file.change(lambda old: old._replace(users={}, secret=b""))
        _log.info("%d users of %s are in ZooKeeper now", len(kept), file.path)
    elif missing := sorted(user for user, found in kept.items() if shared.get(user) != found):
        raise InvalidConfig(
            f"{file.path} has users whose credentials ZooKeeper does not have: {', '.join(missing)}. "
            'ZooKeeper keeps the users: make them there (kafkalog-broker add-user), and remove "users" from '
            "the file"
        )


def _move_acls(file: SecurityFile, acls: ZooKeeperAcls) -> None:
    kept, shared = acls_in(file), acls.all
    if kept and not shared:
        acls.change(kept, ())
        file.change(lambda old: old._replace(acls=()))
        _log.info("%d ACLs of %s are in ZooKeeper now", len(kept), file.path)
    elif missing := sorted(map(str, kept - shared)):
        raise InvalidConfig(
            f"{file.path} has {len(missing)} ACLs that ZooKeeper does not have, such as: {missing[0]}. "
            'ZooKeeper keeps the ACLs: make them there (kafkalog acls add), and remove "acls" from the file'
        )


class _Changes:
    """*Not thread-safe: lives on the session's thread.* Sequence nodes that announce changes; ``changed``
    gets the values of new ones. Read the present state after creating this object, so that no change is
    missed.
    """

    def __init__(
        self, session: ZooKeeperSession, path: str, clock: Clock, changed: Callable[[Sequence[bytes]], object]
    ) -> None:
        self._session = session
        self._path = path
        self._clock = clock
        self._changed = changed
        self._seen = set(session.children(path))
        session.watch_children(path, self._found)

    def _found(self, names: list[str]) -> None:
        new = [name for name in names if name not in self._seen]
        if new:
            nodes = self._session.read_all(f"{self._path}/{name}" for name in new)
            self._changed([node.data for node in nodes.values()])
        self._seen = set(names)  # only now, so that nodes that could not be read are tried again
        self._remove_old(names)

    def _remove_old(self, names: list[str]) -> None:
        """Stops at the first recent node, as their numbers follow their times."""
        old = self._clock.time_ms() - CHANGES_KEPT_MS
        for name in names:
            path = f"{self._path}/{name}"
            node = self._session.read(path)
            if node is not None and node.created_ms >= old:
                break
            self._session.delete(path)


def _after_absence(session: ZooKeeperSession, read_all: Callable[[], object]) -> None:
    """Read everything after a lost connection, which may have outlasted the kept changes."""

    def heard(event: SessionEvent) -> None:
        if event in (SessionEvent.RENEWED, SessionEvent.RESUMED):
            read_all()

    session.listen(heard)


def _make(session: ZooKeeperSession, paths: Iterable[str], data: bytes = b"") -> None:
    """Create missing nodes; protect those from before zookeeper.set.acl was set."""
    for path in paths:
        try:
            session.create(path, data)
        except NodeExists:
            session.protect(path)


def _read(read: Callable[[bytes], _T], data: bytes) -> _T | None:
    """Logs and returns None if the value cannot be read."""
    try:
        return read(data)
    except MalformedNode as e:
        _log.error("a znode is skipped: %s", e)
        return None


@contextlib.contextmanager
def _as_server_errors() -> Iterator[None]:
    try:
        yield
    except ConnectionLost as e:
        raise ServerError(ErrorCode.REQUEST_TIMED_OUT, str(e)) from e
    except InvalidConfig as e:
        raise InvalidRequest(str(e)) from e


def _overtaken() -> KafkaError:
    return ServerError(
        ErrorCode.REQUEST_TIMED_OUT,
        f"other brokers changed the same in ZooKeeper {_ATTEMPTS} times; try again",
    )
