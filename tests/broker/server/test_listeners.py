"""Several listeners of one wire: each tells its clients its own addresses."""

from __future__ import annotations

import pytest

from broker.embedded import start_broker
from pyspark_kafkalog.protocol.api.metadata import MetadataRequest
from tests.support.protocol.raw_client import RawClient


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
