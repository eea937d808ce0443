"""Whatever a network and a broker do, a client's failures are our errors, in time, and harm no later call."""

from __future__ import annotations

import errno
import socket
import struct
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from pyspark_kafkalog.client.admin import describe_configs
from pyspark_kafkalog.client.connection import Connection
from pyspark_kafkalog.client.discovery import Cluster
from pyspark_kafkalog.client.offsets import list_offsets
from pyspark_kafkalog.client.retry import Deadline
from pyspark_kafkalog.client.transport import Transport
from pyspark_kafkalog.config.client_config import ClientConfig
from pyspark_kafkalog.errors import BrokersUnreachable, ConnectionLost, ErrorCode, InvalidRequest
from pyspark_kafkalog.protocol.api.configs import DescribeConfigsResponse
from pyspark_kafkalog.protocol.api.log_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from pyspark_kafkalog.protocol.api.metadata import MetadataRequest, MetadataResponse, MetadataResponseTopic
from pyspark_kafkalog.protocol.exchange import ApiKey
from pyspark_kafkalog.types import LATEST_TIMESTAMP, TopicPartition
from tests.support.client.scripted_broker import Layout, ScriptedBroker
from tests.support.client.scripted_server import HOST
from tests.support.manual_clock import ManualClock

TP = TopicPartition("t", 0)


@pytest.fixture
def broker() -> Iterator[ScriptedBroker]:
    with ScriptedBroker(Layout(leaders={"t": {0: 0}})) as scripted:
        yield scripted


@pytest.fixture
def cluster(broker: ScriptedBroker) -> Iterator[Cluster]:
    cluster = Cluster(config(broker.address))
    yield cluster
    cluster.close()


def config(servers: str) -> ClientConfig:
    return ClientConfig(bootstrap_servers=servers, request_timeout_ms=600_000, retry_backoff_ms=5)


def addresses(monkeypatch: pytest.MonkeyPatch, *found: tuple[Any, ...]) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: list(found))


def test_an_address_of_a_family_that_the_system_lacks_is_passed_over(
    broker: ScriptedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What localhost gives first where the kernel was booted without IPv6.
    lacking = (9999, socket.SOCK_STREAM, 0, "", ("::1", broker.port))
    present = (socket.AF_INET, socket.SOCK_STREAM, 0, "", (HOST, broker.port))
    addresses(monkeypatch, lacking, present)
    connection = Connection("localhost", broker.port, config(broker.address))
    assert connection.serves(ApiKey.METADATA)
    connection.close()
    addresses(monkeypatch, lacking)
    with pytest.raises(ConnectionLost, match=rf"localhost:{broker.port}: address family not"):
        Connection("localhost", broker.port, config(broker.address))


def test_a_process_without_descriptors_left_has_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> socket.socket:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(socket, "socket", refuse)
    with pytest.raises(ConnectionLost, match=r"127.0.0.1:9092: too many open files"):
        Transport.connect("127.0.0.1", 9092, Deadline.after(1), max_frame_bytes=1000)


def test_a_peer_that_never_stops_sending_does_not_hold_a_call_beyond_its_deadline() -> None:
    ours, theirs = socket.socketpair()
    transport = Transport(ours, "peer", max_frame_bytes=1 << 30)

    def send_for_ever() -> None:
        try:
            theirs.sendall(struct.pack(">i", 1 << 30))
            while True:
                theirs.sendall(bytes(1 << 16))
        except OSError:
            return

    sender = threading.Thread(target=send_for_ever)
    sender.start()
    try:
        with pytest.raises(ConnectionLost, match="peer: no answer in time"):
            transport.receive(Deadline.after(0.05))
    finally:
        transport.close()
        sender.join()
        theirs.close()


def test_a_frame_that_is_there_is_taken_however_late() -> None:
    ours, theirs = socket.socketpair()
    transport = Transport(ours, "peer", max_frame_bytes=1000)
    theirs.sendall(struct.pack(">i", 3) + b"abc")
    assert transport.receive(Deadline.after(0)) == b"abc"
    transport.close()
    theirs.close()


def test_a_connection_interrupted_while_it_sends_is_not_used_again(
    broker: ScriptedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = Connection(HOST, broker.port, config(broker.address))

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(connection.transport, "_send_some", interrupt)
    with pytest.raises(KeyboardInterrupt):
        connection.request(MetadataRequest(topics=()))
    assert connection.broken


def test_a_leader_at_an_address_that_never_answered_is_named_and_given_up(broker: ScriptedBroker) -> None:
    with socket.create_server((HOST, 0)) as closed:
        broker.layout.brokers[1] = closed.getsockname()
    broker.layout.leaders["t"][0] = 1
    clock = ManualClock()
    cluster = Cluster(config(broker.address), clock=clock)
    with pytest.raises(
        BrokersUnreachable, match=r"^broker 1 advertises .*refused .tried for 2\d s.; see the"
    ):
        list_offsets(cluster, {TP: LATEST_TIMESTAMP})
    cluster.close()
    assert 20 <= clock.monotonic() - 1000 < 25


def test_a_topic_without_a_name_is_not_among_the_topics(broker: ScriptedBroker, cluster: Cluster) -> None:
    nameless = MetadataResponseTopic(name=None, error_code=ErrorCode.UNKNOWN_TOPIC_ID)
    broker.script(ApiKey.METADATA, MetadataResponse(topics=(nameless,)))
    assert cluster.metadata().topics == {}


def test_offsets_of_partitions_that_nobody_asked_for_are_not_taken(
    broker: ScriptedBroker, cluster: Cluster
) -> None:
    def answer(*partitions: ListOffsetsPartitionResponse) -> ListOffsetsResponse:
        return ListOffsetsResponse(topics=(ListOffsetsTopicResponse(name="t", partitions=partitions),))

    other = ListOffsetsPartitionResponse(partition_index=1, offset=5)
    failed = ListOffsetsPartitionResponse(error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER)
    broker.script(ApiKey.LIST_OFFSETS, answer(other, failed), answer(ListOffsetsPartitionResponse(offset=7)))
    found = list_offsets(cluster, {TP: LATEST_TIMESTAMP})
    assert {tp: entry.offset for tp, entry in found.items()} == {TP: 7}


def test_a_description_that_is_empty_is_nonsense(broker: ScriptedBroker, cluster: Cluster) -> None:
    broker.script(ApiKey.DESCRIBE_CONFIGS, DescribeConfigsResponse())
    with pytest.raises(InvalidRequest, match="lacks t"):
        describe_configs(cluster, topic="t")
