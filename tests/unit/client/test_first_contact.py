from __future__ import annotations

import logging
import socket
import threading
from typing import Any, NamedTuple

import pytest

from pyspark_kafkalog.classic.consumer.offset_store import KafkaOffsets
from pyspark_kafkalog.client import discovery
from pyspark_kafkalog.client.connection import ConnectionPool
from pyspark_kafkalog.client.discovery import Cluster, Outages
from pyspark_kafkalog.client.retry import Deadline
from pyspark_kafkalog.client.transport import Transport, peer_name
from pyspark_kafkalog.config.classic_config import ConnectorConfig
from pyspark_kafkalog.config.client_config import ClientConfig
from pyspark_kafkalog.datasource.options.read_options import parse_batch_options
from pyspark_kafkalog.datasource.reading.source_cluster import retry_lookup
from pyspark_kafkalog.errors import (
    BrokersUnreachable,
    CannotConnect,
    ConnectionLost,
    EndpointUnreachable,
    KafkaError,
    UnknownHost,
)
from pyspark_kafkalog.zookeeper.paths import PartitionKey
from tests.support.manual_clock import ManualClock


class Network(NamedTuple):
    """What every connection of a test meets: how long it takes, and what becomes of it."""

    clock: ManualClock
    seconds: float
    reason: str
    silent: bool = False
    kind: type[CannotConnect] = CannotConnect

    def get(self, address: tuple[str, int], deadline: Deadline) -> Any:
        self.clock.advance(min(self.seconds, deadline.left))
        raise self.kind(peer_name(*address), self.reason, silent=self.silent)


def _unreachable(
    monkeypatch: pytest.MonkeyPatch, network: Network, config: ClientConfig
) -> tuple[KafkaError, float]:
    """The error of a look-up as a plan in Spark asks for it, and the seconds until then."""
    monkeypatch.setattr(ConnectionPool, "get", lambda _, address, deadline: network.get(address, deadline))
    cluster = Cluster(config, clock=network.clock)
    options = parse_batch_options({"kafka.bootstrap.servers": "any:1", "subscribe": "t"})
    began = network.clock.monotonic()
    with pytest.raises(KafkaError) as raised:
        retry_lookup(lambda: cluster.metadata(["t"]), cluster.close, options, network.clock)
    return raised.value, network.clock.monotonic() - began


