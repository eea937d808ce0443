"""0.7's five requests and their answers: the bytes of its clients, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from pyspark_kafkalog.errors import ErrorCode, InvalidRequest, InvalidTopic
from pyspark_kafkalog.formats.v07 import encode_set
from pyspark_kafkalog.protocol import exchange
from pyspark_kafkalog.protocol.api.metadata import ApiVersionsRequest, MetadataRequest
from pyspark_kafkalog.protocol.api.produce import PartitionProduceData, TopicProduceData
from pyspark_kafkalog.protocol.api.produce import ProduceRequest as ModernProduceRequest
from pyspark_kafkalog.protocol.v07 import (
    FetchRequest,
    FetchResponse,
    MultiFetchRequest,
    MultiFetchResponse,
    MultiProduceRequest,
    OffsetsRequest,
    OffsetsResponse,
    ProduceRequest,
    Request,
    RequestType,
    check_topic,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    known_error,
)
from tests.support.formats.captures_07 import PRODUCED, captured, captures


def joined(parts: list[Any]) -> bytes:
    return b"".join(map(bytes, parts))


def fetches(*asked: tuple[str, int, int, int]) -> tuple[FetchRequest, ...]:
    return tuple(FetchRequest(*fields) for fields in asked)


CLICKS = FetchRequest("clicks", 0, 0, 65536)
REQUESTS: dict[str, Request] = {
    "brod-0.4.3-fetch": CLICKS,
    "brod-0.4.3-offsets-3": OffsetsRequest("clicks", 0, 1300000000000, 10),
    "samsa-0.3.11-multiproduce": MultiProduceRequest(
        (
            ProduceRequest("clicks", 0, encode_set([b"a"], magic=0)),
            ProduceRequest("clicks1", 0, encode_set([b"b", b"cc"], magic=0)),
        )
    ),
    "samsa-0.3.11-offsets-2": OffsetsRequest("clicks", 0, -2, 5),
    "scala-0.7.2-multifetch": MultiFetchRequest(
        fetches(
            ("plain", 0, 0, 1000),
            ("other", 1, 0, 1000),
            ("nosuch", 0, 0, 100),
            ("plain", 0, 99999, 100),
            ("plain", 7, 0, 100),
        )
    ),
}
"""One or two of each kind."""
ALL = [name for name in captures("") if "segment" not in name]


@pytest.mark.parametrize("name", REQUESTS)
def test_a_captured_request_is_read(name: str) -> None:
    assert decode_request(captured(name)[4:]) == REQUESTS[name]


@pytest.mark.parametrize("name", PRODUCED)
def test_a_captured_produce_is_read_and_its_messages_are_a_slice_of_the_frame(name: str) -> None:
    topic, partition, _, _ = PRODUCED[name]
    frame = captured(name)[4:]
    request = decode_request(frame)
    assert isinstance(request, ProduceRequest)
    assert (request.topic, request.partition) == (topic, partition)
    assert request.messages.obj is frame
    assert request.messages == frame[2 + 2 + len(topic) + 8 :]


@pytest.mark.parametrize("name", ALL)
def test_a_captured_request_is_written_as_its_client_wrote_it(name: str) -> None:
    frame = captured(name)
    assert joined(encode_request(decode_request(frame[4:]))) == frame


# --- requests that no broker takes, and yet are requests


def test_the_length_of_a_topic_counts_bytes() -> None:
    assert joined(encode_request(FetchRequest("té", 0, 0, 0)))[6:11] == b"\0\3t\xc3\xa9"


# --- requests that are none


@pytest.mark.parametrize(
    ("frame", "why"),
    [
        ("", "request of 0 bytes"),
        ("00", "request of 1 bytes"),
        ("0009", "unknown request type 9"),
        ("ffff", "unknown request type -1"),
        ("0012 0003 00000001 0000", "unknown request type 18"),
        ("0001 ffff 00000000 0000000000000000 00000064", "topic claims -1 bytes"),
        ("0001 7fff 00000000 0000000000000000 00000064", "topic claims 32767 bytes; 16 are left"),
        ("0001 0001 ff 00000000 0000000000000000 00000064", "utf-8"),
        ("0000 0001 61 00000000 ffffffff", "messages claim -1 bytes"),
        ("0000 0001 61 00000000 7fffffff 0000", "messages claim 2147483647 bytes; 2 are left"),
        ("0002 ffff", "a request with -1 parts"),
        ("0003 8000", "a request with -32768 parts"),
        ("0002 7fff", "request of 4 bytes"),
        ("0002 0000 00", "its fields end at byte 4 of 5"),
    ],
)
def test_an_invalid_request_is_refused_with_the_reason(frame: str, why: str) -> None:
    with pytest.raises(InvalidRequest, match=why):
        decode_request(bytes.fromhex(frame))


BATCH = PartitionProduceData(0, b"\0" * 61)


@pytest.mark.parametrize(
    ("modern", "version"),
    [
        (ApiVersionsRequest("kafkalog", "1"), 3),
        (MetadataRequest(None), 1),
        (MetadataRequest((), False), 4),
        (ModernProduceRequest(None, 1, 1500, (TopicProduceData("clicks", (BATCH,)),)), 3),
        (ModernProduceRequest(None, -1, 30_000, (TopicProduceData("clicks", (BATCH,)),)), 9),
    ],
)
def test_today_s_requests_are_not_taken_for_0_7_s(modern: Any, version: int) -> None:
    for client_id in (None, "", "rdkafka", "kafka-python-3.0"):
        parts = exchange.encode_request(modern, version=version, correlation_id=1, client_id=client_id)
        with pytest.raises(InvalidRequest):
            decode_request(joined(parts)[4:])


# --- answers, as a real broker gave them


@pytest.mark.parametrize(
    ("response", "kind", "expected"),
    [
        (
            OffsetsResponse(ErrorCode.NONE, (26,)),
            RequestType.OFFSETS,
            "0000000e 0000 00000001 000000000000001a",
        ),
        (OffsetsResponse(ErrorCode.NONE), RequestType.OFFSETS, "00000006 0000 00000000"),
        (FetchResponse(ErrorCode.NONE), RequestType.FETCH, "00000002 0000"),
        (FetchResponse(ErrorCode.OFFSET_OUT_OF_RANGE), RequestType.FETCH, "00000002 0001"),
        (FetchResponse(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), RequestType.FETCH, "00000002 0003"),
        (FetchResponse(ErrorCode.UNKNOWN_SERVER_ERROR), RequestType.FETCH, "00000002 ffff"),
        (MultiFetchResponse(()), RequestType.MULTIFETCH, "00000002 0000"),
        (
            MultiFetchResponse(
                (
                    FetchResponse(ErrorCode.NONE, bytes.fromhex("0000000900abdef1927a65726f")),
                    FetchResponse(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
                )
            ),
            RequestType.MULTIFETCH,
            "0000001b 0000 0000000f 0000 0000000900abdef1927a65726f 00000002 0003",
        ),
    ],
)
def test_answers_are_written_and_read_as_the_real_broker_gave_them(
    response: Any, kind: RequestType, expected: str
) -> None:
    assert joined(encode_response(response)) == bytes.fromhex(expected)
    assert decode_response(kind, bytes.fromhex(expected)[4:]) == response


class Region:
    """A part of a file, of which only the length is known here."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size


