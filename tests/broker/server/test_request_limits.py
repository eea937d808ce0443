"""Requests with more elements than the broker serves: an error for each, and the connection stays."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from kafkalog_broker.config.broker_config import BrokerConfig
from kafkalog_broker.server import request_limits
from kafkalog_broker.server.broker import Broker
from kafkalog_broker.server.dispatch import REGISTRY
from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.api.configs import DescribeConfigsRequest, DescribeConfigsResource
from pyspark_kafkalog.protocol.api.topics import (
    CreatableTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from pyspark_kafkalog.protocol.codec import Array, WireStruct, specs
from pyspark_kafkalog.protocol.exchange import ApiKey, encode_request
from tests.support.protocol.good_requests import good_request, good_requests
from tests.support.protocol.raw_client import RawClient

LIMIT = 500

DENIED_OTHERWISE = {
    (ApiKey.FETCH, 13): ErrorCode.UNKNOWN_TOPIC_ID,  # an id is looked up first
    (ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0): ErrorCode.INVALID_REQUEST,  # the cursor is in none of them
    (ApiKey.CREATE_ACLS, 0): ErrorCode.SECURITY_DISABLED,
    (ApiKey.CREATE_ACLS, 3): ErrorCode.SECURITY_DISABLED,
    (ApiKey.DELETE_ACLS, 0): ErrorCode.SECURITY_DISABLED,
    (ApiKey.DELETE_ACLS, 3): ErrorCode.SECURITY_DISABLED,
}


COUNT = 1_500
"""More than Kafka's tools put into one request, such as all topics of a cluster."""


@pytest.mark.parametrize(
    ("request_of_many", "code"),
    [
        (
            CreateTopicsRequest(
                topics=tuple(
                    CreatableTopic(name=f"t-{n}", num_partitions=1, replication_factor=1)
                    for n in range(COUNT)
                ),
                validate_only=True,
            ),
            ErrorCode.NONE,
        ),
        (
            DeleteTopicsRequest(topics=tuple(DeleteTopicState(name=f"t-{n}") for n in range(COUNT))),
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ),
        (
            DescribeConfigsRequest(
                resources=tuple(DescribeConfigsResource(2, f"t-{n}", None) for n in range(COUNT))
            ),
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ),
    ],
    ids=["CreateTopics", "DeleteTopics", "DescribeConfigs"],
)
def test_all_topics_of_a_cluster_fit_in_one_request(
    client: RawClient, request_of_many: Any, code: ErrorCode
) -> None:
    assert Counter(_codes(client.ask(request_of_many))) == {code: COUNT}


@pytest.fixture
def few_elements(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_limits, "MAX_ELEMENTS", LIMIT)
    monkeypatch.setattr(request_limits, "COSTLY_ELEMENTS", LIMIT)


@pytest.fixture
def client(tmp_path: Path) -> Iterator[RawClient]:
    broker = Broker(
        BrokerConfig.load(None, {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(tmp_path)})
    )
    broker.start()
    with RawClient(broker.port) as connected:
        yield connected
    broker.stop()


@pytest.mark.usefixtures("few_elements")
def test_too_many_elements_get_an_error_each(client: RawClient, caplog: pytest.LogCaptureFixture) -> None:
    refused = set()
    for key in good_requests():
        for version in sorted(set(REGISTRY[key].versions)):
            request = _with_many(good_request(key, version), LIMIT + 1)
            if request is None or _size(request, version) <= request_limits.FEW_BYTES:
                continue
            caplog.clear()
            answered = Counter(_codes(client.ask(request, version)))
            wanted = DENIED_OTHERWISE.get((key, version), ErrorCode.POLICY_VIOLATION)
            assert answered.keys() <= {wanted, ErrorCode.NONE}, (key, version, answered)
            assert f"{key.name} of " in caplog.text
            assert caplog.records[0].levelno == logging.WARNING
            refused.add(key)
    assert len(refused) >= 30


def _size(request: Any, version: int) -> int:
    return sum(map(len, encode_request(request, version=version, correlation_id=1, client_id="c")))


def _with_many(request: Any, count: int) -> Any:
    """The request with so many elements in the first array that it has; None if it has none."""
    for name, spec in specs(type(request)):
        value = getattr(request, name)
        if isinstance(spec.type, Array) and value:
            return structs.replace(
                request, **{name: tuple(_another(value[0], number) for number in range(count))}
            )
    return None


def _another(element: Any, number: int) -> Any:
    name = f"one-of-far-too-many-{number}"
    if isinstance(element, str):
        return name
    for field in ("name", "topic", "group_id", "resource_name", "member_id"):
        if hasattr(element, field):
            return structs.replace(element, **{field: name})
    return element


def _codes(message: Any) -> Iterator[ErrorCode]:
    if isinstance(message, tuple):
        for each in message:
            yield from _codes(each)
    elif isinstance(message, WireStruct):
        for name, value in structs.asdict(message).items():
            if name == "error_code":
                yield ErrorCode(value)
            else:
                yield from _codes(value)
