"""A group's offsets in Kafka: kept by the coordinator, wherever it is by now."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from kafkalog_broker.embedded import start_broker
from pyspark_kafkalog.classic.consumer.offset_store import KafkaOffsets
from pyspark_kafkalog.config.classic_config import ConnectorConfig
from pyspark_kafkalog.errors import ConnectionLost, InvalidRequest
from pyspark_kafkalog.zookeeper.paths import PartitionKey
from tests.support.protocol.raw_client import RawClient
from tests.support.until import until

T = TypeVar("T")

CONFIG = ConnectorConfig(
    zookeeper_connect="nobody:1", protocol="0.8", offsets_storage="kafka", offsets_timeout_ms=2000
)
A, B = PartitionKey("t", "0", 0), PartitionKey("t", "1", 1)


def patiently(call: Callable[[], T]) -> T:
    """Again, if the broker was not given those two seconds of the machine's time."""
    found: list[T] = []

    def attempt() -> bool:
        with contextlib.suppress(ConnectionLost):
            found.append(call())
        return bool(found)

    until(attempt)
    return found[0]


@pytest.mark.long("a group whose members die and return")
def test_the_coordinator_is_found_again_after_it_moved(tmp_path: Path) -> None:
    addresses: list[tuple[str, int]] = []
    offsets = KafkaOffsets(CONFIG, lambda: addresses)
    with pytest.raises(ConnectionLost, match="group group1: no broker is registered to store offsets"):
        offsets.load([A])
    with start_broker(data_dir=tmp_path) as broker, RawClient(broker.port) as client:
        client.create_topic("t", partitions=2)
        addresses.append((broker.host, broker.port))
        assert patiently(lambda: offsets.load([A, B])) == {}
        patiently(lambda: offsets.save({A: 5, B: 7}))
        assert patiently(lambda: offsets.load([A, B])) == {A: 5, B: 7}
        with pytest.raises(InvalidRequest, match="offset -3 cannot be committed"):
            offsets.save({A: -3})
    with pytest.raises(ConnectionLost):
        offsets.save({A: 6})
    with start_broker({"listeners": "PLAINTEXT://127.0.0.1:0"}, data_dir=tmp_path) as moved:
        addresses[:] = [(moved.host, moved.port)]
        assert patiently(lambda: offsets.load([A, B])) == {A: 5, B: 7}
        patiently(lambda: offsets.save({A: 8}))
        assert patiently(lambda: offsets.load([A, B])) == {A: 8, B: 7}
        offsets.close()
