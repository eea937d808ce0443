"""ACLs at a served port: what each API asks for, what is denied or left out, and what is kept.

Everybody here is ``User:ANONYMOUS``; what Kafka answers to the same is compared in ``tests/peers``.
"""

from __future__ import annotations

import json
import logging
import re
from collections import defaultdict
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pytest

from kafkalog_broker.config.broker_config import BrokerConfig
from kafkalog_broker.embedded import EmbeddedBroker, start_broker
from kafkalog_broker.security.authentication import ANONYMOUS as NOBODY
from kafkalog_broker.security.authorizer import AclRules
from kafkalog_broker.server.broker import Broker
from kafkalog_broker.server.dispatch import REGISTRY, Need
from pyspark_kafkalog.client.admin import NewTopic, create_topics
from pyspark_kafkalog.errors import InvalidConfig
from pyspark_kafkalog.protocol.api.acls import (
    AclCreation,
    CreateAclsRequest,
    DeleteAclsFilter,
    DeleteAclsRequest,
    DescribeAclsRequest,
)
from pyspark_kafkalog.protocol.api.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
    DescribedGroup,
)
from pyspark_kafkalog.protocol.api.metadata import MetadataRequest, MetadataRequestTopic
from pyspark_kafkalog.protocol.api.producers import InitProducerIdRequest
from pyspark_kafkalog.protocol.api.topics import DeleteTopicsRequest, DeleteTopicState
from pyspark_kafkalog.protocol.api.transactions import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from pyspark_kafkalog.protocol.exchange import ApiKey
from pyspark_kafkalog.security.acls import Operation, PatternType, Permission, ResourceType
from tests.support.protocol import wire07
from tests.support.protocol.guarded_requests import every_request
from tests.support.protocol.raw_client import RawClient, batch, fetch_request
from tests.support.protocol.wire07 import Wire07
from tests.support.until import until

ANONYMOUS = "User:ANONYMOUS"
EVERYTHING = DescribeAclsRequest(1, None, 1, None, None, 1, 1)
DENIALS = {29, 30, 31, 53}
WITH_ACLS = {"authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer"}
MAY_ALTER = {
    "resourceType": "Cluster",
    "name": "kafka-cluster",
    "patternType": "Literal",
    "principal": ANONYMOUS,
    "host": "*",
    "operation": "Alter",
    "permissionType": "Allow",
}


def codes(message: Any) -> set[int]:
    """All error codes of an answer but 0."""
    if isinstance(message, tuple):
        return set().union(*map(codes, message))
    fields = getattr(message, "__struct_fields__", ())
    own = {int(getattr(message, name)) for name in fields if name.endswith("error_code")}
    return own.union(*(codes(getattr(message, name)) for name in fields)) - {0}


def shown(answer: Any) -> str:
    return re.sub(r"<memory at \w+>", "", repr(answer))


class Recorder:
    """In place of the authorizer's decisions: notes what it is asked, and denies what ``denied`` has."""

    def __init__(self) -> None:
        self.asked: dict[ApiKey, set[Need]] = defaultdict(set)
        self.denied: Collection[Operation] = ()

    def allows(
        self,
        session: object,
        operation: Operation,
        kind: ResourceType,
        name: str,
        request: int | str,
        **_: bool,
    ) -> bool:
        if request != "":
            self.asked[ApiKey(request)].add((operation, kind))
        return operation not in self.denied

    def allows_any(self, session: object, operation: Operation, kind: ResourceType) -> bool:
        return self.allows(session, operation, kind, "", ApiKey.INIT_PRODUCER_ID)


def test_every_api_asks_for_what_its_registration_declares_and_for_nothing_else(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    settings = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(tmp_path), "node.id": "1"}
    broker = Broker(BrokerConfig.load(None, settings | WITH_ACLS))
    recorder = Recorder()
    monkeypatch.setattr(broker._authorizer, "allows", recorder.allows)
    monkeypatch.setattr(broker._authorizer, "allows_any", recorder.allows_any)
    broker.start()
    try:
        with RawClient(broker.port) as client:
            assert client.create_topic("t").error_code == 0
            by_id = DeleteTopicsRequest(topics=(DeleteTopicState(name=None, topic_id=client.topic_id("t")),))
            mine = client.ask(InitProducerIdRequest("x-other", 60_000), 4)
            begun = AddPartitionsToTxnTopic("t", (0,))
            client.ask(
                AddPartitionsToTxnRequest((), "x-other", mine.producer_id, mine.producer_epoch, (begun,)), 3
            )
            requests = every_request("t", "g", "x").values()
            for recorder.denied in ((), tuple(Operation)):
                for version, request in (*requests, (6, by_id)):
                    if recorder.denied or request is not by_id:
                        client.ask(request, version)
            recorder.denied = (Operation.CREATE,)
            client.ask(MetadataRequest((MetadataRequestTopic(name="made"),)))
    finally:
        broker.stop()
    declared = {key: set(entry.needs) for key, entry in REGISTRY.items() if entry.needs}
    assert dict(recorder.asked) == declared


