"""The hand-written codecs do what the tables say."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_kafkalog.errors import InvalidRequest
from pyspark_kafkalog.protocol.api.fetch import PartitionData
from pyspark_kafkalog.protocol.api.produce import PartitionProduceData
from pyspark_kafkalog.protocol.codec import Codec, codec, table_codec
from pyspark_kafkalog.protocol.primitives import Output
from tests.support.protocol.messages import messages

TUNED = [
    pytest.param(PartitionData, version, version >= 12, id=f"PartitionData-{version}") for version in (11, 12)
] + [
    pytest.param(PartitionProduceData, version, version >= 9, id=f"PartitionProduceData-{version}")
    for version in range(3, 12)
]


def written(by: Codec, value: object) -> tuple[bytes, list[tuple[int, object]]]:
    out = Output()
    by.write(out, value)
    return bytes(out), out.regions


def whole(content: bytes, regions: list[tuple[int, object]]) -> bytes:
    for position, region in reversed(regions):
        content = content[:position] + bytes(region) + content[position:]  # type: ignore[call-overload]
    return content


def outcome(by: Codec, data: bytes) -> object:
    try:
        return by.read(memoryview(data), 0)
    except InvalidRequest:
        return InvalidRequest


@pytest.mark.parametrize(("cls", "version", "flexible"), TUNED)
@settings(deadline=None, max_examples=40)
@given(st.data())
def test_tuned_and_table_write_and_read_the_same(
    cls: type, version: int, flexible: bool, data: st.DataObject
) -> None:
    fast, table = codec(cls, version, flexible), table_codec(cls, version, flexible)
    assert fast.reader is not table.reader
    value = data.draw(messages(cls, version))
    content, regions = written(fast, value)
    assert (content, regions) == written(table, value)
    frame = whole(content, regions)
    for end in range(len(frame) + 1):
        assert outcome(fast, frame[:end]) == outcome(table, frame[:end])


@pytest.mark.parametrize(("cls", "version", "flexible"), TUNED)
@settings(deadline=None, max_examples=40)
@given(st.binary(max_size=90))
def test_tuned_and_table_read_random_bytes_alike(
    cls: type, version: int, flexible: bool, data: bytes
) -> None:
    assert outcome(codec(cls, version, flexible), data) == outcome(table_codec(cls, version, flexible), data)
