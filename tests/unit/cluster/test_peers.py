"""How a broker calls others: its login from the listener's properties, and answers that come or do not."""

from __future__ import annotations

import os
import queue
import socket
from typing import Any

import pytest

from kafkalog_broker.cluster import peers as peers_module
from kafkalog_broker.cluster.peers import Peers, peer_config
from kafkalog_broker.config.broker_config import BrokerConfig
from kafkalog_broker.embedded import start_broker
from pyspark_kafkalog.client.retry import Deadline
from pyspark_kafkalog.client.transport import Transport
from pyspark_kafkalog.clock import SYSTEM_CLOCK
from pyspark_kafkalog.errors import ConnectionLost, InvalidConfig, KafkaError
from pyspark_kafkalog.protocol.api.metadata import MetadataRequest
from pyspark_kafkalog.protocol.exchange import APIS, ApiKey
from tests.support.client.scripted_broker import ScriptedBroker
from tests.support.client.scripted_server import HOST, Silence
from tests.support.until import until

PLAIN = 'PlainLoginModule required username="b" password="hush" user_b="hush" user_a="x";'


@pytest.mark.parametrize(
    ("listeners", "given", "wanted"),
    [
        ("PLAINTEXT://:9092,SSL://:9093", {}, "PLAINTEXT"),
        ("KAFKA07://:9090,SSL://:9093,PLAINTEXT://:9092", {"security.inter.broker.protocol": "SSL"}, "SSL"),
        ("SSL://:9093,SASL_SSL://:9094", {}, "SSL"),
        ("OUT://:9093,IN://:9092", {"inter.broker.listener.name": "in"}, "IN"),
    ],
)
def test_the_listener_for_other_brokers(listeners: str, given: dict[str, str], wanted: str) -> None:
    spoken = {"listener.security.protocol.map": "OUT:SSL,IN:PLAINTEXT"}
    listener = BrokerConfig.load(None, {"listeners": listeners, **spoken, **given}).inter_broker_listener
    assert listener is not None
    assert listener.name == wanted


def test_a_login_is_what_the_listener_says_of_the_mechanism() -> None:
    made = peer_config(
        BrokerConfig.load(
            None,
            {
                "node.id": "7",
                "listeners": "IN://:9092",
                "listener.security.protocol.map": "IN:SASL_SSL",
                "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
                "sasl.mechanism.inter.broker.protocol": "PLAIN",
                "listener.name.in.plain.sasl.jaas.config": PLAIN,
                "listener.name.in.ssl.truststore.location": "/trust.pem",
                "ssl.endpoint.identification.algorithm": "",
            },
        )
    )
    assert (made.security_protocol, made.sasl_mechanism, made.sasl_jaas_config) == (
        "SASL_SSL",
        "PLAIN",
        PLAIN,
    )
    assert (made.ssl_truststore_location, made.verifies_names) == ("/trust.pem", False)
    assert made.client_id == "broker-7"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"sasl.enabled.mechanisms": "OAUTHBEARER"}, "with one of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512"),
        (
            {"sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256"},
            r"mechanism\.inter\.broker\.protocol=None",
        ),
        (
            {"sasl.enabled.mechanisms": "PLAIN"},
            r"name\.sasl_plaintext\.plain\.sasl\.jaas\.config has",
        ),
    ],
)
def test_without_a_login_it_says_which_property_is_missing(given: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidConfig, match=words):
        peer_config(BrokerConfig.load(None, {"listeners": "SASL_PLAINTEXT://:9092", **given}))


@pytest.mark.long("a broker that is started more than once")
def test_every_call_has_one_answer_and_a_dead_broker_fails_them() -> None:
    heard: queue.SimpleQueue[tuple[Any, KafkaError | None]] = queue.SimpleQueue()
    addresses: dict[int, tuple[str, int]] = {}
    version = APIS[ApiKey.METADATA].versions.max
    peers = Peers(peer_config(BrokerConfig.load(None, {})), addresses.get, SYSTEM_CLOCK)

    def ask(broker: int) -> tuple[Any, KafkaError | None]:
        peers.ask(broker, MetadataRequest(topics=()), version, lambda *told: heard.put(told))
        return heard.get(timeout=60)

    try:
        answer, error = ask(2)
        assert (answer, str(error)) == (None, "broker 2 is away")
        with start_broker({"node.id": 2}) as running:
            addresses[2] = ("127.0.0.1", running.port)
            for _ in range(3):
                answer, error = ask(2)
                assert (error, [each.node_id for each in answer.brokers]) == (None, [2])
            running.kill()
            assert isinstance(ask(2)[1], ConnectionLost)
            running.start()
            addresses[2] = ("127.0.0.1", running.port)
            assert ask(2)[1] is None
    finally:
        peers.close()
    assert "calls no others" in str(ask(3)[1])


def test_who_is_silent_is_asked_no_second_time_before_it_is_at_another_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may have been stopped with the question; one at another address is another process."""
    monkeypatch.setattr(peers_module, "_LOOK_SECONDS", 0.05)
    heard: queue.SimpleQueue[tuple[Any, KafkaError | None]] = queue.SimpleQueue()
    addresses: dict[int, tuple[str, int]] = {}
    version = APIS[ApiKey.METADATA].versions.max
    peers = Peers(peer_config(BrokerConfig.load(None, {})), addresses.get, SYSTEM_CLOCK)

    def ask() -> None:
        peers.ask(2, MetadataRequest(topics=()), version, lambda *given: heard.put(given))

    with ScriptedBroker(node_id=2) as silent, ScriptedBroker(node_id=2) as returned:
        try:
            silent.default(ApiKey.METADATA, Silence())
            addresses[2] = (HOST, silent.port)
            ask()
            until(lambda: silent.received(ApiKey.METADATA))
            with pytest.raises(queue.Empty):
                heard.get(timeout=0.5)
            del addresses[2]  # its session has ended: that says nothing about the process
            with pytest.raises(queue.Empty):
                heard.get(timeout=0.5)
            assert (silent.connection_count, len(silent.received(ApiKey.METADATA))) == (1, 1)
            addresses[2] = (HOST, returned.port)
            answer, error = heard.get(timeout=60)
            assert (answer, str(error)) == (None, "broker 2 is at another address now")
            ask()
            answer, error = heard.get(timeout=60)
            assert (error, [each.node_id for each in answer.brokers]) == (None, [2])
            until(lambda: silent.open_connections == 0)
        finally:
            peers.close()


def test_a_connection_ends_when_the_other_machine_is_silent_for_a_minute() -> None:
    with ScriptedBroker() as server:
        transport = Transport.connect(HOST, server.port, Deadline.after(60), max_frame_bytes=1000)
        transport.end_if_silent(60)
        with socket.socket(fileno=os.dup(transport.fileno())) as there:
            names = ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT", "TCP_USER_TIMEOUT")
            found = {n: there.getsockopt(socket.IPPROTO_TCP, getattr(socket, n)) for n in names}
            assert there.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert found == {
            "TCP_KEEPIDLE": 20, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 4, "TCP_USER_TIMEOUT": 60_000,
        }  # fmt: skip
        transport.close()
