"""The hand-written writers do what the tables say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_kafkalog.protocol.api.fetch import PartitionData
from pyspark_kafkalog.protocol.api.produce import PartitionProduceData
from pyspark_kafkalog.protocol.codec import Codec, codec, table_codec
from pyspark_kafkalog.protocol.primitives import Output
from tests.support.examples import examples
from tests.support.protocol.messages import messages

TUNED = [
    pytest.param(PartitionData, version, version >= 12, id=f"PartitionData-{version}") for version in (11, 12)
] + [
    pytest.param(PartitionProduceData, version, version >= 9, id=f"PartitionProduceData-{version}")
    for version in range(3, 12)
]


def written(by: Codec, value: object) -> bytes:
    """With the regions, which a writer may copy."""
    out = Output()
    by.write(out, value)
    data, done = b"", 0
    for position, region in out.regions:
        data += out[done:position] + bytes(region)
        done = position
    return data + out[done:]


@pytest.mark.parametrize(("cls", "version", "flexible"), TUNED)
@examples(40)
@given(st.data())
def test_tuned_and_table_write_the_same(cls: type, version: int, flexible: bool, data: st.DataObject) -> None:
    fast, table = codec(cls, version, flexible), table_codec(cls, version, flexible)
    assert fast.writer is not table.writer
    value = data.draw(messages(cls, version))
    assert written(fast, value) == written(table, value)
