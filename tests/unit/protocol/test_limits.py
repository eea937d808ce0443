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


ID, PRODUCED = ApiKey.INIT_PRODUCER_ID, b"\xff\xff" + bytes(6) + b"\0\0\0\1\0\1t\0\0\0\1" + bytes(4)


@pytest.mark.parametrize(
    ("key", "version", "body", "said"),
    [
        (ApiKey.METADATA, 1, TWO_BILLION + bytes(16), "topics claims 2000000000 elements; 16 bytes"),
        (ApiKey.METADATA, 12, COMPACT_TWO_BILLION + bytes(15), "topics claims 2000000000 elements; 15 bytes"),
        (ApiKey.METADATA, 1, b"\xff\xff\xff\xfe" + bytes(8), "topics claims -2 elements"),
        (ApiKey.METADATA, 12, b"\xff" * 20, "MetadataRequest v12: "),
        (
            ApiKey.OFFSET_FETCH, 1, b"\0\1g\0\0\0\1\0\1t" + TWO_BILLION + bytes(20),
            "partition_indexes claims 2000000000 elements",
        ),
        (ApiKey.PRODUCE, 3, PRODUCED + TWO_BILLION + bytes(10), "records claims 2000000000 bytes; 10 are"),
        (
            ApiKey.PRODUCE, 9, bytes(7) + b"\2\2t\2" + bytes(4) + COMPACT_TWO_BILLION + bytes(10),
            "records claims 2000000000 bytes; 10 are left",
        ),
        (ID, 2, bytes(5) + COMPACT_TWO_BILLION + bytes(8), "InitProducerIdRequest v2: "),
        (ID, 2, bytes(5) + b"\1\7" + COMPACT_TWO_BILLION + bytes(8), "claims 2000000001 bytes; 8 are left"),
        (ID, 2, bytes(5) + b"\1\7\x09" + bytes(8), "tagged field claims 9 bytes; 8 are left"),
        (
            ApiKey.FETCH, 12, bytes(25) + b"\1\1\1" + b"\1\x7e\x09" + bytes(8),
            "tagged field 126 claims 9 bytes; 8 are left",
        ),
        (ID, 2, b"\x81\x80\x02" + bytes(40000), "transactional_id claims 32768 bytes"),
        (ID, 0, b"\xff\xfe" + bytes(8), "transactional_id claims -2"),
        (ID, 0, b"\x80\x00" + bytes(8), "transactional_id claims -32768"),
        (ID, 0, b"\0\2\xff\xfe" + bytes(4), "utf-8"),
    ],
    ids=[
        "topics", "compact topics", "a negative count", "a varint without end", "numbers", "records",
        "compact records", "tagged fields", "a tagged field", "a byte too many in one",
        "a byte too many beside known fields", "a string above Kafka's limit", "a negative length",
        "the least length", "no text",
    ],
)  # fmt: skip
def test_a_claim_is_refused_before_it_costs_anything(
    key: ApiKey, version: int, body: bytes, said: str
) -> None:
    assert said in refused(key, version, body)


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


def test_a_known_tagged_field_must_fill_its_bytes() -> None:
    # Fetch v12 with cluster_id (tag 0) of two bytes in a field of three.
    body = bytes(4 * 4) + b"\0" + bytes(8) + b"\1\1\1" + b"\1" + b"\0\3\2aX"
    text = refused(ApiKey.FETCH, 12, body)
    assert text == "FetchRequest v12: FetchRequest.cluster_id does not end with its 3 bytes"


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.key.name)
def test_a_megabyte_of_zeros_or_ones_does_no_harm(api: object) -> None:
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
