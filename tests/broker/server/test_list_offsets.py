from __future__ import annotations

import pytest

from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.formats.compression import Codec
from pyspark_kafkalog.protocol.api.log_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from pyspark_kafkalog.protocol.exchange import ApiKey
from tests.support.protocol.raw_client import RawClient, batch, versions

FIRST_MS = 1_600_000_000_000


@pytest.fixture
def timed(client: RawClient, topic: str) -> str:
    """Partition 0 with offsets 0-8 in batches of three; batch ``i`` begins ``i`` seconds after `FIRST_MS`."""
    for i, codec in enumerate((Codec.NONE, Codec.GZIP, Codec.ZSTD)):
        client.produce(topic, batch(b"a", b"b", b"c", timestamp=FIRST_MS + 1000 * i, codec=codec))
    return topic


@pytest.mark.parametrize("version", versions(ApiKey.LIST_OFFSETS)[1:])
def test_begin_end_and_time_in_every_version_that_has_one_offset(
    client: RawClient, timed: str, version: int
) -> None:
    latest = client.offset_at(timed, -1, version=version)
    earliest = client.offset_at(timed, -2, version=version)
    at = client.offset_at(timed, FIRST_MS + 1001, version=version)
    assert [(r.error_code, r.timestamp, r.offset) for r in (latest, earliest, at)] == [
        (0, -1, 9),
        (0, -1, 0),
        (0, FIRST_MS + 1001, 4),
    ]
    assert latest.leader_epoch == (0 if version >= 4 else -1)


def test_after_the_last_record_there_is_none(client: RawClient, timed: str) -> None:
    found = client.offset_at(timed, FIRST_MS + 2003)
    assert (found.error_code, found.offset, found.timestamp, found.leader_epoch) == (0, -1, -1, -1)


def test_the_greatest_timestamp_is_found_from_version_7_on(client: RawClient, timed: str) -> None:
    client.produce(timed, batch(b"old", timestamp=FIRST_MS - 5000))
    found = client.offset_at(timed, -3)
    assert (found.offset, found.timestamp) == (8, FIRST_MS + 2002)
    assert client.offset_at(timed, -3, version=6).error_code == ErrorCode.UNSUPPORTED_VERSION


def test_an_empty_partition_has_both_ends_at_0_and_no_times(client: RawClient, topic: str) -> None:
    assert [client.offset_at(topic, t).offset for t in (-1, -2, -3, 0)] == [0, 0, -1, -1]


@pytest.mark.parametrize("timestamp", [-4, -5, -(2**63)])
def test_other_names_for_offsets_are_refused(client: RawClient, timed: str, timestamp: int) -> None:
    assert client.offset_at(timed, timestamp).error_code == ErrorCode.INVALID_REQUEST


def test_one_bad_partition_does_not_fail_the_others(client: RawClient, timed: str) -> None:
    wanted = tuple(
        ListOffsetsPartition(partition_index=p, timestamp=-1, current_leader_epoch=e)
        for p, e in ((9, -1), (0, 3), (0, 0))
    )
    response = client.ask(ListOffsetsRequest(topics=(ListOffsetsTopic(timed, wanted),)))
    assert [(r.error_code, r.offset) for r in response.topics[0].partitions] == [
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1),
        (ErrorCode.UNKNOWN_LEADER_EPOCH, -1),
        (ErrorCode.NONE, 9),
    ]
