"""FindCoordinator, OffsetCommit, OffsetFetch."""

from __future__ import annotations

from typing import Any

import pytest

from kafkalog_broker.embedded import EmbeddedBroker, start_broker
from kafkalog_broker.logs.offset_records import CommittedOffset, OffsetKey, decode_key, decode_value
from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.api.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from pyspark_kafkalog.protocol.api.metadata import (
    FindCoordinatorRequest,
    MetadataRequest,
    MetadataRequestTopic,
)
from pyspark_kafkalog.protocol.exchange import ApiKey
from pyspark_kafkalog.types import Record, TopicPartition
from tests.support.protocol.raw_client import RawClient, versions
from tests.support.until import until

OFFSETS = "__consumer_offsets"


def commit(
    client: RawClient,
    group: str,
    offsets: dict[tuple[str, int], int],
    version: int = 8,
    *,
    metadata: str | None = "",
    **fields: Any,
) -> list[ErrorCode]:
    topics = tuple(
        OffsetCommitRequestTopic(
            topic, (OffsetCommitRequestPartition(partition, offset, committed_metadata=metadata),)
        )
        for (topic, partition), offset in offsets.items()
    )
    response = client.ask(OffsetCommitRequest(group_id=group, topics=topics, **fields), version)
    return [p.error_code for t in response.topics for p in t.partitions]


def fetch(
    client: RawClient, group: str, *partitions: tuple[str, int], version: int = 8
) -> dict[tuple[str, int], tuple[int, str | None]]:
    """Offsets and metadata; without ``partitions`` all that the group has."""
    if version >= 8:
        wanted = tuple(OffsetFetchRequestTopics(t, (p,)) for t, p in partitions) or None
        request = OffsetFetchRequest(groups=(OffsetFetchRequestGroup(group, topics=wanted),))
        (answer,) = client.ask(request, version).groups
    else:
        topics = tuple(OffsetFetchRequestTopic(t, (p,)) for t, p in partitions) or None
        answer = client.ask(OffsetFetchRequest(group_id=group, topics=topics), version)
    assert answer.error_code == ErrorCode.NONE
    return {
        (t.name, p.partition_index): (p.committed_offset, p.metadata)
        for t in answer.topics
        for p in t.partitions
    }


def stored(client: RawClient) -> list[tuple[OffsetKey | None, CommittedOffset | None]]:
    return [_entry(r) for r in client.read(OFFSETS)]


def _entry(record: Record) -> tuple[OffsetKey | None, CommittedOffset | None]:
    assert record.key is not None
    key = decode_key(record.key)  # of a group's own record, which has another value: None
    return key, None if key is None or record.value is None else decode_value(record.value)


class TestFindCoordinator:
    def test_this_broker_coordinates_groups_and_transactions_but_no_share_groups(
        self, running_broker: EmbeddedBroker, client: RawClient
    ) -> None:
        here = (ErrorCode.NONE, 0, "127.0.0.1", running_broker.port)
        for version, kind in ((0, 0), (1, 0), (3, 1)):
            answer = client.ask(FindCoordinatorRequest(key="any", key_type=kind), version)
            assert (answer.error_code, answer.node_id, answer.host, answer.port) == here
        answer = client.ask(FindCoordinatorRequest(coordinator_keys=("a", "b")), 4)
        assert [(c.key, c.error_code, c.node_id, c.host, c.port) for c in answer.coordinators] == [
            ("a", *here), ("b", *here),
        ]  # fmt: skip
        (many,) = client.ask(FindCoordinatorRequest(coordinator_keys=("tx",), key_type=2), 4).coordinators
        assert (many.error_code, many.key, many.node_id) == (ErrorCode.INVALID_REQUEST, "tx", -1)