@pytest.mark.long("a broker for each kind of login")
def test_nobody_may_do_anything_that_no_acl_allows(tmp_path: Path) -> None:
    """With a denial, or with nothing in a list; and whether the topic exists or not is not to be seen."""
    with start_broker({"node.id": 1}, data_dir=tmp_path) as broker:
        create_topics(broker.bootstrap_servers, [NewTopic("there", 1)])
    leaving_out = {"metadata of all", "list groups", "list transactions"}
    free = {"describe cluster", "metadata with the cluster's operations"}
    with start_broker({"node.id": 1} | WITH_ACLS, data_dir=tmp_path) as broker, RawClient(broker.port) as one:
        for name, (version, request) in every_request("there", "g", "x").items():
            answer = one.ask(request, version)
            if name in free:
                assert answer.cluster_authorized_operations == 0, name
            elif name in leaving_out:
                assert codes(answer) == set(), name
                lists = ("topics", "groups", "transaction_states")
                assert not any(getattr(answer, each, ()) for each in lists), name
            else:
                assert codes(answer), name
                assert codes(answer) <= DENIALS, name
            absent_version, absent = every_request("gone_", "g", "x")[name]
            assert shown(one.ask(absent, absent_version)).replace("gone_", "there") == shown(answer), name


@pytest.fixture
def alterable(tmp_path: Path) -> Path:
    """A data directory whose only ACL lets everybody alter ACLs, and nothing else."""
    kept = {"version": 1, "users": {}, "acls": [MAY_ALTER]}
    (tmp_path / "security.json").write_text(json.dumps(kept))
    return tmp_path


@pytest.fixture
def broker(alterable: Path) -> Iterator[EmbeddedBroker]:
    with start_broker(WITH_ACLS, data_dir=alterable) as running:
        yield running


def create(client: RawClient, *acls: AclCreation) -> list[int]:
    return [int(each.error_code) for each in client.ask(CreateAclsRequest(acls)).results]


def allowing(
    operation: Operation,
    resource_type: ResourceType = ResourceType.TOPIC,
    name: str = "t",
    pattern: PatternType = PatternType.LITERAL,
    permission: Permission = Permission.ALLOW,
) -> AclCreation:
    return AclCreation(resource_type, name, pattern, ANONYMOUS, "127.0.0.1", operation, permission)


@pytest.mark.long("a broker for each kind of login")
def test_acls_are_in_force_when_they_are_answered_and_after_a_crash(broker: EmbeddedBroker) -> None:
    with RawClient(broker.port) as client:
        assert client.create_topic("t").error_code == 29
        made = create(
            client,
            allowing(Operation.CREATE, name="t"),
            allowing(Operation.WRITE, name="", pattern=PatternType.PREFIXED),
            allowing(Operation.WRITE),
            allowing(Operation.DESCRIBE, ResourceType.CLUSTER, "kafka-cluster"),
        )
        assert made == [0, 42, 0, 0]
        assert client.create_topic("t").error_code == 0
        assert client.produce("t", batch(b"v")).error_code == 0  # by the short cut of a single batch
        assert client.fetch("t", 0).error_code == 29
        before = client.ask(EVERYTHING)
    assert [each.resource_name for each in before.resources] == ["t", "kafka-cluster"]
    broker.kill()
    broker.restart()
    with RawClient(broker.port) as client:
        assert client.ask(EVERYTHING) == before
        assert client.produce("t", batch(b"v")).error_code == 0
        gone = client.ask(DeleteAclsRequest((DeleteAclsFilter(2, "t", 2, None, None, 4, 1),)))
        (matching,) = gone.filter_results[0].matching_acls
        assert (matching.principal, matching.host, matching.operation) == (ANONYMOUS, "127.0.0.1", 4)
        assert client.produce("t", batch(b"v")).error_code == 29


