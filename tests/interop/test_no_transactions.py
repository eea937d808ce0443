"""What transactional clients are told by a broker that has no transactions: at once, and for good."""

from __future__ import annotations

import time

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer


def test_librdkafka_gets_an_error_and_stops_asking(servers: str) -> None:
    producer = Producer({"bootstrap.servers": servers, "transactional.id": "t", "log_level": 0})
    began = time.monotonic()
    with pytest.raises(KafkaException) as refused:
        producer.init_transactions(120)
    assert time.monotonic() - began < 60
    error = refused.value.args[0]
    assert error.code() == KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert error.fatal()
    assert not error.retriable()
    assert "this broker has no transactions; leave transactional.id out" in error.str()
