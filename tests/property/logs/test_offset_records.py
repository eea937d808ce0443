from __future__ import annotations

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from kafkalog_broker.logs.offset_records import (
    CommittedOffset,
    OffsetKey,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)
from pyspark_kafkalog.errors import KafkaError
from pyspark_kafkalog.types import TopicPartition

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
keys = st.builds(OffsetKey, texts, st.builds(lambda *where: TopicPartition(*where), texts, int32))


@given(keys)
def test_a_key_survives_the_round_trip(key: OffsetKey) -> None:
    assert decode_key(encode_key(key)) == key


@given(int64, int32, texts, int64, st.integers(-1, 2**63 - 1), st.uuids())
def test_a_value_with_its_topics_id_survives_whole(
    offset: int, epoch: int, metadata: str, time: int, expires: int, topic_id: UUID
) -> None:
    value = CommittedOffset(offset, epoch, metadata, time, expires, topic_id)
    assert decode_value(encode_value(value)) == value


@given(int64, int32, texts, int64, st.integers(0, 2**63 - 1))
def test_a_value_with_only_an_expiry_survives_but_for_its_epoch(
    offset: int, epoch: int, metadata: str, time: int, expires: int
) -> None:
    value = CommittedOffset(offset, epoch, metadata, time, expires)
    assert decode_value(encode_value(value)) == CommittedOffset(offset, -1, metadata, time, expires)


@given(st.binary(max_size=60))
def test_garbage_raises_kafka_errors_only(data: bytes) -> None:
    for decode in (decode_key, decode_value):
        try:
            decode(data)
        except KafkaError:
            pass
