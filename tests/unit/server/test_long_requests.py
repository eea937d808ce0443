"""Which requests are for a worker: those that would keep other clients waiting, and no others."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from kafkalog_broker.log.generations import SINCE_08, V07
from kafkalog_broker.metrics import Metrics
from kafkalog_broker.server import handlers  # noqa: F401 - fills the registry
from kafkalog_broker.server.dispatch import MANY, REGISTRY
from kafkalog_broker.server.fetch_sessions import FetchSessions
from kafkalog_broker.server.log_access import LogAccess
from pyspark_kafkalog.formats.compression import Codec
from pyspark_kafkalog.protocol.api.fetch import FetchPartition, FetchRequest, FetchTopic
from pyspark_kafkalog.protocol.api.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
)
from pyspark_kafkalog.protocol.api.log_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from pyspark_kafkalog.protocol.api.metadata import (
    CoordinatorType,
    FindCoordinatorRequest,
    MetadataRequest,
    MetadataRequestTopic,
)
from pyspark_kafkalog.protocol.exchange import ApiKey
from pyspark_kafkalog.types import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from tests.support.log.logs import START_MS, TOPIC, batch, crash_all, message_set, open_log
from tests.support.manual_clock import ManualClock
from tests.support.protocol.raw_client import produce_request


@pytest.fixture
def ctx(tmp_path: Path) -> Any:
    manager, _ = open_log(tmp_path)
    manager.create_topic("first", UUID(int=7), 1, generation=V07.generation)
    yield SimpleNamespace(
        version=12,
        services=SimpleNamespace(
            logs=LogAccess(manager, SINCE_08),
            topics=SimpleNamespace(all=lambda: manager.topics),
            groups=SimpleNamespace(opened=True),
            transactions=SimpleNamespace(opened=False),
            ownership=None,
            fetch_sessions=FetchSessions(10, ManualClock(), Metrics()),
        ),
    )
    crash_all()


def takes_long(request: Any, ctx: Any, key: ApiKey, version: int = 12) -> bool:
    ctx.version = version
    decide = REGISTRY[key].takes_long
    return decide is not None and decide(request, ctx)


@pytest.mark.parametrize(
    ("name", "version", "partitions", "expected"),
    [
        (TOPIC, 12, 1, False),
        (TOPIC, 4, 1, False),
        (TOPIC, 3, 1, True),  # what it reads may have to be converted
        ("first", 12, 1, True),  # Kafka 0.7's: always converted
        ("unknown", 12, 1, False),
        (TOPIC, 12, MANY, False),
        (TOPIC, 12, MANY + 1, True),
    ],
)
def test_fetch(ctx: Any, name: str, version: int, partitions: int, expected: bool) -> None:
    wanted = tuple(FetchPartition(number) for number in range(partitions))
    request = FetchRequest(topics=(FetchTopic(topic=name, partitions=wanted),))
    assert takes_long(request, ctx, ApiKey.FETCH, version) is expected


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        (batch(b"v2", timestamps=[START_MS]), False),
        (batch(b"v2", timestamps=[START_MS], codec=Codec.GZIP), True),  # alone it is tried at once before
        (message_set(b"a", b"b", magic=1), False),
        (message_set(*[b"many"] * 1000, magic=1), True),
        (message_set(b"a", magic=0, codec=Codec.GZIP), True),
        (b"neither", False),
    ],
    ids=["v2", "v2 in gzip", "a few of v1", "many of v1", "v0 in gzip", "nothing sound"],
)
def test_produce(ctx: Any, records: bytes, expected: bool) -> None:
    request = produce_request({(TOPIC, 0): memoryview(bytearray(records))})
    assert takes_long(request, ctx, ApiKey.PRODUCE) is expected


@pytest.mark.parametrize(
    ("timestamp", "count", "expected"),
    [(LATEST_TIMESTAMP, 1, False), (EARLIEST_TIMESTAMP, MANY, False), (EARLIEST_TIMESTAMP, MANY + 1, True),
     (START_MS, 1, True), (-3, 1, True)],
)  # fmt: skip
def test_list_offsets(ctx: Any, timestamp: int, count: int, expected: bool) -> None:
    wanted = (ListOffsetsPartition(partition_index=0, timestamp=timestamp),) * count
    request = ListOffsetsRequest(topics=(ListOffsetsTopic(name=TOPIC, partitions=wanted),))
    assert takes_long(request, ctx, ApiKey.LIST_OFFSETS, 7) is expected


@pytest.mark.parametrize(
    ("names", "expected"), [(None, False), ((TOPIC,), False), (("new",), True), ((TOPIC,) * 101, True)]
)
def test_metadata(ctx: Any, names: tuple[str, ...] | None, expected: bool) -> None:
    topics = None if names is None else tuple(MetadataRequestTopic(name=name) for name in names)
    assert takes_long(MetadataRequest(topics=topics), ctx, ApiKey.METADATA) is expected


@pytest.mark.parametrize(("count", "expected"), [(MANY, False), (MANY + 1, True)])
def test_committed_offsets(ctx: Any, count: int, expected: bool) -> None:
    numbers = range(count)
    commits = tuple(OffsetCommitRequestPartition(number) for number in numbers)
    commit = OffsetCommitRequest("g", topics=(OffsetCommitRequestTopic(name=TOPIC, partitions=commits),))
    assert takes_long(commit, ctx, ApiKey.OFFSET_COMMIT, 8) is expected
    fetch = OffsetFetchRequest("g", topics=(OffsetFetchRequestTopic(TOPIC, tuple(numbers)),))
    assert takes_long(fetch, ctx, ApiKey.OFFSET_FETCH, 7) is expected
    groups = OffsetFetchRequest(groups=(OffsetFetchRequestGroup(group_id="g", topics=()),) * count)
    assert takes_long(groups, ctx, ApiKey.OFFSET_FETCH, 8) is expected
    ctx.services.ownership = "a cluster's"  # it asks ZooKeeper for new topics
    assert takes_long(fetch, ctx, ApiKey.OFFSET_FETCH, 7)


def test_all_offsets_of_a_group_may_be_very_many(ctx: Any) -> None:
    assert takes_long(OffsetFetchRequest("g", topics=None), ctx, ApiKey.OFFSET_FETCH, 7)


@pytest.mark.parametrize(
    ("kind", "expected"), [(CoordinatorType.GROUP, False), (CoordinatorType.TRANSACTION, True)]
)
def test_a_coordinator_that_is_not_open_yet_may_ask_zookeeper(ctx: Any, kind: int, expected: bool) -> None:
    request = FindCoordinatorRequest(key="k", key_type=kind)
    assert takes_long(request, ctx, ApiKey.FIND_COORDINATOR, 3) is expected


def test_what_changes_the_broker_is_for_a_worker_and_what_keeps_members_alive_is_not(ctx: Any) -> None:
    for key in (ApiKey.CREATE_TOPICS, ApiKey.DELETE_TOPICS, ApiKey.CREATE_ACLS, ApiKey.WRITE_TXN_MARKERS):
        assert takes_long(None, ctx, key)
    for key in (ApiKey.HEARTBEAT, ApiKey.JOIN_GROUP, ApiKey.API_VERSIONS, ApiKey.CONSUMER_GROUP_HEARTBEAT):
        assert not takes_long(None, ctx, key)
