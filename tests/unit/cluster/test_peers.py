"""How a broker calls others: its login from the listener's properties, and answers that come or do not."""

from __future__ import annotations

import queue
from typing import Any

import pytest

from broker.cluster.peers import Peers, peer_config
from broker.config import BrokerConfig
from broker.embedded import start_broker
from pyspark_kafkalog.clock import SYSTEM_CLOCK
from pyspark_kafkalog.errors import ConnectionLost, InvalidConfig, KafkaError
from pyspark_kafkalog.protocol.api.metadata import MetadataRequest
from pyspark_kafkalog.protocol.exchange import APIS, ApiKey

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


def test_every_call_has_one_answer_and_a_dead_broker_fails_them() -> None:
    heard: queue.SimpleQueue[tuple[Any, KafkaError | None]] = queue.SimpleQueue()
    addresses: dict[int, tuple[str, int]] = {}
    version = APIS[ApiKey.METADATA].versions.max
    peers = Peers(peer_config(BrokerConfig.load(None, {})), addresses.get, SYSTEM_CLOCK)

    def ask(broker: int) -> tuple[Any, KafkaError | None]:
        peers.ask(broker, MetadataRequest(topics=()), version, lambda *told: heard.put(told))
        return heard.get(timeout=20)

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