class TestOffsets:
    @pytest.mark.parametrize("version", versions(ApiKey.OFFSET_COMMIT))
    def test_what_is_committed_is_fetched_in_every_version(
        self, client: RawClient, topic: str, version: int
    ) -> None:
        codes = commit(
            client, f"g{version}-{topic}", {(topic, 0): 5, (topic, 1): 7}, version, metadata="note"
        )
        assert codes == [ErrorCode.NONE] * 2
        for v in versions(ApiKey.OFFSET_FETCH):
            found = fetch(client, f"g{version}-{topic}", (topic, 0), (topic, 1), version=v)
            assert found == {(topic, 0): (5, "note"), (topic, 1): (7, "note")}

    @pytest.mark.parametrize("version", [2, 7, 8])
    def test_null_topics_are_all_that_a_group_has(self, client: RawClient, topic: str, version: int) -> None:
        group = f"all-{topic}"
        assert fetch(client, group, version=version) == {}
        commit(client, group, {(topic, 1): 7, (topic, 0): 5})
        assert fetch(client, group, version=version) == {(topic, 0): (5, ""), (topic, 1): (7, "")}

    @pytest.mark.parametrize("version", versions(ApiKey.OFFSET_FETCH))
    def test_nothing_stored_is_minus_one_and_no_error(
        self, client: RawClient, topic: str, version: int
    ) -> None:
        assert fetch(client, "never-seen", (topic, 0), version=version) == {(topic, 0): (-1, "")}

    def test_several_groups_are_fetched_at_once(self, client: RawClient, topic: str) -> None:
        commit(client, f"one-{topic}", {(topic, 0): 1})
        commit(client, f"two-{topic}", {(topic, 0): 2})
        groups = tuple(OffsetFetchRequestGroup(f"{g}-{topic}", topics=None) for g in ("one", "two", "none"))
        answer = client.ask(OffsetFetchRequest(groups=groups), 8)
        assert [
            (g.group_id, [p.committed_offset for t in g.topics for p in t.partitions]) for g in answer.groups
        ] == [(f"one-{topic}", [1]), (f"two-{topic}", [2]), (f"none-{topic}", [])]

    def test_commits_to_partitions_that_do_not_exist_are_error_3_and_fail_no_others(
        self, client: RawClient, topic: str
    ) -> None:
        group = f"unknown-{topic}"
        codes = commit(client, group, {("never-made", 0): 1, (topic, 0): 2, (topic, 9): 3})
        assert codes == [3, 0, 3]
        assert fetch(client, group) == {(topic, 0): (2, "")}

    def test_metadata_has_a_limit(self, client: RawClient, topic: str) -> None:
        group = f"meta-{topic}"
        assert commit(client, group, {(topic, 0): 1}, metadata="x" * 20) == [ErrorCode.NONE]
        too_long = commit(client, group, {(topic, 0): 2}, metadata="é" * 11)
        assert too_long == [ErrorCode.OFFSET_METADATA_TOO_LARGE]
        assert commit(client, group, {(topic, 1): 2}, metadata=None) == [ErrorCode.NONE]
        assert fetch(client, group) == {(topic, 0): (1, "x" * 20), (topic, 1): (2, "")}

    def test_a_commit_as_a_member_of_no_group_is_refused(self, client: RawClient, topic: str) -> None:
        codes = commit(
            client, f"m-{topic}", {(topic, 0): 1}, generation_id_or_member_epoch=3, member_id="member-1"
        )
        assert codes == [ErrorCode.ILLEGAL_GENERATION]
        assert fetch(client, f"m-{topic}") == {}

    def test_an_empty_commit_is_answered_empty(self, client: RawClient) -> None:
        assert client.ask(OffsetCommitRequest(group_id="empty")).topics == ()


class TestStorage:
    def test_commits_are_records_of_the_internal_topic_in_kafkas_layout(self) -> None:
        with start_broker({"offsets.topic.num.partitions": 1}) as broker, RawClient(broker.port) as client:
            client.create_topic("t")
            commit(client, "g", {("t", 0): 42}, metadata="m")
            commit(client, "g", {("t", 0): 43}, 4, retention_time_ms=60_000)
            first, second = stored(client)
            key = OffsetKey("g", TopicPartition("t", 0))
            assert first[0] == second[0] == key
            assert first[1] is not None
            assert second[1] is not None
            assert (first[1].offset, first[1].metadata, first[1].expire_timestamp_ms) == (42, "m", -1)
            assert second[1].expire_timestamp_ms - second[1].commit_timestamp_ms == 60_000
            (described,) = client.ask(MetadataRequest((MetadataRequestTopic(name=OFFSETS),))).topics
            assert (described.is_internal, len(described.partitions)) == (True, 1)

    def test_a_retention_beyond_all_times_is_kept_as_the_last_of_them(
        self, client: RawClient, topic: str
    ) -> None:
        group = "for-ever"
        offsets = {(topic, 0): 44}
        assert commit(client, group, offsets, 2, retention_time_ms=2**63 - 1) == [ErrorCode.NONE]
        assert fetch(client, group) == {(topic, 0): (44, "")}
        expires = [v.expire_timestamp_ms for k, v in stored(client) if k and v and k.group == group]
        assert expires == [2**63 - 1]

    @pytest.mark.long("a broker that is started more than once")
    def test_offsets_survive_a_restart_and_a_crash(self) -> None:
        groups = [f"group-{i}" for i in range(20)]
        with start_broker({"offsets.topic.num.partitions": 7}) as broker:
            with RawClient(broker.port) as client:
                client.create_topic("t", 3)
                for i, group in enumerate(groups):
                    commit(client, group, {("t", 0): i, ("t", 1): 2 * i}, metadata=f"m{i}")
                    commit(client, group, {("t", 0): i + 100})
            for again in (broker.restart, broker.kill):
                again()
                if not broker.running:
                    broker.start()
                with RawClient(broker.port) as client:
                    for i, group in enumerate(groups):
                        expected = {("t", 0): (i + 100, ""), ("t", 1): (2 * i, f"m{i}")}
                        assert fetch_loaded(client, group) == expected


def fetch_loaded(client: RawClient, group: str) -> dict[tuple[str, int], tuple[int, str | None]]:
    """As `fetch`, after the coordinator has finished loading."""
    request = OffsetFetchRequest(groups=(OffsetFetchRequestGroup(group, topics=None),))
    loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    until(lambda: client.ask(request, 8).groups[0].error_code != loading)
    return fetch(client, group)
