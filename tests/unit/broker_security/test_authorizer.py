"""ACLs where the disk refuses them, and where there are too many."""

from __future__ import annotations

from pathlib import Path

import pytest

from kafkalog_broker.disk.filesystem import FileSystem
from kafkalog_broker.metrics import Metrics
from kafkalog_broker.security import authorizer as module
from kafkalog_broker.security.authentication import Principal, Session
from kafkalog_broker.security.authorizer import AclRules, Authorizer
from kafkalog_broker.security.file_stores import FileAcls, SecurityFile
from pyspark_kafkalog.errors import ErrorCode, ServerError, StorageError
from pyspark_kafkalog.security.acls import Acl, AclFilter, Operation, PatternType, Permission, ResourceType

ALICE = Session("1.2.3.4", "CLIENT", Principal("User", "alice"))


class Disk(FileSystem):
    """Nothing can be renamed while it is ``full``."""

    full = False

    def rename(self, source: Path, target: Path) -> None:
        if self.full:
            raise OSError(28, "No space left on device")
        super().rename(source, target)


@pytest.fixture
def disk() -> Disk:
    return Disk()


@pytest.fixture
def authorizer(tmp_path: Path, disk: Disk) -> Authorizer:
    made = Authorizer(FileAcls(SecurityFile([tmp_path], disk)), Metrics())
    made.load()
    return made


def reading(topic: str) -> Acl:
    return Acl(
        ResourceType.TOPIC, topic, PatternType.LITERAL, "User:alice", "*", Operation.READ, Permission.ALLOW
    )


def may_read(authorizer: Authorizer, topic: str) -> bool:
    return authorizer.allows(ALICE, Operation.READ, ResourceType.TOPIC, topic, "Fetch")


def test_what_the_disk_refuses_is_neither_in_force_nor_gone(authorizer: Authorizer, disk: Disk) -> None:
    authorizer.add([reading("old")])
    disk.full = True
    with pytest.raises(StorageError):
        authorizer.add([reading("new")])
    with pytest.raises(StorageError):
        authorizer.remove([AclFilter()])
    assert (may_read(authorizer, "old"), may_read(authorizer, "new")) == (True, False)
    disk.full = False
    assert authorizer.remove([AclFilter(), AclFilter(name="old")]) == [[reading("old")]] * 2
    assert not may_read(authorizer, "old")


def test_too_many_acls_are_refused_and_can_still_be_removed(
    authorizer: Authorizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    authorizer.add([reading(name) for name in "abc"])
    monkeypatch.setattr(module, "MAX_ACLS", 2)
    with pytest.raises(ServerError) as refused:
        authorizer.add([reading("d")])
    assert refused.value.code is ErrorCode.POLICY_VIOLATION
    authorizer.remove([AclFilter(name="a")])
    assert authorizer.acls == {reading("b"), reading("c")}


def test_where_all_is_allowed_without_acls_one_of_every_topic_takes_that_away() -> None:
    def may_write_some_topic(*acls: Acl) -> bool:
        rules = AclRules(acls, allow_without_acl=True)
        return rules.allow_any(ALICE.principal, ALICE.host, Operation.WRITE, ResourceType.TOPIC)

    denied = reading("*")._replace(operation=Operation.WRITE, permission=Permission.DENY)
    assert may_write_some_topic()
    assert may_write_some_topic(denied._replace(name="t"))
    assert not may_write_some_topic(denied)