@pytest.mark.long("a broker for each kind of login")
def test_with_the_property_everybody_may_use_what_no_acl_is_about(alterable: Path) -> None:
    settings = WITH_ACLS | {"allow.everyone.if.no.acl.found": "true"}
    with start_broker(settings, data_dir=alterable) as broker, RawClient(broker.port) as client:
        # But the cluster has an ACL, by which it may be altered and nothing else.
        assert client.create_topic("t").error_code == 0
        assert client.ask(EVERYTHING).error_code == 0  # to alter is to describe
        assert client.produce("t", batch(b"v")).error_code == 0
        assert create(client, allowing(Operation.READ, name="t")) == [0]
        assert client.produce("t", batch(b"v")).error_code == 29
        assert client.fetch("t", 0).error_code == 0


def test_a_groups_expression_finds_and_shows_no_topic_that_may_not_be_described(
    broker: EmbeddedBroker,
) -> None:
    with RawClient(broker.port) as client:
        acls = [allowing(Operation.CREATE, name=name) for name in ("hidden", "shown")]
        acls += allowing(Operation.DESCRIBE, name="shown"), allowing(Operation.READ, ResourceType.GROUP, "g")
        assert create(client, *acls) == [0] * 4
        assert [client.create_topic(name).error_code for name in ("hidden", "shown")] == [0, 0]
        join = ConsumerGroupHeartbeatRequest(
            "g", "m", 0, rebalance_timeout_ms=60_000, subscribed_topic_regex=".*", topic_partitions=()
        )
        member = client.ask(join, 1)

        def assigned() -> Any:
            return client.ask(ConsumerGroupHeartbeatRequest("g", "m", member.member_epoch), 1).assignment

        (only,) = until(assigned).topic_partitions
        assert only.topic_id == client.topic_id("shown")
        describe = ConsumerGroupDescribeRequest(("g",))
        (found,) = client.ask(describe, 1).groups[0].members
        assert [each.topic_name for each in found.target_assignment.topic_partitions] == ["shown"]
        client.ask(DeleteAclsRequest((DeleteAclsFilter(2, "shown", 3, None, None, 8, 3),)))
        said = "The group has described topic(s) that the client is not authorized to describe."
        hidden = DescribedGroup(error_code=29, error_message=said, group_id="g")
        assert client.ask(describe, 1).groups == (hidden,)


@pytest.mark.parametrize(
    ("name", "text"), [("super.users", "alice"), ("authorizer.class.name", "org.example.Authorizer")]
)
def test_properties_that_mean_nothing_end_the_start(name: str, text: str) -> None:
    with pytest.raises(InvalidConfig, match=name):
        BrokerConfig.load(None, {name: text})


def test_decisions_on_long_names_are_not_kept() -> None:
    rules = AclRules(())
    for name in ("n", "n" * 250):
        assert not rules.allow(NOBODY, "h", Operation.READ, ResourceType.TOPIC, name)
    assert [key[-1] for key in rules._decisions] == ["n"]


def test_what_acls_cannot_mean_is_refused_one_by_one(broker: EmbeddedBroker) -> None:
    with RawClient(broker.port) as client:
        wrong = [
            allowing(Operation.READ, ResourceType.CLUSTER, "other"),
            allowing(Operation.ANY),
            allowing(Operation.READ, pattern=PatternType.MATCH),
            allowing(Operation.READ, permission=Permission.ANY),
            allowing(Operation.READ, ResourceType.ANY),
            AclCreation(2, "t", 3, "alice", "*", 3, 3),
            AclCreation(99, "t", 3, ANONYMOUS, "*", 3, 3),
        ]
        assert create(client, *wrong, allowing(Operation.READ)) == [42] * len(wrong) + [0]
        unknown = DeleteAclsFilter(2, None, 9, None, None, 1, 1)
        kept = DeleteAclsFilter(3, None, 1, None, None, 1, 1)
        results = client.ask(DeleteAclsRequest((unknown, kept))).filter_results
        assert [(int(each.error_code), each.matching_acls) for each in results] == [(42, ()), (0, ())]


