"""The same scripted requests to our broker and to Apache Kafka: what differs is listed, with the reason."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

import pytest

from kafkalog_broker.embedded import start_broker
from pyspark_kafkalog.protocol.api.metadata import ApiVersionsRequest
from pyspark_kafkalog.protocol.exchange import APIS, ApiKey
from tests.peers.scripted import (  # noqa: F401  (they fill the table)
    consumer_groups,
    groups,
    members,
    properties,
    records,
    topics,
    transactions,
)
from tests.peers.scripted.allowed import ALLOWED, Allowed
from tests.peers.scripted.session import NODE, Answers, Session, play
from tests.support.foreign.apache_kafka import ApacheKafka, fetch
from tests.support.foreign.fetched import NotAvailable
from tests.support.protocol.raw_client import RawClient

pytestmark = pytest.mark.peers

KAFKAS = ("3.9.1", "4.1.1")


ABSENT = "absent"


class Difference(NamedTuple):
    """Where an answer of ours differs from a peer's."""

    step: str
    place: str
    ours: Any
    theirs: Any

    def __str__(self) -> str:
        return f"{self.step} | {self.place}: ours {self.ours!r}, Kafka's {self.theirs!r}"


def served(host: str, port: int) -> dict[ApiKey, range]:
    """The versions that a broker announces of what we know."""
    with RawClient(port, host) as client:
        answer = client.ask(ApiVersionsRequest(client_software_name="s", client_software_version="1"), 3)
    return {
        ApiKey(each.api_key): range(
            max(each.min_version, APIS[ApiKey(each.api_key)].versions.min),
            min(each.max_version, APIS[ApiKey(each.api_key)].versions.max) + 1,
        )
        for each in answer.api_keys
        if each.api_key in list(ApiKey)
    }


NEWER_GROUPS = {ApiKey.CONSUMER_GROUP_HEARTBEAT, ApiKey.CONSUMER_GROUP_DESCRIBE}
"""Kafka 3.9 announces them and refuses them (35), unless a property for early access is set."""


def played(servers: str, without: Collection[ApiKey] = ()) -> Answers:
    """What a broker answers to all scripts but those of some APIs."""
    host, _, port = servers.rpartition(":")
    session = Session(host, int(port))
    try:
        found = served(host, int(port))
        return play(session, {key: versions for key, versions in found.items() if key not in without})
    finally:
        session.close()


@pytest.fixture(scope="module")
def ours() -> Answers:
    settings = {
        "auto.create.topics.enable": False,
        "log.retention.ms": -1,
        "node.id": NODE,
        "group.initial.rebalance.delay.ms": 0,
    }
    with start_broker(settings) as broker:
        return played(broker.bootstrap_servers)


@pytest.fixture(scope="module", params=KAFKAS)
def theirs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Answers]:
    version: str = request.param
    try:
        jars = fetch(None if version == KAFKAS[0] else version)
    except NotAvailable as e:
        pytest.skip(f"Apache Kafka {version} is not here: {e}")
    # On by default in 4.
    newer = {"group_coordinator_rebalance_protocols": "classic,consumer"} if version == KAFKAS[0] else {}
    kafka = ApacheKafka(jars, tmp_path_factory.mktemp("scripted"), **newer)
    try:
        kafka.start()
        yield played(kafka.bootstrap_servers, NEWER_GROUPS if version == KAFKAS[0] else ())
    finally:
        kafka.stop()


def differences(step: str, ours: Any, theirs: Any, place: str = "") -> Iterator[Difference]:
    """Every place where two answers differ."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key in ours | theirs:
            below = f"{place}.{key}" if place else key
            yield from differences(step, ours.get(key, ABSENT), theirs.get(key, ABSENT), below)
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for number, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            yield from differences(step, one, other, f"{place}[{number}]")
    elif ours != theirs:
        yield Difference(step, place, ours, theirs)


_used: set[Allowed] = set()


def is_allowed(found: Difference) -> bool:
    """Whether the difference is in the list; what of the list there is, is noted."""
    by = [
        each
        for each in ALLOWED
        if re.fullmatch(each.step, found.step) and re.fullmatch(each.place, found.place)
    ]
    _used.update(by)
    return bool(by)


def test_ours_answers_as_kafka_does_but_for_what_is_listed(ours: Answers, theirs: Answers) -> None:
    common = ours.keys() & theirs.keys()
    assert len(common) > 1000
    found = [each for step in sorted(common) for each in differences(step, ours[step], theirs[step])]
    unexpected = [str(each) for each in found if not is_allowed(each)]
    assert not unexpected, "\n".join(unexpected)


def test_all_that_is_listed_differs_from_one_of_the_kafkas() -> None:
    if not _used:
        pytest.skip("nothing was compared")
    assert [each for each in ALLOWED if each not in _used] == []
