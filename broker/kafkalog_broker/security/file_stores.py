"""Stores of users' SCRAM credentials and of ACLs, and those of a broker without ZooKeeper: ``security.json``.

::

    {"version": 1,
     "users": {"alice": {"SCRAM-SHA-256": "salt=...,stored_key=...,server_key=...,iterations=4096"}},
     "acls": [{"resourceType": "Topic", "name": "t", "patternType": "Literal", "principal": "User:a",
               "host": "*", "operation": "Read", "permissionType": "Allow"}],
     "unknownUsersSecret": "64 hexadecimal digits"}
"""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from kafkalog_broker.disk.filesystem import FileSystem, read_file, replace_file
from pyspark_kafkalog.errors import InvalidConfig, StorageError
from pyspark_kafkalog.security.acls import (
    CLUSTER_NAME,
    Acl,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    parse_word,
)
from pyspark_kafkalog.security.scram import ScramCredential

FILE_NAME = "security.json"
_VERSION = 1
SECRET_BYTES = 32

Users = Mapping[str, Mapping[str, str]]
"""By user name: the credentials as text, by mechanism."""

Acls = tuple[Mapping[str, str], ...]
"""Each with the fields of the example above, all text."""


class Kept(NamedTuple):
    """The file's content; a change replaces it."""

    users: Users = MappingProxyType({})
    acls: Acls = ()
    secret: bytes = b""
    """That of `CredentialStore.secret`; empty until it is first needed."""


class SecurityFile:
    """*Thread-safe: ``_lock`` is held over a change and its write; readers see the last whole content.* The
    file is in the first data directory, readable for its owner only. Changes are durable.
    """

    def __init__(self, directories: Sequence[Path], files: FileSystem) -> None:
        self.path = directories[0] / FILE_NAME
        self._elsewhere = [directory / FILE_NAME for directory in directories[1:]]
        self._files = files
        self._lock = threading.Lock()
        self.kept = Kept()

    def load(self) -> Kept:
        """Raises `InvalidConfig`: damaged, or in another directory, as denials would be forgotten;
        `StorageError`.
        """
        with self._lock:
            self.kept = self._read()
            return self.kept

    def change(self, change: Callable[[Kept], Kept]) -> Kept:
        """Replace the content by ``change`` of it. Raises `StorageError`: nothing has changed."""
        with self._lock:
            wanted = change(self.kept)
            if wanted != self.kept:
                self._write(wanted)
                self.kept = wanted
            return wanted

    def _read(self) -> Kept:
        try:
            data = read_file(self._files, self.path)
        except FileNotFoundError:
            self._check_elsewhere()
            return Kept()
        except OSError as e:
            raise StorageError(f"{self.path} cannot be read: {e}") from e
        try:
            return _parsed(json.loads(data))
        except (ValueError, TypeError, RecursionError) as e:
            raise InvalidConfig(
                f"{self.path} is damaged: {e}. Restore it from a backup; if you remove it, users and ACLs "
                "have to be made again"
            ) from e

    def _check_elsewhere(self) -> None:
        for path in self._elsewhere:
            try:
                read_file(self._files, path)
            except OSError:
                continue
            raise InvalidConfig(
                f"{path} is not in the first of log.dirs, and {self.path} does not exist: put that directory "
                "first again, or move the file"
            )

    def _write(self, kept: Kept) -> None:
        content = {"version": _VERSION, "users": dict(kept.users), "acls": kept.acls}
        if kept.secret:
            content["unknownUsersSecret"] = kept.secret.hex()
        data = json.dumps(content, indent=1, ensure_ascii=False).encode("utf-8") + b"\n"
        try:
            replace_file(self._files, self.path, data, durable=True, private=True)
        except OSError as e:
            raise StorageError(f"{self.path} cannot be written: {e}") from e


def _parsed(content: Any) -> Kept:
    """Raises `ValueError` without repeating values, as they may be keys."""
    if not isinstance(content, dict) or content.get("version") != _VERSION:
        raise ValueError(f'it is not an object with "version": {_VERSION}')
    users, acls = content.get("users", {}), content.get("acls", [])
    if not isinstance(users, dict) or not all(map(_is_text_map, users.values())):
        raise ValueError('"users" does not map mechanisms to texts')
    if not isinstance(acls, list) or not all(map(_is_text_map, acls)):
        raise ValueError('"acls" is not a list of objects with text values')
    return Kept(users, tuple(acls), bytes.fromhex(content.get("unknownUsersSecret", "")))


def _is_text_map(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(each, str) for each in value.values())


# --- users

Credentials = Mapping[str, Mapping[str, ScramCredential]]
"""By user name: the credentials by mechanism."""


class CredentialChange(NamedTuple):
    """Sets a credential, or removes it if None."""

    user: str
    mechanism: str
    credential: ScramCredential | None


class CredentialStore(Protocol):
    """*Thread-safe.* Durable storage of credentials."""

    def all(self) -> Credentials:
        """The current credentials, the same object until they change. Cheap; never raises."""
        ...

    def secret(self) -> bytes:
        """The secret from which the salts of unknown users derive; created once. Raises `KafkaError`."""
        ...

    def change(self, changes: Sequence[CredentialChange]) -> None:
        """Make all changes or none, durably. Raises `KafkaError`."""
        ...


