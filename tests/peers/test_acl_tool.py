"""``kafka-acls`` at our broker and at Apache Kafka, and our own command: all see the same ACLs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from kafkalog_broker.embedded import start_broker
from tests.support.command_line import kafkalog
from tests.support.foreign.apache_kafka import ApacheKafka, run_tool

pytestmark = pytest.mark.peers

STEPS = (
    "--add --allow-principal User:alice --producer --topic t --idempotent",
    "--add --allow-principal User:bob --consumer --topic f --resource-pattern-type prefixed --group g",
    "--add --deny-principal User:* --deny-host 10.0.0.1 --operation All --cluster",
    "--add --allow-principal User:alice --operation Write --transactional-id *",
    "--list",
    "--list --topic foo --resource-pattern-type match",
    "--list --principal User:bob",
    "--remove --force --allow-principal User:alice --producer --topic t",
    "--remove --force --group g --resource-pattern-type prefixed",
    "--list",
)


@pytest.fixture(scope="module")
def theirs(kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    kafka = ApacheKafka(
        kafka_jars,
        tmp_path_factory.mktemp("acls"),
        authorizer_class_name="org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        super_users="User:ANONYMOUS",
    )
    try:
        yield kafka.start().bootstrap_servers
    finally:
        kafka.stop()


@pytest.fixture(scope="module")
def ours() -> Iterator[str]:
    settings = {"authorizer.class.name": "StandardAuthorizer", "super.users": "User:ANONYMOUS"}
    with start_broker(settings) as broker:
        yield broker.bootstrap_servers


def told(jars: Path, servers: str) -> list[list[str]]:
    """What the tool says to each step: sets of resources and ACLs, whose order says nothing."""
    answers = []
    for step in STEPS:
        text = run_tool(jars, "kafka.admin.AclCommand", "--bootstrap-server", servers, *step.split())
        answers.append(sorted(re.findall(r"ResourcePattern\([^)]*\)|\(principal=[^)]*\)", text)))
    return answers


def in_words(servers: str) -> list[str]:
    shown = kafkalog("acls", "list", "--json", server=servers)
    assert shown.returncode == 0, shown.stderr
    return sorted(" ".join(json.loads(line).values()) for line in shown.stdout.splitlines())


def test_the_tool_says_the_same_of_both_and_so_does_ours(kafka_jars: Path, ours: str, theirs: str) -> None:
    at_ours = told(kafka_jars, ours)
    assert at_ours == told(kafka_jars, theirs)
    assert [len(each) for each in at_ours][4] > 10
    assert in_words(ours) == in_words(theirs)
    assert "Cluster kafka-cluster Literal User:* 10.0.0.1 All Deny" in in_words(theirs)
    for servers in (ours, theirs):
        added = kafkalog("acls", "add", "User:z", "--producer", "--topic", "z", "--prefixed", server=servers)
        assert added.returncode == 0, added.stderr
        removed = kafkalog("acls", "remove", "User:z", server=servers)
        assert (removed.returncode, removed.stderr) == (0, "removed 3 ACLs\n")
