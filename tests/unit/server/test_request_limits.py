from __future__ import annotations

import pytest

from kafkalog_broker.server.request_limits import (
    COSTLY_ELEMENTS,
    MAX_ELEMENTS,
    MAX_PARTITIONS,
    MAX_REQUEST_BYTES,
    BeyondLimit,
    check_width,
    excess,
)
from pyspark_kafkalog.formats.base import write_uvarint
from pyspark_kafkalog.protocol.api.fetch import FetchPartition, FetchRequest, FetchTopic
from pyspark_kafkalog.protocol.api.groups import JoinGroupRequest, JoinGroupRequestProtocol
from pyspark_kafkalog.protocol.api.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from pyspark_kafkalog.protocol.exchange import ApiKey, decode_header, encode_request
from tests.support.protocol.raw_client import versions


def produce_frame(version: int, topics: int, partitions: int, records: bytes | None) -> bytearray:
    data = tuple(PartitionProduceData(p, records) for p in range(partitions))
    request = ProduceRequest(
        topic_data=tuple(
            TopicProduceData(f"a-topic-with-a-name-of-some-length-{t:06}", data) for t in range(topics)
        )
    )
    parts = encode_request(request, version=version, correlation_id=1, client_id="c")
    return bytearray(b"".join(bytes(part) for part in parts)[4:])


def check(frame: bytearray) -> None:
    header, pos = decode_header(frame)
    check_width(ApiKey(header.api_key), header, frame, pos)


@pytest.mark.parametrize("version", versions(ApiKey.PRODUCE))
def test_records_may_be_large(version: int) -> None:
    check(produce_frame(version, 2, 3, b"x" * (1 << 20)))


@pytest.mark.long("requests at their largest")
@pytest.mark.parametrize("version", versions(ApiKey.PRODUCE))
def test_as_many_partitions_as_allowed_pass_and_one_more_does_not(version: int) -> None:
    check(produce_frame(version, 1, MAX_PARTITIONS - 1, b"x" * 20))
    with pytest.raises(BeyondLimit, match=str(MAX_PARTITIONS)):
        check(produce_frame(version, 1, MAX_PARTITIONS, b"x" * 20))


@pytest.mark.parametrize("version", [0, 3, 11])
def test_topics_count_as_well_and_null_records_are_walked_over(version: int) -> None:
    half = MAX_PARTITIONS // 2
    check(produce_frame(version, half, 1, None))
    with pytest.raises(BeyondLimit):
        check(produce_frame(version, half + 1, 1, None))


@pytest.mark.parametrize("version", [0, 3, 11])
def test_a_frame_that_is_cut_is_left_to_the_decoder(version: int) -> None:
    frame = produce_frame(version, 1, 10_000, b"x" * 40)
    for cut in range(270_000, len(frame), 5003):
        check(frame[:cut])


def test_other_apis_have_one_limit() -> None:
    head = b"\x00\x03\x00\x01\x00\x00\x00\x01\xff\xff"
    check(bytearray(head + bytes(MAX_REQUEST_BYTES - len(head))))
    with pytest.raises(BeyondLimit, match=f"METADATA of {MAX_REQUEST_BYTES + 1} bytes"):
        check(bytearray(head + bytes(MAX_REQUEST_BYTES - len(head) + 1)))


def test_tagged_fields_count_like_partitions() -> None:
    payload = b"x" * 10_000
    section = bytearray()
    write_uvarint(section, 500)
    for tag in range(500):
        write_uvarint(section, tag)
        section += b"\0"  # a field of no bytes

    def tagged(partitions: int) -> bytearray:
        plain = bytes(produce_frame(11, 1, partitions, payload))
        return bytearray(plain.replace(payload + b"\0", payload + section))

    check(tagged(MAX_PARTITIONS // 501))
    with pytest.raises(BeyondLimit, match="tagged fields"):
        check(tagged(MAX_PARTITIONS // 501 + 1))


@pytest.mark.parametrize("nested", [False, True])
def test_elements_are_counted_wherever_they_are(nested: bool) -> None:
    def fetch(count: int) -> FetchRequest:
        if nested:
            return FetchRequest(topics=(FetchTopic(topic="t", partitions=(FetchPartition(),) * (count - 1)),))
        return FetchRequest(topics=(FetchTopic(),) * count)

    assert excess(ApiKey.FETCH, 5000, fetch(MAX_ELEMENTS)) is None
    said = f"FETCH of {MAX_ELEMENTS + 1} elements; the limit is {MAX_ELEMENTS}"
    assert str(excess(ApiKey.FETCH, 5000, fetch(MAX_ELEMENTS + 1))) == said


def test_costly_elements_have_a_lower_limit_and_small_requests_none() -> None:
    request = JoinGroupRequest(protocols=(JoinGroupRequestProtocol(),) * (COSTLY_ELEMENTS + 1))
    assert excess(ApiKey.JOIN_GROUP, 4096, request) is None
    said = f"JOIN_GROUP of {COSTLY_ELEMENTS + 1} elements; the limit is {COSTLY_ELEMENTS}"
    assert str(excess(ApiKey.JOIN_GROUP, 5000, request)) == said