class FileCredentials:
    """*Thread-safe.* Credentials in ``security.json``."""

    def __init__(self, file: SecurityFile) -> None:
        self._file = file
        self._parsed: tuple[object, Credentials] = (None, {})

    def all(self) -> Credentials:
        users = self._file.kept.users
        known, parsed = self._parsed
        if known is not users:
            parsed = {user: parse_all(texts) for user, texts in users.items()}
            self._parsed = (users, parsed)
        return parsed

    def secret(self) -> bytes:
        def created(kept: Kept) -> Kept:
            return kept if kept.secret else kept._replace(secret=secrets.token_bytes(SECRET_BYTES))

        return self._file.change(created).secret

    def change(self, changes: Sequence[CredentialChange]) -> None:
        def changed(kept: Kept) -> Kept:
            users = dict(kept.users)
            for change in changes:
                users[change.user] = changed_texts(users.get(change.user, {}), [change])
            return kept._replace(users={user: texts for user, texts in users.items() if texts})

        self._file.change(changed)


def changed_texts(texts: Mapping[str, str], changes: Iterable[CredentialChange]) -> dict[str, str]:
    found = dict(texts)
    for _, mechanism, credential in changes:
        if credential is None:
            found.pop(mechanism, None)
        else:
            found[mechanism] = credential.text()
    return found


def parse_all(texts: Mapping[str, str]) -> dict[str, ScramCredential]:
    """A user's credentials, without unreadable ones."""
    found = {}
    for mechanism, text in texts.items():
        try:
            found[mechanism] = ScramCredential.parse(text)
        except ValueError:
            continue  # the user cannot log in with this one
    return found


# --- ACLs

_FIELDS = ("resourceType", "name", "patternType", "principal", "host", "operation", "permissionType")

Publish = Callable[[frozenset[Acl]], object]
"""Called with all stored ACLs after each change."""


class AclStore(Protocol):
    """*Thread-safe.* Durable storage of ACLs."""

    def start(self, publish: Publish) -> None:
        """Publish the stored ACLs, and each later change. Raises `KafkaError`: they cannot be read."""
        ...

    def change(self, added: Collection[Acl], removed: Collection[Acl]) -> None:
        """Add and remove ACLs, durably and published on return. Raises `KafkaError`."""
        ...


class FileAcls:
    """*Thread-safe: ``_lock`` is held over a change and its publication.* ACLs in ``security.json``."""

    def __init__(self, file: SecurityFile) -> None:
        self._file = file
        self._lock = threading.Lock()
        self._acls: frozenset[Acl] = frozenset()
        self._publish: Publish = lambda _acls: None

    def start(self, publish: Publish) -> None:
        with self._lock:
            self._publish = publish
            self._acls = acls_in(self._file)
            publish(self._acls)

    def change(self, added: Collection[Acl], removed: Collection[Acl]) -> None:
        with self._lock:
            after = self._acls.union(added).difference(removed)
            if after == self._acls:
                return
            texts = tuple(map(_as_text, sorted(after)))
            self._file.change(lambda kept: kept._replace(acls=texts))
            self._acls = after
            self._publish(after)


def acls_in(file: SecurityFile) -> frozenset[Acl]:
    return frozenset(map(_acl_of, file.kept.acls))


def check_new(acl: Acl) -> None:
    """Raises `ValueError` for an ACL that makes no sense."""
    if not acl.name:
        raise ValueError("Invalid empty resource name")
    if acl.resource_type is ResourceType.ANY:
        raise ValueError("Invalid resourceType ANY")
    if acl.resource_type is ResourceType.CLUSTER and acl.name != CLUSTER_NAME:
        raise ValueError(f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}")
    if acl.pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
        raise ValueError(f"Invalid patternType {acl.pattern_type.name}")
    if acl.operation is Operation.ANY:
        raise ValueError("Invalid operation ANY")
    if acl.permission is Permission.ANY:
        raise ValueError("Invalid permissionType ANY")
    if ":" not in acl.principal:
        raise ValueError(f"Could not parse principal from `{acl.principal}` (no colon is present)")
    if not acl.host:
        raise ValueError("Invalid empty host")


def _acl_of(texts: Mapping[str, str]) -> Acl:
    try:
        kind, name, pattern, principal, host, operation, permission = (texts[field] for field in _FIELDS)
        acl = Acl(
            parse_word(ResourceType, kind), name, parse_word(PatternType, pattern), principal, host,
            parse_word(Operation, operation), parse_word(Permission, permission),
        )  # fmt: skip
        check_new(acl)
    except (KeyError, ValueError) as e:
        raise InvalidConfig(f"security.json has an invalid ACL: {dict(texts)!r}: {e}") from e
    return acl


def _as_text(acl: Acl) -> dict[str, str]:
    values = (
        acl.resource_type.word, acl.name, acl.pattern_type.word, acl.principal, acl.host, acl.operation.word,
        acl.permission.word,
    )  # fmt: skip
    return dict(zip(_FIELDS, values, strict=True))
