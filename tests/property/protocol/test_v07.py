"""0.7's requests and answers of any content: written and read, cut, damaged, and sent piece by piece."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_kafkalog.errors import InvalidRequest
from pyspark_kafkalog.protocol.exchange import FrameReader
from pyspark_kafkalog.protocol.v07 import (
    ERROR_CODES,
    FetchRequest,
    FetchResponse,
    MultiFetchRequest,
    MultiFetchResponse,
    MultiProduceRequest,
    OffsetsRequest,
    OffsetsResponse,
    ProduceRequest,
    RequestType,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)
from tests.support.network.fed_frames import feed

int32 = st.integers(-(1 << 31), (1 << 31) - 1)
int64 = st.integers(-(1 << 63), (1 << 63) - 1)
topics = st.text(st.characters(codec="utf-8"), max_size=12)
sets = st.binary(max_size=40)
errors = st.sampled_from(sorted(ERROR_CODES))

produces = st.builds(ProduceRequest, topics, int32, sets)
fetches = st.builds(FetchRequest, topics, int32, int64, int32)
requests = st.one_of(
    produces,
    fetches,
    st.builds(MultiFetchRequest, st.lists(fetches, max_size=4).map(tuple)),
    st.builds(MultiProduceRequest, st.lists(produces, max_size=4).map(tuple)),
    st.builds(OffsetsRequest, topics, int32, int64, int32),
)
fetched = st.builds(FetchResponse, errors, sets)
answers: st.SearchStrategy[tuple[RequestType, Any]] = st.one_of(
    st.tuples(st.just(RequestType.FETCH), fetched),
    st.tuples(
        st.just(RequestType.MULTIFETCH),
        st.builds(MultiFetchResponse, st.lists(fetched, max_size=4).map(tuple)),
    ),
    st.tuples(
        st.just(RequestType.OFFSETS),
        st.builds(OffsetsResponse, errors, st.lists(int64, max_size=4).map(tuple)),
    ),
)


def joined(parts: list[Any]) -> bytes:
    return b"".join(map(bytes, parts))


@given(requests)
def test_a_request_is_read_as_it_was_written(request_07: Any) -> None:
    frame = joined(encode_request(request_07))
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    assert decode_request(frame[4:]) == request_07


@given(answers)
def test_an_answer_is_read_as_it_was_written(answer: tuple[RequestType, Any]) -> None:
    kind, response = answer
    frame = joined(encode_response(response))
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    assert decode_response(kind, frame[4:]) == response


@given(requests, st.binary(max_size=3), st.data())
def test_a_request_cut_or_with_bytes_after_it_is_refused(
    request_07: Any, more: bytes, data: st.DataObject
) -> None:
    frame = joined(encode_request(request_07))[4:]
    cut = data.draw(st.integers(0, len(frame) - 1))
    with pytest.raises(InvalidRequest):
        decode_request(frame[:cut])
    if more:
        with pytest.raises(InvalidRequest):
            decode_request(frame + more)


@given(
    st.binary(max_size=60)
    | st.builds(lambda n, b: bytes([0, n]) + b, st.integers(0, 4), st.binary(max_size=60))
)
def test_garbage_is_an_invalid_request_or_none(frame: bytes) -> None:
    for read in (decode_request, *(lambda f, k=kind: decode_response(k, f) for kind in RequestType)):
        try:
            read(frame)
        except InvalidRequest:
            pass


@given(st.lists(requests, max_size=5), st.data())
def test_requests_do_not_depend_on_how_the_stream_is_cut(sent: list[Any], data: st.DataObject) -> None:
    stream = b"".join(joined(encode_request(one)) for one in sent)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    reader, got = FrameReader(1 << 20), []
    for start, stop in pairwise([0, *cuts, len(stream)]):
        got += [decode_request(frame) for frame in feed(reader, stream[start:stop])]
    assert got == sent
