"""What exchange.py adds to the generated readers: headers, and bytes after a message.

That damaged bodies are refused or read as the tables say is in test_generated_readers.py.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_kafkalog.errors import InvalidRequest, KafkaError
from pyspark_kafkalog.protocol.api.metadata import ApiVersionsResponse
from pyspark_kafkalog.protocol.exchange import ApiKey, decode_header, decode_request, decode_response
from tests.support.protocol.messages import CASES, Case, messages

any_case = st.sampled_from(CASES)


def is_refusal(case: Case, frame: bytes) -> bool:
    """Whether these bytes are an ApiVersions answer in version 0 that says: not this version."""
    if case.cls is not ApiVersionsResponse:
        return False
    try:
        decode_response(ApiKey.API_VERSIONS, 0, frame)
    except InvalidRequest:
        return False
    return True


@given(any_case, st.data())
def test_every_prefix_of_a_message_is_an_invalid_request(case: Case, data: st.DataObject) -> None:
    frame = case.frame(data.draw(messages(case.cls, case.version)))
    for end in range(len(frame)):
        if not is_refusal(case, frame[:end]):
            with pytest.raises(InvalidRequest):
                case.read(frame[:end])


@given(any_case, st.data(), st.binary(min_size=1, max_size=3))
def test_bytes_after_a_message_are_ignored_in_requests_and_refused_in_answers(
    case: Case, data: st.DataObject, more: bytes
) -> None:
    message = data.draw(messages(case.cls, case.version))
    frame = case.frame(message)
    if case.is_request:
        assert case.read(frame + more) == message
    else:
        with pytest.raises(InvalidRequest, match=f"{len(more)} bytes after its end"):
            case.read(frame + more)


@given(st.binary(max_size=60))
def test_a_header_of_random_bytes_raises_nothing_but_our_errors(frame: bytes) -> None:
    try:
        header, pos = decode_header(frame)
        decode_request(header, frame, pos)
    except KafkaError:
        pass
