from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from pyspark_kafkalog.errors import ErrorCode, InvalidRequest, UnsupportedVersion
from pyspark_kafkalog.protocol.api.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchResponse,
    LeaderIdAndEpoch,
    PartitionData,
    SnapshotId,
)
from pyspark_kafkalog.protocol.api.metadata import (
    ApiVersion,
    ApiVersionsResponse,
    FindCoordinatorRequest,
    MetadataRequest,
    MetadataRequestTopic,
)
from pyspark_kafkalog.protocol.api.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from pyspark_kafkalog.protocol.api.producers import InitProducerIdRequest
from pyspark_kafkalog.protocol.api.topics import CreatableTopic, CreateTopicsRequest
from pyspark_kafkalog.protocol.exchange import (
    ApiKey,
    RequestHeader,
    decode_header,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)


def joined(parts: list[object]) -> bytes:
    return b"".join(bytes(part) for part in parts)  # type: ignore[call-overload]


def asked(request: object, version: int, client_id: str | None = "me") -> bytes:
    return joined(encode_request(request, version=version, correlation_id=9, client_id=client_id))


class Region:
    """Something of which only the length may be asked."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size


def test_a_classic_request_is_these_bytes() -> None:
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60000)
    assert asked(request, 1).hex(" ") == (
        "00 00 00 12  00 16 00 01 00 00 00 09 00 02 6d 65  ff ff 00 00 ea 60".replace("  ", " ")
    )


def test_a_flexible_request_keeps_the_short_length_of_client_id() -> None:
    request = InitProducerIdRequest(transactional_id="tx", transaction_timeout_ms=1)
    assert asked(request, 2, client_id="me").hex(" ") == (
        "00 00 00 15  00 16 00 02 00 00 00 09 00 02 6d 65 00  03 74 78 00 00 00 01 00".replace("  ", " ")
    )
    assert asked(request, 2, client_id=None)[12:15].hex(" ") == "ff ff 00"


def test_the_header_of_an_unknown_api_can_be_read() -> None:
    frame = bytes.fromhex("03e7 0005 0000002a 0003 616263 ffff")
    assert decode_header(frame) == (RequestHeader(999, 5, 42, "abc"), 13)
    with pytest.raises(UnsupportedVersion, match=r"unknown API 999 \(version 5\)"):
        decode_request(RequestHeader(999, 5, 42, "abc"), frame, 13)


@pytest.mark.parametrize("version", [-1, 13, 32767])
def test_a_version_outside_the_table_is_not_supported(version: int) -> None:
    header = RequestHeader(ApiKey.PRODUCE, version, 1, None)
    with pytest.raises(UnsupportedVersion, match=f"PRODUCE version {version}; known are 0 to 12"):
        decode_request(header, b"", 0)
    with pytest.raises(UnsupportedVersion):
        encode_request(ProduceRequest(), version=version, correlation_id=1, client_id=None)


def test_the_header_of_an_apiversions_request_from_the_future_can_be_read() -> None:
    frame = bytes.fromhex("0012 0063 00000007 0001 61 00") + b"whatever comes then"
    header, pos = decode_header(frame)
    assert (header, pos) == (RequestHeader(ApiKey.API_VERSIONS, 99, 7, "a"), 12)
    with pytest.raises(UnsupportedVersion):
        decode_request(header, frame, pos)


@pytest.mark.parametrize(
    "frame",
    [
        b"", b"\0\x12\0\3", b"\0\x12\0\3\0\0\0\1", b"\0\x12\0\3\0\0\0\1\0\5abc", b"\0\x12\0\3\0\0\0\1\0\1a",
        b"\0\3\0\1\0\0\0\1\0\2\xff\xfe", b"\0\3\0\1\0\0\0\1\xff\xfe",
    ],
)  # fmt: skip
def test_a_header_cut_short_or_with_an_invalid_client_id_is_an_invalid_request(frame: bytes) -> None:
    with pytest.raises(InvalidRequest, match="request header"):
        decode_header(frame)


@pytest.mark.parametrize("version", [0, 1, 2, 3, 4])
def test_an_apiversions_answer_never_has_tagged_fields_in_its_header(version: int) -> None:
    answer = ApiVersionsResponse(api_keys=(ApiVersion(18, 0, 4),))
    frame = joined(encode_response(answer, version=version, correlation_id=0x01020304))[4:]
    assert frame[:6] == b"\1\2\3\4\0\0"
    assert decode_response(ApiKey.API_VERSIONS, version, frame) == (0x01020304, answer)


@pytest.mark.parametrize("asked_version", [0, 1, 2, 3, 4])
def test_a_broker_that_knows_no_such_version_is_understood(asked_version: int) -> None:
    refusal = ApiVersionsResponse(ErrorCode.UNSUPPORTED_VERSION, (ApiVersion(18, 0, 2), ApiVersion(3, 0, 8)))
    frame = joined(encode_response(refusal, version=0, correlation_id=1))[4:]
    assert frame.hex(" ", 2) == "0000 0001 0023 0000 0002 0012 0000 0002 0003 0000 0008"
    assert decode_response(ApiKey.API_VERSIONS, asked_version, frame) == (1, refusal)


def test_an_apiversions_answer_that_is_not_a_refusal_must_be_in_the_version_asked() -> None:
    frame = joined(encode_response(ApiVersionsResponse(), version=0, correlation_id=1))[4:]
    with pytest.raises(InvalidRequest, match="ApiVersionsResponse v3"):
        decode_response(ApiKey.API_VERSIONS, 3, frame)


def produce(*records: object) -> ProduceRequest:
    data = tuple(PartitionProduceData(i, item) for i, item in enumerate(records))
    return ProduceRequest(acks=-1, timeout_ms=500, topic_data=(TopicProduceData("t", data),))


@pytest.mark.parametrize("version", [3, 8, 9, 11])
def test_record_sets_go_out_as_the_objects_they_are(version: int) -> None:
    first, second = Region(1000), memoryview(b"batch")
    parts = encode_request(produce(first, second), version=version, correlation_id=1, client_id="me")
    assert [part for part in parts if part is first or part is second] == [first, second]
    size = int.from_bytes(bytes(parts[0])[:4], "big")  # type: ignore[call-overload]
    assert size == sum(len(part) for part in parts) - 4


@pytest.mark.parametrize("version", [4, 10, 11, 12])
def test_an_empty_region_is_a_part_too_so_that_somebody_closes_it(version: int) -> None:
    region = Region(0)
    answer = FetchResponse(
        responses=(FetchableTopicResponse(topic="t", partitions=(PartitionData(records=region),)),)
    )
    parts = encode_response(answer, version=version, correlation_id=1)
    assert sum(part is region for part in parts) == 1


@pytest.mark.parametrize("version", [3, 9, 11])
def test_record_sets_are_read_as_writable_slices_of_the_frame(version: int) -> None:
    frame = bytearray(asked(produce(b"batch", None, b""), version)[4:])
    header, pos = decode_header(frame)
    request = decode_request(header, frame, pos)
    records = [item.records for item in request.topic_data[0].partition_data]
    assert isinstance(records[0], memoryview)
    records[0][:] = b"BATCH"
    assert b"BATCH" in frame
    assert records[1:] == [None, b""]


def test_a_message_larger_than_a_frame_can_be_is_refused() -> None:
    huge = Region(2**31 - 10)
    with pytest.raises(InvalidRequest, match="the limit is 2147483647"):
        encode_request(produce(huge), version=8, correlation_id=1, client_id="me")


ABORTED = {"aborted_transactions": (AbortedTransaction(8, 9),)}


@pytest.mark.parametrize(
    ("version", "given"),
    [
        (11, ABORTED),
        (12, ABORTED),
        (12, {"current_leader": LeaderIdAndEpoch(4, 5)}),
        (12, {"diverging_epoch": EpochEndOffset(4, 5)}),
        (12, {"snapshot_id": SnapshotId(4, 5)}),
    ],
)
def test_a_partition_with_more_than_records_takes_the_long_way(version: int, given: dict[str, Any]) -> None:
    full = PartitionData(3, ErrorCode.OFFSET_OUT_OF_RANGE, high_watermark=7, records=b"batch", **given)
    partitions = (full, PartitionData(records=b"x"))
    answer = FetchResponse(responses=(FetchableTopicResponse(topic="t", partitions=partitions),))
    frame = joined(encode_response(answer, version=version, correlation_id=1))[4:]
    assert decode_response(ApiKey.FETCH, version, frame) == (1, answer)


def test_what_a_version_cannot_say_is_refused_unless_it_may_be_left_out() -> None:
    with pytest.raises(InvalidRequest, match=r"v0: this version has no field for key_type=1"):
        asked(FindCoordinatorRequest("g", key_type=1), 0)
    with pytest.raises(InvalidRequest, match="no field for coordinator_keys"):
        asked(FindCoordinatorRequest("g", coordinator_keys=("a",)), 3)
    partition = PartitionData(current_leader=LeaderIdAndEpoch(1, 1), records=b"")
    answer = FetchResponse(responses=(FetchableTopicResponse(topic="t", partitions=(partition,)),))
    with pytest.raises(InvalidRequest, match="no field for current_leader"):
        encode_response(answer, version=11, correlation_id=1)
    by_id = MetadataRequest((MetadataRequestTopic(UUID(int=5), "t"),))
    assert b"\0\1t" in asked(by_id, 1)


def test_null_is_refused_where_a_version_has_no_null() -> None:
    with pytest.raises(InvalidRequest, match=r"MetadataRequest\.topics cannot be null in this version"):
        asked(MetadataRequest(None), 0)
    with pytest.raises(InvalidRequest, match=r"MetadataRequestTopic\.name cannot be null in this version"):
        asked(MetadataRequest((MetadataRequestTopic(),)), 9)


@pytest.mark.parametrize(
    "topic",
    [
        CreatableTopic("t", num_partitions=2**31),
        CreatableTopic("t", replication_factor=-32769),
        CreatableTopic("x" * 32768),
        CreatableTopic("\ud800"),
    ],
    ids=["int32", "int16", "long string", "no UTF-8"],
)
@pytest.mark.parametrize("version", [4, 7])
def test_values_that_do_not_fit_their_type_are_refused(topic: CreatableTopic, version: int) -> None:
    with pytest.raises(InvalidRequest, match=f"CreateTopicsRequest v{version}"):
        asked(CreateTopicsRequest((topic,)), version)


def test_an_error_code_that_we_do_not_know_reads_as_unknown() -> None:
    frame = b"\0\0\0\1" + (9999).to_bytes(2, "big") + b"\0\0\0\0"
    assert decode_response(ApiKey.API_VERSIONS, 0, frame)[1].error_code is ErrorCode.UNKNOWN_SERVER_ERROR