def test_brokers_that_refuse_or_are_unknown_are_an_error_within_15_seconds(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    network = Network(ManualClock(), 0.01, "connection refused")
    config = ClientConfig(bootstrap_servers="refused-a:9092,refused-b:9092")
    with caplog.at_level(logging.WARNING):
        error, seconds = _unreachable(monkeypatch, network, config)
    assert 10 < seconds < 15
    assert isinstance(error, BrokersUnreachable)
    assert not error.retriable
    tried = f"(tried for {seconds:.0f} s); check `bootstrap.servers`"
    assert str(error) == (
        "cannot connect to any of refused-a:9092, refused-b:9092: refused-a:9092: connection refused; "
        f"refused-b:9092: connection refused {tried}"
    )
    (told,) = [record.message for record in caplog.records]
    assert "refused-a:9092: connection refused" in told
    assert told.endswith("; still trying")


def test_the_error_names_one_address_and_the_option_that_the_user_gave(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = parse_batch_options({"kafka.bootstrap.servers": "unknown:9092", "subscribe": "t"})
    network = Network(ManualClock(), 0.01, "the host name cannot be resolved: name or service not known")
    error, _ = _unreachable(monkeypatch, network, options.consumer)
    assert str(error).startswith("cannot connect to unknown:9092: the host name cannot be resolved: name or")
    assert str(error).endswith(" s); check `kafka.bootstrap.servers`")


@pytest.mark.parametrize("servers", ["silent:9092", ",".join(f"silent-{n}:9092" for n in range(12))])
def test_brokers_that_say_nothing_are_an_error_within_60_seconds(
    monkeypatch: pytest.MonkeyPatch, servers: str
) -> None:
    network = Network(ManualClock(), 10, "timed out", silent=True)
    error, seconds = _unreachable(monkeypatch, network, ClientConfig(bootstrap_servers=servers))
    assert 30 < seconds < 60
    assert "timed out" in str(error)
    assert "check `bootstrap.servers`" in str(error)


def test_a_cluster_that_has_answered_is_waited_for_as_long_as_its_restart_may_take(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock, config = ManualClock(), ClientConfig(bootstrap_servers="answers:9092")
    with monkeypatch.context() as patched:
        patched.setattr(ConnectionPool, "get", lambda *_: object())
        Cluster(config, clock=clock).any_connection()
    network = Network(clock, 0.01, "connection refused")
    with caplog.at_level(logging.WARNING):
        error, seconds = _unreachable(monkeypatch, network, config)
    # Another object of the same process: a stream makes one after the other.
    assert seconds > 100
    assert error.retriable
    assert "tried for" in str(error)
    assert "still trying" in caplog.text


def test_a_task_waits_as_long_since_the_cluster_answered_for_any_planner(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = ClientConfig(bootstrap_servers="planned:9092", answered_before=True)
    _, seconds = _unreachable(monkeypatch, Network(ManualClock(), 0.01, "connection refused"), config)
    assert seconds > 100
    assert config == ClientConfig(bootstrap_servers="planned:9092")  # idle connections serve both


def test_each_call_of_a_client_that_lives_on_is_tried_for_as_long(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    network = Network(clock, 0.01, "connection refused")
    monkeypatch.setattr(ConnectionPool, "get", lambda _, address, deadline: network.get(address, deadline))
    cluster = Cluster(ClientConfig(bootstrap_servers="later:9092"), clock=clock)
    for pause, patience in ((0, 100), (0, 100), (40, 5), (40, 100)):
        clock.advance(pause)
        began = clock.monotonic()
        with pytest.raises(ConnectionLost, match="cannot connect to later:9092"):
            cluster.metadata(["t"], deadline=Deadline.after(patience, clock))
        assert min(patience, 10) - 1.5 < clock.monotonic() - began < min(patience, 15)


def test_brokers_that_zookeeper_names_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    network = Network(ManualClock(), 0.01, "connection refused")
    monkeypatch.setattr(ConnectionPool, "get", lambda _, address, deadline: network.get(address, deadline))
    config = ConnectorConfig(
        zookeeper_connect="zk:1", protocol="0.8", offsets_storage="kafka", offsets_timeout_ms=30_000
    )
    offsets = KafkaOffsets(config, lambda: [("registered", 9092)], clock=network.clock)
    began = network.clock.monotonic()
    with pytest.raises(BrokersUnreachable) as raised:
        offsets.load([PartitionKey("t", "0", 0)])
    assert raised.value.retriable
    assert network.clock.monotonic() - began > 25


def test_a_token_endpoint_that_is_down_is_named_and_waited_for_like_silent_brokers(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    network = Network(ManualClock(), 0.01, "connection refused", kind=EndpointUnreachable)
    config = ClientConfig(bootstrap_servers="tokens-a:9092,tokens-b:9092")
    error, seconds = _unreachable(monkeypatch, network, config)
    assert 40 < seconds < 60
    assert str(error) == f"cannot connect to tokens-a:9092: connection refused (tried for {seconds:.0f} s)"
    assert not error.retriable


_UNKNOWN = UnknownHost("inner:9092", "name or service not known")
_REFUSED = CannotConnect("inner:9092", "connection refused", silent=False)
_SILENT = CannotConnect("inner:9092", "timed out", silent=True)


@pytest.mark.parametrize(("error", "most"), [(_UNKNOWN, 12), (_REFUSED, 20), (_SILENT, 45)])
def test_an_advertised_address_is_named_within_seconds_and_given_up(
    error: CannotConnect, most: float, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    outages = Outages(ClientConfig(bootstrap_servers="outer:9092"), clock)
    text = f"broker 1 advertises inner:9092, which cannot be reached: {error.reason}"
    warned_at = None
    for seconds in range(60):
        found = outages.advertised(1, ("inner", 9092), error, patient=False)
        if warned_at is None and caplog.messages:
            warned_at = seconds
        if not found.retriable:
            break
        clock.advance(1)
    assert (warned_at, seconds) == (3, most)
    assert str(found) == f"{text} (tried for {most} s); see the broker's advertised.listeners"
    assert caplog.messages == [f"{text}; see the broker's advertised.listeners; still trying"]


def test_attempts_as_long_as_the_setup_timeout_are_one_outage() -> None:
    clock = ManualClock()
    config = ClientConfig(bootstrap_servers="outer:9092", connection_setup_timeout_ms=30_000)
    outages = Outages(config, clock)
    retriable = []
    for _ in range(3):
        clock.advance(30)
        retriable.append(outages.advertised(1, ("inner", 9092), _SILENT, patient=False).retriable)
    assert retriable == [True, True, False]


def test_an_address_is_waited_for_once_it_or_the_cluster_has_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = ManualClock()
    outages = Outages(ClientConfig(bootstrap_servers="outer:9092"), clock)
    assert outages.advertised(1, ("outer", 9092), _REFUSED, patient=False) is _REFUSED
    for _ in range(60):
        assert outages.advertised(1, ("inner", 9092), _REFUSED, patient=True).retriable
        clock.advance(1)
    monkeypatch.setattr(discovery, "REACHED", {("inner", 9092)})
    assert outages.advertised(1, ("inner", 9092), _REFUSED, patient=False) is _REFUSED


def test_a_name_server_that_does_not_answer_is_waited_for_no_longer_than_the_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answered = threading.Event()

    def look_up(host: str, *_: object, flags: int = 0, **__: object) -> list[Any]:
        if flags & socket.AI_NUMERICHOST:
            raise socket.gaierror(socket.EAI_NONAME, "not a number")
        answered.wait()
        return []

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    try:
        with pytest.raises(CannotConnect, match="nowhere:9092: the look-up of the host name timed out") as e:
            Transport.connect("nowhere", 9092, Deadline.after(0.05), max_frame_bytes=1000)
        assert e.value.silent
    finally:
        answered.set()
