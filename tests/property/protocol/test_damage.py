"""Whatever the bytes are, only `KafkaError` comes out."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from pyspark_kafkalog.errors import InvalidRequest, KafkaError
from pyspark_kafkalog.protocol.api.api_versions import ApiVersionsResponse
from pyspark_kafkalog.protocol.exchange import ApiKey, decode_header, decode_request, decode_response
from tests.support.examples import examples
from tests.support.protocol.messages import Case, by_class, messages

FEW = examples(12, suppress_health_check=list(HealthCheck))


def is_refusal(case: Case, frame: bytes) -> bool:
    """Whether these bytes are an ApiVersions answer in version 0 that says: not this version."""
    if case.cls is not ApiVersionsResponse:
        return False
    try:
        decode_response(ApiKey.API_VERSIONS, 0, frame)
    except InvalidRequest:
        return False
    return True


@by_class()
@FEW
@given(st.data())
def test_every_prefix_of_a_message_is_an_invalid_request(cases: list[Case], data: st.DataObject) -> None:
    case = data.draw(st.sampled_from(cases))
    frame = case.frame(data.draw(messages(case.cls, case.version)))
    for end in range(len(frame)):
        if not is_refusal(case, frame[:end]):
            with pytest.raises(InvalidRequest):
                case.read(frame[:end])


@by_class()
@FEW
@given(st.data(), st.binary(min_size=1, max_size=3))
def test_bytes_after_a_message_are_ignored_in_requests_and_refused_in_answers(
    cases: list[Case], data: st.DataObject, more: bytes
) -> None:
    case = data.draw(st.sampled_from(cases))
    message = data.draw(messages(case.cls, case.version))
    frame = case.frame(message)
    if case.is_request:
        assert case.read(frame + more) == message
    else:
        with pytest.raises(InvalidRequest, match=f"{len(more)} bytes after its end"):
            case.read(frame + more)


@by_class()
@FEW
@given(st.data())
def test_a_changed_byte_raises_nothing_but_our_errors(cases: list[Case], data: st.DataObject) -> None:
    case = data.draw(st.sampled_from(cases))
    frame = bytearray(case.frame(data.draw(messages(case.cls, case.version))))
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, len(frame) - 1))
        frame[position] = data.draw(st.integers(0, 255))
    read_anything(case, bytes(frame))


@by_class()
@examples(30, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_random_bytes_raise_nothing_but_our_errors(cases: list[Case], data: st.DataObject) -> None:
    case = data.draw(st.sampled_from(cases))
    read_anything(case, case.header_bytes + data.draw(st.binary(max_size=80)))


@given(st.binary(max_size=60))
def test_a_header_of_random_bytes_raises_nothing_but_our_errors(frame: bytes) -> None:
    try:
        header, pos = decode_header(frame)
        decode_request(header, frame, pos)
    except KafkaError:
        pass


def read_anything(case: Case, frame: bytes) -> None:
    try:
        if case.is_request:
            header, pos = decode_header(frame)
            decode_request(header, frame, pos)
        else:
            decode_response(case.api.key, case.version, frame)
    except KafkaError:
        pass