def test_a_broker_without_an_authorizer_has_no_acls() -> None:
    with start_broker() as broker, RawClient(broker.port) as client:
        assert client.ask(EVERYTHING).error_code == 54
        assert create(client, allowing(Operation.READ)) == [54]
        deleted = client.ask(DeleteAclsRequest((DeleteAclsFilter(1, None, 1, None, None, 1, 1),)))
        assert [int(each.error_code) for each in deleted.filter_results] == [54]


@pytest.mark.parametrize(
    ("damage", "said"),
    [({"operation": "Raed"}, "Raed"), ({"principal": "a"}, "principal"), ({"name": ""}, "name")],
)
def test_a_broker_does_not_start_with_an_acl_that_it_cannot_read(
    tmp_path: Path, damage: dict[str, str], said: str
) -> None:
    kept = {"version": 1, "users": {}, "acls": [MAY_ALTER | damage]}
    (tmp_path / "security.json").write_text(json.dumps(kept))
    settings = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(tmp_path)}
    broker = Broker(BrokerConfig.load(None, settings | WITH_ACLS))
    with pytest.raises(InvalidConfig, match=said):
        broker.start()


def test_clients_of_kafka_07_are_anonymous_under_the_same_acls(
    alterable: Path, caplog: pytest.LogCaptureFixture
) -> None:
    listeners = {"listeners": "KAFKA07://127.0.0.1:0,PLAINTEXT://127.0.0.1:0", "log.dirs": str(alterable)}
    listeners |= {"log.flush.interval.messages": "1"}  # until then 0.7 shows nothing
    running = Broker(BrokerConfig.load(None, listeners | WITH_ACLS))
    assert "no login" in caplog.text
    running.start()
    try:
        with RawClient(running.ports["PLAINTEXT"]) as client, Wire07(running.ports["KAFKA07"]) as old:
            assert (
                create(
                    client,
                    allowing(Operation.READ, name="open"),
                    allowing(Operation.WRITE, name="open"),
                    allowing(Operation.WRITE, name="closed"),
                )
                == [0] * 3
            )
            assert old.ask(wire07.fetch("open", 0, 0, 100)) == b"\0\0"
            assert old.ask(wire07.fetch("closed", 0, 0, 100)) == b"\xff\xff"
            parts = old.ask(wire07.multi_fetch(("closed", 0, 0, 9), ("open", 0, 0, 9), ("closed", 1, 0, 9)))
            assert parts == b"\0\0" + b"\0\0\0\x02\xff\xff" + b"\0\0\0\x02\0\0" + b"\0\0\0\x02\xff\xff"
            # It may write to that topic, but not make it; no answer can say so.
            with (
                caplog.at_level(logging.INFO, "kafkalog_broker.authorizer"),
                Wire07(running.ports["KAFKA07"]) as writer,
            ):
                writer.send(wire07.produce("open", 0, wire07.entry(b"v")))
                assert writer.receive() is None
            assert (
                f"Principal = {ANONYMOUS} is Denied operation = CREATE from host = 127.0.0.1 on resource = "
                "Topic:LITERAL:open for request = Produce"
            ) in caplog.messages
            assert create(client, allowing(Operation.CREATE, name="open")) == [0]
            old.send(wire07.produce("open", 0, wire07.entry(b"v")))
            assert old.ask(wire07.fetch("open", 0, 0, 100))[2:] == wire07.entry(b"v")
    finally:
        running.stop()


def test_a_denial_is_logged_once_for_a_request_and_counted(
    alterable: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(alterable)}
    running = Broker(BrokerConfig.load(None, settings | WITH_ACLS))
    running.start()
    try:
        with caplog.at_level(logging.INFO, "kafkalog_broker.authorizer"), RawClient(running.port) as client:
            client.ask(fetch_request({("t\nforged", 0): 0, ("t\nforged", 1): 0}))
            client.ask(MetadataRequest(None))
    finally:
        running.stop()
    assert [each.getMessage() for each in caplog.records if each.name == "kafkalog_broker.authorizer"] == [
        f"Principal = {ANONYMOUS} is Denied operation = READ from host = 127.0.0.1 on resource = "
        "Topic:LITERAL:'t\\nforged' for request = Fetch"
    ]
    labels = {"resource": "Topic", "operation": "Read"}
    assert (
        running.metrics.registry.get_sample_value("kafkalog_broker_authorization_denials_total", labels) == 1
    )
