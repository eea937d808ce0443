from __future__ import annotations

import pytest

from broker.embedded import EmbeddedBroker
from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.api.api_versions import ApiVersionsRequest, ApiVersionsResponse
from pyspark_kafkalog.protocol.exchange import APIS, ApiKey, decode_response
from tests.support.protocol.raw_client import RawClient, versions

ASK = ApiVersionsRequest(client_software_name="raw-client", client_software_version="1.0")
SERVED = {
    0: (0, 12),
    1: (0, 13),
    2: (0, 7),
    3: (0, 12),
    8: (0, 9),
    9: (0, 9),
    10: (0, 4),
    11: (0, 9),
    12: (0, 4),
    13: (0, 5),
    14: (0, 5),
    15: (0, 6),
    16: (0, 5),
    17: (0, 1),
    18: (0, 4),
    19: (0, 7),
    20: (0, 6),
    21: (0, 2),
    22: (0, 5),
    23: (2, 4),
    24: (0, 4),
    25: (0, 4),
    26: (0, 5),
    27: (1, 1),
    28: (0, 5),
    29: (0, 3),
    30: (0, 3),
    31: (0, 3),
    32: (1, 4),
    33: (0, 2),
    35: (1, 4),
    36: (0, 2),
    37: (0, 3),
    42: (0, 2),
    44: (0, 1),
    47: (0, 0),
    48: (0, 1),
    50: (0, 0),
    51: (0, 0),
    60: (0, 1),
    61: (0, 0),
    65: (0, 0),
    66: (0, 1),
    68: (0, 1),
    69: (0, 1),
}


def table(response: ApiVersionsResponse) -> dict[int, tuple[int, int]]:
    return {entry.api_key: (entry.min_version, entry.max_version) for entry in response.api_keys}


@pytest.mark.parametrize("version", versions(ApiKey.API_VERSIONS))
def test_every_version_gets_the_whole_table(client: RawClient, version: int) -> None:
    response = client.ask(ASK, version)
    assert response.error_code == ErrorCode.NONE
    assert table(response) == SERVED


def test_no_more_is_advertised_than_the_codecs_know(client: RawClient) -> None:
    for key, (low, high) in table(client.ask(ASK)).items():
        assert (low, high) == APIS[ApiKey(key)].versions


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


def test_answers_come_in_the_order_of_pipelined_requests(client: RawClient) -> None:
    for version in (0, 3, 1, 4):
        client.send(ASK, version)
    assert [table(client.receive()) for _ in range(4)] == [SERVED] * 4


def test_transactions_of_version_2_are_announced(client: RawClient) -> None:
    response = client.ask(ASK, 3)
    (supported,), (finalized,) = response.supported_features, response.finalized_features
    assert (supported.name, supported.min_version, supported.max_version) == ("transaction.version", 1, 2)
    assert (finalized.name, finalized.max_version_level) == ("transaction.version", 2)
    assert response.finalized_features_epoch == 0
