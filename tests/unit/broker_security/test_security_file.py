"""What is kept of users and ACLs: durable, private, and never silently forgotten."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kafkalog_broker.disk.filesystem import FileSystem
from kafkalog_broker.security.file_stores import FILE_NAME, FileCredentials, Kept, SecurityFile
from pyspark_kafkalog.errors import InvalidConfig, StorageError

USERS = {"alice": {"SCRAM-SHA-256": "salt=YQ==,stored_key=Yg==,server_key=Yw==,iterations=4096"}}
ACLS = ({"resourceType": "Topic", "name": "t", "principal": "User:ä"},)


class FullDisk(FileSystem):
    """Nothing can be renamed any more."""

    def rename(self, source: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")


def test_a_change_is_there_after_a_restart_and_only_for_the_owner(tmp_path: Path) -> None:
    before = SecurityFile([tmp_path], FileSystem())
    assert before.load() == Kept()
    before.change(lambda kept: kept._replace(users=USERS))
    before.change(lambda kept: kept._replace(acls=ACLS))
    after = SecurityFile([tmp_path], FileSystem())
    assert after.load() == after.kept == Kept(USERS, ACLS)
    assert (tmp_path / FILE_NAME).stat().st_mode & 0o777 == 0o600
    assert json.loads((tmp_path / FILE_NAME).read_bytes()) == {
        "version": 1, "users": USERS, "acls": list(ACLS)
    }  # fmt: skip


def test_the_secret_for_unknown_users_is_created_once_and_stays(tmp_path: Path) -> None:
    before = SecurityFile([tmp_path], FileSystem())
    secret = FileCredentials(before).secret()
    assert len(secret) == 32
    before.change(lambda kept: kept._replace(users=USERS))
    after = SecurityFile([tmp_path], FileSystem())
    after.load()
    assert FileCredentials(after).secret() == FileCredentials(before).secret() == secret
    other = SecurityFile([tmp_path / "other"], FileSystem())
    (tmp_path / "other").mkdir()
    assert FileCredentials(other).secret() != secret


def test_a_change_that_the_disk_refuses_changes_nothing(tmp_path: Path) -> None:
    file = SecurityFile([tmp_path], FullDisk())
    with pytest.raises(StorageError, match="cannot be written"):
        file.change(lambda kept: kept._replace(users=USERS))
    assert file.kept == Kept()


@pytest.mark.parametrize(
    "content",
    [
        b"", b"{", b"\xff\xfe", b"[]", b'{"version": 2}', b'{"version": 1, "users": []}',
        b'{"version": 1, "users": {"a": {"SCRAM-SHA-256": 1}}}', b'{"version": 1, "acls": [1]}',
        b'{"version": 1, "unknownUsersSecret": "salt"}', b'{"version": 1, "unknownUsersSecret": 7}',
        b"[" * 100_000,
    ],
)  # fmt: skip
def test_a_damaged_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE_NAME).write_bytes(content)
    with pytest.raises(InvalidConfig, match="is damaged"):
        SecurityFile([tmp_path], FileSystem()).load()


def test_a_file_in_another_than_the_first_directory_is_not_overlooked(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    first.mkdir()
    second.mkdir()
    SecurityFile([second], FileSystem()).change(lambda kept: kept._replace(users=USERS))
    with pytest.raises(InvalidConfig, match="put that directory first again"):
        SecurityFile([first, second], FileSystem()).load()
    assert SecurityFile([second, first], FileSystem()).load().users == USERS
