"""``security.json``: users' SCRAM credentials and ACLs of a broker without ZooKeeper.

::

    {"version": 1,
     "users": {"alice": {"SCRAM-SHA-256": "salt=...,stored_key=...,server_key=...,iterations=4096"}},
     "acls": [{"resourceType": "Topic", "name": "t", "patternType": "Literal", "principal": "User:a",
               "host": "*", "operation": "Read", "permissionType": "Allow"}]}
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from kafkalog_broker.disk.filesystem import FileSystem, read_file, replace_file
from pyspark_kafkalog.errors import InvalidConfig, StorageError

FILE_NAME = "security.json"
_VERSION = 1

Users = Mapping[str, Mapping[str, str]]
"""By user name: the credentials as text, by mechanism."""

Acls = tuple[Mapping[str, str], ...]
"""Each with the fields of the example above, all text."""


class Kept(NamedTuple):
    """The file's content. Immutable: a change replaces it."""

    users: Users = MappingProxyType({})
    acls: Acls = ()


class SecurityFile:
    """*Thread-safe: ``_lock`` is held over a change and its write; readers see the last whole content.*

    The file is in the first data directory, readable for its owner only. Changes are durable.
    """

    def __init__(self, directories: Sequence[Path], files: FileSystem) -> None:
        self.path = directories[0] / FILE_NAME
        self._elsewhere = [directory / FILE_NAME for directory in directories[1:]]
        self._files = files
        self._lock = threading.Lock()
        self.kept = Kept()

    def load(self) -> Kept:
        """Read the file; a missing one is empty. Raises `StorageError`; `InvalidConfig`: it is damaged, or is
        in another data directory than the first: a broker that started without it would forget its users and
        denials.
        """
        with self._lock:
            self.kept = self._read()
            return self.kept

    def change(self, change: Callable[[Kept], Kept]) -> Kept:
        """Replace the content by ``change`` of it, durably; passes on the errors of ``change``.
        Raises `StorageError`: the disk failed, and nothing has changed.
        """
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
        data = json.dumps(content, indent=1, ensure_ascii=False).encode("utf-8") + b"\n"
        try:
            replace_file(self._files, self.path, data, durable=True, private=True)
        except OSError as e:
            raise StorageError(f"{self.path} cannot be written: {e}") from e


def _parsed(content: Any) -> Kept:
    """Raises `ValueError` without repeating values, as they may be keys."""
    if not isinstance(content, dict) or content.get("version") != _VERSION:
        raise ValueError(f'it is no object with "version": {_VERSION}')
    users, acls = content.get("users", {}), content.get("acls", [])
    if not isinstance(users, dict) or not all(map(_is_text_map, users.values())):
        raise ValueError('"users" has something else than texts by mechanism')
    if not isinstance(acls, list) or not all(map(_is_text_map, acls)):
        raise ValueError('"acls" is no list of objects with texts')
    return Kept(users, tuple(acls))


def _is_text_map(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(each, str) for each in value.values())
