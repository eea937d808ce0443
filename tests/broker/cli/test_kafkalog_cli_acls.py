"""``kafkalog acls`` at the bundled broker."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from kafkalog_broker.embedded import start_broker
from tests.support.command_line import kafkalog

pytestmark = pytest.mark.long("dozens of commands")


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    settings = {"authorizer.class.name": "StandardAuthorizer", "super.users": "User:ANONYMOUS"}
    with start_broker(settings) as broker:
        yield broker.bootstrap_servers


def listed(servers: str, *arguments: str) -> list[str]:
    shown = kafkalog("acls", "list", "--json", *arguments, server=servers)
    assert (shown.returncode, shown.stderr) == (0, "")
    return sorted(" ".join(json.loads(line).values()) for line in shown.stdout.splitlines())


def test_what_is_added_is_listed_until_it_is_removed(servers: str) -> None:
    def run(*arguments: str) -> None:
        done = kafkalog("acls", *arguments, server=servers)
        assert done.returncode == 0, done.stderr

    run("add", "User:alice", "--producer", "--topic", "orders")
    run("add", "User:bob", "--consumer", "-t", "ord", "-g", "bob-", "--prefixed", "--host", "10.0.0.1")
    run("add", "User:*", "--operation", "describe_configs", "--topic", "*", "--deny")
    run("add", "User:carol", "--operation", "ALTER", "--cluster")
    assert listed(servers, "--topic", "orders") == [
        "Topic * Literal User:* * DescribeConfigs Deny",
        "Topic ord Prefixed User:bob 10.0.0.1 Describe Allow",
        "Topic ord Prefixed User:bob 10.0.0.1 Read Allow",
        "Topic orders Literal User:alice * Create Allow",
        "Topic orders Literal User:alice * Describe Allow",
        "Topic orders Literal User:alice * Write Allow",
    ]
    assert listed(servers, "--group", "bob-1") == ["Group bob- Prefixed User:bob 10.0.0.1 Read Allow"]
    assert listed(servers, "--cluster") == ["Cluster kafka-cluster Literal User:carol * Alter Allow"]
    run("remove", "User:alice", "--topic", "orders", "--operation", "create", "--operation", "write")
    assert listed(servers, "--principal", "User:alice") == [
        "Topic orders Literal User:alice * Describe Allow"
    ]
    run("remove", "User:bob", "--topic", "ord")  # there is no literal one
    assert len(listed(servers, "--principal", "User:bob")) == 3
    for who in ("User:alice", "User:bob", "User:*", "User:carol"):
        run("remove", who)
    assert listed(servers) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["alice", "--producer", "--topic", "t"], "write User:alice"),
        (["User:a", "--producer"], "give --topic"),
        (["User:a", "--topic", "t"], "give --operation"),
        (["User:a", "--topic", "t", "--operation", "Reed"], "'Reed' is not one of"),
        (["User:a", "--consumer", "--cluster"], "need a --topic"),
    ],
)
def test_a_wrong_command_is_refused_before_anything_is_asked(arguments: list[str], said: str) -> None:
    done = kafkalog("acls", "add", *arguments, server="127.0.0.1:1")
    assert done.returncode == 2
    assert said in " ".join(done.stderr.replace("│", " ").split())


def test_a_broker_without_an_authorizer_says_what_to_set() -> None:
    with start_broker() as broker:
        done = kafkalog("acls", "list", server=broker.bootstrap_servers)
    assert done.returncode == 1
    assert "authorizer.class.name" in done.stderr
