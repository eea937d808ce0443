"""The short way for a produce request with one partition says what the tables say."""

from __future__ import annotations

from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from pyspark_kafkalog.errors import InvalidRequest
from pyspark_kafkalog.protocol.api.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
    read_single,
    write_single,
)
from pyspark_kafkalog.protocol.exchange import decode_header, decode_request, encode_request, encode_response

versions = st.integers(3, 11)
int64 = st.integers(-(1 << 63), (1 << 63) - 1)
names = st.text(max_size=12) | st.integers(100, 300).map("n".__mul__)
partitions = st.builds(
    PartitionProduceData,
    index=st.integers(-(1 << 31), (1 << 31) - 1),
    records=st.none() | st.binary(max_size=40) | st.integers(100, 20_000).map(bytes),
)
requests = st.builds(
    ProduceRequest,
    transactional_id=st.none() | st.text(max_size=3),
    acks=st.integers(-1, 2),
    timeout_ms=st.integers(0, 1 << 30),
    topic_data=st.lists(
        st.builds(
            TopicProduceData,
            name=names,
            partition_data=st.lists(partitions, min_size=1, max_size=2).map(tuple),
        ),
        min_size=1,
        max_size=2,
    ).map(tuple),
)


def frame_of(request: ProduceRequest, version: int) -> bytearray:
    parts: list[Any] = encode_request(request, version=version, correlation_id=7, client_id="c")
    return bytearray(b"".join(bytes(part) for part in parts)[4:])


def usual(request: ProduceRequest, version: int) -> bool:
    """Whether the short way must take it; of what is unusual it may take none."""
    topic = request.topic_data[0]
    return (
        request.transactional_id is None
        and len(request.topic_data) == len(topic.partition_data) == 1
        and topic.partition_data[0].records is not None
        and (version < 9 or len(topic.name.encode()) < 127)
    )


def agrees(frame: bytearray, version: int) -> bool:
    """Read both ways; whether the short one took it, after a check that the tables say the same."""
    header, pos = decode_header(frame)
    single = read_single(frame, pos, version)
    if single is None:
        return False
    request: ProduceRequest = decode_request(header, frame, pos)
    (topic,) = request.topic_data
    (partition,) = topic.partition_data
    assert request.transactional_id is None
    assert (single.acks, single.topic, single.name) == (request.acks, topic.name, topic.name.encode())
    assert (single.partition, single.records) == (partition.index, partition.records)
    assert not single.records.readonly
    return True


@given(requests, versions, st.binary(max_size=3))
def test_it_reads_the_usual_request_as_the_tables_do_and_leaves_the_others(
    request: ProduceRequest, version: int, behind: bytes
) -> None:
    assert agrees(frame_of(request, version) + behind, version) == usual(request, version)


@given(requests.filter(lambda r: len(r.topic_data) == 1), versions, st.data())
def test_what_it_takes_of_damaged_bytes_the_tables_take_too(
    request: ProduceRequest, version: int, data: st.DataObject
) -> None:
    frame = frame_of(request, version)
    _, pos = decode_header(frame)
    frame = frame[: data.draw(st.integers(pos, len(frame)))]
    for _ in range(data.draw(st.integers(0, 3)) if len(frame) > pos else 0):
        frame[data.draw(st.integers(pos, min(len(frame), pos + 60) - 1))] = data.draw(st.integers(0, 255))
    agrees(frame, version)


@given(st.binary(max_size=60), versions)
@example(b"", 3)
def test_it_raises_nothing(body: bytes, version: int) -> None:
    frame = bytearray(
        b"\0\0" + version.to_bytes(2, "big") + b"\0\0\0\1\xff\xff" + b"\0" * (version >= 9) + body
    )
    try:
        agrees(frame, version)
    except InvalidRequest as error:
        raise AssertionError("taken, and the tables refuse it") from error


@given(
    st.text(min_size=1, max_size=30), st.integers(0, 1 << 30), st.integers(-(1 << 31), (1 << 31) - 1),
    int64, int64, int64, versions,
)  # fmt: skip
def test_it_answers_in_the_tables_bytes(
    topic: str, partition: int, correlation_id: int, base: int, time: int, start: int, version: int
) -> None:
    data = PartitionProduceData(index=partition, records=b"r")
    frame = frame_of(
        ProduceRequest(acks=1, topic_data=(TopicProduceData(name=topic, partition_data=(data,)),)), version
    )
    single = read_single(frame, decode_header(frame)[1], version)
    assert single is not None
    answer = PartitionProduceResponse(
        index=partition, base_offset=base, log_append_time_ms=time, log_start_offset=start
    )
    response = ProduceResponse(responses=(TopicProduceResponse(name=topic, partition_responses=(answer,)),))
    parts: list[Any] = encode_response(response, version=version, correlation_id=correlation_id)
    assert write_single(
        single, version, correlation_id,
        base_offset=base, log_append_time_ms=time, log_start_offset=start,
    ) == b"".join(bytes(part) for part in parts)  # fmt: skip