def test_the_messages_of_an_answer_stand_among_its_parts_untouched() -> None:
    first, second, empty = Region(13), Region(1 << 20), Region(0)
    (head, region) = encode_response(FetchResponse(ErrorCode.NONE, first))
    assert (bytes(head), region) == (bytes.fromhex("0000000f 0000"), first)
    answers = (
        FetchResponse(ErrorCode.NONE, first),
        FetchResponse(ErrorCode.NONE, empty),
        FetchResponse(ErrorCode.NONE, second),
    )
    parts = encode_response(MultiFetchResponse(answers))
    assert [part if isinstance(part, Region) else bytes(part).hex(" ", -4) for part in parts] == [
        (2 + 3 * 6 + 13 + (1 << 20)).to_bytes(4, "big").hex(" ", -4) + " 00000000 000f0000",
        first,
        "00000002 0000",
        empty,
        "00100002 0000",
        second,
    ]


def test_the_messages_of_a_multiproduce_stand_among_its_parts_untouched() -> None:
    first, second = Region(10), Region(20)
    parts = encode_request(
        MultiProduceRequest((ProduceRequest("a", 1, first), ProduceRequest("b", 2, second)))
    )
    assert parts[1::2] == [first, second]
    assert bytes(parts[0]) == bytes.fromhex("00000038 0003 0002 0001 61 00000001 0000000a")
    assert bytes(parts[2]) == bytes.fromhex("0001 62 00000002 00000014")


