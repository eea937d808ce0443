"""A claim costs nothing: lengths are held against the bytes that are there before memory is taken."""

from __future__ import annotations

import tracemalloc

import pytest

from pyspark_kafkalog.errors import InvalidRequest
from pyspark_kafkalog.protocol.exchange import (
    APIS,
    ApiKey,
    RequestHeader,
    decode_header,
    decode_request,
    decode_response,
)
from tests.support.counted_calls import counted

TWO_BILLION = (2_000_000_000).to_bytes(4, "big")
COMPACT_TWO_BILLION = b"\x81\xa8\xd6\xb9\x07"


def refused(key: ApiKey, version: int, body: bytes) -> str:
    """The text of the refusal, after making sure that it cost neither memory nor work."""

    def asked() -> InvalidRequest:
        with pytest.raises(InvalidRequest) as caught:
            decode_request(RequestHeader(key, version, 1, None), body, 0)
        return caught.value

    tracemalloc.start()
    try:
        refusal, calls = counted(asked)
        assert tracemalloc.get_traced_memory()[1] < 500_000
        assert calls < 10_000
    finally:
        tracemalloc.stop()
    return str(refusal)


def test_two_billion_topics_in_a_request_of_twenty_bytes_cost_nothing() -> None:
    text = refused(ApiKey.METADATA, 1, TWO_BILLION + bytes(16))
    assert text == "MetadataRequest v1: MetadataRequest.topics claims 2000000000 elements; 16 bytes are left"


def test_two_billion_topics_in_a_compact_array_cost_nothing() -> None:
    text = refused(ApiKey.METADATA, 12, COMPACT_TWO_BILLION + bytes(15))
    assert text.endswith("MetadataRequest.topics claims 2000000000 elements; 15 bytes are left")


def test_two_billion_numbers_cost_nothing() -> None:
    topic = b"\0\0\0\1" + b"\0\1t" + TWO_BILLION + bytes(20)
    assert "partition_indexes claims 2000000000 elements" in refused(ApiKey.OFFSET_FETCH, 1, b"\0\1g" + topic)


def test_two_billion_tagged_fields_cost_nothing() -> None:
    text = refused(ApiKey.INIT_PRODUCER_ID, 2, b"\0" + bytes(4) + COMPACT_TWO_BILLION + bytes(8))
    assert text.startswith("InitProducerIdRequest v2")


@pytest.mark.parametrize("key", [ApiKey.INIT_PRODUCER_ID, ApiKey.FETCH])
def test_more_tagged_fields_than_anybody_defines_are_not_walked_over(key: ApiKey) -> None:
    # 0x7e is a tag that no message has; Fetch knows tags of its own in the same place.
    body, version = (b"\0" + bytes(4), 2) if key is ApiKey.INIT_PRODUCER_ID else (bytes(25) + b"\1\1\1", 12)
    assert decode_request(RequestHeader(key, version, 1, None), body + b"\xe8\x07" + b"\x7e\0" * 1000, 0)
    text = refused(key, version, body + b"\xe9\x07" + b"\x7e\0" * 1001)
    assert text.endswith("1001 tagged fields in one place; the limit is 1000")


def test_the_header_of_a_large_request_has_no_more_tagged_fields_either() -> None:
    frame = b"\0\0\0\x09\0\0\0\1\xff\xff" + b"\xe9\x07" + b"\x7e\0" * 1001
    with pytest.raises(InvalidRequest, match=r"request header: 1001 tagged fields in one place"):
        decode_header(frame)


def test_a_tagged_field_of_two_billion_bytes_costs_nothing() -> None:
    text = refused(ApiKey.INIT_PRODUCER_ID, 2, b"\0" + bytes(4) + b"\1\7" + COMPACT_TWO_BILLION + bytes(8))
    assert "tagged field claims 2000000001 bytes; 8 are left" in text


@pytest.mark.parametrize(("version", "length"), [(3, TWO_BILLION), (9, COMPACT_TWO_BILLION)])
def test_a_record_set_of_two_billion_bytes_costs_nothing(version: int, length: bytes) -> None:
    one = b"\2" if version == 9 else b"\0\0\0\1"
    name = b"\2t" if version == 9 else b"\0\1t"
    null = b"\0" if version == 9 else b"\xff\xff"
    body = null + bytes(6) + one + name + one + bytes(4) + length + bytes(10)
    assert "records claims 2000000000 bytes; 10 are left" in refused(ApiKey.PRODUCE, version, body)


def test_a_string_longer_than_kafka_allows_is_refused() -> None:
    body = b"\x81\x80\x02" + bytes(40000)
    assert "claims 32768 bytes" in refused(ApiKey.INIT_PRODUCER_ID, 2, body)


@pytest.mark.parametrize("length", [b"\xff\xfe", b"\x80\x00"])
def test_a_negative_length_is_refused(length: bytes) -> None:
    assert "transactional_id claims -" in refused(ApiKey.INIT_PRODUCER_ID, 0, length + bytes(8))


def test_a_negative_count_is_refused() -> None:
    assert "claims -2 elements" in refused(ApiKey.METADATA, 1, b"\xff\xff\xff\xfe" + bytes(8))


def test_a_varint_that_never_ends_is_refused() -> None:
    assert refused(ApiKey.METADATA, 12, b"\xff" * 20).startswith("MetadataRequest v12")


def test_a_known_tagged_field_must_fill_its_bytes() -> None:
    # Fetch v12 with cluster_id (tag 0) of two bytes in a field of three.
    body = bytes(4 * 4) + b"\0" + bytes(8) + b"\1\1\1" + b"\1" + b"\0\3\2aX"
    text = refused(ApiKey.FETCH, 12, body)
    assert text == "FetchRequest v12: FetchRequest.cluster_id does not end with its 3 bytes"


def test_text_that_is_not_utf8_is_refused() -> None:
    assert "utf-8" in refused(ApiKey.INIT_PRODUCER_ID, 0, b"\0\2\xff\xfe" + bytes(4))


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.key.name)
def test_a_megabyte_of_zeros_or_ones_is_no_trouble(api: object) -> None:
    for version in range(api.versions.min, api.versions.max + 1):  # type: ignore[attr-defined]
        for fill in (b"\0", b"\1", b"\x7f", b"\xff"):
            body = fill * (1 << 16)
            for response in (False, True):
                try:
                    if response:
                        decode_response(api.key, version, body)  # type: ignore[attr-defined]
                    else:
                        decode_request(RequestHeader(api.key, version, 1, None), body, 0)  # type: ignore[attr-defined]
                except InvalidRequest:
                    pass
