from __future__ import annotations

from contextlib import closing

import pytest

from kafkalog_broker.embedded import EmbeddedBroker
from pyspark_kafkalog.client.discovery import Cluster
from pyspark_kafkalog.config.client_config import ClientConfig
from pyspark_kafkalog.config.definition import parse
from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.api.metadata import ApiVersionsRequest, ApiVersionsResponse
from pyspark_kafkalog.protocol.exchange import APIS, ApiKey, decode_response
from tests.support.protocol.raw_client import RawClient, versions

ASK = ApiVersionsRequest(client_software_name="raw-client", client_software_version="1.0")
SERVED = {int(api.key): tuple(api.versions) for api in APIS.values()}
"""What it should be is in tests/unit/protocol/test_versions.py."""


def table(response: ApiVersionsResponse) -> dict[int, tuple[int, int]]:
    return {entry.api_key: (entry.min_version, entry.max_version) for entry in response.api_keys}


@pytest.mark.parametrize("version", versions(ApiKey.API_VERSIONS))
def test_every_version_gets_the_whole_table(client: RawClient, version: int) -> None:
    response = client.ask(ASK, version)
    assert response.error_code == ErrorCode.NONE
    assert table(response) == SERVED


def test_an_unknown_version_is_answered_in_the_body_of_version_0(running_broker: EmbeddedBroker) -> None:
    with RawClient(running_broker.port) as client:
        header = b"\x00\x12" + b"\x00\x63" + b"\x00\x00\x00\x07" + b"\xff\xff" + b"\x00"
        client.send_bytes(len(header).to_bytes(4, "big") + header)
        correlation_id, response = decode_response(ApiKey.API_VERSIONS, 0, client.receive_frame())
        assert correlation_id == 7
        assert response.error_code == ErrorCode.UNSUPPORTED_VERSION
        assert table(response) == SERVED
        assert client.ask(ASK, 3).error_code == ErrorCode.NONE  # the connection goes on


@pytest.mark.parametrize("name", ["", "-x", "a b", "x.", "é"])
def test_a_client_without_a_proper_name_gets_an_error(client: RawClient, name: str) -> None:
    request = ApiVersionsRequest(client_software_name=name, client_software_version="1")
    assert client.ask(request, 3).error_code == ErrorCode.INVALID_REQUEST


def test_transactions_of_version_2_are_announced(client: RawClient) -> None:
    response = client.ask(ASK, 3)
    (supported,), (finalized,) = response.supported_features, response.finalized_features
    assert (supported.name, supported.min_version, supported.max_version) == ("transaction.version", 1, 2)
    assert (finalized.name, finalized.max_version_level) == ("transaction.version", 2)
    assert response.finalized_features_epoch == 0


@pytest.mark.parametrize("own", ["0.2.0", "0.2.1.dev7+g0a1b2c3.d20261128", "0+unknown"])
def test_a_build_between_releases_tells_a_version_that_brokers_take(
    own: str, running_broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyspark_kafkalog.__version__", own, raising=False)
    config = parse(ClientConfig, {"bootstrap.servers": running_broker.bootstrap_servers}, source="test")
    with closing(Cluster(config)) as cluster:
        assert cluster.metadata([]).topics == {}