@pytest.mark.parametrize(
    ("kind", "frame"),
    [
        (RequestType.FETCH, ""),
        (RequestType.OFFSETS, "0000"),
        (RequestType.OFFSETS, "0000 00000002 0000000000000001"),
        (RequestType.OFFSETS, "0000 ffffffff"),
        (RequestType.OFFSETS, "0000 00000000 00"),
        (RequestType.MULTIFETCH, "0000 00000002"),
        (RequestType.MULTIFETCH, "0000 00000001 0000"),
        (RequestType.MULTIFETCH, "0000 00000003 0000"),
        (RequestType.MULTIFETCH, "0000 fffffffd 0000"),
        (RequestType.MULTIFETCH, "0000 fffffffc 0000"),
        (RequestType.PRODUCE, "0000"),
        (RequestType.MULTIPRODUCE, "0000"),
    ],
)
def test_an_invalid_answer_is_refused(kind: RequestType, frame: str) -> None:
    with pytest.raises(InvalidRequest):
        decode_response(kind, bytes.fromhex(frame))


def test_an_answer_of_offsets_that_is_only_an_error_is_read() -> None:
    assert decode_response(RequestType.OFFSETS, b"\xff\xff") == OffsetsResponse(
        ErrorCode.UNKNOWN_SERVER_ERROR
    )


def test_errors_that_came_later_are_unknown_to_0_7() -> None:
    assert [known_error(ErrorCode(n)) for n in range(-1, 5)] == list(range(-1, 5))
    assert known_error(ErrorCode.KAFKA_STORAGE_ERROR) is ErrorCode.UNKNOWN_SERVER_ERROR
    assert joined(encode_response(FetchResponse(ErrorCode.KAFKA_STORAGE_ERROR)))[4:] == b"\xff\xff"


def test_a_number_that_does_not_fit_its_field_names_the_request() -> None:
    with pytest.raises(InvalidRequest, match="FetchRequest"):
        encode_request(FetchRequest("t", 1 << 31, 0, 0))
    with pytest.raises(InvalidRequest, match="ProduceRequest"):
        encode_request(ProduceRequest("t" * 40_000, 0, b""))
    with pytest.raises(InvalidRequest, match="MULTIFETCH with 32768 parts"):
        encode_request(MultiFetchRequest((CLICKS,) * 32768))
    with pytest.raises(InvalidRequest, match="offsets"):
        encode_response(OffsetsResponse(ErrorCode.NONE, (1 << 63,)))


def test_an_answer_larger_than_a_frame_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="limit is 2147483647"):
        encode_response(FetchResponse(ErrorCode.NONE, Region((1 << 31) - 2)))
    with pytest.raises(InvalidRequest, match="part of 2147483648 bytes"):
        encode_response(MultiFetchResponse((FetchResponse(ErrorCode.NONE, Region((1 << 31) - 2)),)))


# --- names


@pytest.mark.parametrize(
    "name", ["a", "pr", "té", "a b", "a:b", "...x", "日本", "x" * 255, "\ud7ff", "\uf900", "😀"]
)
def test_topic_names_that_0_7_allows(name: str) -> None:
    check_topic(name)


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "a/b",
        "a\0",
        "\x1f",
        "\x7f",
        "\x9f",
        "\ud800",
        "\ue000",
        "\uf8ff",
        "\ufff0",
        "\uffff",
        "x" * 256,
    ],
)
def test_topic_names_that_0_7_does_not_allow(name: str) -> None:
    with pytest.raises(InvalidTopic):
        check_topic(name)


def test_how_long_a_topic_name_may_be_is_for_the_broker_to_say() -> None:
    check_topic("x" * 10, 10)
    with pytest.raises(InvalidTopic, match="11 characters; allowed: 1 to 10"):
        check_topic("x" * 11, 10)
