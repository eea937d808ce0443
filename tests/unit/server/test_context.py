from __future__ import annotations

from typing import Any, cast

import pytest

from kafkalog_broker.metrics import Metrics
from kafkalog_broker.server.dispatch import Context, Services
from pyspark_kafkalog.errors import ErrorCode, InvalidRecord, KafkaError, StorageError
from pyspark_kafkalog.protocol.exchange import ApiKey, RequestHeader


class _Services:
    def __init__(self) -> None:
        self.metrics = Metrics()


class _Reply:
    peer = "somebody"


@pytest.mark.parametrize(
    ("key", "error", "version", "told"),
    [
        (ApiKey.PRODUCE, InvalidRecord("x"), 2, ErrorCode.CORRUPT_MESSAGE),
        (ApiKey.PRODUCE, InvalidRecord("x"), 3, ErrorCode.INVALID_RECORD),
        (ApiKey.PRODUCE, StorageError("x"), 3, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (ApiKey.PRODUCE, StorageError("x"), 4, ErrorCode.KAFKA_STORAGE_ERROR),
        (ApiKey.FETCH, StorageError("x"), 5, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (ApiKey.FETCH, StorageError("x"), 6, ErrorCode.KAFKA_STORAGE_ERROR),
        (ApiKey.METADATA, StorageError("x"), 0, ErrorCode.KAFKA_STORAGE_ERROR),
    ],
)
def test_clients_get_error_codes_they_know_and_all_are_counted(
    key: ApiKey, error: KafkaError, version: int, told: ErrorCode
) -> None:
    services = _Services()
    header = RequestHeader(key, version, 1, "c")
    context = Context(cast("Services", services), header, cast("Any", _Reply()))
    assert context.refused(error) is told
    labels = {"api": key.name, "code": error.code.name}
    sample = services.metrics.registry.get_sample_value("kafkalog_broker_request_errors_total", labels)
    assert sample == 1
