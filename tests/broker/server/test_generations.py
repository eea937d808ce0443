"""One broker, two listeners: topics of either generation, written to by their own protocol alone."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from kafkalog_broker.config.broker_config import BrokerConfig
from kafkalog_broker.embedded import EmbeddedBroker, start_broker
from kafkalog_broker.server.broker import Broker
from pyspark_kafkalog.errors import ErrorCode, InvalidConfig
from pyspark_kafkalog.protocol.api.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    ResourceType,
)
from pyspark_kafkalog.protocol.api.metadata import MetadataRequest, MetadataRequestTopic
from pyspark_kafkalog.protocol.api.topics import DeleteTopicsRequest, DeleteTopicState
from tests.support.protocol.raw_client import RawClient, batch
from tests.support.protocol.wire07 import (
    LATEST,
    Wire07,
    entry,
    fetch,
    multi_fetch,
    multi_produce,
    offsets,
    offsets_in,
    produce,
)

BOTH = "PLAINTEXT://127.0.0.1:0,KAFKA07://127.0.0.1:0"
NEVER_MS = 3_600_000
ONE = entry(b"one")
EMPTY, UNKNOWN, OUT_OF_RANGE = b"\0\0", b"\xff\xff", b"\0\1"


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with start_broker({"listeners": BOTH, "log.flush.interval": 1, "num.partitions": 2}) as broker:
        yield broker


def metadata_errors(client: RawClient, *names: str) -> dict[str, ErrorCode]:
    topics = tuple(MetadataRequestTopic(name=name) for name in names) or None
    answer = client.ask(MetadataRequest(topics=topics, allow_auto_topic_creation=False))
    return {topic.name: topic.error_code for topic in answer.topics}


def test_a_topic_is_of_07_when_it_is_created_so(modern: RawClient, first: Wire07, topic_name: str) -> None:
    result = modern.create_topic(topic_name, 3, {"generation": "0.7", "retention.ms": "7"})
    assert result.error_code == 0
    shown = {entry.name: entry.value for entry in result.configs}
    assert (shown["generation"], shown["retention.ms"]) == ("0.7", "7")
    first.send(produce(topic_name, 2, ONE))
    assert first.ask(fetch(topic_name, 2, 0, 100)) == EMPTY + ONE
    assert first.ask(fetch(topic_name, 3, 0, 100)) == b"\0\3"


def test_a_topic_is_of_07_when_its_listener_makes_it(
    modern: RawClient, first: Wire07, topic_name: str
) -> None:
    first.send(produce(topic_name, 1, ONE))
    assert offsets_in(first.ask(offsets(topic_name, 1, LATEST, 1))) == [len(ONE)]
    resource = DescribeConfigsResource(
        resource_type=ResourceType.TOPIC, resource_name=topic_name, configuration_keys=("generation",)
    )
    (result,) = modern.ask(DescribeConfigsRequest(resources=(resource,))).results
    assert [(each.name, each.value, each.read_only) for each in result.configs] == [
        ("generation", "0.7", True)
    ]


@pytest.mark.parametrize("generation", ["0.6", "", "0.11"])
def test_no_other_generation_can_be_created(modern: RawClient, topic_name: str, generation: str) -> None:
    result = modern.create_topic(topic_name, configs={"generation": generation})
    assert result.error_code == ErrorCode.INVALID_CONFIG
    assert result.error_message == f"generation={generation} is not allowed; allowed: 0.8 or 0.7"


def test_todays_clients_read_a_topic_of_07_and_cannot_write_to_it(
    modern: RawClient, first: Wire07, topic_name: str
) -> None:
    first.send(produce(topic_name, 0, ONE))
    assert first.ask(fetch(topic_name, 0, 0, 100)) == EMPTY + ONE
    result = modern.produce(topic_name, batch(b"two"))
    assert (result.error_code, result.error_message) == (
        ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        f"UNSUPPORTED_FOR_MESSAGE_FORMAT: topic '{topic_name}' holds messages of generation 0.7;"
        " this listener speaks the protocol of 0.8",
    )
    assert [(r.offset, r.value) for r in modern.read(topic_name)] == [(0, b"one")]
    assert modern.offset_at(topic_name, LATEST).offset == len(ONE)
    assert metadata_errors(modern, topic_name) == {topic_name: ErrorCode.NONE}
    assert metadata_errors(modern)[topic_name] == ErrorCode.NONE
    assert first.ask(fetch(topic_name, 0, 0, 100)) == EMPTY + ONE


def test_07s_protocol_is_refused_for_a_later_topic(
    modern: RawClient, first: Wire07, broker: EmbeddedBroker, topic_name: str
) -> None:
    topic = topic_name
    assert modern.create_topic(topic, 2).error_code == 0
    assert modern.produce(topic, batch(b"v2")).error_code == 0
    assert first.ask(fetch(topic, 0, 0, 100)) == UNKNOWN
    assert first.ask(multi_fetch((topic, 0, 0, 100))) == EMPTY + b"\0\0\0\2" + UNKNOWN
    for request in (
        produce(topic, 0, ONE),
        multi_produce((topic, 0, ONE)),
        offsets(topic, 0, LATEST, 1),
    ):
        with Wire07(broker.port_of("KAFKA07")) as wire:
            assert wire.ask(request) is None
    assert [record.value for record in modern.read(topic, 0)] == [b"v2"]


def test_a_topic_of_07_is_deleted_by_todays_protocol(
    modern: RawClient, first: Wire07, broker: EmbeddedBroker, topic_name: str
) -> None:
    name = f"{topic_name} é"
    first.send(produce(name, 0, ONE))
    assert first.ask(fetch(name, 0, 0, 100)) == EMPTY + ONE
    (result,) = modern.ask(
        DeleteTopicsRequest(topics=(DeleteTopicState(name=name),), timeout_ms=5000)
    ).responses
    assert result.error_code == 0
    assert first.ask(fetch(name, 0, 0, 100)) == EMPTY
    assert not list(broker.data_dir.glob(f"{topic_name}*"))


def test_without_auto_creation_a_produce_to_no_topic_closes() -> None:
    properties = {"listeners": "KAFKA07://127.0.0.1:0", "auto.create.topics.enable": False}
    with start_broker(properties) as broker, Wire07(broker.port) as wire:
        assert wire.ask(produce("t", 0, ONE) + fetch("t", 0, 0, 100)) is None
        assert not list(broker.data_dir.glob("t_*"))
        with pytest.raises(InvalidConfig, match="has none of PLAINTEXT"):
            broker.port_of("PLAINTEXT")


def test_a_restart_keeps_both_ports_and_what_was_flushed(tmp_path: Path) -> None:
    own = {"listeners": BOTH, "log.flush.interval": 1000, "log.flush.interval.ms": NEVER_MS}
    with start_broker(own, data_dir=tmp_path) as broker:
        ports = broker.port_of("PLAINTEXT"), broker.port_of("KAFKA07")
        assert broker.port == ports[0]
        with Wire07(ports[1]) as wire:
            wire.send(produce("t", 0, ONE))
            assert wire.ask(fetch("t", 0, 0, 100)) == EMPTY  # appended, not flushed yet
        broker.restart()
        assert (broker.port_of("PLAINTEXT"), broker.port_of("KAFKA07")) == ports
        with Wire07(ports[1]) as wire:
            assert wire.ask(fetch("t", 0, 0, 100)) == EMPTY + ONE


def test_the_brokers_own_topic_cannot_be_made_by_a_produce(broker: EmbeddedBroker, first: Wire07) -> None:
    assert first.ask(produce("__consumer_offsets", 0, ONE) + fetch("t", 0, 0, 100)) is None
    assert not list(broker.data_dir.glob("__consumer_offsets*"))


def test_no_listener_stays_when_another_cannot_be_had(tmp_path: Path) -> None:
    # Nobody else listens there: a port that is free for a moment stays so.
    host = "127.83.7.2"
    with socket.create_server((host, 0)) as taken, socket.create_server((host, 0)) as free:
        port = free.getsockname()[1]
        free.close()
        listeners = f"PLAINTEXT://{host}:{port},KAFKA07://{host}:{taken.getsockname()[1]}"
        broker = Broker(BrokerConfig(listeners=listeners, log_dirs=(str(tmp_path),)))
        with pytest.raises(InvalidConfig, match="address already in use"):
            broker.start()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((host, port))


@pytest.mark.long("a broker that is started more than once")
def test_clients_stay_with_the_listener_that_they_came_to() -> None:
    properties = {
        "listeners": "INSIDE://127.0.0.1:0,OUTSIDE://127.0.0.1:0",
        "listener.security.protocol.map": "INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT",
        "advertised.listeners": "OUTSIDE://public.example.org:19093",
    }
    with start_broker(properties) as broker:
        told = {}
        for name in ("INSIDE", "OUTSIDE"):
            with RawClient(broker.port_of(name)) as client:
                (node,) = client.ask(MetadataRequest(topics=()), 9).brokers
                told[name] = (node.host, node.port)
        assert told == {
            "INSIDE": ("127.0.0.1", broker.port_of("INSIDE")),
            "OUTSIDE": ("public.example.org", 19093),
        }
        assert broker.port == broker.port_of("INSIDE") != broker.port_of("OUTSIDE")
