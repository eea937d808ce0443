"""Connection and cluster against a broker that misbehaves as told."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Iterator

import pytest

from pyspark_kafkalog.client.connection import Connection
from pyspark_kafkalog.client.discovery import Cluster
from pyspark_kafkalog.client.retry import Deadline
from pyspark_kafkalog.clock import SYSTEM_CLOCK, Clock
from pyspark_kafkalog.config.client_config import ClientConfig
from pyspark_kafkalog.errors import (
    ConnectionLost,
    ErrorCode,
    FrameTooLarge,
    InvalidRequest,
    UnknownTopicOrPartition,
    UnsupportedVersion,
)
from pyspark_kafkalog.protocol.api.log_offsets import ListOffsetsRequest
from pyspark_kafkalog.protocol.api.metadata import ApiVersionsResponse, MetadataRequest, MetadataResponse
from pyspark_kafkalog.protocol.exchange import ApiKey
from pyspark_kafkalog.types import TopicPartition
from tests.support.client.scripted_broker import Cut, Layout, ScriptedBroker, WrongCorrelation
from tests.support.client.scripted_server import HOST, Close, Raw, Silence, late, refusing_port
from tests.support.manual_clock import ManualClock

TP = TopicPartition("t", 0)
_HOUR_MS = 3_600_000


@pytest.fixture
def broker() -> Iterator[ScriptedBroker]:
    with ScriptedBroker(Layout(leaders={"t": {0: 0}})) as scripted:
        yield scripted


def config(servers: str, **changes: int | str) -> ClientConfig:
    """Limits above that of a test: one that ends by the wrong limit does not end in time."""
    patient = {"request_timeout_ms": _HOUR_MS, "connection_setup_timeout_ms": _HOUR_MS, "retry_backoff_ms": 5}
    return ClientConfig(bootstrap_servers=servers, **{**patient, **changes})  # type: ignore[arg-type]


def connect(broker: ScriptedBroker, clock: Clock = SYSTEM_CLOCK, **changes: int | str) -> Connection:
    return Connection(HOST, broker.port, config(broker.address, **changes), clock=clock)


def test_the_highest_common_version_is_used(broker: ScriptedBroker) -> None:
    broker.versions[ApiKey.METADATA] = (0, 5)
    broker.versions[ApiKey.FETCH] = (4, 18)
    connection = connect(broker)
    assert connection.version(ApiKey.METADATA) == 5
    assert connection.version(ApiKey.FETCH) == 12
    assert connection.serves(ApiKey.FETCH, 13)
    assert not connection.serves(ApiKey.METADATA, 6)
    connection.close()


def test_no_common_version_is_an_error_with_both_ranges(broker: ScriptedBroker) -> None:
    broker.versions[ApiKey.FETCH] = (13, 18)
    del broker.versions[ApiKey.CREATE_TOPICS]
    connection = connect(broker)
    with pytest.raises(UnsupportedVersion, match=rf"{broker.address}.*FETCH.*13 to 18.*0 to 12"):
        connection.version(ApiKey.FETCH)
    with pytest.raises(UnsupportedVersion, match=rf"{broker.address}.*does not serve CREATE_TOPICS"):
        connection.version(ApiKey.CREATE_TOPICS)
    connection.close()


@pytest.mark.parametrize("newest", [0, 2])
def test_an_old_broker_is_asked_for_its_versions_again(newest: int) -> None:
    with ScriptedBroker(versions={ApiKey.API_VERSIONS: (0, newest)}) as broker:
        connection = connect(broker)
        asked = [header.api_version for header, _ in broker.requests if header.api_key == ApiKey.API_VERSIONS]
        assert asked == [3, newest]
        assert connection.version(ApiKey.METADATA) == 12
        connection.close()


def test_a_broker_that_refuses_to_tell_its_versions_is_named(broker: ScriptedBroker) -> None:
    refusal = ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    broker.script(ApiKey.API_VERSIONS, refusal, refusal)
    with pytest.raises(InvalidRequest, match=rf"{broker.address}.*UNSUPPORTED_VERSION"):
        connect(broker)


def test_a_broker_that_closes_the_connection_when_asked_for_its_versions_may_be_too_old(
    broker: ScriptedBroker,
) -> None:
    broker.script(ApiKey.API_VERSIONS, Close())
    told = r"Kafka before 0\.10 does not know\. Set broker\.version\.fallback to its release"
    with pytest.raises(ConnectionLost, match=rf"{broker.address}.*closed.*{told}"):
        connect(broker)


def test_a_broker_that_is_slow_to_tell_its_versions_is_not_called_old(broker: ScriptedBroker) -> None:
    broker.script(ApiKey.API_VERSIONS, Silence())
    with pytest.raises(ConnectionLost) as e:
        connect(broker, connection_setup_timeout_ms=100)
    hint = "only for Kafka 0.9, set broker.version.fallback"
    assert str(e.value) == f"{broker.address}: no answer in time; {hint}"
    assert broker.connection_count == 1, "nor asked for TLS"


def test_a_broker_that_resets_the_connection_may_be_too_old() -> None:
    with socket.create_server((HOST, 0)) as server:
        server.settimeout(60)

        def reset() -> None:
            sock, _ = server.accept()
            sock.recv(1 << 16)  # only then is it sure that the client is connected
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            sock.close()

        thread = threading.Thread(target=lambda: [reset() for _ in range(2)])  # the second is asked for TLS
        thread.start()
        port = server.getsockname()[1]
        try:
            with pytest.raises(ConnectionLost, match=r"reset.*Set broker\.version\.fallback"):
                Connection(HOST, port, config(f"{HOST}:{port}"))
        finally:
            thread.join()


@pytest.mark.parametrize("closes", [True, False], ids=["closes", "says nothing"])
def test_a_broker_without_api_versions_is_of_the_configured_release(
    broker: ScriptedBroker, closes: bool
) -> None:
    clock = ManualClock()
    broker.script(ApiKey.API_VERSIONS, Close() if closes else late(clock, _HOUR_MS / 1000 / 4 + 1))
    broker.layout.leaders["t"] = {0: 0}
    connection = connect(broker, clock, broker_version_fallback="0.9.0")
    assert connection.version(ApiKey.FETCH) == 1
    assert connection.version(ApiKey.METADATA) == 0
    assert connection.served(ApiKey.CREATE_TOPICS) is None
    assert [t.name for t in connection.request(MetadataRequest(topics=())).topics] == []
    assert broker.received(ApiKey.METADATA) == [MetadataRequest(topics=())]
    assert broker.connection_count == 2
    connection.close()


def test_a_broker_that_tells_its_versions_is_believed(broker: ScriptedBroker) -> None:
    connection = connect(broker, broker_version_fallback="0.8.2")
    assert connection.version(ApiKey.FETCH) == 12
    connection.close()


def test_a_broker_need_not_be_asked_for_its_versions(broker: ScriptedBroker) -> None:
    connection = connect(broker, broker_version_fallback="0.10.0", api_version_request=False)
    connection.request(MetadataRequest(topics=()))
    assert [header.api_key for header, _ in broker.requests] == [ApiKey.METADATA]
    assert connection.version(ApiKey.FETCH) == 2
    with pytest.raises(UnsupportedVersion, match=r"PRODUCE: the broker supports 0 to 2"):
        connection.version(ApiKey.PRODUCE)
    connection.close()


def test_answers_may_be_taken_in_any_order(broker: ScriptedBroker) -> None:
    connection = connect(broker)
    first = connection.send(MetadataRequest(topics=()))
    second = connection.send(MetadataRequest(topics=None))
    third = connection.send(MetadataRequest(topics=()))
    connection.drop(first)
    assert [t.name for t in connection.receive(second).topics] == ["t"]
    assert connection.receive(third).topics == ()
    assert connection.in_flight == 0
    connection.close()


def test_a_wrong_correlation_id_ends_the_connection(broker: ScriptedBroker) -> None:
    broker.script(ApiKey.METADATA, WrongCorrelation(MetadataResponse()))
    connection = connect(broker)
    with pytest.raises(
        InvalidRequest, match=rf"{broker.address}.*METADATA.*correlation id \d+ instead of \d+"
    ):
        connection.request(MetadataRequest(topics=()))
    assert connection.broken
    with pytest.raises(ConnectionLost, match=broker.address):
        connection.request(MetadataRequest(topics=()))


def test_an_answer_that_nobody_asked_for_ends_the_connection(broker: ScriptedBroker) -> None:
    broker.script(ApiKey.METADATA, Raw(2 * b"\0\0\0\x04\0\0\0\x02"))
    connection = connect(broker)
    with pytest.raises(InvalidRequest, match=broker.address):
        connection.request(MetadataRequest(topics=()))
    assert connection.broken


@pytest.mark.parametrize("size", [2, 17])
def test_a_connection_cut_inside_an_answer_is_lost(broker: ScriptedBroker, size: int) -> None:
    broker.script(ApiKey.METADATA, Cut(MetadataResponse(), size))
    connection = connect(broker)
    with pytest.raises(ConnectionLost, match=broker.address):
        connection.request(MetadataRequest(topics=()))
    assert connection.broken


def test_a_silent_broker_is_given_up_after_the_request_timeout(broker: ScriptedBroker) -> None:
    broker.script(ApiKey.METADATA, Silence())
    connection = connect(broker, request_timeout_ms=200)
    started = time.monotonic()
    with pytest.raises(ConnectionLost, match=rf"{broker.address}.*no answer"):
        connection.request(MetadataRequest(topics=()))
    assert time.monotonic() - started > 0.15


def test_a_server_that_never_speaks_is_given_up_after_the_setup_timeout() -> None:
    with socket.create_server((HOST, 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(ConnectionLost, match=f"{HOST}:{port}"):
            Connection(HOST, port, config(f"{HOST}:{port}", connection_setup_timeout_ms=200))


def test_a_server_of_another_kind_is_recognised() -> None:
    with socket.create_server((HOST, 0)) as server:
        port = server.getsockname()[1]

        def answer() -> None:
            sock, _ = server.accept()
            with sock:
                sock.recv(100)
                sock.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                sock.recv(100)

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(FrameTooLarge, match=rf"{HOST}:{port}.*not a response of a Kafka broker"):
            Connection(HOST, port, config(f"{HOST}:{port}"))
        thread.join(60)


def test_nobody_listening_is_an_error_with_the_address() -> None:
    refused = pytest.raises(ConnectionLost, match=f"cannot connect to {HOST}:\\d+: connection refused")
    with refusing_port() as port, refused:
        Connection(HOST, port, config(f"{HOST}:{port}"))


def test_an_unknown_host_is_an_error_with_its_name() -> None:
    with pytest.raises(ConnectionLost, match=r"no-such-host\.invalid:9092: the host name cannot be resolved"):
        Connection("no-such-host.invalid", 9092, config("localhost:9092"))


def test_bootstrap_continues_to_the_next_server(broker: ScriptedBroker) -> None:
    with refusing_port() as port:
        cluster = Cluster(config(f"{HOST}:{port},{broker.address}"))
        found = cluster.metadata(["t"])
    assert found.brokers == {0: (HOST, broker.port)}
    assert found.cluster_id == "scripted"
    assert found.topics["t"].partitions[0].leader == 0
    cluster.close()


def test_bootstrap_without_any_server_tells_of_all() -> None:
    clock = ManualClock()
    started = clock.monotonic()
    with refusing_port() as first, refusing_port() as second:
        limits = {"request_timeout_ms": 300, "retry_backoff_max_ms": 20}
        cluster = Cluster(config(f"{HOST}:{first},{HOST}:{second}", **limits), clock=clock)
        with pytest.raises(ConnectionLost) as raised:
            cluster.metadata(["t"])
    assert 0.2 < clock.monotonic() - started < 0.3
    assert f"{HOST}:{first}" in str(raised.value)
    assert f"{HOST}:{second}" in str(raised.value)


def test_metadata_is_cached_until_it_is_forgotten(broker: ScriptedBroker) -> None:
    cluster = Cluster(config(broker.address))
    for _ in range(3):
        assert cluster.leader(TP).node_id == 0
    assert len(broker.received(ApiKey.METADATA)) == 1
    cluster.forget("t")
    cluster.leader(TP)
    assert len(broker.received(ApiKey.METADATA)) == 2
    cluster.close()


def test_a_missing_topic_is_in_the_metadata_with_its_error(broker: ScriptedBroker) -> None:
    cluster = Cluster(config(broker.address))
    found = cluster.metadata(["t", "none"])
    assert found.topics["none"].error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert found.topics["none"].partitions == {}
    assert found.topics["t"].error == ErrorCode.NONE
    with pytest.raises(UnknownTopicOrPartition, match="topic none: no such topic"):
        cluster.leader(TopicPartition("none", 0))
    with pytest.raises(UnknownTopicOrPartition, match="t-7: no such partition; topic t has 1"):
        cluster.leader(TopicPartition("t", 7))
    cluster.close()


def test_metadata_is_asked_again_after_a_cut_answer(broker: ScriptedBroker) -> None:
    broker.script(ApiKey.METADATA, Close(), Cut(MetadataResponse(), 9))
    cluster = Cluster(config(broker.address))
    assert list(cluster.metadata(None).topics) == ["t"]
    assert len(broker.received(ApiKey.METADATA)) == 3
    cluster.close()


def test_a_call_ends_at_its_deadline_whatever_the_broker_does(broker: ScriptedBroker) -> None:
    broker.default(ApiKey.METADATA, Silence())
    cluster = Cluster(config(broker.address))
    with pytest.raises(ConnectionLost):
        cluster.metadata(["t"], deadline=Deadline.after(0.3))
    cluster.close()


def test_messages_of_a_version_without_a_field_are_refused_before_they_are_sent(
    broker: ScriptedBroker,
) -> None:
    broker.versions[ApiKey.LIST_OFFSETS] = (0, 0)
    connection = connect(broker)
    with pytest.raises(InvalidRequest, match="isolation_level"):
        connection.request(ListOffsetsRequest(isolation_level=1))
    assert not connection.broken
    assert connection.request(MetadataRequest(topics=())).cluster_id == "scripted"
    connection.close()
